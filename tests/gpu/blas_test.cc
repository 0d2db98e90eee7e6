// Products by cuBLASLt (kernels/cuda/blas.cc) over the emulated one: their sums, how they are found again, and what
// happens where cuBLASLt is missing or fails. Of small integers, so that sums are exact.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lib/support/element.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/runtime_fixture.h"

namespace quire::test {
namespace {

using cuda::DeviceApi;
using cuda::DeviceRows;
using cuda::kBlasWorkspace;
using emulation::device_use;

constexpr ElementType kF32 = ElementType::kF32, kF16 = ElementType::kF16, kBF16 = ElementType::kBF16;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kBetween = 77;

// Device memory with elements of a type, from the `at`-th on.
class Matrix {
 public:
  Matrix(const DeviceApi& api, cuda::Stream stream, ElementType type, const std::vector<float>& values, int64_t at = 0)
      : api_(api), stream_(stream), type_(type), at_(at), n_(static_cast<int64_t>(values.size())) {
    std::vector<char> bytes(row_bytes(type, at + n_));
    for (int64_t i = 0; i < n_; ++i) store_element(type, bytes.data(), at + i, values[static_cast<size_t>(i)]);
    EXPECT_EQ(api_.allocate(bytes.size(), &memory_), 0);
    EXPECT_EQ(api_.upload(stream, memory_, bytes.data(), bytes.size()), 0);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;
  ~Matrix() {
    (void)api_.finish_stream(stream_);  // which may have failed
    EXPECT_EQ(api_.release(memory_, row_bytes(type_, at_ + n_)), 0);
  }
  void* data() const { return static_cast<char*>(memory_) + row_bytes(type_, at_); }
  DeviceRows rows(int64_t stride) const { return {data(), stride, type_}; }
  std::vector<float> values() const {
    std::vector<char> bytes(row_bytes(type_, n_));
    EXPECT_EQ(api_.download(stream_, bytes.data(), data(), bytes.size()), 0);
    EXPECT_EQ(api_.finish_stream(stream_), 0);
    std::vector<float> all;
    for (int64_t i = 0; i < n_; ++i) all.push_back(load_element(type_, bytes.data(), i));
    return all;
  }

 private:
  const DeviceApi& api_;
  const cuda::Stream stream_;
  const ElementType type_;
  const int64_t at_, n_;
  void* memory_ = nullptr;
};

// A stream of a device and the memory that its products work in.
class Place {
 public:
  explicit Place(const DeviceApi& api, int device = 0) : api_(api) {
    EXPECT_EQ(api.use_device(device), 0);
    EXPECT_EQ(api.create_stream(&stream_), 0);
    EXPECT_EQ(api.allocate(kBlasWorkspace, &workspace_), 0);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    EXPECT_EQ(api_.destroy_stream(stream_), 0);
    EXPECT_EQ(api_.release(workspace_, kBlasWorkspace), 0);
  }
  const DeviceApi& api() const { return api_; }
  cuda::Stream stream() const { return stream_; }
  void* workspace() const { return workspace_; }

 private:
  const DeviceApi& api_;
  cuda::Stream stream_ = nullptr;
  void* workspace_ = nullptr;
};

struct Product {
  ElementType type = kBF16, y_type = kF32;
  bool bias = false, add = false;
  int64_t n_rows = 5, n = 7, k = 11;
  int64_t x_at = 0, w_at = 0, y_at = 0;  // elements from what is aligned best

  // What lies between rows is not read, or stays as it is.
  int64_t x_stride() const { return k + 3; }
  int64_t w_stride() const { return k + 8; }
  int64_t y_stride() const { return n + 2; }
  static float x(int64_t r, int64_t i) { return static_cast<float>((3 * r + 5 * i) % 4 - 1); }
  static float w(int64_t j, int64_t i) { return static_cast<float>((2 * j + 7 * i + j * i) % 5 - 2); }
  static float before(int64_t r, int64_t j) { return static_cast<float>((r + 2 * j) % 9); }
  static float bias_of(int64_t j) { return static_cast<float>(j % 3 + 20); }
  float expected(int64_t r, int64_t j) const {
    float sum = (bias ? bias_of(j) : 0) + (add ? before(r, j) : 0);
    for (int64_t i = 0; i < k; ++i) sum += x(r, i) * w(j, i);
    return sum;
  }
  template <typename Value>
  static std::vector<float> rows(int64_t n, int64_t length, int64_t stride, float between, const Value& value) {
    std::vector<float> all(static_cast<size_t>((n - 1) * stride + length), between);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < length; ++i) all[static_cast<size_t>(r * stride + i)] = value(r, i);
    }
    return all;
  }

