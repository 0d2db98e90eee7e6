// The product of many rows on tensor cores: a block makes 64 x 64 elements of the result, four warps with 16 rows each.
// x and W pass through shared memory 64 elements of k at a time, rounded to bf16; bf16 is copied asynchronously, two
// steps in flight, other types are converted on the way.
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/matmul_kernels.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;  // rows, columns, and elements of k of a step
static_assert(kTile == kRowsOfTile);
constexpr int kRow = kTile + 8;
constexpr int kStages = 2;

struct Tiles {
  bf16 x[kStages][kTile * kRow];
  bf16 w[kStages][kTile * kRow];
};

template <typename T>
constexpr bool kIsCopied = std::is_same_v<T, bf16>;

// Rows [first, first + kTile) of float elements, k from `from` on; zeros where there are none.
template <typename T>
__device__ __forceinline__ void load_rows(bf16* to, const T* rows, int64_t stride, int64_t first, int64_t n_rows,
                                          int64_t from, int64_t k) {
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kIsCopied<T>) {
    if (stride % 8 == 0 && k % 8 == 0 && reinterpret_cast<uintptr_t>(rows) % 16 == 0) {
      for (int i = thread; i < kTile * kTile / 8; i += kThreads) {
        const int row = i / (kTile / 8), at = i % (kTile / 8) * 8;
        const bool there = first + row < n_rows && from + at < k;
        copy_16_async(to + row * kRow + at, there ? rows + (first + row) * stride + from + at : nullptr, there);
      }
      return;
    }
  }
  for (int i = thread; i < kTile * kTile; i += kThreads) {
    const int row = i / kTile, at = i % kTile;
    const bool there = first + row < n_rows && from + at < k;
    from_float(there ? to_float(rows[(first + row) * stride + from + at]) : 0.0f, to[row * kRow + at]);
  }
}

// The same of quantised weights: two groups a row.
template <ElementType kType>
__device__ __forceinline__ void load_quantized(bf16* to, const DeviceMatrix& w, int64_t first, int64_t from) {
  const int n_blocks = static_cast<int>(w.k / block_format(kType).elements);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * (kTile / kGroup); i += kThreads) {
    const int row = i / (kTile / kGroup), at = i % (kTile / kGroup) * kGroup;
    bf16* const out = to + row * kRow + at;
    if (first + row < w.n && from + at < w.k) {
      for_group<kType>(static_cast<const uint8_t*>(w.data) + (first + row) * w.row_bytes, n_blocks,
                       static_cast<int>((from + at) / kGroup),
                       [&](int j, float weight) { from_float(weight, out[j]); });
    } else {
      for (int j = 0; j < kGroup; ++j) from_float(0.0f, out[j]);
    }
  }
}

// How a kernel loads weights: Floats<T> or Blocks<type>.
template <typename T>
struct Floats {
  __device__ static void load(bf16* to, const DeviceMatrix& w, int64_t first, int64_t from) {
    load_rows(to, static_cast<const T*>(w.data), w.row_bytes / static_cast<int64_t>(sizeof(T)), first, w.n, from, w.k);
  }
};
template <ElementType kType>
struct Blocks {
  __device__ static void load(bf16* to, const DeviceMatrix& w, int64_t first, int64_t from) {
    load_quantized<kType>(to, w, first, from);
  }
};

template <typename X, typename Weights>
__global__ void __launch_bounds__(kThreads) matmul_tiles_kernel(MatmulArgs args) {
  QUIRE_SHARED_MEMORY(memory);
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile,
                first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int lane = lane_of_warp(), warp = warp_of_block();
  const auto load = [&](int64_t from, int stage) {
    if (from < args.w.k) {
      load_rows(tiles.x[stage], static_cast<const X*>(args.x.data), args.x.stride, first_row, args.n_rows, from,
                args.w.k);
      Weights::load(tiles.w[stage], args.w, first_column, from);
    }
    commit_copies();
  };
  float sums[kTile / 8][4] = {};
  for (int stage = 0; stage < kStages - 1; ++stage) load(stage * kTile, stage);
  int stage = 0;
  for (int64_t from = 0; from < args.w.k; from += kTile) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    load(from + (kStages - 1) * kTile, (stage + kStages - 1) % kStages);
    const bf16 *x = tiles.x[stage], *w = tiles.w[stage];
    QUIRE_UNROLL for (int step = 0; step < kTile / 16; ++step) {
      unsigned a[4];
      load_tiles(a, x + (warp * 16 + lane % 16) * kRow + step * 16 + lane / 16 * 8);
      QUIRE_UNROLL for (int n = 0; n < kTile / 8; n += 2) {
        unsigned b[4];
        load_tiles(b, w + (n * 8 + lane % 8 + lane / 16 * 8) * kRow + step * 16 + lane / 8 % 2 * 8);
        multiply_tile(sums[n], a, b[0], b[1], bf16());
        multiply_tile(sums[n + 1], a, b[2], b[3], bf16());
      }
    }
    stage = (stage + 1) % kStages;
  }
  wait_for_copies<0>();
  QUIRE_UNROLL for (int n = 0; n < kTile / 8; ++n) {
    QUIRE_UNROLL for (int e = 0; e < 4; ++e) {
      const int64_t row = first_row + warp * 16 + lane / 4 + 8 * (e / 2),
                    column = first_column + n * 8 + lane % 4 * 2 + e % 2;
      if (row < args.n_rows && column < args.w.n) {
        finish_element(args, row, column, sums[n][e], addends_of(args, row, column));
      }
    }
  }
}

template <typename Weights>
int launch_tiles(Stream stream, const MatmulArgs& args) {
  const auto tiles = [](int64_t n) { return static_cast<unsigned>((n + kTile - 1) / kTile); };
  return with_type(args.x.type, [&](auto x) {
    return launch(matmul_tiles_kernel<decltype(x), Weights>, dim3(tiles(args.w.n), tiles(args.n_rows)), kThreads,
                  sizeof(Tiles), stream, args);
  });
}

}  // namespace

int matmul_tiles(Stream stream, const MatmulArgs& args) {
  if (is_quantized(args.w.type)) {
    return with_quantized_type(args.w.type, [&](auto w) { return launch_tiles<Blocks<w.value>>(stream, args); });
  }
  return with_type(args.w.type, [&](auto w) { return launch_tiles<Floats<decltype(w)>>(stream, args); });
}

}  // namespace quire::cuda
