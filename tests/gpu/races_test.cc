// How races and accesses that no GPU allows are found (emulation/races.h): in kernels that are compiled as those of
// gpu_races_test are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/device.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/test_device.h"

namespace quire::test {
namespace {

using cuda::kWholeWarp;
using testing::HasSubstr;

// Message of the fault that a kernel ends with; empty: none.
std::string fault_of(unsigned n_threads, const std::function<void(float* shared)>& kernel, unsigned n_blocks = 1,
                     const emulation::Reach& reach = {}) {
  emulation::set_launch_options({});
  try {
    emulation::launch(
        {n_blocks, 1, 1}, {n_threads, 1, 1}, 1024,
        [&] { kernel(reinterpret_cast<float*>(emulation::shared_memory())); }, reach);
  } catch (const emulation::Fault& fault) {
    return fault.what();
  }
  return "";
}

const auto kIsRace = HasSubstr("a race with thread");

TEST(Races, AreOrderedByABarrier) {
  const auto kernel = [](bool write, bool read, float* shared) {
    shared[threadIdx.x] = 1;
    if (write) __syncthreads();
    const float other = shared[63 - threadIdx.x];
    if (read) __syncthreads();
    shared[threadIdx.x] = other;
  };
  EXPECT_EQ(fault_of(64, [&](float* shared) { kernel(true, true, shared); }), "");
  EXPECT_THAT(fault_of(64, [&](float* shared) { kernel(false, true, shared); }), kIsRace);
  EXPECT_THAT(fault_of(64, [&](float* shared) { kernel(true, false, shared); }), kIsRace);
}

// In every order that the emulation knows this gives the right sum.
TEST(Races, AreFoundWhereTheResultIsRight) {
  const std::string fault = fault_of(64, [](float* shared) {
    shared[threadIdx.x] = 1;
    (void)__shfl_xor_sync(kWholeWarp, 1, 1);
    if (threadIdx.x % 2 == 0) shared[threadIdx.x] += shared[threadIdx.x + 1];
  });
  EXPECT_THAT(fault, HasSubstr("a race with thread 1: byte 4 of shared memory; block (0, 0, 0), thread (0, 0, 0)"));
}

TEST(Races, AreOrderedInAWarpByItsMeetings) {
  const auto kernel = [](unsigned other, float* shared) {
    shared[threadIdx.x] = 1;
    __syncwarp();
    const float sum = shared[threadIdx.x ^ other];
    __syncwarp();
    shared[threadIdx.x] = sum;
  };
  EXPECT_EQ(fault_of(64, [&](float* shared) { kernel(1, shared); }), "");
  EXPECT_THAT(fault_of(64, [&](float* shared) { kernel(32, shared); }), kIsRace);
}

TEST(Races, OfAllThatReadMayBeWithAnyOfThem) {
  const auto kernel = [](unsigned writer, float* shared) {
    if (threadIdx.x == 0) shared[0] = 1;
    __syncthreads();
    (void)*const_cast<volatile float*>(shared);
    __syncwarp();
    if (threadIdx.x == writer) shared[0] = 2;
  };
  EXPECT_EQ(fault_of(32, [&](float* shared) { kernel(5, shared); }), "");
  EXPECT_THAT(fault_of(64, [&](float* shared) { kernel(5, shared); }), kIsRace);
}

TEST(Races, AreThoseOfBlocksToo) {
  std::vector<float> memory(4);
  const auto kernel = [&](unsigned step, bool reads) {
    if (threadIdx.x > 0) return;
    float& of = memory[blockIdx.x * step];
    of = reads ? of + 1 : 1;
  };
  EXPECT_EQ(fault_of(
                32, [&](float*) { kernel(1, true); }, 4),
            "");
  EXPECT_THAT(fault_of(
                  32, [&](float*) { kernel(0, true); }, 4),
              HasSubstr("a race with thread 0 of block 0"));
  EXPECT_THAT(fault_of(
                  32, [&](float*) { kernel(0, false); }, 4),
              kIsRace);
}

TEST(Races, AreNotThoseOfAtomicOperations) {
  std::vector<int> memory(1);
  EXPECT_EQ(fault_of(
                64, [&](float*) { atomicAdd(&memory[0], 1); }, 4),
            "");
  EXPECT_THAT(fault_of(64,
                       [&](float*) {
                         if (atomicAdd(&memory[0], 1) < 0 || threadIdx.x == 9) memory[0] = 7;
                       }),
              kIsRace);
}

TEST(Races, AreThoseOfCopiesAndVectorsToo) {
#if defined(__clang__)
  GTEST_SKIP() << "clang does not tell of memcpy()";
#endif
  alignas(16) const float source[4] = {1, 2, 3, 4};
  const auto copy = [&](bool wait, float* shared) {
    if (threadIdx.x == 0) cuda::copy_16_async(shared, source, true);
    cuda::commit_copies();
    if (wait) cuda::wait_for_copies<0>();
    __syncthreads();
    if (!wait) cuda::wait_for_copies<0>();
    alignas(16) float own[4];
    cuda::load_16(own, shared);
    __syncthreads();
    shared[threadIdx.x] = own[threadIdx.x % 4];
  };
  EXPECT_EQ(fault_of(64, [&](float* shared) { copy(true, shared); }), "");
  EXPECT_THAT(fault_of(64, [&](float* shared) { copy(false, shared); }), kIsRace);
  EXPECT_THAT(fault_of(64,
                       [&](float* shared) {
                         alignas(16) const float own[4] = {1, 2, 3, static_cast<float>(threadIdx.x)};
                         cuda::load_16(shared + threadIdx.x % 4 * 4, own);
                       }),
              kIsRace);
}

// ---- what else is asked of an access

TEST(Accesses, AreOfMemoryThatTheLaunchReaches) {
  std::vector<float> memory(64), other(64);
  const auto reach = [&](const void* p, size_t) { return p < other.data() || p >= other.data() + other.size(); };
  const auto copy = [&](const float* from, float* to) {
    return fault_of(
        64, [=](float*) { to[threadIdx.x] = 2 * from[threadIdx.x]; }, 1, reach);
  };
  EXPECT_EQ(copy(memory.data(), memory.data()), "");
  EXPECT_THAT(copy(other.data(), memory.data()), HasSubstr("memory that the device cannot reach"));
  EXPECT_THAT(copy(memory.data(), other.data()), HasSubstr("memory that the device cannot reach"));
}

TEST(Accesses, AreOfTheDevicesMemoryOrOfPinnedMemory) {
  emulation::set_launch_options({});
  const cuda::DeviceApi& api = test_device();
  cuda::Stream stream = nullptr;  // of its own, as what fails on a stream ends it
  ASSERT_EQ(api.create_stream(&stream), 0);
  const auto scale = [&](float* x) {
    const int queued = api.scale_rows(stream, {x, 8, ElementType::kF32}, 4, 8, 2.0f);
    return queued != 0 ? queued : api.finish_stream(stream);
  };
  Shared<float> pinned(32, 1.0f);
  EXPECT_EQ(scale(pinned.data()), 0);
  EXPECT_EQ(pinned[31], 2);
  std::vector<float> plain(32, 1.0f);
  EXPECT_NE(scale(plain.data()), 0);
  (void)api.destroy_stream(stream);
}

TEST(Accesses, OfANumberAreAtMultiplesOfItsSize) {
  alignas(8) char memory[16] = {};
  const auto write = [&](size_t at) {
    return fault_of(1, [&, at](float*) { *reinterpret_cast<double*>(memory + at) = 1; });
  };
  EXPECT_EQ(write(8), "");
  EXPECT_THAT(write(4), HasSubstr("a misaligned access"));
}

}  // namespace
}  // namespace quire::test
