// Random elements of any type that is not quantised, and what rounding to it may change.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "lib/support/element.h"
#include "tests/gpu/test_device.h"

namespace quire::test {

constexpr ElementType kFloatTypes[] = {ElementType::kF32, ElementType::kBF16, ElementType::kF16};

struct Elements {
  ElementType type;
  Shared<char> bytes;

  Elements(ElementType type_, int64_t n) : type(type_), bytes(static_cast<size_t>(n) * element_bytes(type_)) {}
  double operator[](int64_t i) const { return load_element(type, bytes.data(), i); }
  void set(int64_t i, double v) { store_element(type, bytes.data(), i, static_cast<float>(v)); }
  cuda::DeviceRows rows(int64_t stride) { return {bytes.data(), stride, type}; }
};

inline Elements random_elements(std::mt19937& random, ElementType type, int64_t n, double spread = 1) {
  std::normal_distribution<double> normal(0, spread);
  Elements elements(type, n);
  for (int64_t i = 0; i < n; ++i) elements.set(i, normal(random));
  return elements;
}

inline double tolerance(ElementType type, double value) {
  const double relative = type == ElementType::kF32 ? 1e-5 : type == ElementType::kF16 ? 1e-3 : 5e-3;
  return relative * std::abs(value) + 1e-6;
}

}  // namespace quire::test
