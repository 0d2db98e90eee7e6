// Tests over the emulated CUDA runtime: each leaves nothing behind, neither memory and handles nor an error.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <ostream>
#include <utility>
#include <vector>

#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"

namespace quire::test {

// What kernels appended, in the host's memory.
struct List {
  int* values;
  int* n;
};

// What there is of things that have to be given back.
struct Held {
  int64_t bytes, host_bytes, n_streams, n_events, n_graphs, n_graphs_in_the_making;
  bool operator==(const Held&) const = default;
};
inline Held held() {
  const emulation::DeviceUse use = emulation::device_use();
  return {use.bytes, use.host_bytes, use.n_streams, use.n_events, use.n_graphs, use.n_graphs_in_the_making};
}
inline void PrintTo(const Held& h, std::ostream* out) {
  *out << h.bytes << " bytes, " << h.host_bytes << " of the host, " << h.n_streams << " streams, " << h.n_events
       << " events, " << h.n_graphs << " graphs, " << h.n_graphs_in_the_making << " in the making";
}

class LeavesNothing : public testing::Test {
 protected:
  LeavesNothing() { emulation::set_launch_options({.schedule = emulation::Schedule::kForward, .n_threads = 1}); }
  ~LeavesNothing() override {
    emulation::set_device_faults({});
    emulation::set_machine({});
    EXPECT_EQ(held(), before_);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

 private:
  const Held before_ = held();
};

// With a stream of the first device, and a list that kernels append to.
class RuntimeFixture : public LeavesNothing {
 protected:
  RuntimeFixture() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~RuntimeFixture() override { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  // What was appended since the last call.
  std::vector<int> appended() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return {values_, values_ + std::exchange(n_, 0)};
  }

  cudaStream_t stream_ = nullptr;
  int values_[100] = {};
  int n_ = 0;
  List list_{values_, &n_};
};

}  // namespace quire::test
