// The visibilities an expression may begin with. Each file of this folder that holds one implements its maker.
#pragma once

#include <cstdint>
#include <memory>
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
// expression and, where the method sets none, the chunk length are the caller's part.
using MethodMaker = Result<std::unique_ptr<Strategy>> (*)(const Arguments& arguments, const MethodModel& model,
                                                          CanonicalTerm& canonical);

Result<std::unique_ptr<Strategy>> make_beacon(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_full(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_dual_chunk(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_lm_infinite(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_long_mixed(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_longheads(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_rerope(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_s2(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_scca_fixed(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_scca_flow(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_sda(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_self_extend(const Arguments&, const MethodModel&, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_streaming_llm(const Arguments&, const MethodModel&, CanonicalTerm&);

// Text to keep where queries see `sinks` first keys and those from `window` on.
std::vector<KeyRange> sinks_and_window(int64_t sinks, int64_t window);

// Tokens per stored chunk where the expression does not say.
int64_t default_kv_chunk(int64_t train_len);

}  // namespace quire
