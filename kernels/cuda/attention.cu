// Attention of a tile of queries over pieces of keys, online softmax, products on tensor cores.
//
// A block has four warps, each with 16 rows of the tile. Keys and values pass through shared memory in blocks of 64,
// two in flight. A head is padded to kWidth channels: its halves, which rotation pairs, begin at 0 and kWidth / 2.
#include "kernels/cuda/attention.h"

#include "kernels/cuda/rotation.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = 64;   // of a block of keys
constexpr int kStages = 2;  // blocks of keys in shared memory
constexpr float kLog2E = 1.44269504088896340736f;

template <int kWidth, typename T>
struct Shared {
  static constexpr int kRow = kWidth + 8;  // so that the rows of a tile of 8 lie in different banks
  T queries[kTileRows * kRow];
  T keys[kStages][kKeys * kRow];
  T values[kStages][kKeys * kRow];
  int32_t rank[kTileRows];  // of tiles with a selection: of the piece's keys, by row; -1: not selected
};

// A block of keys of a piece: those from chunk offset `offset` on.
struct KeyBlock {
  int32_t piece;
  int64_t offset;
};

template <int kWidth, typename T>
class TileRun {
 public:
  static constexpr int kRow = Shared<kWidth, T>::kRow;
  static constexpr int kSteps = kWidth / 16;  // of the product of queries and keys

  __device__ TileRun(const Attention& args, Shared<kWidth, T>& shared)
      : args_(args),
        shared_(shared),
        work_(args.works[blockIdx.x]),
        tile_(args.tiles[work_.tile]),
        n_rows_(tile_.count * tile_.heads),
        half_(args.shape.head_dim / 2),
        thread_(static_cast<int>(threadIdx.x)),
        g_(lane_of_warp() / 4),
        t_(lane_of_warp() % 4) {}

  __device__ void run() {
    load_queries();
    KeyBlock next = first_block(work_.first_piece), now = next;
    for (int stage = 0; stage < kStages - 1; ++stage) load_ahead(next, stage);
    int stage = 0, piece = -1;
    while (now.piece < work_.end_piece) {
      wait_for_copies<kStages - 2>();
      __syncthreads();
      load_ahead(next, (stage + kStages - 1) % kStages);
      if (now.piece != piece) begin_piece(piece = now.piece);
      const AttentionSpan& span = args_.spans[args_.pieces[piece].span];
      if (span.turned) {
        turn_keys(span, now, shared_.keys[stage]);
        __syncthreads();
      }
      attend(now, shared_.keys[stage], shared_.values[stage]);
      advance(now);
      stage = (stage + 1) % kStages;
    }
    wait_for_copies<0>();
    finish();
  }

 private:
  __device__ __forceinline__ int64_t query_of(int row) const { return tile_.first + row / tile_.heads * tile_.step; }
  __device__ __forceinline__ int64_t place_of(int row) const {
    return tile_.place + int64_t{row / tile_.heads} * tile_.stride;
  }
  __device__ __forceinline__ int64_t head_of(int row) const { return tile_.first_head + row % tile_.heads; }
  __device__ __forceinline__ int64_t diagonal_key(const AttentionSpan& span, int row) const {
    return span.first_key + tile_.in_block + int64_t{row / tile_.heads} * tile_.stride;
  }

  __device__ __forceinline__ KeyBlock first_block(int32_t piece) const {
    if (piece >= work_.end_piece) return {piece, 0};
    const AttentionPiece& of = args_.pieces[piece];
    return {piece, (of.begin - of.chunk * args_.shape.chunk) / kKeys * kKeys};
  }
  __device__ __forceinline__ void advance(KeyBlock& block) const {
    const AttentionPiece& of = args_.pieces[block.piece];
    block.offset += kKeys;
    if (of.chunk * args_.shape.chunk + block.offset >= of.end) block = first_block(block.piece + 1);
  }

  // Copies a head of `rows` rows into padded rows of shared memory; zeros for rows that are not there, and as padding.
  // address(row): of the row's first element; null: not there.
  template <typename Address>
  __device__ __forceinline__ void copy_heads(T* to, int rows, const Address& address) const {
    constexpr int kElements = 16 / sizeof(T), kHalfCopies = kWidth / 2 / kElements;
    for (int i = thread_; i < rows * 2 * kHalfCopies; i += kThreads) {
      const int row = i / (2 * kHalfCopies), part = i % (2 * kHalfCopies);
      const int side = part / kHalfCopies, at = part % kHalfCopies * kElements;
      const T* const from = address(row);
      const bool there = from != nullptr && at < half_;
      copy_16_async(to + row * kRow + side * (kWidth / 2) + at, there ? from + side * half_ + at : nullptr, there);
    }
  }

