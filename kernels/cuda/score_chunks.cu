// Scores of chunks for queries: a block for a page of 64 chunks and a query head, and one or several rows.
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

// Where the query is turned to for the vectors of a chunk. False: no span shows the chunk. The last one that does
// counts.
__device__ __forceinline__ bool position_for(const ScoreChunks& args, int64_t i, int64_t chunk, double& position) {
  bool shown = false;
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
    shown = true;
  }
  return shown;
}

// By vectors of query heads. Heads and groups of kRows rows by index x of the grid, pages by index y. The page's
// vectors pass through shared memory, where each serves all rows; a thread takes a chunk and every second row.
constexpr int kVectorThreads = 2 * kPageChunks;
constexpr int kManyRows = 16, kFewRows = 8;  // fewer rows than these have a block each
constexpr int padded(int head_dim) { return (head_dim + 3) / 4 * 4; }

template <int kRows>
constexpr size_t vector_floats(int head_dim) {
  return static_cast<size_t>(kRows * padded(head_dim) + kPageChunks * (padded(head_dim) + 1));
}

template <int kRows, typename In, typename Vectors>
__global__ void __launch_bounds__(kVectorThreads) score_vectors_kernel(ScoreChunks args) {
  QUIRE_SHARED_MEMORY(memory);
  constexpr int kOwn = (kRows + 1) / 2;  // rows of a thread
  const int d = args.head_dim, width = padded(d), thread = static_cast<int>(threadIdx.x);
  const int64_t first_row = blockIdx.x / args.n_query_heads * kRows, head = blockIdx.x % args.n_query_heads;
  float* const queries = reinterpret_cast<float*>(memory);  // [kRows][width]
  float* const vectors = queries + kRows * width;           // [kPageChunks][width + 1]: in different banks
  const In* const from = static_cast<const In*>(args.queries.data) + first_row * args.queries.stride + head * d;
  for (int at = thread; at < kRows * width; at += kVectorThreads) {
    const int r = at / width, c = at % width;
    queries[at] = first_row + r < args.n && c < d ? to_float(from[r * args.queries.stride + c]) : 0.0f;
  }
  const int64_t first_chunk = int64_t{blockIdx.y} * kPageChunks, left = args.n_chunks - first_chunk;
  const int n_chunks = static_cast<int>(left < kPageChunks ? left : kPageChunks);
  const Vectors* const page = static_cast<const Vectors*>(args.vectors.pages[blockIdx.y]) + head * kPageChunks * d;
  for (int at = thread; at < n_chunks * width; at += kVectorThreads) {
    const int chunk = at / width, c = at % width;
    vectors[chunk * (width + 1) + c] = c < d ? to_float(page[chunk * d + c]) : 0.0f;
  }
  __syncthreads();
  const int chunk = thread % static_cast<int>(kPageChunks), side = thread / static_cast<int>(kPageChunks);
  if (chunk >= n_chunks || side >= kRows) return;
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
    const bool is_before = first_chunk + chunk < (first_query + row) / args.chunk;  // the chunk of the query
    float& out = args.scores[(row * args.n_query_heads + head) * args.n_chunks + first_chunk + chunk];
    out = is_before ? sign * scores[r] : -INFINITY;
  }
}

// By all else. Rows and heads by index x of the grid, pages by index y; a thread per chunk.
template <typename In, typename Vectors>
__global__ void __launch_bounds__(kPageChunks) score_chunks_kernel(ScoreChunks args) {
  QUIRE_SHARED_MEMORY(memory);
  float* const query = reinterpret_cast<float*>(memory);
  const int d = args.head_dim, half = d / 2;
  const int64_t row = blockIdx.x / args.n_query_heads, head = blockIdx.x % args.n_query_heads;
  const int64_t chunk = blockIdx.y * kPageChunks + threadIdx.x, i = *args.first_query + args.first_row + row;
  const In* const from = static_cast<const In*>(args.queries.data) + row * args.queries.stride + head * d;
  for (int c = static_cast<int>(threadIdx.x); c < d; c += kPageChunks) query[c] = to_float(from[c]);
  __syncthreads();
  if (chunk >= args.n_chunks) return;
  float& out = args.scores[(row * args.n_query_heads + head) * args.n_chunks + chunk];
  out = -INFINITY;
  if (chunk >= i / args.chunk) return;  // not before the query's own
  if (args.kind == ChunkScores::kRandom) {
    out = random_score(static_cast<uint64_t>(args.layer), static_cast<uint64_t>(head), static_cast<uint64_t>(i),
                       static_cast<uint64_t>(chunk));
    return;
  }
  const Vectors* const page = static_cast<const Vectors*>(args.vectors.pages[blockIdx.y]);
  const auto vector = [&](int64_t index) { return page + (index * kPageChunks + threadIdx.x) * d; };
  double position = 0;
  if (!position_for(args, i, chunk, position)) return;
  const Position at = split_position(position);
  const int64_t kv_head = head / (args.n_query_heads / args.n_kv_heads);
  const bool bounds = args.kind == ChunkScores::kBounds;
  const Vectors* const least = vector(bounds ? 2 * kv_head : kv_head);
  const Vectors* const greatest = bounds ? vector(2 * kv_head + 1) : least;
  float score = 0;
  const auto add = [&](float q, int c) { score = fmaf(q, to_float((q < 0 ? least : greatest)[c]), score); };
  for (int pair = 0; pair < half; ++pair) {
    const Angle angle = angle_at(args.turns[pair], at);
    const float a = query[pair], b = query[half + pair];
    add((a * angle.cosine - b * angle.sine) * args.scale, pair);
    add((b * angle.cosine + a * angle.sine) * args.scale, half + pair);
  }
  out = args.negate ? -score : score;
}

}  // namespace

int score_chunks(Stream stream, const ScoreChunks& args) {
  if (args.n == 0 || args.n_chunks == 0) return 0;
  const auto pages = static_cast<unsigned>((args.n_chunks + kPageChunks - 1) / kPageChunks);
  const auto blocks = [&](int64_t rows) { return dim3(static_cast<unsigned>(rows * args.n_query_heads), pages); };
  return with_type(args.queries.type, [&](auto in) {
    return with_type(args.vectors.type, [&](auto vectors) {
      using In = decltype(in);
      using Vectors = decltype(vectors);
      if (args.kind != ChunkScores::kVectors) {
        return launch(score_chunks_kernel<In, Vectors>, blocks(args.n), static_cast<unsigned>(kPageChunks),
                      static_cast<size_t>(args.head_dim) * sizeof(float), stream, args);
      }
      const auto with_rows = [&](auto rows) {
        constexpr int kRows = decltype(rows)::value;
        return launch_varying(score_vectors_kernel<kRows, In, Vectors>, blocks((args.n + kRows - 1) / kRows),
                              static_cast<unsigned>(kVectorThreads),
                              vector_floats<kRows>(args.head_dim) * sizeof(float), stream, args);
      };
      return args.n < kFewRows ? with_rows(std::integral_constant<int, 1>())
                               : with_rows(std::integral_constant<int, kManyRows>());
    });
  });
}

}  // namespace quire::cuda
