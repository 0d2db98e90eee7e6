// cos and sin of any position, from float64 angles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/support/allocator.h"
#include "lib/support/mutex.h"

namespace quire::cpu {

// Positions are split as p = kFine * (kCoarse * c + b) + a; the parts come from float64 tables and are combined by the
// addition theorem in float64, so that one row costs d/2 complex products (twice as many from 2 Mi on, where c is not
// 0) instead of d/2 sine calls. Positions that are not whole, or not below 2^30, are evaluated directly. Immutable: any
// thread.
class RopeCache : public Rope {
 public:
  // chunk: number of in-chunk offsets whose f32 rows are kept ready. memory: bytes_of(d/2, chunk) bytes.
  RopeCache(const RopeTable& table, int64_t chunk, HostMemory memory);

  static size_t bytes_of(int64_t half_dim, int64_t chunk);
  const std::vector<double>& theta() const { return theta_; }
  int64_t chunk() const { return chunk_; }
  int64_t half_dim() const { return half_; }
  // Rows of f32 [d/2] for position p, any real number.
  void angles(double p, float* cos, float* sin) const;
  const float* chunk_cos(int64_t offset) const { return chunk_cos_ + offset * half_; }
  const float* chunk_sin(int64_t offset) const { return chunk_sin_ + offset * half_; }

 private:
  static constexpr int64_t kFine = 1024;
  static constexpr int64_t kCoarse = 2048;
  static constexpr int64_t kFar = 512;
  struct Level {
    double *cos, *sin;  // [n][half]
  };
  // Fills the rows of `level` for positions 0, step, ... (n - 1) * step.
  void fill(Level& level, int64_t n, int64_t step) const;

  std::vector<double> theta_;
  int64_t chunk_;
  int64_t half_;
  HostMemory memory_;              // all tables
  Level fine_, coarse_, far_;      // steps of 1, kFine, and kFine * kCoarse
  float *chunk_cos_, *chunk_sin_;  // [chunk][half]
};

// The tables in use. Any thread.
class RopeCaches {
 public:
  using Shared = std::shared_ptr<const RopeCache>;
  explicit RopeCaches(Allocator& allocator) : allocator_(allocator) {}
  // Those with these frequencies (the attention factor is no matter of theirs) and this chunk, which live as long as
  // somebody holds them; nullptr if there is no memory.
  Shared get(const RopeTable& table, int64_t chunk);

 private:
  // Those in use, or else `made`, which is then in use.
  Shared share(const RopeTable& table, int64_t chunk, Shared made);

  Allocator& allocator_;
  Mutex mutex_;
  std::vector<std::weak_ptr<const RopeCache>> in_use_ QUIRE_GUARDED_BY(mutex_);  // some may be gone
};

}  // namespace quire::cpu
