// Kernels over one row: conversion, RMS norm, SwiGLU, rotation, finiteness.
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS

template <class From, class To>
void convert_row(const From* source, To* out, int64_t n) {
  const Floats d;
  for (int64_t j = 0; j < n; j += kLanes) store(d, load(d, source + j), out + j);
}

template <class From>
void convert_from(const From* source, ElementType type, void* out, int64_t n) {
  switch (type) {
    case ElementType::kF32:
      return convert_row(source, static_cast<float*>(out), n);
    case ElementType::kF16:
      return convert_row(source, static_cast<hwy::float16_t*>(out), n);
    case ElementType::kBF16:
      return convert_row(source, static_cast<hwy::bfloat16_t*>(out), n);
    default:
      break;
  }
}

void convert(ElementType source_type, const void* source, ElementType type, void* out, int64_t n) {
  if (source_type == type) {
    std::memcpy(out, source, static_cast<size_t>(n) * element_bytes(type));
    return;
  }
  const int64_t whole = n - n % kLanes;
  switch (source_type) {
    case ElementType::kF32:
      convert_from(static_cast<const float*>(source), type, out, whole);
      break;
    case ElementType::kF16:
      convert_from(static_cast<const hwy::float16_t*>(source), type, out, whole);
      break;
    case ElementType::kBF16:
      convert_from(static_cast<const hwy::bfloat16_t*>(source), type, out, whole);
      break;
    default:
      break;
  }
  for (int64_t j = whole; j < n; ++j) store_element(type, out, j, load_element(source_type, source, j));
}

float inverse_rms(const float* x, float eps, int64_t n) {
  const Floats d;
  constexpr int kParts = kSumLanes / kLanes;
  Vector sums[kParts];
  for (int p = 0; p < kParts; ++p) sums[p] = hn::Zero(d);
  int64_t j = 0;
  for (; j + kSumLanes <= n; j += kSumLanes) {
    for (int p = 0; p < kParts; ++p) {
      const auto v = hn::LoadU(d, x + j + p * kLanes);
      sums[p] = hn::MulAdd(v, v, sums[p]);
    }
  }
  float partial[kSumLanes];
  for (int p = 0; p < kParts; ++p) hn::StoreU(sums[p], d, partial + p * kLanes);
  for (int lane = 0; j < n; ++j, ++lane) partial[lane] = std::fma(x[j], x[j], partial[lane]);

  return 1.0f / std::sqrt(add_by_halves(partial) / static_cast<float>(n) + eps);
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const Floats d;
  const float inverse = inverse_rms(x, eps, n);
  const auto factor = hn::Set(d, inverse);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + j), factor), hn::LoadU(d, weight + j)), d, out + j);
  }
  for (; j < n; ++j) out[j] = x[j] * inverse * weight[j];
}

void add_rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  const Floats d;
  const float inverse = inverse_rms(x, eps, n);
  const auto factor = hn::Set(d, inverse);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, x + j), factor);
    hn::StoreU(hn::MulAdd(scaled, hn::LoadU(d, weight + j), hn::LoadU(d, y + j)), d, y + j);
  }
  for (; j < n; ++j) y[j] = std::fma(x[j] * inverse, weight[j], y[j]);
}

void swiglu(const float* gate_up, int64_t n, float* out) {
  const Floats d;
  const auto one = hn::Set(d, 1.0f);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const auto z = hn::LoadU(d, gate_up + j);
    const auto silu = hn::Div(z, hn::Add(one, exp(d, hn::Neg(z))));
    hn::StoreU(hn::Mul(silu, hn::LoadU(d, gate_up + n + j)), d, out + j);
  }
  for (; j < n; ++j) out[j] = gate_up[j] / (1.0f + exp_f32(-gate_up[j])) * gate_up[n + j];
}

