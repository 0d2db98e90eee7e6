#include "lib/session/estimate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include "lib/kv/compressed_tier.h"
#include "lib/kv/file_tier.h"
#include "lib/model/strategy_context.h"
#include "lib/session/session.h"
#include "lib/session/stream.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCacheBytes = int64_t{64} << 20;  // of the deepest measurement
constexpr int64_t kTierBytes = int64_t{16} << 20;   // of the records that try a tier
constexpr int64_t kFirstTokens = 8;                 // of the block that says how many tokens a measurement may have
constexpr double kMeasurementNs = 2e8;              // of a measurement, about
constexpr int64_t kMostDecoded = 8;
constexpr size_t kRepeats = 3;
constexpr uint64_t kSeed = 1;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// A session to measure steps in, with everything in memory.
class Trial {
 public:
  static Result<std::unique_ptr<Trial>> make(const std::shared_ptr<Model>& model, SessionOptions options) {
    options.device_budget_bytes = 0;
    options.kv_budget_bytes = 0;
    options.compressed_budget_bytes = 0;
    options.spill_directory.clear();
    options.overflow = OverflowPolicy::kExtrapolate;
    options.reuse_prefixes = false;  // what it has computed is of no use to others
    QUIRE_ASSIGN(auto session, Session::create(model, std::move(options)));
    return std::unique_ptr<Trial>(new Trial(std::move(session)));
  }
  ~Trial() { session_->close(); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  struct Times {
    double prefill_ns = 0, decode_ns = 0;  // of a token
  };
  // Behind `depth` tokens, in blocks of n: medians of a few, which follow on each other.
  Result<Times> measure(int64_t depth, int64_t n) {
    std::vector<double> prefills, decodes;
    const auto begin = Clock::now();
    do {
      if (depth == 0 || prefills.empty()) QUIRE_TRY(session_->reset());
      if (depth > 0 && prefills.empty()) {
        QUIRE_TRY(session_->fill_random(depth, kSeed));
        waiting_ = true;
      }
      QUIRE_ASSIGN(prefills.emplace_back(), prefill(n));
      QUIRE_ASSIGN(decodes.emplace_back(), decode());
    } while (prefills.size() < kRepeats && seconds_since(begin) < 1e-9 * kMeasurementNs);
    return Times{median(prefills), median(decodes)};
  }

  // Nanoseconds a token, of n.
  Result<double> prefill(int64_t n) {
    const int32_t vocab = session_->model().llama->config().vocab_size;
    std::vector<int32_t> tokens(static_cast<size_t>(waiting_ ? n - 1 : n));
    waiting_ = false;
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % static_cast<uint32_t>(vocab));
    QUIRE_TRY(session_->feed_tokens(tokens));
    QUIRE_ASSIGN(const double ns, run(0));
    return ns / static_cast<double>(n);
  }

  // Of one token or, where that takes little, of some.
  Result<double> decode() {
    QUIRE_ASSIGN(const double one, run(1));
    if (one * kMostDecoded > kMeasurementNs) return one;
    QUIRE_ASSIGN(const double all, run(kMostDecoded));
    return all / kMostDecoded;
  }

 private:
  // Reads what was fed and generates max_tokens tokens, all of which are computed, each in a step. How long the steps
  // took.
  Result<double> run(int64_t max_tokens) {
    StreamOptions options;
    options.max_tokens = max_tokens;
    options.ignore_eos = true;
    SessionStats before, after;
    QUIRE_TRY(session_->stats(&before));
    QUIRE_ASSIGN(const auto stream, GenerationStream::open(session_, options));
    for (;;) {
      const StreamEvent* event = nullptr;
      QUIRE_ASSIGN(const NextResult result, stream->next(-1, &event));
      if (result == NextResult::kEnd) break;
      if (event->finish == FinishReason::kCancelled) return Status(Code::kCancelled, "the estimate was cancelled");
    }
    QUIRE_TRY(session_->stats(&after));
    return static_cast<double>(after.prefill_ns - before.prefill_ns + after.decode_ns - before.decode_ns);
  }

