// Rotary position embedding: pairs (x[a], x[a + d / 2]) of a head, turned by an angle that grows with the position.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

// Where the key at `offset` of its chunk stands in its record. stored_div 0: keys are not rotated.
__device__ __forceinline__ int stored_position(int64_t offset, int64_t stored_div) {
  return stored_div == 0 ? 0 : static_cast<int>(offset) / static_cast<int>(stored_div);
}

struct Angle {
  float cosine, sine;
};

// A position as high + low. Integers below 2^24 have no low part.
struct Position {
  float high, low;
};
__device__ __forceinline__ Position split_position(double position) {
  const float high = static_cast<float>(position);
  return {high, static_cast<float>(position - static_cast<double>(high))};
}

// The angle of a pair at a position as a part of a whole turn, from -1/2 to 1/2, to about 2e-7. Only the whole turns of
// the greatest of the products are dropped, exactly; so nothing here needs double precision, which many devices have
// little of.
__device__ __forceinline__ float part_of_turn(Turns turns, Position position) {
  // Rounded, whatever it is used for: fused with the subtraction below, it would have `rest` twice.
  const float product = __fmul_rn(position.high, turns.high);
  const float rest = fmaf(position.high, turns.high, -product);  // what rounding took from it
  return product - rintf(product) + (rest + (position.high * turns.low + position.low * turns.high));
}

// The angle of a pair at a position, to about 1e-6.
__device__ __forceinline__ Angle angle_at(Turns turns, Position position) {
  Angle angle;
  sincospif(2.0f * part_of_turn(turns, position), &angle.sine, &angle.cosine);
  return angle;
}
// The same in a third of the time, to about 2e-6: for what is rounded to 16 bits.
__device__ __forceinline__ Angle angle_near(Turns turns, Position position) {
  Angle angle;
  sine_and_cosine_fast(6.28318530717958647692f * part_of_turn(turns, position), &angle.sine, &angle.cosine);
  return angle;
}

}  // namespace quire::cuda
