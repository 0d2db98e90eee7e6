// The attention kernel's lists of chunks that queries chose, made where the choice is: a block for each tile.
#include "kernels/cuda/selection.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

struct Counts {
  int pieces, picks;
};

// The sums over the threads before this one, and over all. `shared`: [kWarps].
__device__ __forceinline__ Counts sums_before(Counts own, Counts* shared, Counts& all) {
  Counts upto = own;
  QUIRE_UNROLL for (int by = 1; by < kWarpSize; by *= 2) {
    const int pieces = __shfl_up_sync(kWholeWarp, upto.pieces, by), picks = __shfl_up_sync(kWholeWarp, upto.picks, by);
    if (lane_of_warp() >= by) {
      upto.pieces += pieces;
      upto.picks += picks;
    }
  }
  if (lane_of_warp() == kWarpSize - 1) shared[warp_of_block()] = upto;
  __syncthreads();
  Counts before{upto.pieces - own.pieces, upto.picks - own.picks};
  all = {0, 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp_of_block()) {
      before.pieces += shared[w].pieces;
      before.picks += shared[w].picks;
    }
    all.pieces += shared[w].pieces;
    all.picks += shared[w].picks;
  }
  __syncthreads();  // all have read; the next one may write
  return before;
}

__device__ __forceinline__ int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Span::base_of and Span::key_position.
__device__ __forceinline__ int64_t base_of(const ChosenSpan& span, int64_t j) {
  if (span.key_period == 0) return span.key_base;
  return span.key_base + floor_div(j - span.key_base, span.key_period) * span.key_period;
}
__device__ __forceinline__ double key_position(const ChosenSpan& span, int64_t j) {
  const int64_t offset = j - base_of(span, j);
  if (span.key_div == 0) return 0;
  return span.key_floor ? static_cast<double>(floor_div(offset, span.key_div))
                        : static_cast<double>(offset) / static_cast<double>(span.key_div);
}

// Calls use(span, begin, end) for the pieces of a chunk that the tile may see.
template <typename Use>
__device__ __forceinline__ void for_pieces(const ListChosen& args, const AttentionTile& tile, const ChosenKeys& keys,
                                           int64_t chunk, const Use& use) {
  for (int s = 0; s < keys.n_spans; ++s) {
    const ChosenSpan& span = args.spans[keys.first_span + s];
    int64_t at = chunk * args.chunk, end = at + args.chunk;
    if (span.first_key > at) at = span.first_key;
    if (span.end_key < end) end = span.end_key;
    const int64_t seen = tile.first + tile.count - span.min_lag;
    if (seen < end) end = seen;
    while (at < end) {
      int64_t stop = end;
      if (span.key_period > 0 && base_of(span, at) + span.key_period < end) stop = base_of(span, at) + span.key_period;
      use(span, at, stop);
      at = stop;
    }
  }
}

// The rows of a tile, a bit each.
struct RowSet {
  static constexpr int kWords = kTileRows / 32;
  unsigned words[kWords];

  __device__ __forceinline__ int count() const {
    int n = 0;
    QUIRE_UNROLL for (int w = 0; w < kWords; ++w) n += __popc(words[w]);
    return n;
  }
  // Calls use(row) in ascending order.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) const {
    QUIRE_UNROLL for (int w = 0; w < kWords; ++w) {
      for (unsigned rest = words[w]; rest != 0; rest &= rest - 1) use(32 * w + __ffs(static_cast<int>(rest)) - 1);
    }
  }
};

