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

int64_t capacity_in_tokens(const KvBudget& budget) {
  return budget.bytes == 0 || budget.bytes_per_token == 0 ? kNoLimit : budget.bytes / budget.bytes_per_token;
}

int64_t capacity_with_lower_tiers(const KvBudget& budget) {
  if (budget.lower_bytes == kNoLimit) return kNoLimit;
  KvBudget all = budget;
  all.bytes += budget.lower_bytes;
  return capacity_in_tokens(all);
}

// Tokens that the store holds at most besides the window of recent ones: the sinks' chunks, a block that is being
// processed, and what two chunk edges round up to.
int64_t streaming_overhead(int64_t sinks, int64_t block, int64_t chunk) {
  return (sinks + chunk - 1) / chunk * chunk + block + 2 * chunk;
}

// The strategies whose keys and values need not all be in memory; `capacity` in tokens.
Result<AutoChoice> bounded_memory(const StrategyContext& context, int64_t train_len, int64_t capacity,
                                  std::string reason) {
  if (train_len < 2) return AutoChoice{"full", "the model was trained for a single position"};
  const bool windowed = context.sliding_window > 0;
  const int64_t positions = windowed ? std::max<int64_t>(2, std::min(train_len, context.sliding_window)) : train_len;
  const int64_t sinks = std::min(kSinks, positions - 2);
  const int64_t block = context.kv_budget.block;
  int64_t chunk = default_kv_chunk(train_len);
  if (capacity - streaming_overhead(sinks, block, chunk) < chunk) chunk = kSmallestChunk;
  const int64_t overhead = streaming_overhead(sinks, block, chunk);
  if (capacity <= overhead) {
    const int64_t per_token = context.kv_budget.bytes_per_token;
    return Status(Code::kBudget, "the KV budget is " + text_of(context.kv_budget.bytes) +
                                     " bytes; auto finds no method that needs fewer than " +
                                     text_of((overhead + 1) * per_token) + " with blocks of " + text_of(block) +
                                     " tokens");
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
  const int64_t window = context.sliding_window;
  const int64_t chunk = default_kv_chunk(train_len);
  const int64_t capacity = capacity_in_tokens(context.kv_budget);
  int64_t needed = expected;
  if (window > 0) {
    const int64_t most = window + context.kv_budget.block + 2 * chunk;
    needed = expected == 0 ? most : std::min(expected, most);
  }
  const int64_t stored = (std::min(needed, kNoLimit - chunk) + chunk - 1) / chunk * chunk;
  const bool has_beacon = context.beacon && !context.beacon_only_by_name;
  if (has_beacon && window == 0 && expected > train_len && std::min(stored, train_len + chunk) <= capacity) {
    return AutoChoice{"beacon",
                      "the expected " + text_of(expected) + " tokens exceed the " + text_of(train_len) +
                          " positions that weights and RoPE scaling are good for, and the model has beacon weights"};
  }
  const bool spills = stored > capacity && stored <= capacity_with_lower_tiers(context.kv_budget);
  if (spills && window == 0 && train_len >= kLongHeadsLeast) {
    return AutoChoice{"longheads", "the keys and values of " + text_of(needed) + " tokens exceed the KV budget of " +
                                       text_of(context.kv_budget.bytes) + " bytes and may go to a slower tier"};
  }
  if (stored > capacity) {
    return bounded_memory(context, train_len, capacity,
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
  if (window > 0 || train_len < 2) return bounded_memory(context, train_len, capacity, reason);
  return AutoChoice{"dca", reason};
}

}  // namespace quire