  explicit Trial(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  const std::shared_ptr<Session> session_;
  bool waiting_ = false;  // the last token of the random text is to be computed
  std::minstd_rand random_{1};
};

struct Costs {
  std::vector<KeyCost> prefill, decode;
  int64_t deepest = 0;
};

// At nothing, half of the greatest depth, and that.
Result<Costs> measure_depths(Trial& trial, const SessionLoad& load, int64_t deepest, int64_t block) {
  QUIRE_TRY(trial.prefill(1).status());  // what is made once
  QUIRE_ASSIGN(const double first_ns, trial.prefill(kFirstTokens));
  const auto affordable = static_cast<int64_t>(kMeasurementNs / std::max(1.0, first_ns));
  const int64_t n = std::clamp(affordable, std::min(kFirstTokens, block), block);
  Costs costs;
  for (const int64_t depth : {int64_t{0}, deepest / 2, deepest}) {
    if (!costs.prefill.empty() && depth <= costs.deepest) break;
    QUIRE_ASSIGN(const Trial::Times times, trial.measure(depth, n));
    costs.prefill.push_back({load.prefill_keys(depth + n / 2), times.prefill_ns});
    costs.decode.push_back({load.decode_keys(depth + n), times.decode_ns});
    costs.deepest = depth;
  }
  return costs;
}

// A record whose elements look like those of keys and values to a compressor: mantissas of noise, few exponents.
std::vector<std::byte> make_record(int64_t bytes, ElementType type) {
  std::minstd_rand random(1);
  const size_t width = element_bytes(type);
  std::vector<std::byte> record(static_cast<size_t>(bytes));
  for (size_t i = 0; i < record.size(); ++i) {
    const auto noise = static_cast<uint32_t>(random() >> 7);
    record[i] = static_cast<std::byte>(i % width == width - 1 ? 0x38 + noise % 8 : noise);
  }
  return record;
}

// Writes records, lets `settle` see to it that they are where they belong, and reads them back in no order.
template <typename Settle>
Result<TierRate> measure_tier(Tier& tier, const std::vector<std::byte>& record, const Settle& settle) {
  const auto n = std::max<int64_t>(2, kTierBytes / static_cast<int64_t>(record.size()));
  QUIRE_ASSIGN(std::vector<int64_t> slots, tier.take_slots(n));
  const double bytes = static_cast<double>(n) * static_cast<double>(record.size());
  TierRate rate;
  auto begin = Clock::now();
  for (const int64_t slot : slots) QUIRE_TRY(tier.write(slot, record.data()));
  QUIRE_TRY(settle());
  rate.write = bytes / std::max(1e-9, seconds_since(begin));
  std::shuffle(slots.begin(), slots.end(), std::minstd_rand(1));
  std::vector<std::byte> back(record.size());
  constexpr size_t kAhead = 8;
  begin = Clock::now();
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + kAhead < slots.size()) tier.will_read(slots[i + kAhead]);
    QUIRE_TRY(tier.read(slots[i], back.data()));
  }
  rate.read = bytes / std::max(1e-9, seconds_since(begin));
  return rate;
}

// Of copies between a device and the host's memory below it.
Result<TierRate> measure_host(Backend& backend, const std::vector<std::byte>& record) {
  QUIRE_ASSIGN(const auto host, backend.allocate(record.size(), MemoryKind::kStaging));
  QUIRE_ASSIGN(const auto device, backend.allocate(record.size(), MemoryKind::kDevice));
  QUIRE_ASSIGN(const auto queue, backend.create_queue());
  std::memcpy(host->host(), record.data(), record.size());
  const auto n = std::max<int64_t>(2, kTierBytes / static_cast<int64_t>(record.size()));
  const auto rate_of = [&](const auto& copy) -> Result<double> {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < n; ++i) {
      QUIRE_TRY(copy());
      QUIRE_TRY(finish_queue(backend, *queue));
    }
    return static_cast<double>(n) * static_cast<double>(record.size()) / std::max(1e-9, seconds_since(begin));
  };
  TierRate rate;
  QUIRE_ASSIGN(rate.read, rate_of([&] { return backend.upload(*queue, host->host(), *device, 0, record.size()); }));
  QUIRE_ASSIGN(rate.write, rate_of([&] { return backend.download(*queue, *device, 0, host->host(), record.size()); }));
  return rate;
}

