// The scale of activations that are rounded to integer codes: the same in plain C++ and in vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

struct CodeScale {
  float scale;    // NaN if an element is not finite
  float inverse;  // codes are elements times this, rounded; 0: codes are zeros
};

// Of elements whose codes are to be of [-most, most]. magnitude: the bits of the elements' greatest magnitude.
inline CodeScale code_scale(int32_t magnitude, float most) {
  float greatest;
  std::memcpy(&greatest, &magnitude, sizeof greatest);
  if (!(greatest <= std::numeric_limits<float>::max())) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (greatest < kLeastMagnitude) return {0, 0};
  return {greatest / most, most / greatest};
}

}  // namespace quire::cpu
