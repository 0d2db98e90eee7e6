// Old text in attention: keys or values of a narrow record become rows of T in shared memory, rounded to it.
//
// What a block of tokens has of the record is copied to the beginning of the tile that the rows will fill, as it is.
// There is room for it: a narrow number has at most half the bytes of T. Then each thread takes a part of it into
// registers, and when all have theirs, they write the rows in its place.
#pragma once

#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/dequantize.h"
#include "kernels/cuda/narrow_record.h"

namespace quire::cuda {

enum class KvPart { kKeys, kValues };

// A group of int4 in registers.
struct Int4Codes {
  uint2 codes[2];
  float scale, minimum;

  __device__ __forceinline__ void load(const uint8_t* part, const Int4Place& at) {
    codes[0] = load_8(part + at.code);
    codes[1] = load_8(part + at.code + 8);
    scale = f16_at(part + at.scale);
    minimum = f16_at(part + at.minimum);
  }
  // k is known when this is compiled, where a loop over it is unrolled.
  __device__ __forceinline__ float number(int k) const {
    constexpr int kHalf = static_cast<int>(kInt4CodeBytes);
    const uint2& eight = codes[k % kHalf / 8];
    const unsigned four = k % 8 < 4 ? eight.x : eight.y;
    return fmaf(static_cast<float>(four >> (k % 4 * 8 + k / kHalf * 4) & 15u), scale, minimum);
  }
};

// The tile of keys or values of a KV head, and the narrow record that they come from. kThreadsOf threads work on it.
template <typename Tile, int kThreadsOf, typename T>
class NarrowTile {
 public:
  __device__ NarrowTile(const Attention& args, int thread, T* tile)
      : shape_(args.shape), type_(args.narrow_type), d_(shape_.head_dim), thread_(thread), tile_(tile) {}

  // Begins to copy tokens [offset, offset + n), n <= kKeys; offset: a multiple of kKeys. Other threads see them behind
  // wait_for_copies() and a barrier.
  template <KvPart kPart>
  __device__ __forceinline__ void copy(const void* record, int kv_head, int64_t offset, int n) const {
    constexpr bool kOfKeys = kPart == KvPart::kKeys;
    const NarrowHead head = narrow_head(shape_, type_);
    const uint8_t* const first = static_cast<const uint8_t*>(record) + kv_head * head.bytes;
    const uint8_t* const part = first + (kOfKeys ? head.keys : head.values);
    if (type_ == ElementType::kInt8) {
      copy_bytes(0, part + offset * d_, n * d_);
      if (kOfKeys) {
        copy_bytes(scales_at(), first + head.key_scales, d_ * kScale);
      } else {
        copy_bytes(scales_at(), first + head.value_scales + offset * kScale, n * kScale);
      }
    } else if (kOfKeys) {
      copy_bytes(0, part + int4_key_place(offset, 0, d_).code, static_cast<int>(int4_key_bytes(n, d_)));
    } else {
      copy_bytes(0, part + int4_value_place(offset, 0, d_).code, static_cast<int>(int4_value_bytes(n, d_)));
    }
  }

  // Makes rows of what was copied, behind a barrier; others see them behind another one. All threads call it. Rows from
  // n on become zeros.
  template <KvPart kPart>
  __device__ __forceinline__ void widen(int n) const {
    if (type_ == ElementType::kInt8) {
      widen_int8<kPart>(n);
    } else if constexpr (kPart == KvPart::kKeys) {
      widen_int4_keys(n);
    } else {
      widen_int4_values(n);
    }
    fill_padding();
  }

 private:
  static constexpr int kKeys = Tile::kKeys, kWidth = Tile::kWidth;
  static constexpr int kScale = sizeof(float);  // bytes of a scale of int8
  static constexpr int kGroupSize = static_cast<int>(kInt4Group);

  __device__ __forceinline__ int scales_at() const { return kKeys * d_; }
  __device__ __forceinline__ const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(tile_); }

  // `n` is rounded up to what is copied at a time, which ends inside of the same part of the record.
  __device__ __forceinline__ void copy_bytes(int at, const uint8_t* from, int n) const {
    uint8_t* const to = reinterpret_cast<uint8_t*>(tile_) + at;
    if (d_ % 4 == 0) {
      for (int i = 16 * thread_; i < n; i += 16 * kThreadsOf) copy_16_async(to + i, from + i, true);
    } else {
      for (int i = 8 * thread_; i < n; i += 8 * kThreadsOf) store_8(to + i, load_8(from + i));
    }
  }

  __device__ __forceinline__ void put(int row, int channel, float v) const {
    const int half = d_ / 2;
    if (channel < d_) from_float(v, tile_[Tile::at(row, channel < half ? channel : kWidth / 2 + channel - half)]);
  }
  // Four channels of a row from `channel` on, as far as the head has them; channel: a multiple of 4.
  __device__ __forceinline__ void put_four(int row, int channel, const unsigned (&pairs)[2]) const {
    if (d_ == kWidth) {  // no padding behind the first half
      store_8(tile_ + Tile::at(row, channel), uint2{pairs[0], pairs[1]});
      return;
    }
    QUIRE_UNROLL for (int p = 0; p < 2; ++p) {
      put(row, channel + 2 * p, low_of(pairs[p], T()));
      put(row, channel + 2 * p + 1, high_of(pairs[p], T()));
    }
  }

