// Keys in blocks of kKeyBlock: one key is a column, so storing it scatters and loading it gathers. And narrow records.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/kernels.h"
#include "lib/support/int4.h"

namespace quire::cpu {
namespace {

constexpr int64_t kPart = 128;  // elements converted at a time

// Element 0 of key `index`; its neighbours in d are kKeyBlock elements apart. Not of kInt8.
int64_t key_offset(int64_t index, int64_t d) { return index / kKeyBlock * d * kKeyBlock + index % kKeyBlock; }

template <class Element>
void scatter(const Element* part, int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)), part + i, sizeof(Element));
  }
}

template <class Element>
void gather(const char* from, int64_t count, Element* part) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(part + i, from + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
  }
}

template <class Element>
void store_as(const float* key, int64_t d, ElementType type, char* to) {
  Element part[kPart];
  for (int64_t i = 0; i < d; i += kPart) {
    const int64_t count = d - i < kPart ? d - i : kPart;
    convert(ElementType::kF32, key + i, type, part, count);
    scatter(part, count, to + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)));
  }
}

template <class Element>
void load_from(ElementType type, const char* from, int64_t d, float* key) {
  Element part[kPart];
  for (int64_t i = 0; i < d; i += kPart) {
    const int64_t count = d - i < kPart ? d - i : kPart;
    gather(from + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)), count, part);
    convert(type, part, ElementType::kF32, key + i, count);
  }
}

// What numbers that share a scale have in common.
struct Magnitude {
  float most = 0;
  bool all_numbers = true;
  void add(float x) {
    const float magnitude = std::fabs(x);
    most = magnitude > most ? magnitude : most;
    all_numbers = all_numbers && x == x;
  }
  float scale() const { return all_numbers ? most / 127.0f : std::numeric_limits<float>::quiet_NaN(); }
  float inverse() const { return most > 0 ? 127.0f / most : 0.0f; }
};

// To nearest even, within [-127, 127].
int8_t to_int8(float x) {
  constexpr float kRound = 0x1.8p23f;  // added to a small number, it leaves no place for fractions
  x = x < 127.0f ? x : 127.0f;
  x = x > -127.0f ? x : -127.0f;
  return static_cast<int8_t>(static_cast<int32_t>((x + kRound) - kRound));
}

// n numbers as a group of kInt4, whose lane k is in byte k % kInt4CodeBytes of `codes`. n = 0: they are all missing.
void store_group(const float* x, int64_t n, uint8_t* codes, uint8_t* scale, uint8_t* minimum) {
  float low = n > 0 ? x[0] : 0, high = low;
  bool all_finite = true;
  for (int64_t k = 0; k < n; ++k) {
    low = x[k] < low ? x[k] : low;
    high = x[k] > high ? x[k] : high;
    all_finite = all_finite && std::fabs(x[k]) <= std::numeric_limits<float>::max();
  }
  const Int4Scale group = Int4Scale::of(low, high, all_finite);
  uint8_t code[kInt4Group] = {};
  for (int64_t k = 0; k < n; ++k) code[k] = static_cast<uint8_t>(group.code(x[k]));
  for (int64_t b = 0; b < kInt4CodeBytes; ++b) {
    codes[b] = static_cast<uint8_t>(code[b] | (code[b + kInt4CodeBytes] << 4));
  }
  std::memcpy(scale, &group.scale, sizeof group.scale);
  std::memcpy(minimum, &group.minimum, sizeof group.minimum);
}

// Key `index` of kInt4.
void load_int4_key(const uint8_t* keys, int64_t index, int64_t d, float* key) {
  float scale[kPart], minimum[kPart];
  for (int64_t i = 0; i < d; i += kPart) {
    const int64_t count = d - i < kPart ? d - i : kPart;
    const Int4Place first = int4_key_place(index, i, d);
    convert(ElementType::kF16, keys + first.scale, ElementType::kF32, scale, count);
    convert(ElementType::kF16, keys + first.minimum, ElementType::kF32, minimum, count);
    for (int64_t k = 0; k < count; ++k) {
      const int code = (keys[first.code + k * kInt4CodeBytes] >> first.shift) & 15;
      key[i + k] = std::fma(static_cast<float>(code), scale[k], minimum[k]);
    }
  }
}

}  // namespace

