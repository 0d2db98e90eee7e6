#include "lib/backend/cpu/rope_cache.h"

#include <cmath>
#include <utility>

namespace quire::cpu {

size_t RopeCache::bytes_of(int64_t half_dim, int64_t chunk) {
  return static_cast<size_t>(half_dim) * (2 * static_cast<size_t>(kFine + kCoarse + kFar) * sizeof(double) +
                                          2 * static_cast<size_t>(chunk) * sizeof(float));
}

void RopeCache::fill(Level& level, int64_t n, int64_t step) const {
  for (int64_t p = 0; p < n; ++p) {
    for (int64_t a = 0; a < half_; ++a) {
      const double angle = static_cast<double>(p * step) * theta_[static_cast<size_t>(a)];
      level.cos[p * half_ + a] = std::cos(angle);
      level.sin[p * half_ + a] = std::sin(angle);
    }
  }
}

RopeCache::RopeCache(const RopeTable& table, int64_t chunk, HostMemory memory)
    : theta_(table.theta), chunk_(chunk), half_(static_cast<int64_t>(table.theta.size())), memory_(std::move(memory)) {
  bytes = memory_.size();
  auto* doubles = static_cast<double*>(memory_.data());
  const auto take = [&](int64_t n) { return std::exchange(doubles, doubles + n * half_); };
  fine_ = {take(kFine), take(kFine)};
  coarse_ = {take(kCoarse), take(kCoarse)};
  far_ = {take(kFar), take(kFar)};
  fill(fine_, kFine, 1);
  fill(coarse_, kCoarse, kFine);
  fill(far_, kFar, kFine * kCoarse);
  chunk_cos_ = reinterpret_cast<float*>(doubles);
  chunk_sin_ = chunk_cos_ + chunk * half_;
  for (int64_t p = 0; p < chunk; ++p) {
    angles(static_cast<double>(p), chunk_cos_ + p * half_, chunk_sin_ + p * half_);
  }
}

void RopeCache::angles(double p, float* cos, float* sin) const {
  const double magnitude = std::fabs(p);
  if (magnitude >= static_cast<double>(kFine * kCoarse * kFar) || magnitude != std::floor(magnitude)) {
    for (int64_t a = 0; a < half_; ++a) {
      const double angle = p * theta_[static_cast<size_t>(a)];
      cos[a] = static_cast<float>(std::cos(angle));
      sin[a] = static_cast<float>(std::sin(angle));
    }
    return;
  }
  const auto whole = static_cast<int64_t>(magnitude);
  const double sign = p < 0 ? -1 : 1;
  const double* fine_cos = fine_.cos + whole % kFine * half_;
  const double* fine_sin = fine_.sin + whole % kFine * half_;
  const double* coarse_cos = coarse_.cos + whole / kFine % kCoarse * half_;
  const double* coarse_sin = coarse_.sin + whole / kFine % kCoarse * half_;
  if (const int64_t far = whole / (kFine * kCoarse); far > 0) {
    const double* far_cos = far_.cos + far * half_;
    const double* far_sin = far_.sin + far * half_;
    for (int64_t a = 0; a < half_; ++a) {
      const double near_cos = coarse_cos[a] * fine_cos[a] - coarse_sin[a] * fine_sin[a];
      const double near_sin = coarse_sin[a] * fine_cos[a] + coarse_cos[a] * fine_sin[a];
      cos[a] = static_cast<float>(far_cos[a] * near_cos - far_sin[a] * near_sin);
      sin[a] = static_cast<float>(sign * (far_sin[a] * near_cos + far_cos[a] * near_sin));
    }
    return;
  }
  for (int64_t a = 0; a < half_; ++a) {
    cos[a] = static_cast<float>(coarse_cos[a] * fine_cos[a] - coarse_sin[a] * fine_sin[a]);
    sin[a] = static_cast<float>(sign * (coarse_sin[a] * fine_cos[a] + coarse_cos[a] * fine_sin[a]));
  }
}

RopeCaches::Shared RopeCaches::share(const RopeTable& table, int64_t chunk, Shared made) {
  std::vector<Shared> others;  // whose last holder may go meanwhile: freed without the lock
  MutexLock lock(mutex_);
  std::erase_if(in_use_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : in_use_) {
    Shared rope = weak.lock();
    if (rope && rope->chunk() == chunk && rope->theta() == table.theta) return rope;
    others.push_back(std::move(rope));
  }
  if (made) in_use_.push_back(made);
  return made;
}

RopeCaches::Shared RopeCaches::get(const RopeTable& table, int64_t chunk) {
  if (Shared rope = share(table, chunk, nullptr)) return rope;
  // Without the lock: the host's callback may have locks of its own. Of equal tables that are made at the same time the
  // first ones stay.
  HostMemory memory(allocator_, RopeCache::bytes_of(static_cast<int64_t>(table.theta.size()), chunk));
  if (!memory) return nullptr;
  return share(table, chunk, std::make_shared<const RopeCache>(table, chunk, std::move(memory)));
}

}  // namespace quire::cpu
