// The emulated cuBLASLt multiplies as cuBLASLt is defined, and is as strict: what tests of the plugin rely on.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "tests/gpu/emulation/cublaslt.h"
#include "tests/gpu/runtime_fixture.h"

namespace quire::test {
namespace {

using emulation::device_use;

const emulation::BlasFunctions& f() { return emulation::blas_functions(); }

constexpr cublasStatus_t kSuccess = CUBLAS_STATUS_SUCCESS;

// D = op(A) * op(B), all of floats: 2 x 3 with 3 x 4. What is stored by columns is `stride` from column to column.
class CublasLt : public RuntimeFixture {
 protected:
  static constexpr uint64_t kRows = 2, kInner = 3, kColumns = 4;
  static constexpr size_t kFloats = 64, kWorkspace = 1024;

  CublasLt() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EQ(f().create(&handle_), kSuccess);
    for (float** memory : {&a_, &b_, &c_, &d_}) *memory = static_cast<float*>(allocated(kFloats * sizeof(float)));
    workspace_ = allocated(kWorkspace);
    for (size_t i = 0; i < kFloats; ++i) {
      a_[i] = static_cast<float>(i % 7), b_[i] = static_cast<float>(i % 5) - 2, c_[i] = static_cast<float>(i);
      d_[i] = -1;
    }
    EXPECT_EQ(f().create_product(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), kSuccess);
    EXPECT_EQ(f().create_preference(&preference_), kSuccess);
    a_layout_ = layout(kRows, kInner, 5), b_layout_ = layout(kInner, kColumns, 4);
    c_layout_ = layout(kRows, kColumns, 3), d_layout_ = layout(kRows, kColumns, 2);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace});
  }
  ~CublasLt() override {
    EXPECT_EQ(f().destroy_product(product_), kSuccess);
    EXPECT_EQ(f().destroy_preference(preference_), kSuccess);
    for (const cublasLtMatrixLayout_t each : layouts_) EXPECT_EQ(f().destroy_layout(each), kSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (void* const memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(device_use().n_blas_objects, n_before_);
  }
  void* allocated(size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    memory_.push_back(memory);
    return memory;
  }
  cublasLtMatrixLayout_t layout(uint64_t rows, uint64_t columns, int64_t stride, cudaDataType type = CUDA_R_32F) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(f().create_layout(&made, type, rows, columns, stride), kSuccess);
    layouts_.push_back(made);
    return made;
  }
  template <typename Value>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    EXPECT_EQ(f().set_preference(preference_, attribute, &value, sizeof value), kSuccess);
  }
  void transpose(cublasLtMatmulDescAttributes_t which, cublasOperation_t how = CUBLAS_OP_T) {
    EXPECT_EQ(f().set_product(product_, which, &how, sizeof how), kSuccess);
  }
  cublasStatus_t find(int n_wanted = 1) {
    cublasLtMatmulHeuristicResult_t found{};
    int n = 0;
    const cublasStatus_t status = f().find_algorithm(handle_, product_, a_layout_, b_layout_, c_layout_, d_layout_,
                                                     preference_, n_wanted, &found, &n);
    EXPECT_EQ(n, status == kSuccess ? 1 : 0);
    algorithm_ = found.algo;
    return status;
  }
  cublasStatus_t multiply(float alpha = 1, float beta = 0) {
    return f().multiply(handle_, product_, &alpha, a_, a_layout_, b_, b_layout_, &beta, c_, c_layout_, d_, d_layout_,
                        &algorithm_, workspace_, workspace_bytes_, stream_);
  }
  // Finds, multiplies, waits, and compares with sums over what a(i, l) and b(l, j) say.
  void expect_product(const std::function<float(size_t, size_t)>& a, const std::function<float(size_t, size_t)>& b,
                      float alpha = 1, float beta = 0) {
    ASSERT_EQ(find(), kSuccess);
    ASSERT_EQ(multiply(alpha, beta), kSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    for (size_t i = 0; i < kRows; ++i) {
      for (size_t j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (size_t l = 0; l < kInner; ++l) sum += a(i, l) * b(l, j);
        EXPECT_EQ(d_[i + j * 2], alpha * sum + (beta != 0 ? beta * c_[i + j * 3] : 0)) << i << " " << j;
      }
    }
    EXPECT_EQ(d_[kRows * kColumns], -1);
  }
  auto stored(const float* matrix, size_t stride) const {
    return [=](size_t row, size_t column) { return matrix[row + column * stride]; };
  }
  auto stored_across(const float* matrix, size_t stride) const {
    return [=](size_t row, size_t column) { return matrix[column + row * stride]; };
  }

  const int64_t n_before_ = device_use().n_blas_objects;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t a_layout_ = nullptr, b_layout_ = nullptr, c_layout_ = nullptr, d_layout_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  float *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *d_ = nullptr;
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = kWorkspace;

 private:
  std::vector<void*> memory_;
  std::vector<cublasLtMatrixLayout_t> layouts_;
};

