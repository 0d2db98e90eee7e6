// Scalar references of the row kernels and of key storage.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/lane_sum.h"
#include "lib/support/element.h"
#include "lib/support/int4.h"

namespace quire::cpu::scalar {

void convert(ElementType source_type, const void* source, ElementType type, void* out, int64_t n) {
  if (source_type == type) {
    std::memcpy(out, source, static_cast<size_t>(n) * element_bytes(type));
    return;
  }
  for (int64_t j = 0; j < n; ++j) store_element(type, out, j, load_element(source_type, source, j));
}

namespace {

float inverse_rms(const float* x, float eps, int64_t n) {
  float partial[kSumLanes] = {};
  for (int64_t j = 0; j < n; ++j) partial[j % kSumLanes] = std::fma(x[j], x[j], partial[j % kSumLanes]);
  return 1.0f / std::sqrt(add_by_halves(partial) / static_cast<float>(n) + eps);
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float inverse = inverse_rms(x, eps, n);
  for (int64_t j = 0; j < n; ++j) out[j] = x[j] * inverse * weight[j];
}

void add_rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const float inverse = inverse_rms(x, eps, n);
  for (int64_t j = 0; j < n; ++j) y[j] = std::fma(x[j] * inverse, weight[j], y[j]);
}

void swiglu(const float* gate_up, int64_t n, float* out) {
  for (int64_t j = 0; j < n; ++j) out[j] = gate_up[j] / (1.0f + exp_f32(-gate_up[j])) * gate_up[n + j];
}

void geglu(const float* gate_up, int64_t n, float* out) {
  for (int64_t j = 0; j < n; ++j) {
    const float z = gate_up[j];
    out[j] = z / (1.0f + exp_f32(-gelu_argument(z))) * gate_up[n + j];
  }
}

void rotate(const float* x, const float* cos, const float* sin, float scale, int64_t d, float* out) {
  const int64_t half = d / 2;
  for (int64_t a = 0; a < half; ++a) {
    const float x1 = x[a], x2 = x[half + a];
    out[a] = std::fma(x1, cos[a], -(x2 * sin[a])) * scale;
    out[half + a] = std::fma(x2, cos[a], x1 * sin[a]) * scale;
  }
}

void add_scaled(const float* x, float factor, int64_t n, float* y) {
  for (int64_t j = 0; j < n; ++j) y[j] = std::fma(x[j], factor, y[j]);
}

bool all_finite(const float* x, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    if (!std::isfinite(x[j])) return false;
  }
  return true;
}

LogitsPart look_at_logits(const float* logits, int64_t n, float* maxima) {
  LogitsPart part{all_finite(logits, n), -std::numeric_limits<float>::infinity(), 0};
  if (!part.finite) return part;
  for (int64_t begin = 0; begin < n; begin += kLogitsBlock) {
    const float most = *std::max_element(logits + begin, logits + std::min(n, begin + kLogitsBlock));
    maxima[begin / kLogitsBlock] = most;
    part.max = std::max(part.max, most);
  }
  double partial[kSumLanes] = {};
  for (int64_t j = 0; j < n; ++j) partial[j % kSumLanes] += exp_f32(logits[j] - part.max);
  part.sum = add_by_halves(partial);
  return part;
}

void store_key(const float* key, int64_t d, ElementType type, void* keys, int64_t index) {
  const int64_t block = index / kKeyBlock, lane = index % kKeyBlock;
  for (int64_t i = 0; i < d; ++i) store_element(type, keys, (block * d + i) * kKeyBlock + lane, key[i]);
}

void load_key(ElementType type, const void* keys, int64_t index, int64_t d, float* key) {
  const int64_t block = index / kKeyBlock, lane = index % kKeyBlock;
  for (int64_t i = 0; i < d; ++i) {
    key[i] = type == ElementType::kInt4 ? load_int4(keys, int4_key_place(index, i, d))
                                        : load_element(type, keys, (block * d + i) * kKeyBlock + lane);
  }
}

}  // namespace quire::cpu::scalar
