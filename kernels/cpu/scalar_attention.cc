// Scalar references of the attention kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/code_scale.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/lane_sum.h"
#include "lib/support/element.h"
#include "lib/support/int4.h"

namespace quire::cpu::scalar {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

namespace {

float key_element(ElementType type, const void* keys, int64_t j, int64_t i, int64_t d) {
  if (type == ElementType::kInt4) return load_int4(keys, int4_key_place(j, i, d));
  return load_element(type, keys, key_place(type, j, i, d));
}

float value_element(ElementType type, const void* values, int64_t j, int64_t i, int64_t d) {
  if (type == ElementType::kInt4) return load_int4(values, int4_value_place(j, i, d));
  return load_element(type, values, value_place(type, j, i, d));
}

}  // namespace

void turn_keys(ElementType type, const void* keys, int64_t begin, int64_t end, int64_t d, const float* turns,
               float* out) {
  const int64_t half = d / 2;
  for (int64_t j = begin - begin % kKeyBlock; j < round_up(end, kKeyBlock); ++j) {
    const int64_t block = j / kKeyBlock, lane = j % kKeyBlock;
    for (int64_t i = 0; i < half; ++i) {
      const float x1 = key_element(type, keys, j, i, d), x2 = key_element(type, keys, j, half + i, d);
      const float* const turn = turns + (block * half + i) * 2 * kKeyBlock + lane;
      const float c = turn[0], s = turn[kKeyBlock];
      out[(block * d + i) * kKeyBlock + lane] = std::fma(x1, c, -(x2 * s));
      out[(block * d + half + i) * kKeyBlock + lane] = std::fma(x2, c, x1 * s);
    }
  }
}

void attention_scores(const float* q, int64_t n_q, int64_t d, ElementType type, const void* keys, int64_t key_begin,
                      int64_t key_end, float* scores, int64_t ld) {
  const int64_t first = key_begin - key_begin % kKeyBlock;
  for (int64_t r = 0; r < n_q; ++r) {
    for (int64_t j = first; j < round_up(key_end, kKeyBlock); ++j) {
      float sum = 0.0f;
      for (int64_t i = 0; i < d; ++i) {
        sum = std::fma(q[r * d + i], key_element(type, keys, j, i, d), sum);
      }
      scores[r * ld + (j - first)] = sum;
    }
  }
}

void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum, float* block_sums) {
  float top = kEmpty;
  for (int64_t j = begin; j < end; ++j) top = scores[j] > top ? scores[j] : top;
  const float shift = top == kEmpty ? 0.0f : top;
  float partial[kSumLanes] = {};
  for (int64_t j = begin; j < end; ++j) {
    scores[j] = exp_f32(scores[j] - shift);
    partial[j % kSumLanes] += scores[j];
  }
  *sum = add_by_halves(partial);
  *max = std::isnan(*sum) ? *sum : top;
  if (block_sums) sum_blocks(scores, begin, end, block_sums);
}

void sum_blocks(const float* p, int64_t begin, int64_t end, float* sums) {
  for (int64_t block = begin - begin % kKeyBlock; block < end; block += kKeyBlock) {
    float lanes[kSumLanes] = {};
    for (int64_t j = std::max(begin, block); j < std::min(end, block + kKeyBlock); ++j) lanes[j - block] = p[j];
    *sums++ = add_by_halves(lanes);
  }
}

void accumulate_values(const float* p, int64_t ld, int64_t n_q, int64_t d, ElementType type, const void* values,
                       int64_t begin, int64_t end, float* out) {
  for (int64_t r = 0; r < n_q; ++r) {
    for (int64_t i = 0; i < d; ++i) {
      float sum = out[r * d + i];
      for (int64_t j = begin; j < end; ++j) {
        sum = std::fma(p[r * ld + j], value_element(type, values, j, i, d), sum);
      }
      out[r * d + i] = sum;
    }
  }
}

