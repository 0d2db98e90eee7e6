// Where the vectors that stand for chunks are written, and what they are made of.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/selection.h"

namespace quire::cuda {

// Keys of a KV head in the record of a stored chunk; its values follow.
template <typename T>
__device__ __forceinline__ const T* keys_of(const KvShape& shape, const void* record, int64_t kv_head) {
  return static_cast<const T*>(record) + 2 * kv_head * shape.chunk * shape.head_dim;
}

// Row of the vector-th vector of a chunk.
template <typename T>
__device__ __forceinline__ T* vector_of(const ChunkVectors& vectors, int64_t vector, int64_t chunk, int64_t d) {
  return static_cast<T*>(vectors.pages[chunk / kPageChunks]) + (vector * kPageChunks + chunk % kPageChunks) * d;
}

}  // namespace quire::cuda
