// The product of a few rows with quantised weights, for decoding: in integers, as a weight has to cost few instructions
// where it is less than a byte.
//
// A block rounds the rows of x once, to 16 bits with a scale for each vector of 16 elements, and keeps them in shared
// memory. Its warps then have a column of the result at a time, or two, whose units (dequantize.h) the lanes read in
// turn. A vector of codes is multiplied with the high and with the low bytes of x, four products an instruction:
//   sum of w x = scale * (scale of x) * sum of (code - zero) * (256 high + low).
#include <algorithm>

#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/matmul_kernels.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = kWarps * kWarpSize;
// Blocks that a processor works on at a time: as many as registers suffice for.
constexpr int blocks_of(int rows) { return rows == 1 ? 2 : 1; }
// Columns of a warp at a time: of several rows reading x from shared memory takes longer than reading the weights, and
// what was read serves both.
constexpr int columns_of(int rows) { return rows == 1 ? 1 : 2; }
// Units of a lane and column that are on their way at a time: as many as registers suffice for, on all architectures.
constexpr int loads_of(bool large, int rows) {
  if (large) return rows == 1 ? 2 : 1;
  return rows == 1 ? 4 : rows <= 4 ? 3 : 2;
}

template <typename X>
__device__ __forceinline__ void read_vector(const X* from, bool aligned, X (&x)[kVector]) {
  if (aligned) {
    constexpr int kAtOnce = 16 / sizeof(X);
    QUIRE_UNROLL for (int j = 0; j < kVector; j += kAtOnce) load_16(x + j, from + j);
  } else {
    QUIRE_UNROLL for (int j = 0; j < kVector; ++j) x[j] = from[j];
  }
}

// Byte k of four words.
__device__ __forceinline__ unsigned bytes_of(unsigned a, unsigned b, unsigned c, unsigned d, unsigned k) {
  const unsigned pair = k | (k + 4) << 4;
  return __byte_perm(__byte_perm(a, b, pair), __byte_perm(c, d, pair), 0x5410u);
}

__device__ __forceinline__ int dot(const unsigned (&codes)[4], const unsigned (&x)[4], int sum) {
  QUIRE_UNROLL for (int i = 0; i < 4; ++i) sum = __dp4a(static_cast<int>(codes[i]), static_cast<int>(x[i]), sum);
  return sum;
}

// kRows rows of x in shared memory, in tiles: of kWarpSize units, which the lanes of a warp read together, the vectors
// of all rows. The lanes' parts of a vector follow each other.
template <ElementType kType, int kRows>
class StagedRows {
  static constexpr int kVectors = Codes<kType>::kVectors;
  static constexpr int kHigh = 0, kLow = kVector, kScale = 2 * kVector, kBytes = kScale + int{sizeof(uint2)};

 public:
  static constexpr int kTileBytes = kRows * kVectors * kBytes * kWarpSize;

  __device__ explicit StagedRows(unsigned char* memory) : memory_(memory) {}

