// The visibilities an expression may begin with. Each file of this folder that holds one implements its maker.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/strategy/arguments.h"
#include "lib/strategy/strategy.h"

namespace quire {

// Makes the strategy from the arguments of its term and from the length that weights and scaling are good for, and
// writes its own arguments to `canonical`. RoPE, the canonical expression and, where the method sets none, the chunk
// length are the caller's part.
using MethodMaker = Result<std::unique_ptr<Strategy>> (*)(const Arguments& arguments, int64_t train_len,
                                                          CanonicalTerm& canonical);

Result<std::unique_ptr<Strategy>> make_full(const Arguments&, int64_t train_len, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_dual_chunk(const Arguments&, int64_t train_len, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_longheads(const Arguments&, int64_t train_len, CanonicalTerm&);
Result<std::unique_ptr<Strategy>> make_streaming_llm(const Arguments&, int64_t train_len, CanonicalTerm&);

// Tokens per stored chunk where the expression does not say.
int64_t default_kv_chunk(int64_t train_len);

}  // namespace quire