void quantize_keys(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow, float* scales) {
  // A channel lies in rows of kKeyBlock keys.
  const auto* from = static_cast<const char*>(keys);
  auto* to = static_cast<int8_t*>(narrow);
  const auto row = static_cast<int64_t>(row_bytes(from_type, kKeyBlock));
  float lane[kKeyBlock];
  for (int64_t i = 0; i < d; ++i) {
    Magnitude channel;
    for (int64_t j = 0; j < n; j += kKeyBlock) {
      convert(from_type, from + (j / kKeyBlock * d + i) * row, ElementType::kF32, lane, kKeyBlock);
      for (int64_t k = 0; k < kKeyBlock && j + k < n; ++k) channel.add(lane[k]);
    }
    scales[i] = channel.scale();
    const float inverse = channel.inverse();
    for (int64_t j = 0; j < n; j += kKeyBlock) {
      convert(from_type, from + (j / kKeyBlock * d + i) * row, ElementType::kF32, lane, kKeyBlock);
      int8_t* const out = to + key_place(ElementType::kInt8, j, i, d);
      for (int64_t k = 0; k < kKeyBlock; ++k) out[2 * k] = j + k < n ? to_int8(lane[k] * inverse) : int8_t{0};
    }
  }
}

void quantize_values(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow, float* scales) {
  const auto* from = static_cast<const char*>(values);
  auto* to = static_cast<int8_t*>(narrow);
  float part[kPart];
  for (int64_t j = 0; j < n; ++j, from += row_bytes(from_type, d)) {
    Magnitude token;
    for (int64_t i = 0; i < d; i += kPart) {
      const int64_t count = d - i < kPart ? d - i : kPart;
      convert(from_type, from + row_bytes(from_type, i), ElementType::kF32, part, count);
      for (int64_t k = 0; k < count; ++k) token.add(part[k]);
    }
    scales[j] = token.scale();
    const float inverse = token.inverse();
    for (int64_t i = 0; i < d; i += kPart) {
      const int64_t count = d - i < kPart ? d - i : kPart;
      convert(from_type, from + row_bytes(from_type, i), ElementType::kF32, part, count);
      int8_t* const out = to + value_place(ElementType::kInt8, j, i, d);
      for (int64_t k = 0; k < count; ++k) out[2 * k] = to_int8(part[k] * inverse);
      for (int64_t k = 0; k < count && j + 1 == n && n % 2 == 1; ++k) out[2 * k + 1] = 0;
    }
  }
}

void quantize_keys_int4(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow) {
  const auto* from = static_cast<const char*>(keys);
  auto* to = static_cast<uint8_t*>(narrow);
  const auto row = static_cast<int64_t>(row_bytes(from_type, kKeyBlock));
  float group[kInt4Group];
  for (int64_t j = 0; j < n; j += kInt4Group) {
    const int64_t count = n - j < kInt4Group ? n - j : kInt4Group;
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t k = 0; k < count; k += kKeyBlock) {
        convert(from_type, from + ((j + k) / kKeyBlock * d + i) * row, ElementType::kF32, group + k, kKeyBlock);
      }
      const Int4Place first = int4_key_place(j, i, d);
      store_group(group, count, to + first.code, to + first.scale, to + first.minimum);
    }
  }
}

void quantize_values_int4(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow) {
  const auto* from = static_cast<const char*>(values);
  auto* to = static_cast<uint8_t*>(narrow);
  float group[kInt4Group];
  for (int64_t j = 0; j < round_up(n, kInt4Tokens); ++j) {
    for (int64_t i = 0; i < d; i += kInt4Group) {
      const int64_t rest = d - i < kInt4Group ? d - i : kInt4Group, count = j < n ? rest : 0;
      convert(from_type, from + row_bytes(from_type, j < n ? j * d + i : 0), ElementType::kF32, group, count);
      const Int4Place first = int4_value_place(j, i, d);
      store_group(group, count, to + first.code, to + first.scale, to + first.minimum);
    }
  }
}

void store_key(const float* key, int64_t d, ElementType type, void* keys, int64_t index) {
  char* to = static_cast<char*>(keys) + key_offset(index, d) * static_cast<int64_t>(element_bytes(type));
  if (type == ElementType::kF32) return store_as<uint32_t>(key, d, type, to);
  store_as<uint16_t>(key, d, type, to);
}

void load_key(ElementType type, const void* keys, int64_t index, int64_t d, float* key) {
  if (type == ElementType::kInt4) return load_int4_key(static_cast<const uint8_t*>(keys), index, d, key);
  if (type == ElementType::kInt8) {
    for (int64_t i = 0; i < d; ++i) key[i] = static_cast<const int8_t*>(keys)[key_place(type, index, i, d)];
    return;
  }
  const char* from = static_cast<const char*>(keys) + key_offset(index, d) * static_cast<int64_t>(element_bytes(type));
  if (type == ElementType::kF32) return load_from<uint32_t>(type, from, d, key);
  load_from<uint16_t>(type, from, d, key);
}

}  // namespace quire::cpu