  __device__ void load_queries() {
    // Queries of other types are converted, which no asynchronous copy does.
    constexpr int kPairs = kWidth / 2;
    for (int i = thread_; i < kTileRows * kPairs; i += kThreads) {
      const int row = i / kPairs, pair = i % kPairs;
      float low = 0, high = 0;
      if (row < n_rows_ && pair < half_) {
        const int64_t at = place_of(row) * args_.queries.stride + head_of(row) * 2 * half_ + pair;
        if (args_.queries.type == ElementType::kF32) {
          low = static_cast<const float*>(args_.queries.data)[at];
          high = static_cast<const float*>(args_.queries.data)[at + half_];
        } else if (args_.queries.type == ElementType::kBF16) {
          low = to_float(static_cast<const bf16*>(args_.queries.data)[at]);
          high = to_float(static_cast<const bf16*>(args_.queries.data)[at + half_]);
        } else {
          low = to_float(static_cast<const f16*>(args_.queries.data)[at]);
          high = to_float(static_cast<const f16*>(args_.queries.data)[at + half_]);
        }
      }
      from_float(low, shared_.queries[row * kRow + pair]);
      from_float(high, shared_.queries[row * kRow + kWidth / 2 + pair]);
    }
  }

  // Begins to load the next block of keys and values, and goes one further. Where there is none, the group is empty.
  __device__ __forceinline__ void load_ahead(KeyBlock& next, int stage) {
    if (next.piece < work_.end_piece) {
      const AttentionPiece& of = args_.pieces[next.piece];
      const int64_t chunk = args_.shape.chunk, width = 2 * half_;
      const T* const keys =
          static_cast<const T*>(args_.records[of.kind][of.chunk]) + int64_t{2} * tile_.kv_head * chunk * width;
      const T* const values = keys + chunk * width;
      const int64_t offset = next.offset, end = of.end - of.chunk * chunk;
      copy_heads(shared_.keys[stage], kKeys,
                 [&](int row) { return offset + row < end ? keys + (offset + row) * width : nullptr; });
      copy_heads(shared_.values[stage], kKeys,
                 [&](int row) { return offset + row < end ? values + (offset + row) * width : nullptr; });
      advance(next);
    }
    commit_copies();
  }

