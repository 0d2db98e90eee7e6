// LongHeads' vectors of chunks (arXiv:2402.10685, Eq. 1-2), a block of threads for each chunk and query head.
//
// The mean of the queries' outputs is the sum of the values, each weighted by the mean of the weights that the queries
// give to its key. So no query's output is made: for each 64 queries the keys pass twice, once for the maxima and sums
// of the rows' softmax, and once for the weights, which are added over the rows. What is chosen by these vectors should
// not depend on the backend: a query is a sum of two 16-bit numbers, so that products on tensor cores lose little of
// it.
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/chunk_vectors.h"
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/types.h"

namespace quire::cuda {
namespace {

constexpr int kKeys = 64;   // of a block of keys
constexpr int kStages = 2;  // blocks of keys in shared memory
template <int kWidth>
using KeyTile = PaddedTile<kWidth, kKeys>;

// Behind it: the weights of the chunk's keys.
template <int kWidth, typename T>
struct ChunkMemory {
  static constexpr int kSums = kWidth < 128 ? 128 : kWidth;        // of channels, or of the keys of a block
  T queries[2][kTileRows * kRowElements<turned_at_once(kWidth)>];  // rounded, and what rounding left
  T keys[kStages][KeyTile<kWidth>::kElements];
  float of_warps[kWarps][kSums];
  float mean[kSums];  // of the queries' outputs, in the order of keys
};

template <int kWidth, typename T, typename In>
class ChunkAttention {
 public:
  static constexpr int kRow = kRowElements<kWidth>;
  static constexpr int kSteps = kWidth / 16;  // of the product of queries and keys
  static constexpr int kTurned = turned_at_once(kWidth);

  __device__ ChunkAttention(const AttendInChunks& args, unsigned char* memory)
      : args_(args),
        shared_(*reinterpret_cast<ChunkMemory<kWidth, T>*>(memory)),
        weights_(reinterpret_cast<float*>(memory + sizeof(ChunkMemory<kWidth, T>))),
        d_(args.shape.head_dim),
        l_(static_cast<int>(args.shape.chunk)),
        keys_(keys_of<T>(args.shape, args.records[args.first_chunk + blockIdx.x],
                         blockIdx.y / (args.n_query_heads / args.shape.n_kv_heads))),
        scale_(args.scale * kLog2E),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(warp_of_block()),
        lane_(lane_of_warp()) {}

  __device__ void run() {
    static_assert(sizeof(ChunkMemory<kWidth, T>) == attend_in_chunks_bytes({1, kWidth, 0, ElementType::kBF16}));
    weigh_keys();
    const float n = static_cast<float>(l_);
    sum_rows(keys_ + l_ * d_, [&](int channel, float sum) { shared_.mean[place_of(channel)] = sum / n; });
    const float total = weigh_for_mean();
    sum_rows(keys_, [&](int channel, float sum) { store(channel, sum / total); });
  }

 private:
  // weights_[j] becomes the sum of the weights that the chunk's queries give to key j.
  __device__ void weigh_keys() {
    for (int j = thread_; j < l_; j += kThreads) weights_[j] = 0;
    const int n_blocks = (l_ + kKeys - 1) / kKeys;
    load_keys(0, 0);
    int stage = 0;
    for (int first_row = 0; first_row < l_; first_row += kTileRows) {
      turn_queries(first_row);
      for (int pass = 0; pass < 2; ++pass) {
        const bool adds = pass == 1;
        for (int block = 0; block < n_blocks; ++block) {
          wait_for_copies<0>();
          __syncthreads();
          const bool last = adds && block + 1 == n_blocks && first_row + kTileRows >= l_;
          if (!last) load_keys((block + 1) % n_blocks, 1 - stage);
          float scores[kKeys / 8][4] = {};
          score(shared_.keys[stage], block, scores);
          adds ? add_weights(scores, block) : extend_softmax(scores);
          stage = 1 - stage;
        }
        if (!adds) end_softmax(first_row);
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void load_keys(int block, int stage) {
    const int left = l_ - block * kKeys;
    copy_rows<KeyTile<kWidth>, kThreads>(shared_.keys[stage], keys_ + block * kKeys * d_, left < kKeys ? left : kKeys,
                                         d_ / 2, thread_);
    commit_copies();
  }

  // Takes the warp's 16 queries from row first_row on, turned to their places in the chunk: kTurned channels at a time,
  // in pairs. Two lanes have a row, and no other warp reads it. Queries that are not there are zeros.
  __device__ void turn_queries(int first_row) {
    const int own = warp_ * 16 + lane_ / 2, row = first_row + own, half = d_ / 2;
    const In* const from = static_cast<const In*>(args_.queries.data) +
                           (int64_t{blockIdx.x} * l_ + row) * args_.queries.stride + int64_t{blockIdx.y} * d_;
    const Position position = split_position(static_cast<double>(row));
    constexpr int kPairs = kTurned / 2, kTurnedRow = kRowElements<kTurned>;
    QUIRE_UNROLL for (int first = 0; first < kWidth / 2; first += kPairs) {
      __syncwarp();  // the last ones were read
      for (int at = lane_ % 2 * 2; at < kPairs; at += 4) {
        const int pair = first + at;
        float low[2] = {}, high[2] = {};
        QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
          if (row >= l_ || pair + e >= half) continue;
          const Angle angle = angle_at(args_.turns[pair + e], position);
          const float a = to_float(from[pair + e]), b = to_float(from[half + pair + e]);
          low[e] = a * angle.cosine - b * angle.sine;
          high[e] = b * angle.cosine + a * angle.sine;
        }
        store_parts(own * kTurnedRow + at, low);
        store_parts(own * kTurnedRow + kPairs + at, high);
      }
      __syncwarp();
      QUIRE_UNROLL for (int part = 0; part < 2; ++part) {
        const T* const row_of_lane = shared_.queries[part] + (warp_ * 16 + lane_ % 16) * kTurnedRow + lane_ / 16 * 8;
        QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
          QUIRE_UNROLL for (int at = 0; at < kPairs; at += 16) {
            const int step = (side * (kWidth / 2) + first + at) / 16;
            load_tiles(queries_[part][step], row_of_lane + side * kPairs + at);
          }
        }
      }
    }
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      max_[side] = -INFINITY;
      sum_[side] = 0;
    }
  }
  __device__ __forceinline__ void store_parts(int at, const float (&v)[2]) {
    const unsigned rounded = pack(v[0], v[1], T());
    store_4(shared_.queries[0] + at, rounded);
    store_4(shared_.queries[1] + at, pack(v[0] - low_of(rounded, T()), v[1] - high_of(rounded, T()), T()));
  }

