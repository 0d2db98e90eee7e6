// Scores of chunks for queries.
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/selection.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

// SplitMix64 (Steele et al. 2014) of each part in turn: a number in [0, 1) that is the same on every machine.
__device__ float random_score(uint64_t layer, uint64_t head, uint64_t query, uint64_t chunk) {
  const uint64_t parts[4] = {layer, head, query, chunk};
  uint64_t x = 0;
  QUIRE_UNROLL for (int p = 0; p < 4; ++p) {
    x += parts[p] + 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
  }
  return static_cast<float>(x >> 40) * 0x1p-24f;
}

// Where the query is turned to for the vectors of a chunk: as the last span that shows the chunk says. Infinity: none
// does.
__device__ __forceinline__ double position_for(const ScoreChunks& args, int64_t i, int64_t chunk) {
  double position = INFINITY;
  for (int s = 0; s < args.n_spans; ++s) {
    const ScoreSpan& span = args.spans[s];
    const int64_t end = (span.first_key + span.count + args.chunk - 1) / args.chunk;
    if (chunk < span.first_key / args.chunk || chunk >= end) continue;
    const int64_t j = span.first_key > chunk * args.chunk ? span.first_key : chunk * args.chunk;
    double q = static_cast<double>(i) / span.q_div;
    if (span.q_floor) q = floor(q);
    q += span.q_offset;
    if (q > span.q_cap) q = span.q_cap;
    int64_t key = j - span.key_base;
    if (span.key_period > 0) key = (key % span.key_period + span.key_period) % span.key_period;
    position = q - static_cast<double>(key) + static_cast<double>(j % args.key_period);
  }
  return position;
}

// The chunks before a query's own have scores, the others the least one.
__device__ __forceinline__ bool is_before(const ScoreChunks& args, int64_t i, int64_t chunk) {
  return chunk < args.n_chunks && chunk < i / args.chunk;
}

// Blocks by rows and heads, and by chunks. Both are in index x of the grid, as index y would not suffice for the chunks
// of long texts: first all rows and heads of some chunks, then those of the next ones.
struct BlockPlace {
  int64_t of_rows, of_chunks;
};
__device__ __forceinline__ BlockPlace place_of_block(int64_t n_of_rows) {
  const auto n = static_cast<unsigned>(n_of_rows);
  return {blockIdx.x % n, blockIdx.x / n};
}

// At random: a thread for a chunk.
constexpr int kRandomThreads = 128;
__global__ void __launch_bounds__(kRandomThreads) random_scores_kernel(ScoreChunks args) {
  const BlockPlace place = place_of_block(args.n * args.n_query_heads);
  const int64_t row = place.of_rows / args.n_query_heads, head = place.of_rows % args.n_query_heads;
  const int64_t chunk = place.of_chunks * kRandomThreads + threadIdx.x;
  const int64_t i = *args.first_query + args.first_row + row;
  if (chunk >= args.n_chunks) return;
  args.scores[(row * args.n_query_heads + head) * args.n_chunks + chunk] =
      is_before(args, i, chunk) ? random_score(static_cast<uint64_t>(args.layer), static_cast<uint64_t>(head),
                                               static_cast<uint64_t>(i), static_cast<uint64_t>(chunk))
                                : -INFINITY;
}

template <typename T>
__device__ __forceinline__ void load_two(const T* from, T (&to)[2]) {
  if constexpr (sizeof(T) == 2) {
    store_4(to, load_4(from));
  } else {
    store_8(to, load_8(from));
  }
}

// A block for kScoredChunks chunks, a row, and kScoredHeads heads, which are a warp each. Where queries are turned, a
// chunk's angles are the same for all heads, so a block makes them once. Lanes take two pairs of channels at a time, so
// that they read a vector side by side, and of all chunks at once, so that none waits for another one.
constexpr int kScoredChunks = 8, kScoredHeads = 8, kScoredThreads = kScoredHeads * kWarpSize;
static_assert(kPageChunks % kScoredChunks == 0 && kScoredChunks <= kWarpSize);

