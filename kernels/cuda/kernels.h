// The CUDA kernels: one operation per .cu file, launched by the functions here. Plain C++, for a host compiler.
//
// Each function queues its kernels on `stream` and returns 0 (cudaSuccess) or the error of launching them. All pointers
// are device memory unless said otherwise; nothing is allocated. Rows are of f32, bf16 or f16; sums are in f32.
//
// Arguments can be compared: launches with equal ones do the same work on what the memory then has. So what differs
// from token to token, such as the place of a text's next key, is read from device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/weights.h"
#include "lib/support/element.h"

struct CUstream_st;

namespace quire::cuda {

using Stream = CUstream_st*;

// Rows of elements: row r begins at element r * stride. Row and stride are multiples of 16 bytes where a function says
// "aligned".
struct DeviceRows {
  void* data = nullptr;
  int64_t stride = 0;
  ElementType type = ElementType::kBF16;

  bool operator==(const DeviceRows&) const = default;
};

// out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, or with `add` that much is added. weight: f32 [width]. out may be
// x.
int rms_norm(Stream stream, DeviceRows x, const float* weight, float eps, int64_t n, int64_t width, bool add,
             DeviceRows out);

// The same for each of `heads` consecutive heads of a row with one weight, f32 [head_dim]; in place.
int head_norm(Stream stream, DeviceRows x, const float* weight, float eps, int64_t n, int64_t heads, int64_t head_dim);

// out[r][j] = activation(x[r][j]) * x[r][width + j] for j < width. out may be x.
int gated_linear_unit(Stream stream, Activation activation, DeviceRows x, int64_t n, int64_t width, DeviceRows out);

// out[r] = scale * row ids[r] of the table; an id below 0 or from table.n on gives a row of zeros.
int embed(Stream stream, const DeviceMatrix& table, const int32_t* ids, int64_t n, float scale, DeviceRows out);

// to[r] = from[r], widened or rounded to nearest even.
int copy_rows(Stream stream, DeviceRows from, int64_t n, int64_t width, DeviceRows to);

// to[(*first + first_row + r) % period] = from[r], likewise; n <= period.
int copy_to_turn(Stream stream, DeviceRows from, int64_t n, int64_t width, DeviceRows to, const int64_t* first,
                 int64_t first_row, int64_t period);

// x[r][j] *= by.
int scale_rows(Stream stream, DeviceRows x, int64_t n, int64_t width, float by);

// x[r][j] *= by for the dimensions j of each of `heads` consecutive heads that are not rotated: of each half of a head
// those behind its first rotary_dim / 2.
int scale_unrotated(Stream stream, DeviceRows x, int64_t n, int64_t heads, int64_t head_dim, int64_t rotary_dim,
                    float by);

// to[r] = row, or to[r] += row if `add`. row: f32 [width].
int write_row(Stream stream, const float* row, int64_t n, int64_t width, bool add, DeviceRows to);

// ---- KV records
// A record is [n_kv_heads][keys, values][chunk][head_dim] in bf16 or f16.

// The rotation of a pair for a distance of 1, as a part of a whole turn: high + low, so that it is known to 48 bits.
struct Turns {
  float high, low;
};

struct KvShape {
  int n_kv_heads = 0;
  int head_dim = 0;  // even
  int64_t chunk = 0;
  ElementType type = ElementType::kBF16;

  bool operator==(const KvShape&) const = default;
};

// Stores rows [0, n) as keys [*first_key, *first_key + n) of a sequence. Each key is rotated at its offset in the
// chunk divided by stored_div (floored; 0: not rotated).
struct StoreKv {
  DeviceRows keys{};    // [n][n_kv_heads * head_dim], not rotated
  DeviceRows values{};  // the same
  int64_t n = 0;
  const int64_t* first_key = nullptr;
  KvShape shape{};
  int64_t stored_div = 1;
  const Turns* turns = nullptr;    // [head_dim / 2]
  void* const* records = nullptr;  // by chunk of the text

  bool operator==(const StoreKv&) const = default;
};
int store_kv(Stream stream, const StoreKv& args);

// Makes a record of two others: tokens [offset, chunk) of the first one, and behind them tokens [0, offset) of the
// second one. Keys are turned to where they stand at their new offsets.
struct MoveKv {
  KvShape shape{};
  const Turns* turns = nullptr;
  int64_t stored_div = 1;  // as of StoreKv
  const void* first = nullptr;
  const void* second = nullptr;
  int64_t offset = 0;
  void* to = nullptr;  // none of the others

  bool operator==(const MoveKv&) const = default;
};
int move_kv(Stream stream, const MoveKv& args);

// Makes the narrow records (kernels/cuda/narrow_record.h) of chunks [first_chunk, first_chunk + n_chunks) from the full
// ones, as the CPU backend does, bit for bit.
struct NarrowKv {
  KvShape shape{};                        // of the full records; the chunk is a multiple of 16
  ElementType type = ElementType::kInt8;  // of the narrow ones: kInt8 or kInt4
  const void* const* records = nullptr;   // by chunk
  void* const* out = nullptr;             // by chunk
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;

  bool operator==(const NarrowKv&) const = default;
};
int narrow_kv(Stream stream, const NarrowKv& args);

}  // namespace quire::cuda
