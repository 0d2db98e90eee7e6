// RoPE frequencies of one session: what every strategy and every backend rotates with.
#pragma once

#include <vector>

namespace quire {

// Pair a of a head's dimensions, (x[a], x[a + d/2]), is rotated at position p by p * theta[a] radians. Query and key
// are both scaled by `attention_factor` (YaRN's A): logits by its square. The factor is applied to the query alone and
// never stored with a key.
struct RopeTable {
  std::vector<double> theta;  // d/2
  double attention_factor = 1;
};

// Turns nothing: of layers without RoPE.
inline RopeTable no_rotation(int head_dim) { return {std::vector<double>(static_cast<size_t>(head_dim / 2)), 1}; }

}  // namespace quire
