// The rules of `auto`, first match first:
//   1. The expected text is longer than the trained length and the model has beacon weights, whose memory the budget
//      holds: beacon.
//   2. The keys and values that the text needs exceed the budget: a method of bounded memory; where slower tiers hold
//      the rest, longheads, which keeps the whole text and reads little of it back for a token.
//   3. The model has a sliding window of its own: full. The window bounds distances and memory already.
//   4. The checkpoint asks for Dual Chunk Attention: dca with the checkpoint's lengths.
//   5. The expected text is within the trained length (the scaling included): full.
//   6. Longer texts, and texts of unknown length: dca, which equals full up to the trained length and goes on beyond;
//      where a window longer than the trained length forbids that, a method of bounded memory.
#include "lib/strategy/auto_choice.h"

#include <algorithm>

#include "lib/strategy/arguments.h"
#include "lib/strategy/methods.h"

namespace quire {
namespace {

constexpr int64_t kSmallestChunk = 16;
constexpr int64_t kSinks = 4;
constexpr int64_t kLongHeadsLeast = 3 * 16;  // its least train_len

std::string text_of(int64_t n) { return std::to_string(n); }

// Bytes of layers with a window that drop what lies behind it, at most.
int64_t windowed_bytes(const StrategyContext& context, int64_t chunk) {
  const KvBudget& budget = context.kv_budget;
  if (budget.windowed_bytes_per_token == 0) return 0;
  const int64_t held = context.sliding_window + budget.block + 2 * chunk, expected = context.expected_tokens;
  const int64_t n = expected == 0 || expected > held - chunk ? held : expected + chunk;
  constexpr int64_t kMost = int64_t{1} << 62;  // of a window that no memory holds
  return n > kMost / budget.windowed_bytes_per_token ? kMost : n * budget.windowed_bytes_per_token;
}

// Tokens that fit; old ones in both types, of which the narrower one takes no more than the other.
int64_t capacity_in_tokens(const StrategyContext& context, int64_t chunk) {
  const KvBudget& budget = context.kv_budget;
  if (budget.bytes == 0 || budget.bytes_per_token == 0) return kNoLimit;
  const int64_t left = std::max<int64_t>(0, budget.bytes - windowed_bytes(context, chunk));
  return left / budget.bytes_per_token / (budget.old_after == kNoLimit ? 1 : 2);
}

// Bytes of the first n tokens, all of which are kept.
double bytes_of(const KvBudget& budget, int64_t n, int64_t chunk) {
  if (n == 0) return 0;
  const auto old_chunks = [&](int64_t query) {
    const int64_t own = query / chunk * chunk;
    return own > budget.old_after ? (own - budget.old_after) / chunk : 0;
  };
  const int64_t narrow = old_chunks(n - 1);
  // A block before the last one may have an edge of a chunk more.
  const int64_t full =
      (n - 1) / chunk + 1 -
      std::max<int64_t>(0, old_chunks(std::max<int64_t>(0, n - budget.block - chunk)) - budget.spare_chunks);
  const auto bytes = [&](int64_t chunks, int64_t per_token) {
    return static_cast<double>(chunks) * static_cast<double>(chunk) * static_cast<double>(per_token);
  };
  return bytes(full, budget.bytes_per_token) + bytes(narrow, budget.old_bytes_per_token);
}

bool fits(const KvBudget& budget, double bytes) {
  return budget.bytes == 0 || budget.bytes_per_token == 0 || bytes <= static_cast<double>(budget.bytes);
}

bool fits_with_lower_tiers(const KvBudget& budget, double bytes) {
  return budget.lower_bytes == kNoLimit || fits(budget, bytes - static_cast<double>(budget.lower_bytes));
}

// Tokens that the store holds at most besides the window of recent ones: the sinks' chunks, a block that is being
// processed, and what two chunk edges round up to.
int64_t streaming_overhead(int64_t sinks, int64_t block, int64_t chunk) {
  return (sinks + chunk - 1) / chunk * chunk + block + 2 * chunk;
}

// The strategies whose keys and values need not all be in memory.
Result<AutoChoice> bounded_memory(const StrategyContext& context, int64_t train_len, std::string reason) {
  if (train_len < 2) return AutoChoice{"full", "the model was trained for a single position"};
  const bool windowed = context.common_window() > 0;
  const int64_t positions = windowed ? std::max<int64_t>(2, std::min(train_len, context.common_window())) : train_len;
  const int64_t sinks = std::min(kSinks, positions - 2);
  const int64_t block = context.kv_budget.block;
  int64_t chunk = default_kv_chunk(train_len);
  // Layers with a window keep it all, whatever the others do; where they count apart, the others need not.
  const bool counts_apart = context.kv_budget.windowed_bytes_per_token > 0;
  const int64_t least = context.some_layers_slide && !counts_apart ? context.sliding_window : 1;
  if (capacity_in_tokens(context, chunk) - streaming_overhead(sinks, block, chunk) < std::max(chunk, least)) {
    chunk = kSmallestChunk;
  }
  const int64_t overhead = streaming_overhead(sinks, block, chunk), capacity = capacity_in_tokens(context, chunk);
  if (capacity < overhead + least) {
    const int64_t needed = (overhead + least) * context.kv_budget.bytes_per_token + windowed_bytes(context, chunk);
    return Status(Code::kBudget, "the KV budget is " + text_of(context.kv_budget.bytes) +
                                     " bytes; auto finds no method that needs fewer than " + text_of(needed) +
                                     " with blocks of " + text_of(block) + " tokens");
  }
  CanonicalTerm term("streaming_llm");
  term.add_integer("sinks", sinks).add_integer("recent", std::min(positions - 1 - sinks, capacity - overhead));
  term.add_integer("kv_chunk", chunk);
  // Cut to the window, the sinks would leave with it; at their distances they are inside it.
  if (windowed) term.add_integer("ignore_window", 1);
  return AutoChoice{term.text(), std::move(reason)};
}

AutoChoice requested_dual_chunk(const DualChunkConfig& request) {
  CanonicalTerm term("dca");
  term.add("preset", "vllm").add_integer("cap", request.chunk_size).add_integer("local", request.local_size);
  if (request.original > 0) term.add("logit_scale", "yarn_0.1");
  term.add_integer("train_len", std::max(request.original, request.chunk_size));
  return {term.text(), "the checkpoint asks for it (dual_chunk_attention_config)"};
}

}  // namespace

Result<AutoChoice> choose_visibility(const StrategyContext& context, int64_t train_len, bool scaling_named) {
  const int64_t expected = context.expected_tokens;
  const int64_t window = context.common_window();
  const int64_t chunk = default_kv_chunk(train_len);
  int64_t needed = expected;
  if (window > 0) {
    const int64_t most = window + context.kv_budget.block + 2 * chunk;
    needed = expected == 0 ? most : std::min(expected, most);
  }
  const double stored =
      bytes_of(context.kv_budget, needed, chunk) + static_cast<double>(windowed_bytes(context, chunk));
  const bool has_beacon = context.beacon && !context.beacon_only_by_name;
  if (has_beacon && context.sliding_window == 0 && expected > train_len &&
      fits(context.kv_budget, std::min(stored, bytes_of(context.kv_budget, train_len + chunk, chunk)))) {
    return AutoChoice{"beacon",
                      "the expected " + text_of(expected) + " tokens exceed the " + text_of(train_len) +
                          " positions that weights and RoPE scaling are good for, and the model has beacon weights"};
  }
  const bool all_fits = fits(context.kv_budget, stored);
  const bool spills = !all_fits && fits_with_lower_tiers(context.kv_budget, stored);
  if (spills && window == 0 && train_len >= kLongHeadsLeast) {
    return AutoChoice{"longheads", "the keys and values of " + text_of(needed) + " tokens exceed the KV budget of " +
                                       text_of(context.kv_budget.bytes) + " bytes and may go to a slower tier"};
  }
  if (!all_fits) {
    return bounded_memory(context, train_len,
                          "the keys and values of " + text_of(needed) + " tokens exceed the KV budget of " +
                              text_of(context.kv_budget.bytes) + " bytes");
  }
  if (window > 0 && window <= train_len) {
    return AutoChoice{"full", "the model's own sliding window of " + text_of(window) +
                                  " tokens keeps distances and memory within bounds"};
  }
  if (context.dual_chunk.chunk_size > 0 && window == 0 && !scaling_named) {
    return requested_dual_chunk(context.dual_chunk);
  }
  const std::string trained = text_of(train_len) + " positions that weights and RoPE scaling are good for";
  if (expected > 0 && expected <= train_len) {
    return AutoChoice{"full", "the expected " + text_of(expected) + " tokens are within the " + trained};
  }
  const std::string reason = expected > 0
                                 ? "the expected " + text_of(expected) + " tokens exceed the " + trained
                                 : "the length of the text is not known, and this equals full up to the " + trained;
  // Distances of full would leave the trained range before the window cuts them; dca needs keys behind the window.
  if (window > 0 || train_len < 2) return bounded_memory(context, train_len, reason);
  return AutoChoice{"dca", reason};
}

}  // namespace quire