template <typename In, typename Vectors, ChunkScores kKind>
__global__ void __launch_bounds__(kScoredThreads) score_chunks_kernel(ScoreChunks args) {
  constexpr bool kTurned = kKind != ChunkScores::kVectors, kBounds = kKind == ChunkScores::kBounds;
  QUIRE_SHARED_MEMORY(memory);
  const int d = args.head_dim, half = d / 2, lane = lane_of_warp(), thread = static_cast<int>(threadIdx.x);
  const int64_t groups = (args.n_query_heads + kScoredHeads - 1) / kScoredHeads;
  const BlockPlace place = place_of_block(args.n * groups);
  const int64_t row = place.of_rows / groups, head = place.of_rows % groups * kScoredHeads + warp_of_block();
  const int64_t first_chunk = place.of_chunks * kScoredChunks, own_chunk = first_chunk + lane;
  const int64_t i = *args.first_query + args.first_row + row;
  Position* const positions = reinterpret_cast<Position*>(memory);            // [kScoredChunks], infinity: no score
  Angle* const angles = reinterpret_cast<Angle*>(positions + kScoredChunks);  // [kScoredChunks][half]
  float* const out = args.scores + (row * args.n_query_heads + head) * args.n_chunks;
  if (!is_before(args, i, first_chunk)) {
    if (head < args.n_query_heads && lane < kScoredChunks && own_chunk < args.n_chunks) out[own_chunk] = -INFINITY;
    return;
  }
  if (kTurned) {
    if (thread < kScoredChunks) {
      const int64_t chunk = first_chunk + thread;
      positions[thread] = split_position(is_before(args, i, chunk) ? position_for(args, i, chunk) : INFINITY);
    }
    __syncthreads();
    for (int at = thread; at < kScoredChunks * half; at += kScoredThreads) {
      angles[at] = angle_at(args.turns[at % half], positions[at / half]);
    }
    __syncthreads();
  }
  if (head >= args.n_query_heads) return;
  const int64_t vector = kTurned ? head / (args.n_query_heads / args.n_kv_heads) * (kBounds ? 2 : 1) : head;
  // The rest of the page is there, too, even where it has no chunks yet.
  const Vectors* const page = static_cast<const Vectors*>(args.vectors.pages[first_chunk / kPageChunks]) +
                              (vector * kPageChunks + first_chunk % kPageChunks) * d;
  const Vectors* const greatest_page = page + kPageChunks * d;  // of bounds: behind the least ones
  const In* const query = static_cast<const In*>(args.queries.data) + row * args.queries.stride + head * d;
  const auto places = reinterpret_cast<uintptr_t>(args.queries.data) | args.queries.stride * sizeof(In);
  const bool in_twos = half % 2 == 0 && places % (2 * sizeof(In)) == 0;
  float scores[kScoredChunks] = {};
  for (int pair = 2 * lane; pair < half; pair += 2 * kWarpSize) {
    // [side]: of the channels of pairs `pair` and `pair` + 1 the first ones, and the second ones. First all loads,
    // whose places do not depend on what the query turns to.
    alignas(8) In from_query[2][2];
    alignas(8) Vectors least[kScoredChunks][2][2];
    alignas(8) Vectors greatest[kScoredChunks][2][2];
    const auto load = [&](auto two) {
      QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
        const int at = side * half + pair;
        two(query + at, from_query[side]);
        QUIRE_UNROLL for (int c = 0; c < kScoredChunks; ++c) {
          two(page + c * d + at, least[c][side]);
          if (kBounds) two(greatest_page + c * d + at, greatest[c][side]);
        }
      }
    };
    if (in_twos) {
      load([](const auto* from, auto& to) { load_two(from, to); });
    } else {
      load([&](const auto* from, auto& to) {
        to[0] = from[0];
        to[1] = from[pair + 1 < half ? 1 : 0];
      });
    }
    QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
      if (pair + e >= half) break;
      const float a = to_float(from_query[0][e]), b = to_float(from_query[1][e]);
      QUIRE_UNROLL for (int c = 0; c < kScoredChunks; ++c) {
        float q[2] = {a, b};
        if (kTurned) {
          const Angle angle = angles[c * half + pair + e];
          q[0] = (a * angle.cosine - b * angle.sine) * args.scale;
          q[1] = (b * angle.cosine + a * angle.sine) * args.scale;
        }
        QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
          const Vectors of = kBounds && q[side] >= 0 ? greatest[c][side][e] : least[c][side][e];
          scores[c] = fmaf(q[side], to_float(of), scores[c]);
        }
      }
    }
  }
  float own = 0;
  QUIRE_UNROLL for (int c = 0; c < kScoredChunks; ++c) {
    const float score = warp_sum(scores[c]);
    if (lane == c) own = score;
  }
  if (lane >= kScoredChunks || own_chunk >= args.n_chunks) return;
  const bool scored = kTurned ? positions[lane].high < INFINITY : is_before(args, i, own_chunk);
  out[own_chunk] = !scored ? -INFINITY : args.negate ? -own : own;
}

// By vectors of query heads, of many rows: a block for a head, kRows rows, and a page of chunks. The page's vectors
// pass through shared memory, where each serves all rows; a thread takes a chunk and every second row.
constexpr int kRows = 16, kVectorThreads = 2 * kPageChunks;
constexpr int kFewRows = 8;  // of fewer rows each is scored alone
constexpr int padded(int head_dim) { return (head_dim + 3) / 4 * 4; }

constexpr size_t vector_floats(int head_dim) {
  return static_cast<size_t>(kRows * padded(head_dim) + kPageChunks * (padded(head_dim) + 1));
}

