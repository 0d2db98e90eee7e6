// The emulation itself: kernels do what they do on a GPU, and faults that a GPU may hide are found.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cuda/device.h"
#include "tests/gpu/schedules.h"

namespace quire::test {
namespace {

using cuda::kWholeWarp;
using emulation::Fault;
using emulation::launch;

class Emulation : public OnEverySchedule {};
INSTANTIATE_TEST_SUITE_P(Orders, Emulation, kSchedules, schedule_name);

// Message of the fault that a kernel of one block ends with; empty: none.
std::string fault_of(unsigned n_threads, size_t shared, const std::function<void()>& kernel) {
  try {
    launch({1, 1, 1}, {n_threads, 1, 1}, shared, kernel);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

TEST_P(Emulation, RunsEachThreadOfEachBlockOnce) {
  std::vector<int> runs(3 * 2 * 5 * 4);
  launch({3, 2, 1}, {5, 4, 1}, 0, [&] {
    const unsigned block = blockIdx.x + 3 * blockIdx.y, thread = threadIdx.x + 5 * threadIdx.y;
    ++runs[block * 20 + thread];
    EXPECT_EQ(blockDim.x, 5u);
    EXPECT_EQ(gridDim.y, 2u);
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST_P(Emulation, BarriersSeparateWritesFromReads) {
  std::vector<int> sums(4);
  launch({4, 1, 1}, {100, 1, 1}, 100 * sizeof(int), [&] {
    int* const shared = reinterpret_cast<int*>(emulation::shared_memory());
    shared[threadIdx.x] = static_cast<int>(threadIdx.x);
    __syncthreads();
    const int sum = std::accumulate(shared, shared + 100, 0);
    __syncthreads();
    shared[threadIdx.x] = 0;
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  });
  EXPECT_EQ(sums, std::vector<int>(4, 4950));
}

// Without the first barrier some order reads what nobody has written: all ones.
TEST(Emulations, FindAMissingBarrierInSomeOrder) {
  int n_wrong = 0;
  for (const auto schedule : {emulation::Schedule::kForward, emulation::Schedule::kAhead}) {
    emulation::set_launch_options({.schedule = schedule});
    int sum = 0;
    launch({1, 1, 1}, {64, 1, 1}, 64 * sizeof(int), [&] {
      int* const shared = reinterpret_cast<int*>(emulation::shared_memory());
      shared[threadIdx.x] = 1;
      if (threadIdx.x == 0) sum = std::accumulate(shared, shared + 64, 0);
    });
    n_wrong += sum != 64;
  }
  EXPECT_EQ(n_wrong, 2);
}

TEST_P(Emulation, LanesExchangeValues) {
  std::vector<int> out(96);
  launch({1, 1, 1}, {96, 1, 1}, 0, [&] {
    const int own = static_cast<int>(threadIdx.x);
    const int sum = static_cast<int>(cuda::warp_sum(static_cast<float>(own % 32)));
    const int next = __shfl_down_sync(kWholeWarp, own, 1), before = __shfl_up_sync(kWholeWarp, own, 1);
    const unsigned odd = __ballot_sync(kWholeWarp, own % 2 == 1);
    const bool right = sum == 496 && next == (own % 32 == 31 ? own : own + 1) &&
                       before == (own % 32 == 0 ? own : own - 1) && odd == 0xaaaaaaaau &&
                       __shfl_sync(kWholeWarp, own, 7) == own / 32 * 32 + 7;
    out[threadIdx.x] = right;
  });
  EXPECT_EQ(out, std::vector<int>(96, 1));
}

// A is 16 x 16, B is 16 x 8; both types.
template <typename T>
void expect_product() {
  std::vector<float> a(256), b(128), d(128);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 7 % 11) - 5);
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 5 % 9) - 4);
  launch({1, 1, 1}, {32, 1, 1}, 0, [&] {
    const int g = emulation::lane() / 4, t = 2 * (emulation::lane() % 4);
    const auto pair = [](const float* v, int step) { return cuda::pack(v[0], v[step], T()); };
    const unsigned left[4] = {pair(&a[size_t(g * 16 + t)], 1), pair(&a[size_t((g + 8) * 16 + t)], 1),
                              pair(&a[size_t(g * 16 + t + 8)], 1), pair(&a[size_t((g + 8) * 16 + t + 8)], 1)};
    float sum[4] = {1, 1, 1, 1};
    cuda::multiply_tile(sum, left, pair(&b[size_t(t * 8 + g)], 8), pair(&b[size_t((t + 8) * 8 + g)], 8), T());
    for (int r = 0; r < 4; ++r) d[size_t((g + 8 * (r / 2)) * 8 + t + r % 2)] = sum[r];
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float expected = 1;
      for (int k = 0; k < 16; ++k) expected += a[size_t(i * 16 + k)] * b[size_t(k * 8 + j)];
      EXPECT_EQ(d[size_t(i * 8 + j)], expected);
    }
  }
}

TEST_P(Emulation, MultipliesTiles) {
  expect_product<cuda::bf16>();
  expect_product<cuda::f16>();
}

TEST_P(Emulation, LoadsTiles) {
  std::vector<int> right(32);
  launch({1, 1, 1}, {32, 1, 1}, 4 * 8 * 8 * 2, [&] {
    uint16_t* const tiles = reinterpret_cast<uint16_t*>(emulation::shared_memory());  // [4][8][8]
    const int own = emulation::lane(), g = own / 4, t = 2 * (own % 4);
    for (int j = 0; j < 8; ++j) tiles[own * 8 + j] = static_cast<uint16_t>(own * 8 + j);
    __syncwarp();
    unsigned straight[4], turned[4];
    cuda::load_tiles(straight, tiles + own * 8);
    cuda::load_tiles_transposed(turned, tiles + own * 8);
    bool same = true;
    for (unsigned m = 0; m < 4; ++m) {
      const auto at = [&](int i, int j) { return m * 64 + static_cast<unsigned>(i * 8 + j); };
      same = same && straight[m] == (at(g, t) | at(g, t + 1) << 16) && turned[m] == (at(t, g) | at(t + 1, g) << 16);
    }
    right[size_t(own)] = same;
  });
  EXPECT_EQ(right, std::vector<int>(32, 1));
}

TEST_P(Emulation, CopiesAreThereWhenTheyWereWaitedFor) {
  alignas(16) const float source[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  launch({1, 1, 1}, {1, 1, 1}, 64, [&] {
    float* const shared = reinterpret_cast<float*>(emulation::shared_memory());
    cuda::copy_16_async(shared, source, true);
    cuda::commit_copies();
    cuda::copy_16_async(shared + 4, source + 4, true);
    cuda::commit_copies();
    EXPECT_TRUE(std::isnan(shared[0]));
    cuda::wait_for_copies<1>();
    EXPECT_EQ(shared[3], 4);
    EXPECT_TRUE(std::isnan(shared[4]));
    cuda::copy_16_async(shared, source, false);
    cuda::commit_copies();
    cuda::wait_for_copies<0>();
    EXPECT_EQ(shared[0], 0);
    EXPECT_EQ(shared[7], 8);
  });
}

TEST_P(Emulation, NamesFaults) {
  using testing::Test;
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_EQ(fault_of(64, 0, [] { __syncthreads(); }), "");
  EXPECT_PRED2(contains,
               fault_of(64, 0,
                        [] {
                          if (threadIdx.x < 32) {
                            emulation::barrier(1, 64);
                          } else {
                            emulation::barrier(2, 64);
                          }
                        }),
               "never reach");
  EXPECT_PRED2(contains,
               fault_of(32, 0,
                        [] {
                          if (threadIdx.x < 16) {
                            __syncwarp();
                          } else {
                            (void)__ballot_sync(kWholeWarp, true);
                          }
                        }),
               "meet in another collective than");
  EXPECT_PRED2(contains, fault_of(32, 0, [] { (void)__shfl_sync(0xffffu, 1, 3); }), "not in its mask");
  EXPECT_PRED2(contains, fault_of(16, 0, [] { (void)__shfl_sync(0xffffu, 1, 20); }), "not in the mask");
  alignas(16) const float source[8] = {};
  EXPECT_PRED2(contains, fault_of(1, 64, [&] { cuda::copy_16_async(emulation::shared_memory(), source + 1, true); }),
               "misaligned");
  EXPECT_PRED2(contains,
               fault_of(1, 64,
                        [&] {
                          cuda::copy_16_async(emulation::shared_memory(), source, true);
                          cuda::commit_copies();
                        }),
               "did not wait");
  EXPECT_PRED2(contains,
               fault_of(32, 64,
                        [] {
                          unsigned r[4];
                          cuda::load_tiles(r, emulation::shared_memory() + 2);
                        }),
               "misaligned");
  EXPECT_PRED2(contains,
               fault_of(70, 0,
                        [] {
                          if (threadIdx.x == 69) emulation::fail("here");
                          __syncthreads();
                        }),
               "here; block (0, 0, 0), thread (69, 0, 0)");
}

}  // namespace
}  // namespace quire::test