  // Turns the queries to where this piece wants them. All threads call it, behind a barrier.
  __device__ void begin_piece(int32_t index) {
    const AttentionPiece& piece = args_.pieces[index];
    const AttentionSpan& span = args_.spans[piece.span];
    if (tile_.selected) {
      for (int row = thread_; row < kTileRows; row += kThreads) shared_.rank[row] = -1;
      __syncthreads();
      for (int i = thread_; i < piece.n_picks; i += kThreads) {
        const AttentionPick pick = args_.picks[piece.first_pick + i];
        shared_.rank[pick.row] = pick.rank;
      }
      __syncthreads();
    }
    const T* const own =
        shared_.queries + (warp_of_block() * 16 + lane_of_warp() % 16) * kRow + lane_of_warp() / 16 * 8;
    QUIRE_UNROLL for (int step = 0; step < kSteps; ++step) load_tiles(queries_[step], own + step * 16);
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const Position position = split_position(position_of(warp_of_block() * 16 + g_ + 8 * side, piece, span));
      QUIRE_UNROLL for (int step = 0; step < kSteps / 2; ++step) {
        QUIRE_UNROLL for (int r = side; r < 4; r += 2) {
          unsigned &first = queries_[step][r], &second = queries_[step + kSteps / 2][r];
          const int pair = step * 16 + 2 * t_ + 8 * (r / 2);
          const Angle low = angle_of(pair, position), high = angle_of(pair + 1, position);
          const float a0 = low_of(first, T()), a1 = high_of(first, T());
          const float b0 = low_of(second, T()), b1 = high_of(second, T());
          first = pack(a0 * low.cosine - b0 * low.sine, a1 * high.cosine - b1 * high.sine, T());
          second = pack(b0 * low.cosine + a0 * low.sine, b1 * high.cosine + a1 * high.sine, T());
        }
      }
    }
  }

  __device__ __forceinline__ Angle angle_of(int pair, Position position) const {
    return pair < half_ ? angle_at(args_.turns[pair], position) : Angle{1, 0};
  }

  // The row's distance from the chunk's first key. Of rows that do not see the piece it may be anything.
  __device__ __forceinline__ double position_of(int row, const AttentionPiece& piece, const AttentionSpan& span) const {
    const int64_t i = query_of(row), chunk_first = piece.chunk * args_.shape.chunk;
    if (row >= n_rows_) return 0;
    if (span.diagonal) return static_cast<double>(diagonal_key(span, row) - chunk_first);
    if (span.ranked) {
      const AttentionRanks& ranks = args_.ranks;
      const int64_t own = i / ranks.chunk;
      int64_t n = ranks.count;
      if (ranks.one_in > 0 && (own + 1) / ranks.one_in > n) n = (own + 1) / ranks.one_in;
      if (own + 1 < n) n = own + 1;
      const int64_t of_begin = (n - 1 - shared_.rank[row]) * ranks.chunk + i % ranks.chunk - piece.begin % ranks.chunk;
      return static_cast<double>(of_begin + piece.begin - chunk_first);
    }
    double q = static_cast<double>(i) / span.q_div;
    if (span.q_floor) q = floor(q);
    q += span.q_offset;
    if (q > span.q_cap) q = span.q_cap;
    return q - piece.base;
  }

  // Turns the keys of a block, which have arrived, to where the span wants them, counted from the chunk's first key.
  __device__ void turn_keys(const AttentionSpan& span, KeyBlock block, T* keys) const {
    const AttentionPiece& piece = args_.pieces[block.piece];
    const int64_t chunk_first = piece.chunk * args_.shape.chunk;
    const auto wanted = [&](int64_t j) {
      if (span.key_div == 0) return 0.0;
      const double p = static_cast<double>(j - span.key_base) / static_cast<double>(span.key_div);
      return span.key_floor ? floor(p) : p;
    };
    for (int i = thread_; i < kKeys * half_; i += kThreads) {
      const int row = i / half_, pair = i % half_;
      double by = wanted(chunk_first + block.offset + row) - wanted(chunk_first);
      if (!args_.raw[piece.kind]) by -= static_cast<double>(block.offset + row);
      const Angle angle = angle_at(args_.turns[pair], split_position(by));
      T &first = keys[row * kRow + pair], &second = keys[row * kRow + kWidth / 2 + pair];
      const float a = to_float(first), b = to_float(second);
      from_float(a * angle.cosine - b * angle.sine, first);
      from_float(b * angle.cosine + a * angle.sine, second);
    }
  }

  __device__ __forceinline__ bool sees(int row, int64_t j, const AttentionPiece& piece,
                                       const AttentionSpan& span) const {
    if (row >= n_rows_ || j < piece.begin || j >= piece.end) return false;
    if (tile_.selected && shared_.rank[row] < 0) return false;
    if (span.diagonal) return j == diagonal_key(span, row);
    const int64_t lag = query_of(row) - j;
    return lag >= span.min_lag && lag <= span.max_lag && (span.lag_stride == 1 || lag % span.lag_stride == 0) &&
           (span.stride == 1 || (j - span.first_key) % span.stride == 0);
  }

  // Whether all rows of the warp see all keys of the block.
  __device__ __forceinline__ bool all_see(int64_t first, const AttentionPiece& piece, const AttentionSpan& span) const {
    const int row = warp_of_block() * 16;
    if (row + 16 > n_rows_ || tile_.selected || span.diagonal || span.stride != 1 || span.lag_stride != 1) return false;
    return first >= piece.begin && first + kKeys <= piece.end && query_of(row) - (first + kKeys - 1) >= span.min_lag &&
           query_of(row + 15) - first <= span.max_lag;
  }

  __device__ void attend(KeyBlock block, const T* keys, const T* values) {
    const AttentionPiece& piece = args_.pieces[block.piece];
    const AttentionSpan& span = args_.spans[piece.span];
    const int64_t first = piece.chunk * args_.shape.chunk + block.offset;
    float scores[kKeys / 8][4] = {};
    QUIRE_UNROLL for (int step = 0; step < kSteps; ++step) {
      QUIRE_UNROLL for (int n = 0; n < kKeys / 8; n += 2) {
        unsigned b[4];
        load_tiles(b, keys + (n * 8 + lane_of_warp() % 8 + lane_of_warp() / 16 * 8) * kRow + step * 16 +
                          lane_of_warp() / 8 % 2 * 8);
        multiply_tile(scores[n], queries_[step], b[0], b[1], T());
        multiply_tile(scores[n + 1], queries_[step], b[2], b[3], T());
      }
    }
    const bool masked = !all_see(first, piece, span);
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const int row = warp_of_block() * 16 + g_ + 8 * side;
      const float scale = scale_of(row);
      float greatest = max_[side];
      QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
        QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
          float& score = scores[n][2 * side + e];
          score = masked && !sees(row, first + n * 8 + 2 * t_ + e, piece, span) ? -INFINITY : score * scale;
          greatest = fmaxf(greatest, score);
        }
      }
      // The four lanes of a row.
      greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 1));
      greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 2));
      const float base = greatest == -INFINITY ? 0.0f : greatest;
      const float kept = exp2_fast(max_[side] - base);
      float sum = 0;
      QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
        QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
          float& score = scores[n][2 * side + e];
          score = exp2_fast(score - base);
          sum += score;
        }
      }
      max_[side] = greatest;
      sum_[side] = sum_[side] * kept + sum;
      QUIRE_UNROLL for (int c = 0; c < kWidth / 8; ++c) {
        out_[c][2 * side] *= kept;
        out_[c][2 * side + 1] *= kept;
      }
    }
    QUIRE_UNROLL for (int step = 0; step < kKeys / 16; ++step) {
      const unsigned weights[4] = {pack(scores[2 * step][0], scores[2 * step][1], T()),
                                   pack(scores[2 * step][2], scores[2 * step][3], T()),
                                   pack(scores[2 * step + 1][0], scores[2 * step + 1][1], T()),
                                   pack(scores[2 * step + 1][2], scores[2 * step + 1][3], T())};
      QUIRE_UNROLL for (int c = 0; c < kWidth / 8; c += 2) {
        unsigned b[4];
        load_tiles_transposed(b, values + (step * 16 + lane_of_warp() % 16) * kRow + c * 8 + lane_of_warp() / 16 * 8);
        multiply_tile(out_[c], weights, b[0], b[1], T());
        multiply_tile(out_[c + 1], weights, b[2], b[3], T());
      }
    }
  }

  __device__ __forceinline__ float scale_of(int row) const {
    const float own = args_.query_scale != nullptr && row < n_rows_ ? args_.query_scale[place_of(row)] : 1.0f;
    return args_.scale * own * kLog2E;
  }

  // Calls use(channel of the head, value) for the thread's values of one of its rows.
  template <typename Use>
  __device__ __forceinline__ void for_channels(int side, const Use& use) const {
    QUIRE_UNROLL for (int c = 0; c < kWidth / 8; ++c) {
      QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
        const int padded = c * 8 + 2 * t_ + e, pair = padded % (kWidth / 2);
        if (pair < half_) use(padded / (kWidth / 2) * half_ + pair, out_[c][2 * side + e]);
      }
    }
  }

  __device__ void finish() {
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      float sum = sum_[side];
      sum += __shfl_xor_sync(kWholeWarp, sum, 1);
      sum += __shfl_xor_sync(kWholeWarp, sum, 2);
      const int row = warp_of_block() * 16 + g_ + 8 * side;
      if (row >= n_rows_) continue;
      if (work_.part < 0) {
        const float factor = sum > 0 ? 1 / sum : 0.0f;
        const int64_t at = place_of(row) * args_.out.stride + head_of(row) * 2 * half_;
        for_channels(side, [&](int channel, float v) { store(args_.out, at + channel, v * factor); });
        continue;
      }
      float* const part = args_.parts + work_.part * attention_part_floats(2 * half_);
      if (t_ == 0) {
        part[row] = max_[side];
        part[kTileRows + row] = sum;
      }
      for_channels(side, [&](int channel, float v) { part[2 * kTileRows + row * 2 * half_ + channel] = v; });
    }
  }

  __device__ __forceinline__ static void store(const DeviceRows& rows, int64_t at, float v) {
    if (rows.type == ElementType::kF32) {
      static_cast<float*>(rows.data)[at] = v;
    } else if (rows.type == ElementType::kBF16) {
      from_float(v, static_cast<bf16*>(rows.data)[at]);
    } else {
      from_float(v, static_cast<f16*>(rows.data)[at]);
    }
  }

  const Attention& args_;
  Shared<kWidth, T>& shared_;
  const AttentionWork work_;
  const AttentionTile tile_;
  const int n_rows_, half_, thread_, g_, t_;
  unsigned queries_[kSteps][4];
  // Of rows g and g + 8 of the warp; sums are of the lane's own keys.
  float max_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0, 0};
  float out_[kWidth / 8][4] = {};
};

