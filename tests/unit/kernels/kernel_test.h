// Fixture of the kernel tests: runs each test on every instruction set this CPU has, with random numbers
// (tests/seed.h).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"
#include "tests/seed.h"

namespace quire::cpu {

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};

inline std::string kernel_target_name(const testing::TestParamInfo<Target>& info) {
  constexpr const char* kNames[] = {"Baseline", "Avx2", "Avx3", "Avx3Vnni", "Avx3Bf16", "Avx3Amx", "NeonDot"};
  return kNames[static_cast<int>(info.param)];
}

// Without those that have nothing of their own for the kernels under test.
inline std::vector<Target> targets_without(std::initializer_list<Target> others) {
  std::vector<Target> targets = supported_targets();
  std::erase_if(targets,
                [&](Target target) { return std::find(others.begin(), others.end(), target) != others.end(); });
  return targets;
}

// Those that differ for kernels other than products of rounded rows.
inline std::vector<Target> float_targets() {
  return targets_without({Target::kAvx3Vnni, Target::kAvx3Bf16, Target::kAvx3Amx, Target::kNeonDot});
}

class KernelTest : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override { use_target(GetParam()); }

  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << test::seed_trace();
    use_target(best_);
  }

  std::vector<float> normal(int64_t n, float scale = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, scale);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = distribution(random_);
    return x;
  }

  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  const Target best_ = supported_targets().back();
  std::mt19937 random_ = test::seeded_random();
};

// `n` elements of a type, of which neither the address nor the end is aligned: overruns and alignment faults show.
class Elements {
 public:
  Elements(ElementType type, int64_t n) : type_(type), bytes_(1 + static_cast<size_t>(n) * element_bytes(type)) {}
  Elements(ElementType type, const std::vector<float>& x) : Elements(type, static_cast<int64_t>(x.size())) {
    for (size_t i = 0; i < x.size(); ++i) store_element(type, data(), static_cast<int64_t>(i), x[i]);
  }
  void* data() { return bytes_.data() + 1; }
  const void* data() const { return bytes_.data() + 1; }
  double at(int64_t i) const { return load_element(type_, data(), i); }
  bool operator==(const Elements& other) const { return bytes_ == other.bytes_; }

 private:
  ElementType type_;
  std::vector<char> bytes_;
};

inline void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(0, std::memcmp(&a[i], &b[i], sizeof(float))) << what << ": element " << i << ": " << a[i] << ", " << b[i];
  }
}

// A sum of products in double, and the largest error an f32 sum of them may have.
struct ExactSum {
  double sum = 0, magnitude = 0;
  int64_t terms = 0;

  void add(double a, double b) {
    sum += a * b;
    magnitude += std::fabs(a * b);
    ++terms;
  }
  double bound() const { return 0x1p-24 * static_cast<double>(terms + 3) * magnitude + 1e-37; }
};

}  // namespace quire::cpu