  // A thread has four channels, of every kStep-th row.
  template <KvPart kPart>
  __device__ __forceinline__ void widen_int8(int n) const {
    constexpr int kRuns = kWidth / 4, kStep = kThreadsOf / kRuns, kOwn = (kKeys + kStep - 1) / kStep;
    const int channel = thread_ % kRuns * 4, first = thread_ / kRuns;
    const bool has_any = first < kStep && channel < d_;
    const float* const scales = reinterpret_cast<const float*>(bytes() + scales_at());
    unsigned pairs[kOwn][2] = {};
    QUIRE_UNROLL for (int r = 0; r < kOwn; ++r) {
      const int row = first + r * kStep;
      if (!has_any || row >= n) continue;
      float x[4];
      // Two channels at a time: a row begins at an even byte. Behind the head's last one is anything.
      QUIRE_UNROLL for (int e = 0; e < 4; ++e) {
        const unsigned two = *reinterpret_cast<const uint16_t*>(bytes() + row * d_ + channel + e / 2 * 2);
        const float scale = scales[kPart == KvPart::kKeys ? channel + e : row];
        x[e] = static_cast<float>(static_cast<int8_t>(two >> (e % 2 * 8))) * scale;
      }
      pairs[r][0] = pack(x[0], x[1], T());
      pairs[r][1] = pack(x[2], x[3], T());
    }
    __syncthreads();
    QUIRE_UNROLL for (int r = 0; r < kOwn; ++r) {
      const int row = first + r * kStep;
      if (has_any && row < kKeys) put_four(row, channel, pairs[r]);
    }
  }

  // A thread has a channel of a group of keys at a time.
  __device__ __forceinline__ void widen_int4_keys(int n) const {
    constexpr int kGroups = kKeys / kGroupSize, kOwn = (kGroups * kWidth + kThreadsOf - 1) / kThreadsOf;
    Int4Codes own[kOwn] = {};
    QUIRE_UNROLL for (int u = 0; u < kOwn; ++u) {
      const int channel = (thread_ + u * kThreadsOf) % kWidth, first = (thread_ + u * kThreadsOf) / kWidth * kGroupSize;
      if (channel < d_ && first < n) own[u].load(bytes(), int4_key_place(first, channel, d_));
    }
    __syncthreads();
    QUIRE_UNROLL for (int u = 0; u < kOwn; ++u) {
      const int channel = (thread_ + u * kThreadsOf) % kWidth, first = (thread_ + u * kThreadsOf) / kWidth * kGroupSize;
      if (first >= kKeys) continue;
      QUIRE_UNROLL for (int k = 0; k < kGroupSize; ++k) {
        put(first + k, channel, first + k < n ? own[u].number(k) : 0.0f);
      }
    }
  }

  // A thread has a group of a token's channels at a time.
  __device__ __forceinline__ void widen_int4_values(int n) const {
    constexpr int kGroups = kWidth / kGroupSize, kOwn = (kGroups * kKeys + kThreadsOf - 1) / kThreadsOf;
    Int4Codes own[kOwn] = {};
    QUIRE_UNROLL for (int u = 0; u < kOwn; ++u) {
      const int row = (thread_ + u * kThreadsOf) % kKeys, channel = (thread_ + u * kThreadsOf) / kKeys * kGroupSize;
      if (channel < d_ && row < n) own[u].load(bytes(), int4_value_place(row, channel, d_));
    }
    __syncthreads();
    QUIRE_UNROLL for (int u = 0; u < kOwn; ++u) {
      const int row = (thread_ + u * kThreadsOf) % kKeys, channel = (thread_ + u * kThreadsOf) / kKeys * kGroupSize;
      if (channel >= d_) continue;
      QUIRE_UNROLL for (int k = 0; k < kGroupSize; k += 4) {
        unsigned pairs[2] = {};
        QUIRE_UNROLL for (int p = 0; p < 2; ++p) {
          if (row < n) pairs[p] = pack(own[u].number(k + 2 * p), own[u].number(k + 2 * p + 1), T());
        }
        put_four(row, channel + k, pairs);
      }
    }
  }

  // Zeros behind the halves of a head that is narrower than the tile.
  __device__ __forceinline__ void fill_padding() const {
    const int pad = (kWidth - d_) / 2;
    for (int i = thread_; i < 2 * kKeys * pad; i += kThreadsOf) {
      const int half = i / pad, end = (half % 2 + 1) * (kWidth / 2);
      from_float(0.0f, tile_[Tile::at(half / 2, end - 1 - i % pad)]);
    }
  }

  const KvShape& shape_;
  const ElementType type_;
  const int d_, thread_;
  T* const tile_;
};

}  // namespace quire::cuda
