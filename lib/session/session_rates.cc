#include "lib/session/session_rates.h"

#include <algorithm>

namespace quire {
namespace {

constexpr int64_t kMostSteps = 4096;  // of the sum over a text

// How long it takes to move the bytes [begin, end) of those that are not in memory.
double moving_seconds(std::span<const TierRate> tiers, double TierRate::*rate, double begin, double end) {
  double seconds = 0;
  for (const TierRate& tier : tiers) {
    const auto capacity = static_cast<double>(tier.capacity);
    const double part = std::min(end, capacity) - std::max(0.0, begin);
    if (part > 0 && tier.*rate > 0) seconds += part / tier.*rate;
    begin -= capacity;
    end -= capacity;
  }
  return seconds;
}

}  // namespace

KeyCosts::KeyCosts(std::span<const KeyCost> measured) {
  const auto by_keys = [](const KeyCost& a, const KeyCost& b) { return a.keys < b.keys; };
  const auto [least, most] = std::minmax_element(measured.begin(), measured.end(), by_keys);
  if (most->keys > least->keys && most->ns > least->ns) {
    per_key_ = (most->ns - least->ns) / (most->keys - least->keys);
    at_none_ = std::max(0.0, least->ns - per_key_ * least->keys);
    return;
  }
  for (const KeyCost& cost : measured) at_none_ += cost.ns / static_cast<double>(measured.size());
}

SessionRates session_rates(const KeyCosts& prefill, const KeyCosts& decode, std::span<const TierRate> tiers,
                           const SessionLoad& load) {
  const auto missing = [&](int64_t depth) {
    if (load.memory_bytes == kNoLimit) return 0.0;
    return std::max(0.0, load.held_bytes(depth) - static_cast<double>(load.memory_bytes));
  };
  SessionRates rates;
  const int64_t step = std::max(load.prefill_block, ceil_div(load.n_tokens, kMostSteps));
  const double blocks_in_step = static_cast<double>(step) / static_cast<double>(load.prefill_block);
  for (int64_t first = 0; first < load.n_tokens; first += step) {
    const int64_t end = std::min(first + step, load.n_tokens), middle = first + (end - first) / 2;
    double moving = moving_seconds(tiers, &TierRate::write, missing(first), missing(end));
    if (!load.prefill_selects) {
      moving += blocks_in_step * moving_seconds(tiers, &TierRate::read, 0, missing(middle));
    }
    const double computing = static_cast<double>(end - first) * prefill.seconds(load.prefill_keys(middle));
    rates.prefill_seconds += std::max(computing, moving);
  }
  const double computing = decode.seconds(load.decode_keys(load.n_tokens));
  if (load.decode_selects) {
    const double chosen = std::min(missing(load.n_tokens), load.selected_bytes);
    rates.decode_token_seconds = computing;
    rates.decode_token_cold_seconds = computing + moving_seconds(tiers, &TierRate::read, 0, chosen);
  } else {
    rates.decode_token_seconds = std::max(computing, moving_seconds(tiers, &TierRate::read, 0, missing(load.n_tokens)));
    rates.decode_token_cold_seconds = rates.decode_token_seconds;
  }
  return rates;
}

}  // namespace quire