Result<std::vector<TierRate>> measure_tiers(const Model& model, const SessionOptions& options, int64_t record_bytes) {
  std::vector<TierRate> tiers;
  const auto record = make_record(record_bytes, options.kv_type);
  if (Backend& backend = model.llama->backend(); backend.has_own_memory()) {
    QUIRE_ASSIGN(TierRate rate, measure_host(backend, record));
    if (options.kv_budget_bytes > 0) rate.capacity = options.kv_budget_bytes;
    tiers.push_back(rate);
  }
  if (options.compressed_budget_bytes > 0) {
    const auto width = static_cast<int64_t>(element_bytes(options.kv_type));
    const int64_t n = std::max<int64_t>(2, kTierBytes / record_bytes);
    CompressedTier::Options tier{record_bytes, width, CompressedTier::most_bytes(record_bytes, width, n), {}};
    QUIRE_ASSIGN(const auto compressed, CompressedTier::create(model.runtime->allocator(), tier, nullptr));
    QUIRE_ASSIGN(TierRate rate, measure_tier(*compressed, record, [] { return Status(); }));
    // What records compress to is not known; those that do not compress count in full.
    rate.capacity = options.spill_directory.empty() ? kNoLimit : options.compressed_budget_bytes;
    tiers.push_back(rate);
  }
  if (!options.spill_directory.empty()) {
    QUIRE_ASSIGN(const auto file, FileTier::create(options.spill_directory, record_bytes, 0));
    QUIRE_ASSIGN(const TierRate rate, measure_tier(*file, record, [&] { return file->forget_cached(); }));
    tiers.push_back(rate);
  }
  return tiers;
}

// Text keys and entries that are held behind so many tokens, but in layers with a window.
int64_t held_keys(const Strategy& strategy, int64_t n_tokens) {
  int64_t n = strategy.condensed_entries(n_tokens);
  for (const KeyRange& range : strategy.retained(ChunkStore::first_spare_query(n_tokens, strategy.kv_chunk()))) {
    n += std::max<int64_t>(0, std::min(range.end, n_tokens) - range.begin);
  }
  return n;
}

}  // namespace

double keys_seen(const Strategy& strategy, const ModelConfig& config, int64_t query, bool generated) {
  Plan plan;
  generated ? strategy.plan_generated(query, 1, plan) : strategy.plan(query, 1, plan);
  double keys = visible_keys(plan, config.n_query_heads);
  if (plan.most_selected() > 0) keys += 0.5 * static_cast<double>(query) / static_cast<double>(plan.selection.chunk);
  if (!strategy.window_layers()) return keys;
  Plan windowed;
  strategy.window_layers()->plan(query, 1, windowed);
  const auto n_windowed = static_cast<double>(std::ranges::count(config.window_layers, true));
  const double part = n_windowed / config.n_layers;
  return (1 - part) * keys + part * visible_keys(windowed, config.n_query_heads);
}

