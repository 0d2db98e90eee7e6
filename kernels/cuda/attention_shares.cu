// Where rows look: shares of attention that fall on cells of keys, and the greatest of them over heads and layers.
#include "kernels/cuda/attention_tile.h"

namespace quire::cuda {
namespace {

constexpr int kCellThreads = 256;

// Rows and heads by index x of the grid, cells by index y. What earlier calls left is brought to this one's scale.
__global__ void __launch_bounds__(kCellThreads) begin_shares_kernel(Attention args, AttentionCells cells) {
  const int64_t cell = static_cast<int64_t>(blockIdx.y) * kCellThreads + threadIdx.x;
  if (cell >= cells.n_cells()) return;
  float factor = 0;
  if (args.resumes) {
    const AttentionStats& of = args.stats[cells.first_row * args.n_query_heads + blockIdx.x];
    if (of.before != -INFINITY) factor = exp2_fast(of.before - of.max) * share_factor(of, args.pauses);
  }
  float& share = cells.shares[blockIdx.x * cells.n_cells() + cell];
  share = args.resumes ? share * factor : 0.0f;
}

// 3: blocks of a multiprocessor, as ByWarps::kResidentBlocks.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads, 3) shares_kernel(Attention args, AttentionCells cells) {
  QUIRE_SHARED_MEMORY(memory);
  using Run = TileRun<kWidth, T, Purpose::kShares, ByWarpsOf<kWidth>, false>;
  Run(args, &cells, *reinterpret_cast<typename Run::Memory*>(memory)).run();
}

// Rows by index x of the grid, cells by index y.
__global__ void __launch_bounds__(kCellThreads)
    keep_peaks_kernel(const float* shares, int n_heads, int64_t n_cells, bool first, float* peaks) {
  const int64_t cell = static_cast<int64_t>(blockIdx.y) * kCellThreads + threadIdx.x, row = blockIdx.x;
  if (cell >= n_cells) return;
  float greatest = first ? 0.0f : peaks[row * n_cells + cell];
  for (int head = 0; head < n_heads; ++head) {
    greatest = fmaxf(greatest, shares[(row * n_heads + head) * n_cells + cell]);
  }
  peaks[row * n_cells + cell] = greatest;
}

unsigned blocks_of(int64_t n_cells) { return static_cast<unsigned>((n_cells + kCellThreads - 1) / kCellThreads); }

}  // namespace

int attention_shares(Stream stream, const Attention& args, const AttentionCells& cells) {
  const int64_t rows = (cells.n_rows - cells.first_row) * args.n_query_heads;
  if (rows <= 0 || cells.n_cells() == 0) return 0;
  if (!can_attend(args.shape)) return kUnknownType;
  const int error = launch(begin_shares_kernel, dim3(static_cast<unsigned>(rows), blocks_of(cells.n_cells())),
                           kCellThreads, 0, stream, args, cells);
  if (error != 0 || args.n_works == 0) return error;
  return with_head(args.shape, [&](auto width, auto type) {
    constexpr int kWidth = decltype(width)::value;
    using T = decltype(type);
    const int64_t n_blocks = args.n_works * (args.wide ? kWideTileRows / kTileRows : 1);
    using Memory = Shared<kWidth, T, ByWarpsOf<kWidth>>;
    static_assert(sizeof(Memory) <= kLeastSharedMemory);
    return launch(shares_kernel<kWidth, T>, static_cast<unsigned>(n_blocks), kThreads, sizeof(Memory), stream, args,
                  cells);
  });
}

int keep_peaks(Stream stream, const float* shares, int64_t n, int n_heads, int64_t n_cells, bool first, float* peaks) {
  if (n == 0 || n_cells == 0) return 0;
  return launch(keep_peaks_kernel, dim3(static_cast<unsigned>(n), blocks_of(n_cells)), kCellThreads, 0, stream, shares,
                n_heads, n_cells, first, peaks);
}

}  // namespace quire::cuda
