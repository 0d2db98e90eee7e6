// Rotary position embedding: pairs (x[a], x[a + d / 2]) of a head, turned by an angle that grows with the position.
#pragma once

#include "kernels/cuda/device.h"

namespace quire::cuda {

struct Angle {
  float cosine, sine;
};

// The angle of a pair at a position. `turns`: the rotation for a distance of 1, as a part of a whole turn. Only the
// product and its whole turns need double precision: what is left is exact enough in f32 at any position.
__device__ __forceinline__ Angle angle_at(double turns, double position) {
  const double turned = turns * position;
  Angle angle;
  sincospif(2.0f * static_cast<float>(turned - rint(turned)), &angle.sine, &angle.cosine);
  return angle;
}

}  // namespace quire::cuda