  // All threads call it; units [first, first + n) of the rows of x. Rows that are not there are the last one again.
  template <typename X>
  __device__ void stage(const MatmulArgs& args, int first, int n) {
    const auto* const x = static_cast<const X*>(args.x.data);
    const bool aligned = (reinterpret_cast<uintptr_t>(x) | static_cast<uintptr_t>(args.x.stride) * sizeof(X)) % 16 == 0;
    const int n_vectors = n * kVectors;
    struct Place {
      int r, v, unit;
    };
    const auto place_of = [&](int i) {
      const int r = kRows == 1 ? 0 : i / n_vectors, in_row = i - r * n_vectors;
      return Place{r, in_row % kVectors, in_row / kVectors};
    };
    // A thread's vectors, so many on their way at a time.
    constexpr int kAtOnce = kRows == 1 ? 1 : 4 / int{sizeof(X)};
    for (int begin = static_cast<int>(threadIdx.x); begin < kRows * n_vectors; begin += kAtOnce * kThreads) {
      alignas(16) X from[kAtOnce][kVector];
      QUIRE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        if (begin + j * kThreads >= kRows * n_vectors) break;
        const Place p = place_of(begin + j * kThreads);
        const int64_t row = p.r < args.n_rows ? p.r : args.n_rows - 1;
        read_vector(x + row * args.x.stride + Codes<kType>::element(first + p.unit, p.v), aligned, from[j]);
      }
      QUIRE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        if (begin + j * kThreads >= kRows * n_vectors) break;
        const Place p = place_of(begin + j * kThreads);
        put(memory_ + p.unit / kWarpSize * kTileBytes + of(p.r, p.v), p.unit % kWarpSize, from[j]);
      }
    }
  }

  // sums[c][r] += the product of row r with vector v of the lane's unit of a tile, of which these are the codes in
  // column c.
  template <int kColumns>
  __device__ __forceinline__ void add(int tile, int v, const unsigned (&codes)[kColumns][4],
                                      const VectorScale (&by)[kColumns], float (&sums)[kColumns][kRows]) const {
    using Unit = Codes<kType>;
    const unsigned char* const own = memory_ + tile * kTileBytes + lane_of_warp() * kVector;
    const unsigned char* const own_scale = memory_ + tile * kTileBytes + lane_of_warp() * int{sizeof(uint2)};
    QUIRE_UNROLL for (int r = 0; r < kRows; ++r) {
      alignas(16) unsigned high[4];
      alignas(16) unsigned low[4];
      load_16(high, own + of(r, v) + kHigh * kWarpSize);
      load_16(low, own + of(r, v) + kLow * kWarpSize);
      const uint2 scale_and_sum = load_8(own_scale + of(r, v) + kScale * kWarpSize);
      const float x_scale = __uint_as_float(scale_and_sum.x), x_sum = __uint_as_float(scale_and_sum.y);
      QUIRE_UNROLL for (int c = 0; c < kColumns; ++c) {
        const float product = x_scale * static_cast<float>(dot(codes[c], low, 256 * dot(codes[c], high, 0)));
        float& sum = sums[c][r];
        sum = fmaf(by[c].scale, Unit::kZero == 0 ? product : fmaf(-Unit::kZero, x_sum, product), sum);
        if constexpr (Unit::kHasOffset) sum = fmaf(by[c].offset, x_sum, sum);
      }
    }
  }

 private:
  // Where a vector's high bytes begin in a tile.
  static constexpr __device__ int of(int r, int v) { return (r * kVectors + v) * kBytes * kWarpSize; }

  // The greatest magnitude becomes kMost, whose high byte is 127. One that is not finite makes the scale NaN.
  template <typename X>
  __device__ __forceinline__ static void put(unsigned char* to, int lane, const X (&x)[kVector]) {
    constexpr float kMost = 127 * 256 + 127, kLeast = 1e-30f, kGreatest = 1e37f;  // less than kLeast is 0
    // 1.5 * 2^23, whose last bits become an integer that is added.
    constexpr unsigned kToIntegerBits = 0x4b400000u;
    const float kToInteger = __uint_as_float(kToIntegerBits);
    unsigned greatest_bits = 0;
    QUIRE_UNROLL for (int j = 0; j < kVector; ++j) {
      const unsigned bits = __float_as_uint(to_float(x[j])) & 0x7fffffffu;
      greatest_bits = bits > greatest_bits ? bits : greatest_bits;
    }
    const float greatest = __uint_as_float(greatest_bits);
    const float by = greatest > kLeast ? __fdividef(kMost, greatest) : 0.0f;
    const float scale = greatest < kGreatest ? greatest * (1 / kMost) : __uint_as_float(0x7fffffffu);  // NaN
    unsigned total = 0;
    alignas(16) unsigned high[4];
    alignas(16) unsigned low[4];
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      unsigned integers[4];  // their last 16 bits
      QUIRE_UNROLL for (int j = 0; j < 4; ++j) {
        integers[j] = __float_as_uint(fmaf(to_float(x[4 * i + j]), by, kToInteger));
        total += integers[j];
      }
      low[i] = bytes_of(integers[0], integers[1], integers[2], integers[3], 0);
      // Low bytes have a sign too, so a negative one is made up for.
      high[i] = bytes_of(integers[0] + 128, integers[1] + 128, integers[2] + 128, integers[3] + 128, 1);
    }
    load_16(to + kHigh * kWarpSize + lane * kVector, high);
    load_16(to + kLow * kWarpSize + lane * kVector, low);
    const auto sum = static_cast<float>(static_cast<int>(total - kVector * kToIntegerBits));
    store_8(to + kScale * kWarpSize + lane * int{sizeof(uint2)},
            {__float_as_uint(scale), __float_as_uint(scale * sum)});
  }

  unsigned char* const memory_;
};

