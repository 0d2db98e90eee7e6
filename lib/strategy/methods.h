// The visibilities an expression may begin with: each is a Method, defined at the end of its own file.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/strategy/arguments.h"
#include "lib/strategy/strategy.h"

namespace quire {

// What a method may know of the model.
struct MethodModel {
  int64_t train_len;  // the length that weights and scaling are good for
  int n_query_heads;
  const BeaconConfig* beacon = nullptr;  // null: it has no beacon weights
  int64_t expected_tokens = 0;           // of the session; 0: unknown
};

// Makes the strategy from the arguments of its term, and writes its own ones to `canonical`. RoPE, the canonical
// expression and, if the method has_kv_chunk, the length of stored chunks are the caller's part.
using MethodMaker = Result<std::unique_ptr<Strategy>> (*)(const Arguments& arguments, const MethodModel& model,
                                                          CanonicalTerm& canonical);

struct Method {
  std::string_view name;
  std::string_view text;   // what it is, in a line
  ArgumentDocs arguments;  // beside those that all take
  MethodMaker make;
  bool needs_far_keys = false;  // means nothing on a model whose own window hides them
  bool has_kv_chunk = true;     // the stored chunk is not the method's own
};

// In the order of their names in expressions; full first. A new one is listed here and in strategy.cc.
extern const Method kFull, kBeacon, kDualChunk, kDcaTopK, kLmInfinite, kLongMixed, kLongHeads, kReRope, kS2, kSccaFixed,
    kSccaFlow, kSda, kSelfExtend, kStreamingLlm;

// Text to keep where queries see `sinks` first keys and those from `window` on.
std::vector<KeyRange> sinks_and_window(int64_t sinks, int64_t window);

constexpr int64_t kMostKvChunk = 65536;  // tokens

// Tokens per stored chunk where the expression does not say.
int64_t default_kv_chunk(int64_t train_len);

}  // namespace quire