Result<RateEstimate> estimate_rates(const std::shared_ptr<Model>& model, const SessionOptions& options,
                                    int64_t n_tokens) {
  const auto begin = Clock::now();
  SessionOptions planned = options;
  if (planned.expected_tokens == 0) planned.expected_tokens = n_tokens;
  QUIRE_ASSIGN(const std::shared_ptr<const Strategy> strategy, choose_strategy(*model, planned));
  planned.strategy = strategy->canonical();
  const ModelConfig& config = model->llama->config();
  const KvGeometry geometry = model->llama->kv_geometry(*strategy, planned.kv_type);
  const Backend& backend = model->llama->backend();
  const auto record_bytes = static_cast<int64_t>(backend.kv_record_bytes(geometry));
  const WindowLayers windowed = window_layers(config, *strategy, planned.keep_behind_windows);
  const int64_t windowed_bytes = record_bytes * windowed.n(), n_others = config.n_layers - windowed.n();
  const int64_t chunk_bytes = record_bytes * n_others;
  const int64_t narrow_bytes =  // of a chunk of old text; 0: it has full records
      planned.old_text.narrows()
          ? static_cast<int64_t>(backend.kv_record_bytes(narrow_geometry(geometry, planned.old_text))) * n_others
          : 0;

  SessionLoad load;
  load.n_tokens = n_tokens;
  load.prefill_block = std::min(planned.prefill_block, strategy->window_end(0));
  const TierBudget& budget = *model->residency->budget();
  const int64_t runtime_limit = budget.limit();
  if (const int64_t own = first_budget(backend, planned); own > 0) load.memory_bytes = own;
  if (runtime_limit > 0) load.memory_bytes = std::min(load.memory_bytes, runtime_limit);
  if (const int64_t free = backend.free_device_bytes(); free != kNoLimit) {
    // Records of other sessions leave when this one needs their place.
    const int64_t left = std::max<int64_t>(0, free - backend.device_bytes_for_work());
    load.memory_bytes = std::min(load.memory_bytes, budget.used() + left);
  }
  load.prefill_selects = strategy->chunks_selected(n_tokens - 1) > 0;
  load.decode_selects = strategy->selects_chunks();
  if (load.decode_selects) {
    const int64_t n_chosen = strategy->selection().most(n_tokens - 1) * config.n_query_heads;
    load.selected_bytes =
        static_cast<double>(n_chosen) * static_cast<double>(narrow_bytes > 0 ? narrow_bytes : chunk_bytes);
  }
  const auto keys_by_depth = [&](bool generated) {
    return [&, generated](int64_t depth) { return keys_seen(*strategy, config, depth, generated); };
  };
  load.prefill_keys = keys_by_depth(false);
  load.decode_keys = keys_by_depth(true);
  load.held_bytes = [&](int64_t depth) {
    const auto bytes_of = [&](int64_t bytes, int64_t keys) {
      return static_cast<double>(bytes) / static_cast<double>(geometry.chunk) * static_cast<double>(keys);
    };
    const int64_t keys = held_keys(*strategy, depth);
    const int64_t spare = windowed.tokens + ChunkStore::kSpareChunks * geometry.chunk;
    const double in_windows = bytes_of(windowed_bytes, windowed.drops() ? std::min(depth, spare) : depth);
    if (narrow_bytes == 0) return bytes_of(chunk_bytes, keys) + in_windows;
    const int64_t young = std::min(keys, depth - planned.old_text.before(depth, geometry.chunk));
    const int64_t both = std::min(keys - young, ChunkStore::kSpareChunks * geometry.chunk);
    return bytes_of(chunk_bytes, young + both) + bytes_of(narrow_bytes, keys - young) + in_windows;
  };

  RateEstimate estimate;
  const int64_t block = std::clamp<int64_t>(n_tokens, 1, load.prefill_block);
  const int64_t deepest = std::min(std::max<int64_t>(0, n_tokens - block),
                                   std::max<int64_t>(2, kCacheBytes / (chunk_bytes + windowed_bytes)) * geometry.chunk);
  QUIRE_ASSIGN(auto trial, Trial::make(model, planned));
  QUIRE_ASSIGN(const Costs costs, measure_depths(*trial, load, deepest, block));
  trial.reset();
  estimate.measured_tokens = costs.deepest + block;
  QUIRE_ASSIGN(const auto tiers, measure_tiers(*model, planned, record_bytes));
  if (!tiers.empty()) estimate.tier_read_rate = tiers.back().read;
  estimate.rates = session_rates(KeyCosts(costs.prefill), KeyCosts(costs.decode), tiers, load);
  estimate.seconds = seconds_since(begin);
  return estimate;
}

}  // namespace quire