template <typename In, typename Vectors>
__global__ void __launch_bounds__(kVectorThreads) score_vectors_kernel(ScoreChunks args) {
  QUIRE_SHARED_MEMORY(memory);
  constexpr int kOwn = kRows / 2;  // rows of a thread
  const int d = args.head_dim, width = padded(d), thread = static_cast<int>(threadIdx.x);
  const BlockPlace place = place_of_block((args.n + kRows - 1) / kRows * args.n_query_heads);
  const int64_t first_row = place.of_rows / args.n_query_heads * kRows, head = place.of_rows % args.n_query_heads;
  float* const queries = reinterpret_cast<float*>(memory);  // [kRows][width]
  float* const vectors = queries + kRows * width;           // [kPageChunks][width + 1]: in different banks
  const In* const from = static_cast<const In*>(args.queries.data) + first_row * args.queries.stride + head * d;
  for (int at = thread; at < kRows * width; at += kVectorThreads) {
    const int r = at / width, c = at % width;
    queries[at] = first_row + r < args.n && c < d ? to_float(from[r * args.queries.stride + c]) : 0.0f;
  }
  const int64_t first_chunk = place.of_chunks * kPageChunks, left = args.n_chunks - first_chunk;
  const int n_chunks = static_cast<int>(left < kPageChunks ? left : kPageChunks);
  const Vectors* const page = static_cast<const Vectors*>(args.vectors.pages[place.of_chunks]) + head * kPageChunks * d;
  for (int at = thread; at < n_chunks * width; at += kVectorThreads) {
    const int chunk = at / width, c = at % width;
    vectors[chunk * (width + 1) + c] = c < d ? to_float(page[chunk * d + c]) : 0.0f;
  }
  __syncthreads();
  const int chunk = thread % static_cast<int>(kPageChunks), side = thread / static_cast<int>(kPageChunks);
  if (chunk >= n_chunks) return;
  const float* const vector = vectors + chunk * (width + 1);
  float scores[kOwn] = {};
  for (int c = 0; c < width; c += 4) {
    QUIRE_UNROLL for (int r = 0; r < kOwn; ++r) {
      alignas(16) float q[4];
      load_16(q, queries + (2 * r + side) * width + c);
      QUIRE_UNROLL for (int e = 0; e < 4; ++e) scores[r] = fmaf(q[e], vector[c + e], scores[r]);
    }
  }
  const int64_t first_query = *args.first_query + args.first_row;
  const float sign = args.negate ? -1.0f : 1.0f;
  QUIRE_UNROLL for (int r = 0; r < kOwn; ++r) {
    const int64_t row = first_row + 2 * r + side;
    if (row >= args.n) continue;
    float& out = args.scores[(row * args.n_query_heads + head) * args.n_chunks + first_chunk + chunk];
    out = is_before(args, first_query + row, first_chunk + chunk) ? sign * scores[r] : -INFINITY;
  }
}

}  // namespace

int score_chunks(Stream stream, const ScoreChunks& args) {
  if (args.n == 0 || args.n_chunks == 0) return 0;
  const auto grid = [&](int64_t n_of_rows, int64_t chunks_of_block) {
    return static_cast<unsigned>(n_of_rows * ((args.n_chunks + chunks_of_block - 1) / chunks_of_block));
  };
  if (args.kind == ChunkScores::kRandom) {
    return launch(random_scores_kernel, grid(args.n * args.n_query_heads, kRandomThreads),
                  static_cast<unsigned>(kRandomThreads), 0, stream, args);
  }
  return with_type(args.queries.type, [&](auto in) {
    return with_type(args.vectors.type, [&](auto vectors) {
      using In = decltype(in);
      using Vectors = decltype(vectors);
      if (args.kind == ChunkScores::kVectors && args.n >= kFewRows) {
        return launch_varying(
            score_vectors_kernel<In, Vectors>, grid((args.n + kRows - 1) / kRows * args.n_query_heads, kPageChunks),
            static_cast<unsigned>(kVectorThreads), vector_floats(args.head_dim) * sizeof(float), stream, args);
      }
      const auto score_by = [&](auto kind) {
        constexpr bool kTurned = kind.value != ChunkScores::kVectors;
        const size_t bytes_of_chunk =
            kTurned ? sizeof(Position) + static_cast<size_t>(args.head_dim) / 2 * sizeof(Angle) : 0;
        return launch_varying(score_chunks_kernel<In, Vectors, kind.value>,
                              grid(args.n * ((args.n_query_heads + kScoredHeads - 1) / kScoredHeads), kScoredChunks),
                              static_cast<unsigned>(kScoredThreads), kScoredChunks * bytes_of_chunk, stream, args);
      };
      if (args.kind == ChunkScores::kMeans) return score_by(std::integral_constant<ChunkScores, ChunkScores::kMeans>());
      if (args.kind == ChunkScores::kBounds)
        return score_by(std::integral_constant<ChunkScores, ChunkScores::kBounds>());
      return score_by(std::integral_constant<ChunkScores, ChunkScores::kVectors>());
    });
  });
}

}  // namespace quire::cuda