  // The call's error; the product is looked at if there is none.
  int run(const Place& place) const {
    const DeviceApi& api = place.api();
    const Matrix xs(api, place.stream(), type, rows(n_rows, k, x_stride(), kNaN, x), x_at);
    const Matrix ws(api, place.stream(), type, rows(n, k, w_stride(), kNaN, w), w_at);
    const Matrix ys(api, place.stream(), y_type,
                    rows(n_rows, n, y_stride(), kBetween, [&](auto r, auto j) { return add ? before(r, j) : kNaN; }),
                    y_at);
    const Matrix biases(api, place.stream(), kF32, rows(1, n, n, 0, [](auto, auto j) { return bias_of(j); }));
    const cuda::DeviceMatrix weights{ws.data(), n, k, static_cast<int64_t>(row_bytes(type, w_stride())), type};
    const int error = api.blas_matmul(place.stream(), xs.rows(x_stride()), n_rows, weights,
                                      bias ? static_cast<const float*>(biases.data()) : nullptr, add,
                                      ys.rows(y_stride()), place.workspace());
    EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << emulation::failed_call();
    const std::vector<float> got = ys.values();
    if (error != 0) return error;
    EXPECT_EQ(got, rows(n_rows, n, y_stride(), kBetween, [&](auto r, auto j) { return expected(r, j); }));
    return 0;
  }
};

const DeviceApi& api() { return emulation::device_api_with_blas(); }

class BlasProducts : public LeavesNothing {
 protected:
  BlasProducts() { EXPECT_TRUE(api().open_blas(nullptr, 0)); }
};

TEST_F(BlasProducts, AreThoseOfRowsAndWeights) {
  const Place place(api());
  for (const ElementType type : {kBF16, kF16}) {
    for (const ElementType y_type : {type, kF32}) {
      for (const bool bias : {false, true}) {
        for (const bool add : {false, true}) {
          SCOPED_TRACE(std::string(element_name(type)) + " " + element_name(y_type) + " " + std::to_string(bias) +
                       std::to_string(add));
          const int64_t before = device_use().n_blas_products;
          EXPECT_EQ((Product{.type = type, .y_type = y_type, .bias = bias, .add = add}.run(place)), 0);
          EXPECT_EQ(device_use().n_blas_products, before + 1);
        }
      }
    }
  }
  EXPECT_EQ((Product{.n_rows = 1, .n = 1, .k = 1}.run(place)), 0);
  EXPECT_EQ((Product{.n_rows = 70, .n = 3, .k = 20}.run(place)), 0);
}

TEST_F(BlasProducts, AreOfMatricesThatBeginAnywhere) {
  const Place place(api());
  for (const int64_t at : {1, 2, 3, 4, 8, 16, 24, 32, 64, 96, 128, 129}) {
    SCOPED_TRACE(at);
    EXPECT_EQ((Product{.x_at = at}.run(place)), 0);
    EXPECT_EQ((Product{.n_rows = 4, .w_at = at}.run(place)), 0);
    EXPECT_EQ((Product{.n_rows = 3, .y_at = at}.run(place)), 0);
    EXPECT_EQ((Product{.y_type = kBF16, .add = true, .x_at = at, .w_at = at + 1, .y_at = at}.run(place)), 0);
  }
}

// The sum of a part would not be what it is in bf16 or f16.
TEST_F(BlasProducts, RoundToTheirTypeOnce) {
  const Place place(api());
  for (const auto& [type, great] : {std::pair(kBF16, 257.0f), std::pair(kF16, 2049.0f)}) {
    const Matrix x(api(), place.stream(), type, {1, 1, 1, 1}), y(api(), place.stream(), type, {0});
    const Matrix w(api(), place.stream(), type, {great - 1, 1, 2 - great, 0});
    EXPECT_EQ(api().blas_matmul(place.stream(), x.rows(4), 1, {w.data(), 1, 4, 8, type}, nullptr, false, y.rows(1),
                                place.workspace()),
              0);
    EXPECT_EQ(y.values(), (std::vector<float>{2}));
  }
}

// One that is aligned better does not take the place of one that is aligned less, nor its algorithm.
TEST_F(BlasProducts, AreFoundAgainByShapeAndAlignment) {
  const Place place(api());
  constexpr int64_t kWidth = 13;  // as no other test has it
  constexpr int64_t kPlaces[] = {0, 1, 8};
  const auto searches_of = [&] {
    const int64_t before = device_use().n_blas_searches;
    for (const int64_t x_at : kPlaces) {
      for (const int64_t w_at : kPlaces) {
        for (const int64_t y_at : kPlaces) {
          EXPECT_EQ((Product{.k = kWidth, .x_at = x_at, .w_at = w_at, .y_at = y_at}.run(place)), 0);
        }
      }
    }
    return device_use().n_blas_searches - before;
  };
  EXPECT_EQ(searches_of(), 27);
  EXPECT_EQ(searches_of(), 0);
  // Further places that are aligned as those are.
  EXPECT_EQ((Product{.k = kWidth, .x_at = 3, .w_at = 24, .y_at = 128}.run(place)), 0);
  EXPECT_EQ(searches_of(), 0);
}

TEST_F(BlasProducts, OfManyShapesAreForgotten) {
  constexpr int64_t kObjects = 4, kMany = 6000, kWidth = 8;
  const Place place(api());
  const Matrix values(api(), place.stream(), kBF16, std::vector<float>(1024));
  const Matrix result(api(), place.stream(), kF32, std::vector<float>(1));
  const auto run = [&](int64_t stride) {
    const cuda::DeviceMatrix weights{values.data(), 1, kWidth, 2 * kWidth, kBF16};
    const DeviceRows x{static_cast<char*>(values.data()) + 1024, stride, kBF16};
    EXPECT_EQ(api().blas_matmul(place.stream(), x, 1, weights, nullptr, false, result.rows(1), place.workspace()), 0);
  };
  emulation::set_device_faults({.kernel = 1});  // so that none of them is computed
  int64_t most = 0;
  for (int64_t i = 0; i < kMany; ++i) {
    run(kWidth + i);
    most = std::max(most, device_use().n_blas_objects);
  }
  EXPECT_LT(most, kMany * kObjects);
  EXPECT_LT(device_use().n_blas_objects, most);
  // Where as many are known as may be, they are not forgotten for one that is among them.
  for (int64_t i = kMany; device_use().n_blas_objects < most; ++i) run(kWidth + i);
  const int64_t before = device_use().n_blas_searches;
  run(kWidth + kMany);
  run(kWidth + kMany);
  EXPECT_EQ(device_use().n_blas_searches, before);
  EXPECT_NE(api().finish_stream(place.stream()), 0);
}

TEST_F(BlasProducts, AreQueued) {
  const Place place(api());
  const Matrix x(api(), place.stream(), kBF16, {2}), w(api(), place.stream(), kBF16, {3});
  const Matrix y(api(), place.stream(), kF32, {1});
  EXPECT_EQ(api().finish_stream(place.stream()), 0);
  EXPECT_EQ(api().blas_matmul(place.stream(), x.rows(1), 1, {w.data(), 1, 1, 2, kBF16}, nullptr, true, y.rows(1),
                              place.workspace()),
            0);
  EXPECT_EQ(load_element(kF32, y.data(), 0), 1);
  EXPECT_EQ(y.values(), (std::vector<float>{7}));
}

TEST_F(BlasProducts, HaveAHandleOfEachDevice) {
  for (const int device : {1, 0}) {
    std::thread([&] {
      const Place place(api(), device);
      EXPECT_TRUE(api().open_blas(nullptr, 0));
      EXPECT_EQ((Product{.bias = true}.run(place)), 0);
    }).join();
  }
}

TEST_F(BlasProducts, OfOtherTypesAndOfNoRowsAreNone) {
  const Place place(api());
  const Matrix x(api(), place.stream(), kBF16, {2, 3}), y(api(), place.stream(), kF32, {1});
  const auto product = [&](ElementType x_type, ElementType w_type, ElementType y_type, int64_t n_rows) {
    const int64_t before = device_use().n_blas_calls;
    const int error = api().blas_matmul(place.stream(), {x.data(), 1, x_type}, n_rows, {x.data(), 1, 1, 2, w_type},
                                        nullptr, false, {y.data(), 1, y_type}, place.workspace());
    EXPECT_EQ(device_use().n_blas_calls, before);
    return error;
  };
  EXPECT_EQ(product(kF32, kF32, kF32, 1), cudaErrorNotSupported);
  EXPECT_EQ(product(kF16, kBF16, kF32, 1), cudaErrorNotSupported);
  EXPECT_EQ(product(kBF16, kBF16, kF16, 1), cudaErrorNotSupported);
  EXPECT_EQ(product(kBF16, kBF16, kF32, 0), 0);
}

TEST_F(BlasProducts, ThatAreRefusedOrFailAreSaid) {
  {
    const Place place(api());
    emulation::set_device_faults({.launch = 1});
    EXPECT_EQ(Product{}.run(place), cudaErrorUnknown);
    EXPECT_EQ(Product{}.run(place), 0);
    emulation::set_device_faults({.launch = 1});
    EXPECT_EQ((Product{.bias = true}.run(place)), cudaErrorLaunchOutOfResources);  // of the bias
  }
  const Place place(api());
  const Matrix one(api(), place.stream(), kBF16, {2}), y(api(), place.stream(), kF32, {1});
  emulation::set_device_faults({.kernel = 1});
  EXPECT_EQ(api().blas_matmul(place.stream(), one.rows(1), 1, {one.data(), 1, 1, 2, kBF16}, nullptr, false, y.rows(1),
                              place.workspace()),
            0);
  EXPECT_EQ(api().finish_stream(place.stream()), cudaErrorLaunchFailure);
}

// Each call of cuBLASLt for a product of a new shape fails in turn.
TEST_F(BlasProducts, FailWithWhateverFailsAndLeaveNothing) {
  const Place place(api());
  EXPECT_EQ(Product{}.run(place), 0);  // there is a handle
  int64_t k = 100;
  const int64_t n_before = device_use().n_blas_calls;
  EXPECT_EQ((Product{.k = ++k}.run(place)), 0);
  const int64_t n_calls = device_use().n_blas_calls - n_before;
  constexpr int kLacksMemory = 3;
  for (const int status : {kLacksMemory, emulation::DeviceFaults().blas_status}) {
    std::vector<std::string> failed, done_without;
    for (int64_t n = 1; n <= n_calls; ++n) {
      const int64_t before = device_use().n_blas_objects;
      const Product product{.bias = true, .k = ++k};
      emulation::set_device_faults({.blas_call = n, .blas_status = status});
      const int error = product.run(place);
      EXPECT_EQ(emulation::device_faults().blas_call, 0) << "call " << n << " was not made";
      const std::string name = emulation::failed_call();
      if (error == 0) {
        done_without.push_back(name);
      } else {
        failed.push_back(name);
        // What was found stays known.
        const bool found = name == "cublasLtMatmul";
        EXPECT_EQ(device_use().n_blas_objects, before + (found ? 4 : 0)) << name;
        EXPECT_EQ(error, status == kLacksMemory ? cudaErrorMemoryAllocation : cudaErrorUnknown) << name;
        EXPECT_EQ(api().is_out_of_memory(error), status == kLacksMemory);
      }
      emulation::set_device_faults({});
      EXPECT_EQ(product.run(place), 0) << "behind " << name;
    }
    EXPECT_THAT(failed, testing::IsSupersetOf({"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
                                               "cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate",
                                               "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic",
                                               "cublasLtMatmul"}));
    EXPECT_THAT(done_without, testing::ElementsAre("cublasLtMatmulPreferenceDestroy"));
  }
}

// As may be where they are aligned to less than cuBLASLt knows to load.
TEST_F(BlasProducts, AreThePluginsOwnWhereThereIsNoAlgorithm) {
  constexpr int kNotSupported = 15;
  const Place place(api());
  EXPECT_EQ(Product{}.run(place), 0);  // there is a handle
  std::vector<std::string> refused;
  for (int64_t n = 1; n <= 20; ++n) {
    const Product product{.bias = n % 2 == 0, .add = n % 3 > 0, .k = 8 * (20 + n)};  // weights as the library lays them
    emulation::set_device_faults({.blas_call = n, .blas_status = kNotSupported});
    const int64_t before = device_use().n_blas_products;
    const int error = product.run(place);
    const bool made = emulation::device_faults().blas_call == 0;
    emulation::set_device_faults({});
    const std::string name = emulation::failed_call();
    if (!made || (name != "cublasLtMatmulAlgoGetHeuristic" && name != "cublasLtMatmul")) continue;
    EXPECT_EQ(error, 0);
    EXPECT_EQ(device_use().n_blas_products, before);
    const int64_t n_searches = device_use().n_blas_searches;
    EXPECT_EQ(product.run(place), 0);
    EXPECT_EQ(device_use().n_blas_searches, n_searches);
    EXPECT_EQ(device_use().n_blas_products, before);
    refused.push_back(name);
  }
  EXPECT_THAT(refused, testing::ElementsAre("cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"));
}

// The library does not ask for one while a graph is made, and the plugin need not refuse it.
TEST_F(BlasProducts, HaveNoPlaceInAGraph) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_a_graph = [] {
    const Place place(api());
    const Matrix one(api(), place.stream(), kBF16, {2}), y(api(), place.stream(), kF32, {1});
    (void)api().begin_graph(place.stream());
    (void)api().blas_matmul(place.stream(), one.rows(1), 1, {one.data(), 1, 1, 2, kBF16}, nullptr, false, y.rows(1),
                            place.workspace());
  };
  EXPECT_DEATH(in_a_graph(), "while a graph is made");
}