// 4: blocks of a multiprocessor, said so that the assembler does not spill registers to make room for one more.
__global__ void __launch_bounds__(kThreads, 4) list_chosen_kernel(ListChosen args) {
  QUIRE_SHARED_MEMORY(memory);
  RowSet* const chose = reinterpret_cast<RowSet*>(memory);  // [kThreads]: of the chunks that are looked at together
  Counts* const shared = reinterpret_cast<Counts*>(chose + kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t index = blockIdx.x;
  const AttentionTile tile = args.tiles[index];
  const ChosenKeys keys = args.keys[index];
  const int n_rows = tile.count * tile.heads;
  AttentionPiece* const pieces = args.pieces + index * args.most_pieces;
  AttentionPick* const picks = args.picks + index * args.most_picks;
  // The chunks of a row, ascending, -1 behind them.
  const auto chosen_by = [&](int row) {
    const int64_t place = tile.place + int64_t{row / tile.heads} * tile.stride;
    return args.chosen + (place * args.n_query_heads + tile.first_head + row % tile.heads) * args.width;
  };
  // As the how manieth of them a row chose this one, which it did.
  const auto rank_of = [&](int row, int64_t chunk) {
    const int32_t* const own = chosen_by(row);
    int64_t low = 0, high = args.width;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (own[middle] >= 0 && own[middle] < chunk) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return static_cast<int>(low);
  };

  Counts total{0, 0};
  int n_passed = 0;  // of the choices of the row that is the warp's lane-th: those before `first`
  static_assert(kTileRows / kWarps <= kWarpSize);
  for (int64_t first = 0; first < args.n_chunks; first += kThreads) {
    QUIRE_UNROLL for (int w = 0; w < RowSet::kWords; ++w) chose[thread].words[w] = 0;
    __syncthreads();
    for (int row = warp_of_block(); row < n_rows; row += kWarps) {
      const int32_t* const own = chosen_by(row);
      int passed = __shfl_sync(kWholeWarp, n_passed, row / kWarps), n_here = kWarpSize;
      while (n_here == kWarpSize) {  // the choices ascend
        const int64_t rank = passed + lane_of_warp();
        const int64_t chosen = rank < args.width ? own[rank] : -1, at = chosen - first;
        const bool here = chosen >= 0 && at < kThreads;
        if (here) atomicOr(&chose[at].words[row / 32], 1u << (row % 32));
        n_here = __popc(__ballot_sync(kWholeWarp, here));
        passed += n_here;
      }
      if (lane_of_warp() == row / kWarps) n_passed = passed;
    }
    __syncthreads();
    const int64_t chunk = first + thread;
    const RowSet by = chose[thread];
    Counts own{0, by.count()};
    if (own.picks > 0) {
      for_pieces(args, tile, keys, chunk, [&](const ChosenSpan&, int64_t, int64_t) { ++own.pieces; });
    }
    Counts all;
    Counts at = sums_before(own, shared, all);
    at.pieces += total.pieces;
    at.picks += total.picks;
    total.pieces += all.pieces;
    total.picks += all.picks;
    if (own.picks == 0) continue;  // until the barriers of the next chunks
    int pick = at.picks, piece = at.pieces;
    by.for_each([&](int row) { picks[pick++] = {row, rank_of(row, chunk)}; });
    for_pieces(args, tile, keys, chunk, [&](const ChosenSpan& span, int64_t begin, int64_t end) {
      AttentionPiece& of = pieces[piece++];
      of.begin = begin;
      of.end = end;
      of.chunk = begin / args.stored_chunk;
      const int64_t chunk_first = of.chunk * args.stored_chunk;
      of.base = span.key_period > 0 ? static_cast<double>(chunk_first - base_of(span, begin))
                                    : key_position(span, chunk_first);
      of.span = span.span;
      of.kind = begin < keys.old_before ? kNarrowRecord : kTextRecord;
      of.first_pick = static_cast<int32_t>(index * args.most_picks) + at.picks;
      of.n_picks = own.picks;
    });
  }
  // Parts of as many pieces each.
  for (int p = thread; p < args.n_parts; p += kThreads) {
    const auto first_piece = index * args.most_pieces;
    AttentionWork& work = args.works[index * args.n_parts + p];
    work.tile = static_cast<int32_t>(index);
    work.first_piece = static_cast<int32_t>(first_piece + int64_t{total.pieces} * p / args.n_parts);
    work.end_piece = static_cast<int32_t>(first_piece + int64_t{total.pieces} * (p + 1) / args.n_parts);
    work.part = args.n_parts > 1 ? static_cast<int32_t>(index * args.n_parts + p) : -1;
  }
}

}  // namespace

int list_chosen(Stream stream, const ListChosen& args) {
  if (args.n_tiles == 0) return 0;
  constexpr size_t kShared = kThreads * sizeof(RowSet) + kWarps * sizeof(Counts);
  return launch(list_chosen_kernel, static_cast<unsigned>(args.n_tiles), kThreads, kShared, stream, args);
}

}  // namespace quire::cuda
