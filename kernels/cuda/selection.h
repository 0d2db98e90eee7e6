// Representations of chunks, and the choice of chunks by them: ChunkSelection of lib/plan/plan.h. Plain C++.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

constexpr int64_t kPageChunks = 64;

// Vectors of chunks in pages, [n_vectors][kPageChunks][head_dim] each, of one type.
struct ChunkVectors {
  void* const* pages = nullptr;
  ElementType type = ElementType::kF32;
};

// The mean, or the least and the greatest of each channel, of the keys of chunks [first_chunk, first_chunk + n_chunks)
// of `chunk` keys, turned to where they stand in their period. Vectors: of KV head h the h-th; bounds: 2 h and 2 h + 1.
struct SummariseKeys {
  KvShape shape{};
  const void* const* records = nullptr;  // by stored chunk
  const Turns* turns = nullptr;          // [head_dim / 2]
  int64_t chunk = 0;                     // divides the stored one
  int64_t key_period = 0;
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;
  bool bounds = false;
  ChunkVectors out{};
};
int summarise_keys(Stream stream, const SummariseKeys& args);

// The vector of a query head for a stored chunk (LongHeads, arXiv:2402.10685, Eq. 1-2): the mean over the chunk's
// queries of their attention over the chunk, without a mask, attends to the chunk's keys, whose weighted sum is the
// vector.
struct AttendInChunks {
  KvShape shape{};
  const void* const* records = nullptr;
  const Turns* turns = nullptr;
  int n_query_heads = 0;
  float scale = 1;       // of the logits
  DeviceRows queries{};  // [n_chunks * shape.chunk][n_query_heads * head_dim], not rotated
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;
  ChunkVectors out{};  // f32, of query head h the h-th
};
int attend_in_chunks(Stream stream, const AttendInChunks& args);

}  // namespace quire::cuda
