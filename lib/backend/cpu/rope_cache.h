// cos and sin of any position, from float64 angles.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"

namespace quire::cpu {

// Positions are split as p = kFine * a + b; both parts come from float64 tables and are combined by the addition
// theorem in float64, so that one row costs d/2 complex products instead of d/2 sine calls, at any position. Immutable:
// any thread.
class RopeCache : public Rope {
 public:
  // chunk: number of in-chunk offsets whose f32 rows are kept ready.
  RopeCache(const RopeTable& table, int64_t chunk);

  int64_t half_dim() const { return half_; }
  // Rows of f32 [d/2] for position p, any real number.
  void angles(double p, float* cos, float* sin) const;
  const float* chunk_cos(int64_t offset) const { return &chunk_cos_[static_cast<size_t>(offset * half_)]; }
  const float* chunk_sin(int64_t offset) const { return &chunk_sin_[static_cast<size_t>(offset * half_)]; }

 private:
  static constexpr int64_t kFine = 1024;
  static constexpr int64_t kCoarse = 2048;  // positions up to 2 Mi from tables, beyond by direct evaluation
  struct Level {
    std::vector<double> cos, sin;  // [n][half]
  };
  static Level make_level(const std::vector<double>& theta, int64_t n, int64_t step);

  int64_t half_;
  std::vector<double> theta_;
  Level fine_, coarse_;
  std::vector<float> chunk_cos_, chunk_sin_;
};

}  // namespace quire::cpu