  // Of the warp's queries and a block of keys, to base 2. Those of keys that are not there are -infinity.
  __device__ __forceinline__ void score(const T* keys, int block, float (&scores)[kKeys / 8][4]) const {
    QUIRE_UNROLL for (int step = 0; step < kSteps; ++step) {
      QUIRE_UNROLL for (int n = 0; n < kKeys / 8; n += 2) {
        unsigned b[4];
        load_tiles(b, keys + (n * 8 + lane_ % 8 + lane_ / 16 * 8) * kRow + step * 16 + lane_ / 8 % 2 * 8);
        QUIRE_UNROLL for (int part = 0; part < 2; ++part) {
          multiply_tile(scores[n], queries_[part][step], b[0], b[1], T());
          multiply_tile(scores[n + 1], queries_[part][step], b[2], b[3], T());
        }
      }
    }
    const int left = l_ - block * kKeys;
    QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
      QUIRE_UNROLL for (int e = 0; e < 4; ++e) {
        scores[n][e] = key_of(n, e % 2) < left ? scores[n][e] * scale_ : -INFINITY;
      }
    }
  }
  // Which of the block's keys the thread's scores [n][e] and [n][2 + e] are of.
  __device__ __forceinline__ int key_of(int n, int e) const { return n * 8 + lane_ % 4 * 2 + e; }