TEST_F(CublasLt, MultipliesWhatIsStoredByColumns) { expect_product(stored(a_, 5), stored(b_, 4)); }

TEST_F(CublasLt, Transposes) {
  transpose(CUBLASLT_MATMUL_DESC_TRANSA);
  a_layout_ = layout(kInner, kRows, 5);
  expect_product(stored_across(a_, 5), stored(b_, 4));
  transpose(CUBLASLT_MATMUL_DESC_TRANSB);
  b_layout_ = layout(kColumns, kInner, 6);
  expect_product(stored_across(a_, 5), stored_across(b_, 6));
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
  a_layout_ = layout(kRows, kInner, 2);
  expect_product(stored(a_, 2), stored_across(b_, 6));
}

TEST_F(CublasLt, ScalesAndAdds) {
  expect_product(stored(a_, 5), stored(b_, 4), 2, 0.5f);
  expect_product(stored(a_, 5), stored(b_, 4), -1, 1);
  for (size_t i = 0; i < kFloats; ++i) c_[i] = std::numeric_limits<float>::quiet_NaN();
  expect_product(stored(a_, 5), stored(b_, 4));  // which reads nothing of C
}

// As its definition has it: C is D.
TEST_F(CublasLt, AddsInPlaceWhereTheLayoutsAreEqual) {
  c_ = d_;
  EXPECT_EQ(find(), kSuccess);
  EXPECT_EQ(multiply(1, 1), CUBLAS_STATUS_INVALID_VALUE);
  c_layout_ = layout(kRows, kColumns, 2);
  EXPECT_EQ(find(), kSuccess);
  EXPECT_EQ(multiply(1, 1), kSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(d_[0], a_[0] * b_[0] + a_[5] * b_[1] + a_[10] * b_[2] - 1);
}

TEST_F(CublasLt, IsQueuedAndLeavesItsWorkspaceAsIfItWereNew) {
  EXPECT_EQ(find(), kSuccess);
  std::memset(workspace_, 0, kWorkspace);
  EXPECT_EQ(multiply(), kSuccess);
  EXPECT_EQ(d_[0], -1);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_NE(d_[0], -1);
  for (size_t i = 0; i < kWorkspace / sizeof(float); ++i) EXPECT_TRUE(std::isnan(static_cast<float*>(workspace_)[i]));
}

TEST_F(CublasLt, RefusesWhatIsNoProduct) {
  const auto refused = [&](cublasLtMatrixLayout_t& which, cublasLtMatrixLayout_t other, cublasStatus_t status) {
    const cublasLtMatrixLayout_t before = std::exchange(which, other);
    EXPECT_EQ(find(), status);
    which = before;
  };
  refused(a_layout_, layout(kInner, kRows, 5), CUBLAS_STATUS_INVALID_VALUE);
  refused(b_layout_, layout(kColumns, kInner, 5), CUBLAS_STATUS_INVALID_VALUE);
  refused(c_layout_, layout(kRows, kColumns + 1, 3), CUBLAS_STATUS_INVALID_VALUE);
  refused(d_layout_, layout(kRows + 1, kColumns, 4), CUBLAS_STATUS_INVALID_VALUE);
  refused(d_layout_, layout(kRows, kColumns, 1), CUBLAS_STATUS_INVALID_VALUE);  // columns that overlap
  refused(a_layout_, layout(0, kInner, 5), CUBLAS_STATUS_INVALID_VALUE);
  refused(a_layout_, layout(kRows, kInner, 5, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
  refused(d_layout_, layout(kRows, kColumns, 2, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(find(0), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(find(), kSuccess);
}

TEST_F(CublasLt, RefusesAttributesOfAnotherSize) {
  const uint64_t wide = CUBLAS_OP_T;
  const uint32_t narrow = 256;
  EXPECT_EQ(f().set_product(product_, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(f().set_product(product_, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(f().set_preference(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &narrow, sizeof narrow),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(f().set_preference(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &wide, sizeof wide),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesMatricesThatAreAlignedLessThanWasSaid) {
  constexpr cublasLtMatmulPreferenceAttributes_t kAttributes[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  float** const matrices[] = {&a_, &b_, &c_, &d_};
  for (size_t i = 0; i < std::size(matrices); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(find(), kSuccess);
    *matrices[i] += 4;
    EXPECT_EQ(multiply(), CUBLAS_STATUS_INVALID_VALUE);
    prefer(kAttributes[i], uint32_t{16});
    EXPECT_EQ(multiply(), CUBLAS_STATUS_INVALID_VALUE);  // with the algorithm that was found before
    EXPECT_EQ(find(), kSuccess);
    EXPECT_EQ(multiply(), kSuccess);
    for (const uint32_t impossible : {0u, 2u, 12u}) {
      prefer(kAttributes[i], impossible);
      EXPECT_EQ(find(), CUBLAS_STATUS_NOT_SUPPORTED) << impossible;
    }
    prefer(kAttributes[i], uint32_t{16});
  }
}

TEST_F(CublasLt, RefusesAnAlgorithmOfSomethingElse) {
  EXPECT_EQ(find(), kSuccess);
  EXPECT_EQ(multiply(), kSuccess);
  workspace_bytes_ = kWorkspace - 1;
  EXPECT_EQ(multiply(), CUBLAS_STATUS_INVALID_VALUE);
  workspace_bytes_ = kWorkspace;
  d_layout_ = layout(kRows, kColumns, 4);
  EXPECT_EQ(multiply(), CUBLAS_STATUS_INVALID_VALUE);
  algorithm_ = {};
  EXPECT_EQ(multiply(), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, FailsAsItIsTold) {
  emulation::set_device_faults({.blas_call = 2});
  EXPECT_EQ(find(), kSuccess);
  EXPECT_EQ(multiply(), CUBLAS_STATUS_INTERNAL_ERROR);
  EXPECT_EQ(emulation::failed_call(), "cublasLtMatmul");
  EXPECT_EQ(multiply(), kSuccess);
  emulation::set_device_faults({.launch = 1});
  EXPECT_EQ(multiply(), CUBLAS_STATUS_EXECUTION_FAILED);
  // What is destroyed is so also where that is said to fail.
  cublasLtMatrixLayout_t other = nullptr;
  EXPECT_EQ(f().create_layout(&other, CUDA_R_32F, 1, 1, 1), kSuccess);
  emulation::set_device_faults({.blas_call = 1, .blas_status = CUBLAS_STATUS_NOT_INITIALIZED});
  EXPECT_EQ(f().destroy_layout(other), CUBLAS_STATUS_NOT_INITIALIZED);
}

using CublasLtDeathTest = CublasLt;

TEST_F(CublasLtDeathTest, EndsWithWhatIsUndefined) {
  EXPECT_EQ(find(), kSuccess);
  const auto product_of = [&](float*& which, float* other) {
    float* const before = std::exchange(which, other);
    (void)multiply(1, 1);
    which = before;
  };
  std::vector<float> of_the_host(kFloats);
  float* const aligned = of_the_host.data() + (256 - reinterpret_cast<uintptr_t>(of_the_host.data()) % 256) % 256 / 4;
  EXPECT_DEATH(product_of(a_, aligned), "not device memory");
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t{4});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t{4});
  EXPECT_EQ(find(), kSuccess);
  EXPECT_DEATH(product_of(d_, d_ + kFloats - 7), "not device memory");  // its last element is behind the end
  EXPECT_DEATH(product_of(d_, b_), "over what it is made of");
  EXPECT_DEATH(product_of(c_, d_ + 1), "a part of itself");
  workspace_bytes_ = kWorkspace + 1;
  EXPECT_DEATH((void)multiply(), "not device memory");
  workspace_bytes_ = kWorkspace;
  EXPECT_DEATH((cudaSetDevice(1), (void)multiply()), "another device");
  EXPECT_DEATH((f().destroy_product(product_), (void)multiply()), "does not exist");
  EXPECT_DEATH((f().destroy_preference(preference_), (void)find()), "does not exist");
}

}  // namespace
}  // namespace quire::test