// ---- what is done once a process, each in one of its own, which ends with 0 if all is as expected

class BlasOfAProcess : public testing::Test {
 protected:
  BlasOfAProcess() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  template <typename Check>
  static void in_a_process(const Check& check) {
    EXPECT_EXIT((check(), std::exit(HasFailure() ? 1 : 0)), testing::ExitedWithCode(0), "");
  }
  // What is said of a library that cannot be used.
  static std::string obstacle_of(const char* file) {
    const DeviceApi with = emulation::device_api_with_blas_of(file);
    char why[256] = {}, shorter[8] = {};
    EXPECT_FALSE(with.open_blas(why, sizeof why));
    EXPECT_FALSE(with.open_blas(shorter, sizeof shorter));
    EXPECT_EQ(std::string(shorter), std::string(why).substr(0, 7));
    EXPECT_FALSE(with.open_blas(nullptr, 0));
    const Place place(with);
    EXPECT_EQ(Product{}.run(place), cudaErrorNotSupported);
    return why;
  }
};

TEST_F(BlasOfAProcess, MayBeMissing) {
  in_a_process([] { EXPECT_THAT(obstacle_of("/nowhere/libcublasLt.so"), testing::HasSubstr("/nowhere/")); });
}

TEST_F(BlasOfAProcess, MayLackAFunction) {
  in_a_process([] { EXPECT_EQ(obstacle_of(QUIRE_LACKING_CUBLASLT), "cuBLASLt has no function cublasLtMatmul"); });
}

