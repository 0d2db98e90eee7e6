// RoPE scalings as terms of a strategy expression: frequencies, and the length they are good for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/plan/rope_table.h"
#include "lib/strategy/arguments.h"
#include "lib/strategy/expression.h"
#include "lib/strategy/strategy.h"
#include "lib/support/status.h"

namespace quire {

// Lengths beyond this many tokens are refused in expressions, and extended lengths are cut to it.
constexpr int64_t kMaxTrainLen = int64_t{1} << 40;

struct RopeBase {
  double theta = 10000;
  int rotary_dim = 64;  // dimensions of a head that turn: the d of all formulas
  int64_t train_len = 0;
  int64_t original_len = 0;                   // before the checkpoint's own extension
  int64_t expected_tokens = 0;                // of the session; 0: unknown
  const LongRopeFactors* longrope = nullptr;  // of the checkpoint, as the next
  std::span<const double> freq_factors;
};

struct RopeScaling {
  RopeTable table;           // of the pairs that turn
  int64_t extended_len = 0;  // what weights trained for base.train_len positions reach with this scaling
  std::string canonical;
};

// The names of the scalings, `none` among them.
std::vector<std::string_view> rope_scaling_names();

// The same with what is said of them.
struct TermDoc {
  std::string_view name;
  std::string_view text;
  ArgumentDocs arguments;
};
std::vector<TermDoc> rope_scaling_docs();

// Whether the scaling of this name is made for one length of text: it needs length= or RopeBase::expected_tokens.
bool needs_length(std::string_view scaling);

// `term` must have one of these names. Errors: kBadStrategy, kUnsupported.
Result<RopeScaling> make_rope_scaling(const Term& term, const RopeBase& base, ArgumentLog* log = nullptr);

}  // namespace quire
