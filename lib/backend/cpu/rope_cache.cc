#include "lib/backend/cpu/rope_cache.h"

#include <cmath>

namespace quire::cpu {

RopeCache::Level RopeCache::make_level(const std::vector<double>& theta, int64_t n, int64_t step) {
  const size_t half = theta.size();
  Level level;
  level.cos.resize(static_cast<size_t>(n) * half);
  level.sin.resize(static_cast<size_t>(n) * half);
  for (int64_t p = 0; p < n; ++p) {
    for (size_t a = 0; a < half; ++a) {
      const double angle = static_cast<double>(p * step) * theta[a];
      level.cos[static_cast<size_t>(p) * half + a] = std::cos(angle);
      level.sin[static_cast<size_t>(p) * half + a] = std::sin(angle);
    }
  }
  return level;
}

RopeCache::RopeCache(const RopeTable& table, int64_t chunk)
    : half_(static_cast<int64_t>(table.theta.size())),
      theta_(table.theta),
      fine_(make_level(theta_, kFine, 1)),
      coarse_(make_level(theta_, kCoarse, kFine)) {
  chunk_cos_.resize(static_cast<size_t>(chunk * half_));
  chunk_sin_.resize(static_cast<size_t>(chunk * half_));
  for (int64_t p = 0; p < chunk; ++p) {
    angles(static_cast<double>(p), &chunk_cos_[static_cast<size_t>(p * half_)],
           &chunk_sin_[static_cast<size_t>(p * half_)]);
  }
}

void RopeCache::angles(double p, float* cos, float* sin) const {
  const double magnitude = std::fabs(p);
  if (magnitude >= static_cast<double>(kFine * kCoarse) || magnitude != std::floor(magnitude)) {
    for (int64_t a = 0; a < half_; ++a) {
      const double angle = p * theta_[static_cast<size_t>(a)];
      cos[a] = static_cast<float>(std::cos(angle));
      sin[a] = static_cast<float>(std::sin(angle));
    }
    return;
  }
  const auto whole = static_cast<int64_t>(magnitude);
  const double sign = p < 0 ? -1 : 1;
  const double* fine_cos = &fine_.cos[static_cast<size_t>(whole % kFine * half_)];
  const double* fine_sin = &fine_.sin[static_cast<size_t>(whole % kFine * half_)];
  const double* coarse_cos = &coarse_.cos[static_cast<size_t>(whole / kFine * half_)];
  const double* coarse_sin = &coarse_.sin[static_cast<size_t>(whole / kFine * half_)];
  for (int64_t a = 0; a < half_; ++a) {
    cos[a] = static_cast<float>(coarse_cos[a] * fine_cos[a] - coarse_sin[a] * fine_sin[a]);
    sin[a] = static_cast<float>(sign * (coarse_sin[a] * fine_cos[a] + coarse_cos[a] * fine_sin[a]));
  }
}

}  // namespace quire::cpu
