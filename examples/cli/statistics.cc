#include "statistics.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "document.h"

namespace cli {
namespace {

constexpr std::pair<const char*, int32_t> kTiers[] = {{"device", QUIRE_TIER_DEVICE},
                                                      {"host", QUIRE_TIER_HOST},
                                                      {"compressed", QUIRE_TIER_COMPRESSED},
                                                      {"file", QUIRE_TIER_FILE},
                                                      {"snapshot", QUIRE_TIER_SNAPSHOT}};

// A snapshot has no bytes of its own.
bool is_used(const quire_tier_stats& stats) { return stats.bytes_peak > 0 || stats.n_chunks > 0 || stats.n_hits > 0; }

}  // namespace

nlohmann::ordered_json tier_json(const quire_session* session) {
  nlohmann::ordered_json tiers = nlohmann::ordered_json::object();
  for (const auto& [name, tier] : kTiers) {
    const quire_tier_stats stats = get_tier_stats(session, tier);
    if (!is_used(stats)) continue;
    tiers[name] = {{"budget_bytes", stats.budget_bytes},
                   {"bytes", stats.bytes},
                   {"bytes_peak", stats.bytes_peak},
                   {"n_chunks", stats.n_chunks},
                   {"n_hits", stats.n_hits},
                   {"n_misses", stats.n_misses},
                   {"n_evicted", stats.n_evicted},
                   {"bytes_read", stats.bytes_read},
                   {"bytes_written", stats.bytes_written},
                   {"stall_seconds", 1e-9 * static_cast<double>(stats.stall_ns)}};
  }
  return tiers;
}

void print_tiers(const quire_session* session) {
  std::fprintf(stderr, "%-10s %11s %11s %11s %8s %8s %8s %8s %11s %11s %8s\n", "tier", "budget", "held", "peak",
               "chunks", "hits", "misses", "evicted", "read", "written", "stall s");
  for (const auto& [name, tier] : kTiers) {
    const quire_tier_stats stats = get_tier_stats(session, tier);
    if (!is_used(stats)) continue;
    const std::string budget = stats.budget_bytes > 0 ? human_bytes(stats.budget_bytes) : "-";
    const auto count = [](int64_t n) { return static_cast<long long>(n); };
    std::fprintf(stderr, "%-10s %11s %11s %11s %8lld %8lld %8lld %8lld %11s %11s %8.3f\n", name, budget.c_str(),
                 human_bytes(stats.bytes).c_str(), human_bytes(stats.bytes_peak).c_str(), count(stats.n_chunks),
                 count(stats.n_hits), count(stats.n_misses), count(stats.n_evicted),
                 human_bytes(stats.bytes_read).c_str(), human_bytes(stats.bytes_written).c_str(),
                 1e-9 * static_cast<double>(stats.stall_ns));
  }
}

}  // namespace cli
