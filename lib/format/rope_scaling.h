// The RoPE settings of a config.json, in their older form (rope_theta, rope_scaling) and the newer (rope_parameters).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/json.h"
#include "lib/support/status.h"

namespace quire {

// What a longrope checkpoint says; the lists are empty for every other type.
struct LongRopeSettings {
  std::vector<double> short_factors;  // one per pair of dimensions, for texts of up to `original` tokens
  std::vector<double> long_factors;
  int64_t original = 0;
  double attention_factor = 1;
  bool operator==(const LongRopeSettings&) const = default;
};

struct RopeSettings {
  double theta = 10000;
  std::string type = "default";  // as the file says, older names replaced by today's
  std::string term;              // scaling term of a strategy expression; empty for "default"
  LongRopeSettings longrope;
  int64_t original = 0;  // positions trained for before any extension; 0: not given
};

// A scaling as a term of a strategy expression: "name(key=value, ...)".
std::string rope_term(std::string name, std::span<const std::pair<const char*, double>> arguments);

// head_dim / 2 is the length of longrope's lists; default_theta: where the file names none. Errors: kBadFile;
// kUnsupported for unknown types, and for settings this type does not have.
Result<RopeSettings> read_rope_settings(const JsonReader& config, int64_t max_position_embeddings, int head_dim,
                                        double default_theta = RopeSettings().theta);

}  // namespace quire