template <int kWidth, typename T>
__global__ void __launch_bounds__(kThreads) attention_kernel(Attention args) {
  QUIRE_SHARED_MEMORY(memory);
  TileRun<kWidth, T>(args, *reinterpret_cast<Shared<kWidth, T>*>(memory)).run();
}

// A warp per row of a tile: the parts one after the other.
__global__ void __launch_bounds__(kThreads) merge_kernel(Attention args) {
  const AttentionMerge merge = args.merges[blockIdx.x];
  const AttentionTile& tile = args.tiles[merge.tile];
  const int row = static_cast<int>(blockIdx.y) * kWarps + warp_of_block(), d = args.shape.head_dim;
  if (row >= tile.count * tile.heads) return;
  const int64_t floats = attention_part_floats(d);
  const float* const first = args.parts + merge.first_part * floats;
  float greatest = -INFINITY;
  for (int p = 0; p < merge.n_parts; ++p) greatest = fmaxf(greatest, first[p * floats + row]);
  const int64_t place = tile.place + int64_t{row / tile.heads} * tile.stride;
  const int64_t at = place * args.out.stride + int64_t{tile.first_head + row % tile.heads} * d;
  for (int c = lane_of_warp(); c < d; c += kWarpSize) {
    float sum = 0, value = 0;
    for (int p = 0; p < merge.n_parts; ++p) {
      const float* const part = first + p * floats;
      if (part[row] == -INFINITY) continue;  // it sees none of these keys
      const float weight = exp2_fast(part[row] - greatest);
      sum += weight * part[kTileRows + row];
      value += weight * part[2 * kTileRows + row * d + c];
    }
    const float v = sum > 0 ? value / sum : 0.0f;
    if (args.out.type == ElementType::kF32) {
      static_cast<float*>(args.out.data)[at + c] = v;
    } else if (args.out.type == ElementType::kBF16) {
      from_float(v, static_cast<bf16*>(args.out.data)[at + c]);
    } else {
      from_float(v, static_cast<f16*>(args.out.data)[at + c]);
    }
  }
}

