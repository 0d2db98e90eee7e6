// What a session of a given length would take on this machine, from a short calibration.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/format/model_config.h"
#include "lib/session/session_options.h"
#include "lib/session/session_rates.h"
#include "lib/strategy/strategy.h"

namespace quire {

struct RateEstimate {
  SessionRates rates;
  int64_t measured_tokens = 0;  // costs behind more tokens are extrapolated
  double tier_read_rate = 0;    // bytes a second, of the last tier; 0: there is none
  double seconds = 0;           // that the calibration took
};

// Reads and generates a few tokens at up to three depths in a session of its own, whose cache of random keys and values
// is in memory, and tries the lower tiers with some records. Blocks; the engine computes the steps between those of
// other streams. Errors: those of making such a session (kBudget: the runtime has no memory left for it), kIo, kClosed,
// kCancelled (the runtime is being closed).
Result<RateEstimate> estimate_rates(const std::shared_ptr<Model>& model, const SessionOptions& options,
                                    int64_t n_tokens);

// Keys that the token of this index sees, given or generated: the mean over layers and heads. The score of a chunk
// costs as much as half a key: its values are not read.
double keys_seen(const Strategy& strategy, const ModelConfig& config, int64_t query, bool generated);

}  // namespace quire
