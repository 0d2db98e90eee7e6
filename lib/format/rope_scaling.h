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

// A, whose square multiplies the logits: sqrt(1 + ln f / ln L) for texts f = max_positions / original times as long as
// the L = original tokens it was trained for (Ding et al. 2024).
double longrope_attention_factor(int64_t max_positions, int64_t original);
std::string longrope_term(const LongRopeSettings& longrope);

// How many of a head's head_dim dimensions are rotated: all, or the part that partial_rotary_factor says, wherever the
// file has it. Errors: kBadFile (no whole pairs; two factors); kUnsupported (a factor other than 1, and not `partial`).
Result<int> read_rotary_dim(const JsonReader& config, int head_dim, bool partial);

// rotary_dim / 2 is the length of longrope's lists; default_theta: where the file names none. Errors: kBadFile;
// kUnsupported for unknown types, and for settings this type does not have.
Result<RopeSettings> read_rope_settings(const JsonReader& config, int64_t max_position_embeddings, int rotary_dim,
                                        double default_theta = RopeSettings().theta);

// Of models whose layers with a sliding window have a base of their own, and no scaling.
struct LayerRopeSettings {
  RopeSettings full;  // of the other layers
  double window_theta = 10000;
};

// rope_parameters then has an object for each kind of layer; older files have rope_local_base_freq beside what the
// others are given. The defaults are those of the bases. Errors as above; kUnsupported for a window with a scaling.
Result<LayerRopeSettings> read_layer_rope_settings(const JsonReader& config, int64_t max_position_embeddings,
                                                   int rotary_dim, double default_theta, double default_window_theta);

}  // namespace quire