template <int kWidth>
int launch_attention(Stream stream, const Attention& args) {
  const auto launch_with = [&](auto type) {
    using T = decltype(type);
    return launch(attention_kernel<kWidth, T>, static_cast<unsigned>(args.n_works), kThreads, sizeof(Shared<kWidth, T>),
                  stream, args);
  };
  return args.shape.type == ElementType::kBF16 ? launch_with(bf16()) : launch_with(f16());
}

}  // namespace

bool can_attend(const KvShape& shape) {
  const bool type = shape.type == ElementType::kBF16 || shape.type == ElementType::kF16;
  return type && shape.head_dim > 0 && shape.head_dim % 16 == 0 && shape.head_dim <= 128;
}

int attention(Stream stream, const Attention& args) {
  if (args.n_works == 0) return 0;
  if (!can_attend(args.shape)) return kUnknownType;
  const int d = args.shape.head_dim;
  const int error = d <= 32   ? launch_attention<32>(stream, args)
                    : d <= 64 ? launch_attention<64>(stream, args)
                    : d <= 96 ? launch_attention<96>(stream, args)
                              : launch_attention<128>(stream, args);
  if (error != 0 || args.n_merges == 0) return error;
  return launch(merge_kernel, dim3(static_cast<unsigned>(args.n_merges), kTileRows / kWarps), kThreads, 0, stream,
                args);
}

}  // namespace quire::cuda
