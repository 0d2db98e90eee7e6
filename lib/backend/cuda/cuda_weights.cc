#include "lib/backend/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "lib/support/quantization.h"

namespace quire::cuda {
namespace {

// k elements of a row of a file as the device has them, in another type. Runs on the pool, so it must not allocate.
void convert_row(ElementType from_type, const std::byte* from, int64_t k, ElementType to_type, std::byte* to) {
  if (!is_quantized(from_type) && !is_quantized(to_type)) {
    cpu::convert(from_type, from, to_type, to, k);
    return;
  }
  const int64_t block = block_format(to_type).elements, n_blocks = k / block;
  if (from_type == to_type) {
    put_blocks(to_type, from, 0, n_blocks, n_blocks, to);
    return;
  }
  float wide[kMostBlockElements];  // whole blocks of every type
  std::byte blocks[kMostBlockElements * sizeof(float)];
  for (int64_t at = 0; at < k; at += kMostBlockElements) {
    const int64_t n = std::min<int64_t>(kMostBlockElements, k - at);
    dequantize(from_type, from + row_bytes(from_type, at), n, wide);
    if (is_quantized(to_type)) {
      quantize(wide, n, to_type, blocks);
      put_blocks(to_type, blocks, at / block, n / block, n_blocks, to);
    } else {
      cpu::convert(ElementType::kF32, wide, to_type, to + row_bytes(to_type, at), n);
    }
  }
}

}  // namespace

CudaMatrix::CudaMatrix(std::span<const MatrixPart> parts, int64_t columns) {
  constexpr int64_t kRunAlignment = 256;
  k = columns;
  for (const MatrixPart& part : parts) {
    if (runs.empty() || runs.back().type != part.type) {
      runs.push_back({n, 0, part.type, device_row_bytes(part.type, k), 0});
    }
    runs.back().n += part.rows;
    n += part.rows;
  }
  for (MatrixRun& run : runs) {
    run.begin = bytes;
    bytes += static_cast<size_t>(round_up(run.n * run.row_bytes, kRunAlignment));
  }
}

// ---- CudaRopes

std::shared_ptr<const CudaRope> CudaRopes::find(const RopeTable& table, int64_t chunk) {
  std::vector<std::shared_ptr<const CudaRope>> others;  // whose last holder may go meanwhile: freed without the lock
  MutexLock lock(mutex_);
  std::erase_if(in_use_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : in_use_) {
    auto rope = weak.lock();
    if (rope && rope->chunk == chunk && rope->theta == table.theta) return rope;
    others.push_back(std::move(rope));
  }
  return nullptr;
}

std::shared_ptr<const CudaRope> CudaRopes::share(std::shared_ptr<const CudaRope> made) {
  std::vector<std::shared_ptr<const CudaRope>> others;
  MutexLock lock(mutex_);
  for (const auto& weak : in_use_) {
    auto rope = weak.lock();
    if (rope && rope->chunk == made->chunk && rope->theta == made->theta) return rope;
    others.push_back(std::move(rope));
  }
  in_use_.push_back(made);
  return made;
}

// ---- Loader

Result<std::unique_ptr<Loader::Lane>> Loader::take_lane() {
  {
    MutexLock lock(mutex_);
    if (!lanes_.empty()) {
      auto lane = std::move(lanes_.back());
      lanes_.pop_back();
      return lane;
    }
  }
  auto lane = std::make_unique<Lane>();
  QUIRE_ASSIGN(lane->queue, CudaQueue::create(device_, total_));
  return lane;
}

void Loader::give_back(std::unique_ptr<Lane> lane) {
  if (!lane->queue->failure().ok()) return;  // it is good for nothing
  MutexLock lock(mutex_);
  lanes_.push_back(std::move(lane));
}

Status Loader::copy(CudaQueue& queue, const void* from, std::byte* to, size_t bytes) {
  QUIRE_TRY(queue.add("copying weights to the device", nullptr,
                      [&](const DeviceApi& api, Stream s) { return api.upload(s, to, from, bytes); }));
  return queue.finish();
}

Status Loader::load(ElementType from_type, const void* from, int64_t n, int64_t k, ElementType to_type,
                    int64_t to_row_bytes, std::byte* to) {
  if (n == 0) return {};
  QUIRE_ASSIGN(auto lane, take_lane());
  const auto* source = static_cast<const std::byte*>(from);
  const size_t from_row = row_bytes(from_type, k);
  const auto to_row = static_cast<size_t>(to_row_bytes);
  if (from_type == to_type && from_row == to_row && parts_of(to_type).n == 1) {
    QUIRE_TRY(copy(*lane->queue, source, to, static_cast<size_t>(n) * to_row));
    give_back(std::move(lane));
    return {};
  }
  const size_t bounce = std::max(kBounceBytes, to_row);
  if (lane->bounce.size() < bounce) {
    QUIRE_ASSIGN(lane->bounce, DeviceMemory::make(device_, bounce, MemoryKind::kStaging));
  }
  const auto step = static_cast<int64_t>(bounce / to_row);
  for (int64_t row = 0; row < n; row += step) {
    const int64_t rows = std::min(step, n - row);
    const auto convert = [&](int64_t r, int) {
      convert_row(from_type, source + static_cast<size_t>(row + r) * from_row, k, to_type,
                  lane->bounce.data() + static_cast<size_t>(r) * to_row);
    };
    if (pool_ && from_type != to_type) {
      pool_->run(rows, nullptr, convert);
    } else {
      for (int64_t r = 0; r < rows; ++r) convert(r, 0);
    }
    QUIRE_TRY(copy(*lane->queue, lane->bounce.data(), to + static_cast<size_t>(row) * to_row,
                   static_cast<size_t>(rows) * to_row));
  }
  give_back(std::move(lane));
  return {};
}

}  // namespace quire::cuda
