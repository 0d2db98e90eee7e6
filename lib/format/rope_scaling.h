// The RoPE settings of a config.json, in their older form (rope_theta, rope_scaling) and the newer (rope_parameters).
#pragma once

#include <cstdint>
#include <string>

#include "lib/format/json.h"
#include "lib/support/status.h"

namespace quire {

struct RopeSettings {
  double theta = 10000;
  std::string type = "default";  // as the file says, older names replaced by today's
  std::string term;              // scaling term of a strategy expression; empty for "default"
};

// Errors: kBadModel; kUnsupported for types whose frequencies depend on how much has been read (dynamic, longrope), for
// unknown types, and for settings this type does not have.
Result<RopeSettings> read_rope_settings(const JsonReader& config, int64_t max_position_embeddings);

}  // namespace quire
