// The one order of a sum over a row: kSumLanes partial sums by index % kSumLanes, then by halves (8, 4, 2, 1).
#pragma once

namespace quire::cpu {

constexpr int kSumLanes = 16;

template <class Float>
Float add_by_halves(Float* partial) {
  for (int half = kSumLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
  }
  return partial[0];
}

}  // namespace quire::cpu