  // A block has keys that are there, so the maximum is a number.
  __device__ __forceinline__ void extend_softmax(const float (&scores)[kKeys / 8][4]) {
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      float greatest = max_[side];
      QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
        QUIRE_UNROLL for (int e = 0; e < 2; ++e) greatest = fmaxf(greatest, scores[n][2 * side + e]);
      }
      // The four lanes of a row.
      greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 1));
      greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 2));
      sum_[side] *= exp2_fast(max_[side] - greatest);
      QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
        QUIRE_UNROLL for (int e = 0; e < 2; ++e) sum_[side] += exp2_fast(scores[n][2 * side + e] - greatest);
      }
      max_[side] = greatest;
    }
  }
  // sum_ becomes what a row's weights are multiplied with: 0 of a row that is not there.
  __device__ __forceinline__ void end_softmax(int first_row) {
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      float sum = sum_[side];
      sum += __shfl_xor_sync(kWholeWarp, sum, 1);
      sum += __shfl_xor_sync(kWholeWarp, sum, 2);
      sum_[side] = first_row + warp_ * 16 + lane_ / 4 + 8 * side < l_ ? 1 / sum : 0.0f;
    }
  }

  // Adds the rows' weights of a block of keys.
  __device__ __forceinline__ void add_weights(const float (&scores)[kKeys / 8][4], int block) {
    QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
      QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
        float sum = exp2_fast(scores[n][e] - max_[0]) * sum_[0] + exp2_fast(scores[n][2 + e] - max_[1]) * sum_[1];
        QUIRE_UNROLL for (int by = 4; by < kWarpSize; by *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, by);
        if (lane_ < 4) shared_.of_warps[warp_][key_of(n, e)] = sum;
      }
    }
    __syncthreads();
    const int j = block * kKeys + thread_;
    if (thread_ < kKeys && j < l_) {
      QUIRE_UNROLL for (int w = 0; w < kWarps; ++w) weights_[j] += shared_.of_warps[w][thread_];
    }
  }

  // Where keys have the dimension that is `channel` of values.
  __device__ int place_of(int channel) const {
    const int half = d_ / 2, turning = args_.rotary_dim / 2;
    const bool turns = channel < args_.rotary_dim;
    const int of_half = turns ? turning : half - turning, at = turns ? channel : channel - args_.rotary_dim;
    const int second = at >= of_half ? 1 : 0;
    return second * (half - of_half) + (turns ? 0 : turning) + at;
  }
  // weights_[j] becomes exp(the score of key j for the mean - the greatest one). Returns their sum.
  __device__ float weigh_for_mean() {
    QUIRE_UNROLL_BY(4) for (int j = warp_; j < l_; j += kWarps) {
      float score = 0;
      for (int c = lane_; c < d_; c += kWarpSize) score = fmaf(shared_.mean[c], to_float(keys_[j * d_ + c]), score);
      score = warp_sum(score);
      if (lane_ == 0) weights_[j] = score * scale_;
    }
    __syncthreads();
    float greatest = -INFINITY, sum = 0;
    for (int j = lane_; j < l_; j += kWarpSize) greatest = fmaxf(greatest, weights_[j]);
    QUIRE_UNROLL for (int by = kWarpSize / 2; by > 0; by /= 2) {
      greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, by));
    }
    __syncthreads();  // all warps know the greatest
    for (int j = thread_; j < l_; j += kThreads) weights_[j] = exp2_fast(weights_[j] - greatest);
    __syncthreads();
    for (int j = lane_; j < l_; j += kWarpSize) sum += weights_[j];
    return warp_sum(sum);
  }

  // Calls use(channel, sum) with the sum of rows [l][d] multiplied with weights_; threads share out the channels.
  template <typename Use>
  __device__ void sum_rows(const T* rows, const Use& use) {
    constexpr int kChannels = (kWidth + kWarpSize - 1) / kWarpSize;  // of a lane
    float sums[kChannels] = {};
    QUIRE_UNROLL_BY(4) for (int j = warp_; j < l_; j += kWarps) {
      QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) {
        const int channel = lane_ + c * kWarpSize;
        if (channel < d_) sums[c] = fmaf(weights_[j], to_float(rows[j * d_ + channel]), sums[c]);
      }
    }
    QUIRE_UNROLL for (int c = 0; c < kChannels; ++c) shared_.of_warps[warp_][lane_ + c * kWarpSize] = sums[c];
    __syncthreads();
    for (int channel = thread_; channel < d_; channel += kThreads) {
      float sum = 0;
      QUIRE_UNROLL for (int w = 0; w < kWarps; ++w) sum += shared_.of_warps[w][channel];
      use(channel, sum);
    }
    __syncthreads();
  }

  __device__ __forceinline__ void store(int channel, float v) {
    const int64_t chunk = args_.first_chunk + blockIdx.x;
    if (args_.out.type == ElementType::kF32) {
      vector_of<float>(args_.out, blockIdx.y, chunk, d_)[channel] = v;
    } else {
      from_float(v, vector_of<bf16>(args_.out, blockIdx.y, chunk, d_)[channel]);
    }
  }

  const AttendInChunks& args_;
  ChunkMemory<kWidth, T>& shared_;
  float* const weights_;  // [l]
  const int d_, l_;       // l: keys, and queries, of the chunk
  const T* const keys_;   // of the KV head, in the record; its values follow
  const float scale_;
  const int thread_, warp_, lane_;
  unsigned queries_[2][kSteps][4];
  // Of rows g and g + 8 of the warp, g being lane / 4. The sum is the thread's part, until the softmax is complete.
  float max_[2], sum_[2];
};

template <int kWidth, typename T, typename In>
__global__ void __launch_bounds__(kThreads, 2) attend_in_chunks_kernel(AttendInChunks args) {
  QUIRE_SHARED_MEMORY(memory);
  ChunkAttention<kWidth, T, In>(args, memory).run();
}

}  // namespace

int attend_in_chunks(Stream stream, const AttendInChunks& args) {
  if (args.n_chunks == 0) return 0;
  const bool can_store = args.out.type == ElementType::kF32 || args.out.type == ElementType::kBF16;
  if (!can_attend(args.shape) || !can_store) return kUnknownType;
  const dim3 grid(static_cast<unsigned>(args.n_chunks), static_cast<unsigned>(args.n_query_heads));
  return with_head(args.shape, [&](auto width, auto kv) {
    return with_type(args.queries.type, [&](auto in) {
      return launch_varying(attend_in_chunks_kernel<decltype(width)::value, decltype(kv), decltype(in)>, grid, kThreads,
                            static_cast<size_t>(attend_in_chunks_bytes(args.shape)), stream, args);
    });
  });
}

}  // namespace quire::cuda
