// Scores of chunks for queries: a block per page of 64 chunks (x) and row and query head (y); a thread per chunk.
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

template <typename In, typename Vectors>
__global__ void __launch_bounds__(kPageChunks) score_chunks_kernel(ScoreChunks args) {
  QUIRE_SHARED_MEMORY(memory);
  float* const query = reinterpret_cast<float*>(memory);
  const int d = args.head_dim, half = d / 2;
  const int64_t row = blockIdx.y / args.n_query_heads, head = blockIdx.y % args.n_query_heads;
  const int64_t chunk = blockIdx.x * kPageChunks + threadIdx.x, i = *args.first_query + args.first_row + row;
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
  const Vectors* const page = static_cast<const Vectors*>(args.vectors.pages[blockIdx.x]);
  const auto vector = [&](int64_t index) { return page + (index * kPageChunks + threadIdx.x) * d; };
  float score = 0;
  if (args.kind == ChunkScores::kVectors) {
    const Vectors* const v = vector(head);
    for (int c = 0; c < d; ++c) score = fmaf(query[c], to_float(v[c]), score);
  } else {
    double position = 0;
    if (!position_for(args, i, chunk, position)) return;
    const Position at = split_position(position);
    const int64_t kv_head = head / (args.n_query_heads / args.n_kv_heads);
    const bool bounds = args.kind == ChunkScores::kBounds;
    const Vectors *const least = vector(bounds ? 2 * kv_head : kv_head), *const greatest =
                                                                             bounds ? vector(2 * kv_head + 1) : least;
    const auto add = [&](float q, int c) { score = fmaf(q, to_float((q < 0 ? least : greatest)[c]), score); };
    for (int pair = 0; pair < half; ++pair) {
      const Angle angle = angle_at(args.turns[pair], at);
      const float a = query[pair], b = query[half + pair];
      add((a * angle.cosine - b * angle.sine) * args.scale, pair);
      add((b * angle.cosine + a * angle.sine) * args.scale, half + pair);
    }
  }
  out = args.negate ? -score : score;
}

}  // namespace

int score_chunks(Stream stream, const ScoreChunks& args) {
  if (args.n == 0 || args.n_chunks == 0) return 0;
  const dim3 grid(static_cast<unsigned>((args.n_chunks + kPageChunks - 1) / kPageChunks),
                  static_cast<unsigned>(args.n * args.n_query_heads));
  return with_type(args.queries.type, [&](auto in) {
    return with_type(args.vectors.type, [&](auto vectors) {
      return launch(score_chunks_kernel<decltype(in), decltype(vectors)>, grid, static_cast<unsigned>(kPageChunks),
                    static_cast<size_t>(args.head_dim) * sizeof(float), stream, args);
    });
  });
}

}  // namespace quire::cuda