void geglu(const float* gate_up, int64_t n, float* out) {
  const Floats d;
  const auto one = hn::Set(d, 1.0f), linear = hn::Set(d, kGeluLinear), cubic = hn::Set(d, kGeluCubic);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const auto z = hn::LoadU(d, gate_up + j);
    const auto argument = hn::Mul(hn::MulAdd(hn::Mul(z, z), cubic, linear), z);
    const auto gelu = hn::Div(z, hn::Add(one, exp(d, hn::Neg(argument))));
    hn::StoreU(hn::Mul(gelu, hn::LoadU(d, gate_up + n + j)), d, out + j);
  }
  for (; j < n; ++j) {
    const float z = gate_up[j];
    out[j] = z / (1.0f + exp_f32(-gelu_argument(z))) * gate_up[n + j];
  }
}

void rotate(const float* x, const float* cos, const float* sin, float scale, int64_t d, float* out) {
  const Floats df;
  const int64_t half = d / 2;
  const auto factor = hn::Set(df, scale);
  int64_t a = 0;
  for (; a + kLanes <= half; a += kLanes) {
    const auto x1 = hn::LoadU(df, x + a), x2 = hn::LoadU(df, x + half + a);
    const auto c = hn::LoadU(df, cos + a), s = hn::LoadU(df, sin + a);
    const auto y1 = hn::MulSub(x1, c, hn::Mul(x2, s));
    const auto y2 = hn::MulAdd(x2, c, hn::Mul(x1, s));
    hn::StoreU(hn::Mul(y1, factor), df, out + a);
    hn::StoreU(hn::Mul(y2, factor), df, out + half + a);
  }
  for (; a < half; ++a) {
    const float x1 = x[a], x2 = x[half + a];
    out[a] = std::fma(x1, cos[a], -(x2 * sin[a])) * scale;
    out[half + a] = std::fma(x2, cos[a], x1 * sin[a]) * scale;
  }
}

void add_scaled(const float* x, float factor, int64_t n, float* y) {
  const Floats d;
  const auto factors = hn::Set(d, factor);
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + j), factors, hn::LoadU(d, y + j)), d, y + j);
  }
  for (; j < n; ++j) y[j] = std::fma(x[j], factor, y[j]);
}

bool all_finite(const float* x, int64_t n) {
  const Floats d;
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    if (!hn::AllTrue(d, hn::IsFinite(hn::LoadU(d, x + j)))) return false;
  }
  for (; j < n; ++j) {
    if (!std::isfinite(x[j])) return false;
  }
  return true;
}

#else
using scalar::add_rms_norm;
using scalar::add_scaled;
using scalar::all_finite;
using scalar::convert;
using scalar::geglu;
using scalar::rms_norm;
using scalar::rotate;
using scalar::swiglu;
#endif
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
QUIRE_CPU_EXPORT(add_rms_norm);
QUIRE_CPU_EXPORT(add_scaled);
QUIRE_CPU_EXPORT(all_finite);
QUIRE_CPU_EXPORT(convert);
QUIRE_CPU_EXPORT(geglu);
QUIRE_CPU_EXPORT(rms_norm);
QUIRE_CPU_EXPORT(rotate);
QUIRE_CPU_EXPORT(swiglu);

void convert(ElementType source_type, const void* source, ElementType type, void* out, int64_t n) {
  QUIRE_CPU_DISPATCH(convert)(source_type, source, type, out, n);
}
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  QUIRE_CPU_DISPATCH(rms_norm)(x, weight, eps, n, out);
}
void add_rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  QUIRE_CPU_DISPATCH(add_rms_norm)(x, weight, eps, n, y);
}
void swiglu(const float* gate_up, int64_t n, float* out) { QUIRE_CPU_DISPATCH(swiglu)(gate_up, n, out); }
void geglu(const float* gate_up, int64_t n, float* out) { QUIRE_CPU_DISPATCH(geglu)(gate_up, n, out); }
void rotate(const float* x, const float* cos, const float* sin, float scale, int64_t d, float* out) {
  QUIRE_CPU_DISPATCH(rotate)(x, cos, sin, scale, d, out);
}
void add_scaled(const float* x, float factor, int64_t n, float* y) { QUIRE_CPU_DISPATCH(add_scaled)(x, factor, n, y); }
bool all_finite(const float* x, int64_t n) { return QUIRE_CPU_DISPATCH(all_finite)(x, n); }
}  // namespace quire::cpu
#endif
