// How long a session would take to read its text and to answer, from what a few steps took.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/plan/plan.h"

namespace quire {

// What a token took that saw so many keys.
struct KeyCost {
  double keys = 0;
  double ns = 0;
};

// The time of a token by the keys that it sees: the line through what was measured of least and most keys, or the mean
// where all saw as many. It never falls.
class KeyCosts {
 public:
  explicit KeyCosts(std::span<const KeyCost> measured);  // at least one
  double seconds(double keys) const { return 1e-9 * (at_none_ + per_key_ * keys); }

 private:
  double at_none_ = 0;
  double per_key_ = 0;
};

// A place for records that do not fit in memory, the nearest first.
struct TierRate {
  int64_t capacity = kNoLimit;  // bytes of records
  double read = 0, write = 0;   // bytes a second
};

// What a session does with what it holds.
struct SessionLoad {
  int64_t n_tokens = 0;
  int64_t prefill_block = 256;
  int64_t memory_bytes = kNoLimit;  // for records
  bool prefill_selects = false;     // prompt tokens choose what they read; else they read all
  bool decode_selects = false;
  double selected_bytes = 0;  // of the records that a generated token can choose at most
  // Keys that a token sees behind so many others, and the bytes of the records that are held then.
  std::function<double(int64_t)> prefill_keys, decode_keys, held_bytes;
};

struct SessionRates {
  double prefill_seconds = 0;            // of all tokens
  double decode_token_seconds = 0;       // of a token behind them, if what it chooses is in memory
  double decode_token_cold_seconds = 0;  // if none of that is
};

// Prefill and dense decode read what is missing in memory while they compute, so that they take the time of the longer
// of the two; a token that chooses waits for what it chose. A prefill that chooses is taken to find it in memory.
SessionRates session_rates(const KeyCosts& prefill, const KeyCosts& decode, std::span<const TierRate> tiers,
                           const SessionLoad& load);

}  // namespace quire