namespace {

// Numbers x(t) of t in [0, n) become integers at places at(t); returns their scale.
template <class Number, class At>
float quantize(int64_t n, const Number& x, const At& at, void* narrow) {
  float most = 0;
  bool all_numbers = true;
  for (int64_t t = 0; t < n; ++t) {
    if (std::isnan(x(t))) all_numbers = false;
    if (std::fabs(x(t)) > most) most = std::fabs(x(t));
  }
  const float inverse = most > 0 ? 127.0f / most : 0.0f;
  for (int64_t t = 0; t < n; ++t) {
    const float code = x(t) * inverse;
    const float bounded = std::isnan(code) ? 127.0f : std::clamp(code, -127.0f, 127.0f);
    static_cast<int8_t*>(narrow)[at(t)] = static_cast<int8_t>(std::nearbyint(bounded));
  }
  return all_numbers ? most / 127.0f : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

void quantize_keys(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow, float* scales) {
  std::memset(narrow, 0, static_cast<size_t>(key_elements(n, d)));
  for (int64_t i = 0; i < d; ++i) {
    scales[i] = quantize(
        n, [&](int64_t j) { return key_element(from_type, keys, j, i, d); },
        [&](int64_t j) { return key_place(ElementType::kInt8, j, i, d); }, narrow);
  }
}

void quantize_values(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow, float* scales) {
  std::memset(narrow, 0, static_cast<size_t>(value_elements(ElementType::kInt8, n, d)));
  for (int64_t j = 0; j < n; ++j) {
    scales[j] = quantize(
        d, [&](int64_t i) { return value_element(from_type, values, j, i, d); },
        [&](int64_t i) { return value_place(ElementType::kInt8, j, i, d); }, narrow);
  }
}

namespace {

// Numbers x(t) of t in [0, n) become a group at places at(t), t in [0, kInt4Group); what is missing has the code 0.
template <class Number, class At>
void quantize_group(int64_t n, const Number& x, const At& at, void* narrow) {
  float low = n > 0 ? std::numeric_limits<float>::infinity() : 0.0f, high = -low;
  bool all_finite = true;
  for (int64_t t = 0; t < n; ++t) {
    low = std::fmin(low, x(t));
    high = std::fmax(high, x(t));
    all_finite = all_finite && std::isfinite(x(t));
  }
  const Int4Scale scale = Int4Scale::of(low, high, all_finite);
  for (int64_t t = 0; t < kInt4Group; ++t) {
    float code = 0;
    if (t < n) code = std::nearbyint(std::fmax(0.0f, std::fmin(15.0f, (x(t) - scale.from) * scale.inverse)));
    if (t < n && std::isnan((x(t) - scale.from) * scale.inverse)) code = 15;
    store_int4(narrow, at(t), static_cast<int>(code), scale.scale, scale.minimum);
  }
}

}  // namespace

void quantize_keys_int4(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow) {
  for (int64_t first = 0; first < n; first += kInt4Group) {
    for (int64_t i = 0; i < d; ++i) {
      quantize_group(
          std::min(kInt4Group, n - first), [&](int64_t t) { return key_element(from_type, keys, first + t, i, d); },
          [&](int64_t t) { return int4_key_place(first + t, i, d); }, narrow);
    }
  }
}

void quantize_values_int4(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow) {
  for (int64_t j = 0; j < round_up(n, kInt4Tokens); ++j) {
    for (int64_t first = 0; first < d; first += kInt4Group) {
      quantize_group(
          j < n ? std::min(kInt4Group, d - first) : 0,
          [&](int64_t t) { return value_element(from_type, values, j, first + t, d); },
          [&](int64_t t) { return int4_value_place(j, first + t, d); }, narrow);
    }
  }
}

namespace {

// The bits of the greatest magnitude of x(j), j in [0, n).
template <class Number>
int32_t greatest_magnitude(int64_t n, const Number& x) {
  int32_t greatest = 0;
  for (int64_t j = 0; j < n; ++j) {
    const float magnitude = std::fabs(x(j));
    int32_t bits;
    std::memcpy(&bits, &magnitude, sizeof bits);
    greatest = std::max(greatest, bits);
  }
  return greatest;
}

}  // namespace

void quantize_row_int16(const float* x, const float* factors, int64_t n, int16_t* codes, float* scale) {
  const auto product = [&](int64_t j) { return x[j] * factors[j]; };
  const CodeScale of_row = code_scale(greatest_magnitude(n, product), kMostInt16);
  *scale = of_row.scale;
  for (int64_t j = 0; j < n; ++j) {
    codes[j] = of_row.inverse == 0 ? int16_t{0} : static_cast<int16_t>(std::nearbyint(product(j) * of_row.inverse));
  }
}

float weight_factors_int16(const float* scales, int64_t n, float* factors) {
  const CodeScale unit = code_scale(greatest_magnitude(n, [&](int64_t j) { return scales[j]; }), kMostInt16);
  for (int64_t j = 0; j < n; ++j) factors[j] = unit.inverse == 0 ? 0 : scales[j] * unit.inverse;
  return unit.scale;
}

void round_weights_int16(const float* p, const float* factors, int64_t n, int16_t* codes) {
  for (int64_t j = 0; j < n; ++j) codes[j] = static_cast<int16_t>(std::nearbyint(p[j] * factors[j]));
}

void attention_scores_int8(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys,
                           int64_t key_begin, int64_t key_end, float* scores, int64_t ld) {
  const int64_t first = key_begin - key_begin % kKeyBlock;
  for (int64_t r = 0; r < n_q; ++r) {
    for (int64_t j = first; j < round_up(key_end, kKeyBlock); ++j) {
      float& score = scores[r * ld + (j - first)];
      score = 0;
      for (int64_t begin = 0; begin < d; begin += kInt8Products) {
        int32_t sum = 0;
        for (int64_t i = begin; i < std::min(d, begin + kInt8Products); ++i) {
          sum += q[r * d + i] * keys[key_place(ElementType::kInt8, j, i, d)];
        }
        score = std::fma(q_scales[r], static_cast<float>(sum), score);
      }
    }
  }
}

void accumulate_values_int8(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d,
                            const int8_t* values, int64_t begin, int64_t end, float* out) {
  for (int64_t r = 0; r < n_q; ++r) {
    for (int64_t i = 0; i < d; ++i) {
      for (int64_t j = begin; j < end;) {
        const int64_t next = std::min(end, j / kInt8Products * kInt8Products + kInt8Products);
        int32_t sum = 0;
        for (; j < next; ++j) sum += p[r * ld + j] * values[value_place(ElementType::kInt8, j, i, d)];
        out[r * d + i] = std::fma(p_scales[r], static_cast<float>(sum), out[r * d + i]);
      }
    }
  }
}

void widen_int4_keys(const void* keys, int64_t begin, int64_t end, int64_t d, float* out) {
  for (int64_t j = begin - begin % kKeyBlock; j < round_up(end, kKeyBlock); ++j) {
    for (int64_t i = 0; i < d; ++i) {
      out[key_place(ElementType::kF32, j, i, d)] = key_element(ElementType::kInt4, keys, j, i, d);
    }
  }
}

void widen_int4_values(const void* values, int64_t begin, int64_t end, int64_t d, float* out) {
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t i = 0; i < d; ++i) out[j * d + i] = value_element(ElementType::kInt4, values, j, i, d);
  }
}

void scale_blocks(float factor, float* blocks, int64_t n) {
  for (int64_t b = 0; b < n; ++b) blocks[b] *= factor;
}

void keep_peaks(const float* blocks, int64_t n, float* peaks) {
  for (int64_t b = 0; b < n; ++b) peaks[b] = blocks[b] > peaks[b] ? blocks[b] : peaks[b];
}

void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out, const BlockShares* blocks) {
  if (max == kEmpty) return;
  const bool first = *running_max == kEmpty;
  const float top = !first && *running_max > max ? *running_max : max;
  const float keep = first ? 0.0f : exp_f32(*running_max - top);
  const float add = exp_f32(max - top);
  *running_sum = first ? sum : std::fma(add, sum, keep * *running_sum);
  *running_max = top;
  for (int64_t i = 0; i < d; ++i) {
    running_out[i] = first ? out[i] : std::fma(add, out[i], keep * running_out[i]);
  }
  if (!blocks) return;
  if (!first) scale_blocks(keep, blocks->running, blocks->n_running);
  for (int64_t b = 0; b < blocks->n; ++b) {
    float& running = blocks->running[blocks->first + b];
    running = std::fma(add, blocks->sums[b], running);
  }
}

}  // namespace quire::cpu::scalar