TEST_F(BlasOfAProcess, IsOpenedOnce) {
  in_a_process([] {
    EXPECT_TRUE(api().open_blas(nullptr, 0));
    const DeviceApi with = emulation::device_api_with_blas_of("/nowhere/libcublasLt.so");
    EXPECT_TRUE(with.open_blas(nullptr, 0));
  });
}

// A device is opened later where it cannot be at first.
TEST_F(BlasOfAProcess, SaysThatAHandleCannotBeMade) {
  in_a_process([] {
    constexpr int kLacksMemory = 3;
    const Place place(api());
    for (const int status : {kLacksMemory, emulation::DeviceFaults().blas_status}) {
      emulation::set_device_faults({.blas_call = 1, .blas_status = status});
      char why[256] = {};
      EXPECT_FALSE(api().open_blas(why, sizeof why));
      EXPECT_EQ(std::string(why), "cublasLtCreate fails with status " + std::to_string(status));
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
      EXPECT_EQ(Product{}.run(place), cudaErrorNotSupported);
    }
    emulation::set_device_faults({});
    EXPECT_TRUE(api().open_blas(nullptr, 0));
    EXPECT_EQ(Product{}.run(place), 0);
  });
}

TEST_F(BlasOfAProcess, IsOpenedForEachDevice) {
  in_a_process([] {
    const Place first(api(), 0);
    EXPECT_TRUE(api().open_blas(nullptr, 0));
    const Place second(api(), 1);
    EXPECT_EQ(Product{}.run(second), cudaErrorNotSupported);
    EXPECT_TRUE(api().open_blas(nullptr, 0));
    EXPECT_EQ(Product{}.run(second), 0);
    const int64_t before = device_use().n_blas_calls;
    EXPECT_TRUE(api().open_blas(nullptr, 0));
    EXPECT_EQ(device_use().n_blas_calls, before);
  });
}

}  // namespace
}  // namespace quire::test
