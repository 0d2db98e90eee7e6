// The scale of a group of 8-bit activations: the same in plain C++ and in vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

struct Int8Scale {
  float scale;    // of Int8Group
  float inverse;  // codes are elements times this, rounded
};

// magnitude: the bits of the greatest magnitude of the group.
inline Int8Scale int8_scale(int32_t magnitude) {
  float greatest;
  std::memcpy(&greatest, &magnitude, sizeof greatest);
  if (!(greatest <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (greatest < kLeastInt8Magnitude) return {0, 0};
  return {greatest / 127, 127 / greatest};
}

}  // namespace quire::cpu