// slice: tiles of the rows of x that are in shared memory at a time.
template <ElementType kType, typename X, int kRows>
__global__ void __launch_bounds__(kThreads, blocks_of(kRows)) matmul_rows_quantized_kernel(MatmulArgs args, int slice) {
  using Unit = Codes<kType>;
  constexpr int kColumns = columns_of(kRows);
  constexpr int kLoads = loads_of(Unit::kIsLarge, kRows);
  QUIRE_SHARED_MEMORY(memory);
  StagedRows<kType, kRows> x(memory);
  const int k = static_cast<int>(args.w.k), n_blocks = k / static_cast<int>(block_format(kType).elements),
            n_units = k / (Unit::kVectors * kVector);
  constexpr int kOfBlock = kWarps * kColumns;
  const int n_columns = static_cast<int>(args.w.n), stride = static_cast<int>(gridDim.x) * kOfBlock;
  const int lane = lane_of_warp();
  bool staged = false;
  // All warps of a block go on as long as its first one has a column.
  const int end = (n_columns + kOfBlock - 1) / kOfBlock * kOfBlock;
  for (int column = static_cast<int>(blockIdx.x) * kOfBlock + warp_of_block() * kColumns; column < end;
       column += stride) {
    const auto* const weights = static_cast<const uint8_t*>(args.w.data);
    const uint8_t* rows[kColumns];  // a column that is not there is the last one again
    QUIRE_UNROLL for (int c = 0; c < kColumns; ++c) {
      rows[c] = weights + (column + c < n_columns ? column + c : n_columns - 1) * args.w.row_bytes;
    }
    float sums[kColumns][kRows] = {};
    for (int begin = 0; begin * kWarpSize < n_units; begin += slice) {  // in tiles
      const int left = n_units - begin * kWarpSize, n = left < slice * kWarpSize ? left : slice * kWarpSize;
      const int own = column < n_columns ? (n - lane + kWarpSize - 1) / kWarpSize : 0;  // units of the lane
      Unit units[kLoads][kColumns];
      const auto load = [&](int i, int tile) {
        if (tile + i >= own) return;
        QUIRE_UNROLL for (int c = 0; c < kColumns; ++c) {
          units[i][c].load(rows[c], n_blocks, (begin + tile) * kWarpSize + lane, i);
        }
      };
      QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) load(i, 0);  // on their way while x is staged
      if (!staged) {
        __syncthreads();
        x.template stage<X>(args, begin * kWarpSize, n);
        __syncthreads();
        staged = n == n_units;
      }
      QUIRE_ROLLED for (int tile = 0; tile < own; tile += kLoads) {
        QUIRE_UNROLL for (int i = 0; i < kLoads; ++i) {
          if (tile + i >= own) break;
          QUIRE_UNROLL for (int v = 0; v < Unit::kVectors; ++v) {
            unsigned words[kColumns][4];
            VectorScale by[kColumns];
            QUIRE_UNROLL for (int c = 0; c < kColumns; ++c) {
              units[i][c].words(v, words[c]);
              by[c] = units[i][c].scale_of(v);
            }
            x.add(tile + i, v, words, by, sums);
          }
          load(i, tile + kLoads);  // on its way while the other units are used
        }
      }
    }
    QUIRE_UNROLL for (int c = 0; c < kColumns; ++c) {
      if (column + c >= n_columns) break;
      const bool finishes = finishes_row(args, kRows);
      const Addends addends = finishes ? addends_of(args, lane, column + c) : Addends{};
      const float sum = sum_of_own_row(sums[c]);
      if (finishes) finish_element(args, lane, column + c, sum, addends);
    }
  }
}

template <ElementType kType, typename X, int kRows>
int launch_rows(Stream stream, const MatmulArgs& args) {
  constexpr int kTileElements = Codes<kType>::kVectors * kVector * kWarpSize;
  constexpr int64_t kTileBytes = StagedRows<kType, kRows>::kTileBytes;
  const int64_t slice =
      std::min((args.w.k + kTileElements - 1) / kTileElements, static_cast<int64_t>(most_shared_memory()) / kTileBytes);
  constexpr int64_t kAtOnce = kWarps * columns_of(kRows);
  const int64_t blocks =
      std::min<int64_t>((args.w.n + kAtOnce - 1) / kAtOnce, int64_t{blocks_of(kRows)} * n_processors());
  return launch_varying(matmul_rows_quantized_kernel<kType, X, kRows>, static_cast<unsigned>(blocks), kThreads,
                        static_cast<size_t>(slice * kTileBytes), stream, args, static_cast<int>(slice));
}

}  // namespace

int matmul_rows_quantized(Stream stream, const MatmulArgs& args) {
  return with_quantized_type(args.w.type, [&](auto type) {
    return with_type(args.x.type, [&](auto x) {
      return with_rows(args.n_rows,
                       [&](auto rows) { return launch_rows<type.value, decltype(x), rows.value>(stream, args); });
    });
  });
}

}  // namespace quire::cuda
