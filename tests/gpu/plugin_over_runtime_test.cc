// The plugin's own code (kernels/cuda/plugin.cc, graphs.cc, the launches of device.h) over the emulated CUDA runtime:
// what it says of a machine, graphs that are made node by node, and what it does when a call of the runtime fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/device.h"
#include "lib/backend/cuda/cuda_plugin.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/emulation/runtime.h"
#include "tests/gpu/runtime_fixture.h"

namespace quire::test {
namespace {

using cuda::DeviceApi;
using cuda::DeviceRows;
using cuda::Obstacle;
using emulation::device_use;
using emulation::Machine;

const DeviceApi& api() { return emulation::device_api(); }

// An error of the table's functions, which is not to be the thread's last error, too.
int returned(int error) {
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << emulation::failed_call();
  return error;
}

// Each device's pool of memory, with its stream, is made once and stays: before what is held is counted.
struct WithPools {
  WithPools() {
    for (const int device : {1, 0}) {
      void* memory = nullptr;
      EXPECT_EQ(api().use_device(device), 0);
      EXPECT_EQ(api().allocate(1, &memory), 0);
      EXPECT_EQ(api().release(memory, 1), 0);
    }
  }
};

// ---- the machine

class PluginOnMachines : public LeavesNothing {
 protected:
  static Obstacle obstacle_of(const Machine& machine) {
    emulation::set_machine(machine);
    cuda::Probe probe;
    EXPECT_EQ(returned(api().probe(&probe)), 0);
    EXPECT_EQ(probe.runtime_version, 13000);
    EXPECT_EQ(probe.driver_version, machine.driver_version);
    EXPECT_EQ(probe.n_devices, probe.obstacle == Obstacle::kNone ? machine.n_devices : 0);
    EXPECT_EQ(probe.error != 0, probe.obstacle != Obstacle::kNone);
    return probe.obstacle;
  }
  static std::string said_of(const Machine& machine) {
    emulation::set_machine(machine);
    int n_devices = -1;
    return cuda::find_devices(api(), n_devices);
  }
};

TEST_F(PluginOnMachines, SaysWhatIsInTheWay) {
  EXPECT_EQ(obstacle_of({}), Obstacle::kNone);
  EXPECT_EQ(obstacle_of({.n_devices = 1}), Obstacle::kNone);
  EXPECT_EQ(obstacle_of({.driver_version = 0}), Obstacle::kNoDriver);
  EXPECT_EQ(obstacle_of({.driver_version = 12080}), Obstacle::kOldDriver);
  EXPECT_EQ(obstacle_of({.n_devices = 0}), Obstacle::kNoDevice);
  EXPECT_EQ(obstacle_of({.driver_error = cudaErrorInitializationError}), Obstacle::kOther);
  EXPECT_EQ(said_of({.driver_version = 12080}),
            "the NVIDIA driver is too old: it is made for CUDA 12.8, and this plugin needs 13.0");
  EXPECT_EQ(said_of({.driver_error = cudaErrorUnknown}), "the NVIDIA driver failed: unknown error");
}

TEST_F(PluginOnMachines, KnowsWhichDevicesItHasCodeFor) {
  struct Case {
    int major, minor;
    bool usable, warpgroups;
  };
  const Case cases[] = {{7, 5, false, false}, {8, 0, true, false},  {8, 9, true, false},
                        {9, 0, true, true},   {10, 3, true, false}, {12, 1, true, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(10 * c.major + c.minor);
    emulation::set_machine({.major = c.major, .minor = c.minor});
    cuda::DeviceFacts facts;
    EXPECT_EQ(returned(api().describe(1, &facts)), 0);
    EXPECT_STREQ(facts.name, "emulated");
    EXPECT_EQ(facts.major, c.major);
    EXPECT_EQ(facts.minor, c.minor);
    EXPECT_EQ(facts.n_processors, 6);
    EXPECT_EQ(facts.memory_bytes, int64_t{1} << 30);
    EXPECT_EQ(facts.usable, c.usable);
    EXPECT_EQ(facts.warpgroups, c.warpgroups);
    EXPECT_EQ(returned(api().describe(2, &facts)), cudaErrorInvalidDevice);
    EXPECT_EQ(returned(api().use_device(2)), cudaErrorInvalidDevice);
  }
}

TEST_F(PluginOnMachines, WithoutADriverEveryCallSaysSo) {
  emulation::set_machine({.driver_version = 0});
  void* memory = nullptr;
  cuda::Stream stream = nullptr;
  cuda::Event event = nullptr;
  int64_t free = 0;
  float row[4] = {};
  const DeviceRows rows{row, 4, ElementType::kF32};
  for (const int error :
       {returned(api().use_device(0)), returned(api().free_memory(0, &free)), returned(api().allocate(1024, &memory)),
        returned(api().allocate_host(1024, &memory)), returned(api().create_stream(&stream)),
        returned(api().create_event(&event)), returned(api().rms_norm(nullptr, rows, row, 1e-5f, 1, 4, false, rows)),
        returned(api().begin_graph(nullptr))}) {
    EXPECT_EQ(error, cudaErrorInsufficientDriver);
  }
  EXPECT_EQ(memory, nullptr);
}

// ---- streams and graphs of the table

// Rows of numbers in memory that the device and the test can both touch.
class PluginOverRuntime : private WithPools, public LeavesNothing {
 protected:
  PluginOverRuntime() {
    EXPECT_EQ(api().use_device(0), 0);
    stream_ = make_stream();
    void* memory = nullptr;
    EXPECT_EQ(api().allocate_host(kRows * kWidth * sizeof(float), &memory), 0);
    numbers_ = static_cast<float*>(memory);
    for (int i = 0; i < kRows * kWidth; ++i) numbers_[i] = 1;
  }
  ~PluginOverRuntime() override {
    EXPECT_EQ(api().release_host(numbers_), 0);
    EXPECT_EQ(api().destroy_stream(stream_), 0);
    if (graph_ != nullptr) {
      EXPECT_EQ(api().destroy_graph(graph_), 0);
    }
  }
  static cuda::Stream make_stream() {
    cuda::Stream stream = nullptr;
    EXPECT_EQ(api().create_stream(&stream), 0);
    return stream;
  }
  DeviceRows row(int i) const { return {numbers_ + i * kWidth, kWidth, ElementType::kF32}; }
  void scale(int i, float by, cuda::Stream stream) const {
    EXPECT_EQ(returned(api().scale_rows(stream, row(i), 1, kWidth, by)), 0);
  }
  void scale(int i, float by) const { scale(i, by, stream_); }
  void copy(int from, int to) const { EXPECT_EQ(returned(api().copy_rows(stream_, row(from), 1, kWidth, row(to))), 0); }
  // graph_ becomes one of what calls() launches.
  void make_graph(const std::function<void()>& calls) {
    EXPECT_EQ(returned(api().begin_graph(stream_)), 0);
    calls();
    EXPECT_EQ(returned(api().end_graph(stream_, &graph_)), 0);
    EXPECT_EQ(device_use().n_graphs_in_the_making, 0);
  }
  void launch_graph() const { EXPECT_EQ(returned(api().launch_graph(graph_, stream_)), 0); }
  // The last number of each row.
  std::vector<float> finished() const {
    EXPECT_EQ(returned(api().finish_stream(stream_)), 0);
    std::vector<float> all;
    for (int i = 0; i < kRows; ++i) all.push_back(numbers_[i * kWidth + kWidth - 1]);
    return all;
  }

  static constexpr int kRows = 3, kWidth = 4;
  cuda::Stream stream_ = nullptr;
  cuda::Graph graph_ = nullptr;
  float* numbers_ = nullptr;
};
using Row = std::vector<float>;

TEST_F(PluginOverRuntime, KernelsOfAGraphRunInTheirOrder) {
  make_graph([&] {
    scale(0, 2);
    copy(0, 1);
    scale(1, 3);
    copy(1, 2);
    scale(0, 5);
  });
  EXPECT_EQ(finished(), (Row{1, 1, 1}));  // making it runs nothing
  launch_graph();
  EXPECT_EQ(finished(), (Row{10, 6, 6}));
  launch_graph();
  EXPECT_EQ(finished(), (Row{100, 60, 60}));
}

TEST_F(PluginOverRuntime, AGraphOfAsManyKernelsIsChanged) {
  make_graph([&] { scale(0, 2), scale(0, 2); });
  const cuda::Graph before = graph_;
  launch_graph();
  make_graph([&] { scale(0, 3), copy(0, 1); });
  EXPECT_EQ(graph_, before);
  launch_graph();
  EXPECT_EQ(finished(), (Row{12, 12, 1}));  // the first launch was of what the graph was then
}

TEST_F(PluginOverRuntime, AGraphOfOtherShapeTakesThePlaceOfTheFormer) {
  make_graph([&] { scale(0, 2); });
  launch_graph();
  for (int n = 3; n > 0; --n) {
    make_graph([&] {
      for (int i = 0; i < n; ++i) scale(0, 3);
    });
    EXPECT_EQ(device_use().n_graphs, 1);
    launch_graph();
  }
  EXPECT_EQ(finished(), (Row{2 * 729, 1, 1}));
}

// Meanwhile another thread makes a graph of its own.
TEST_F(PluginOverRuntime, OnlyTheThreadsLaunchesToTheStreamBecomeItsGraph) {
  const cuda::Stream other = make_stream();
  make_graph([&] {
    scale(0, 2);
    scale(1, 3, other);
    std::thread([&] {
      cuda::Graph graph = nullptr;
      EXPECT_EQ(api().use_device(0), 0);
      EXPECT_EQ(returned(api().begin_graph(other)), 0);
      scale(2, 5, other);
      EXPECT_EQ(returned(api().end_graph(other, &graph)), 0);
      EXPECT_EQ(returned(api().launch_graph(graph, other)), 0);
      EXPECT_EQ(returned(api().finish_stream(other)), 0);
      EXPECT_EQ(returned(api().destroy_graph(graph)), 0);
    }).join();
    scale(0, 7);
  });
  EXPECT_EQ(finished(), (Row{1, 3, 5}));
  launch_graph();
  EXPECT_EQ(finished(), (Row{14, 3, 5}));
  EXPECT_EQ(api().destroy_stream(other), 0);
}

// A kernel that is refused leaves a graph of those before it, which another attempt changes.
TEST_F(PluginOverRuntime, AKernelThatIsRefusedEndsNothing) {
  EXPECT_EQ(returned(api().begin_graph(stream_)), 0);
  scale(0, 2);
  emulation::set_device_faults({.launch = 1});
  EXPECT_EQ(returned(api().scale_rows(stream_, row(0), 1, kWidth, 3)), cudaErrorLaunchOutOfResources);
  EXPECT_EQ(returned(api().end_graph(stream_, &graph_)), 0);
  scale(1, 7);  // launched: no graph is made any more
  EXPECT_EQ(finished(), (Row{1, 7, 1}));
  make_graph([&] { scale(0, 2), scale(0, 3); });
  launch_graph();
  EXPECT_EQ(finished(), (Row{6, 7, 1}));
}

// Each thread has chosen another device, and makes, changes and launches a graph of its own at the same time.
TEST_F(PluginOverRuntime, TwoThreadsUseTwoDevices) {
  constexpr int kTimes = 30;
  const auto work = [](int device) {
    EXPECT_EQ(returned(api().use_device(device)), 0);
    const cuda::Stream stream = make_stream();
    cuda::Graph graph = nullptr;
    void *memory = nullptr, *there = nullptr;
    EXPECT_EQ(api().allocate(kWidth * sizeof(float), &there), 0);
    EXPECT_EQ(api().allocate_host(kWidth * sizeof(float), &memory), 0);
    auto* const numbers = static_cast<float*>(memory);
    for (int i = 0; i < kWidth; ++i) numbers[i] = 1;
    EXPECT_EQ(returned(api().upload(stream, there, numbers, kWidth * sizeof(float))), 0);
    const DeviceRows rows{there, kWidth, ElementType::kF32};
    for (int i = 0; i < kTimes; ++i) {
      EXPECT_EQ(returned(api().begin_graph(stream)), 0);
      for (int n = 0; n <= i % 3; ++n) EXPECT_EQ(returned(api().scale_rows(stream, rows, 1, kWidth, 2)), 0);
      EXPECT_EQ(returned(api().end_graph(stream, &graph)), 0);
      EXPECT_EQ(returned(api().launch_graph(graph, stream)), 0);
    }
    EXPECT_EQ(returned(api().download(stream, numbers, there, kWidth * sizeof(float))), 0);
    EXPECT_EQ(returned(api().finish_stream(stream)), 0);
    EXPECT_EQ(numbers[0], std::exp2(2 * kTimes));
    EXPECT_EQ(api().destroy_graph(graph), 0);
    EXPECT_EQ(api().release(there, kWidth * sizeof(float)), 0);
    EXPECT_EQ(api().release_host(numbers), 0);
    EXPECT_EQ(api().destroy_stream(stream), 0);
  };
  std::thread other(work, 1);
  work(0);
  other.join();
}

// That it is not done is no error.
TEST_F(PluginOverRuntime, AnEventIsAskedUntilItIsDone) {
  cuda::Event event = nullptr;
  EXPECT_EQ(returned(api().create_event(&event)), 0);
  scale(0, 2);
  EXPECT_EQ(returned(api().record_event(event, stream_)), 0);
  emulation::set_late_answers(2);
  for (const bool expected : {false, false, true}) {
    bool done = !expected;
    EXPECT_EQ(returned(api().ask_event(event, &done)), 0);
    EXPECT_EQ(done, expected);
  }
  emulation::set_late_answers(0);
  emulation::set_device_faults({.kernel = 1});
  scale(0, 2);
  EXPECT_EQ(returned(api().record_event(event, stream_)), 0);
  bool done = false;
  EXPECT_EQ(returned(api().ask_event(event, &done)), cudaErrorLaunchFailure);
  EXPECT_TRUE(done);
  EXPECT_EQ(api().destroy_event(event), 0);
}

TEST_F(PluginOverRuntime, CapturesOfTheHostAreNotMinded) {
  emulation::set_device_faults({.host_captures = true});
  std::thread([] {
    void* memory = nullptr;
    EXPECT_EQ(returned(api().allocate(100, &memory)), cudaErrorStreamCaptureUnsupported);  // as the mode is
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(returned(api().use_device(i)), 0);
      EXPECT_EQ(returned(api().allocate(100, &memory)), 0);
      EXPECT_EQ(returned(api().release(memory, 100)), 0);
    }
  }).join();
}

// A thread of the host's has what it had: another device, or none.
TEST_F(PluginOverRuntime, ThreadsLeaveDevicesAsTheyWere) {
  std::thread([] {
    void* none = &none;
    EXPECT_EQ(returned(api().get_context(&none)), 0);
    EXPECT_EQ(none, nullptr);
    for (const int own : {-1, 1}) {
      void *before = nullptr, *now = nullptr;
      if (own >= 0) {
        EXPECT_EQ(cudaSetDevice(own), cudaSuccess);
      }
      EXPECT_EQ(returned(api().get_context(&before)), 0);
      EXPECT_EQ(before == nullptr, own < 0);
      for (const int device : {0, 1}) {
        EXPECT_EQ(returned(api().use_device(device)), 0);
        EXPECT_EQ(quire::emulation::this_thread().capture_mode, cudaStreamCaptureModeRelaxed);
      }
      EXPECT_EQ(returned(api().leave_devices(before)), 0);
      EXPECT_EQ(returned(api().get_context(&now)), 0);
      EXPECT_EQ(now, before);
      EXPECT_EQ(quire::emulation::this_thread().capture_mode, cudaStreamCaptureModeGlobal);
    }
  }).join();
}

// ---- shared memory

__global__ void shared_kernel(float* out, size_t bytes) {
  QUIRE_SHARED_MEMORY(shared);
  shared[bytes - 1] = 7;
  *out = static_cast<float>(shared[bytes - 1]);
}
__global__ void other_shared_kernel(float* out, size_t bytes) { shared_kernel(out, bytes); }

// Also in a graph, and on each device.
TEST_F(PluginOverRuntime, KernelsHaveAsMuchSharedMemoryAsTheyAskFor) {
  constexpr size_t kMuch = 200 << 10;
  for (const int device : {1, 0}) {
    EXPECT_EQ(returned(api().use_device(device)), 0);
    const cuda::Stream stream = make_stream();
    const auto launch_all = [&] {
      EXPECT_EQ(returned(cuda::launch(shared_kernel, 1, 1, kMuch, stream, numbers_, kMuch)), 0);
      for (const size_t bytes : {size_t{1}, cuda::kLeastSharedMemory, size_t{60000}}) {
        EXPECT_EQ(returned(cuda::launch_varying(other_shared_kernel, 1, 1, bytes, stream, numbers_ + 1, bytes)), 0);
      }
    };
    launch_all();
    cuda::Graph graph = nullptr;
    EXPECT_EQ(returned(api().begin_graph(stream)), 0);
    launch_all();
    EXPECT_EQ(returned(api().end_graph(stream, &graph)), 0);
    EXPECT_EQ(returned(api().launch_graph(graph, stream)), 0);
    EXPECT_EQ(returned(api().finish_stream(stream)), 0);
    EXPECT_EQ(numbers_[0], 7);
    EXPECT_EQ(numbers_[1], 7);
    EXPECT_EQ(api().destroy_graph(graph), 0);
    EXPECT_EQ(api().destroy_stream(stream), 0);
  }
  constexpr size_t kTooMuch = cuda::kLeastSharedMemory + 1;
  EXPECT_NE(cuda::launch_varying(other_shared_kernel, 1, 1, kTooMuch, stream_, numbers_, kTooMuch), 0);
  (void)cudaGetLastError();
}

// Another thread may launch the same kernel with rows of another length.
TEST_F(PluginOverRuntime, RowsOfAnyLengthHaveOneLimit) {
  constexpr size_t kBytes = size_t{1} << 18, kRowsOfX = 8;
  void* memory = nullptr;
  EXPECT_EQ(returned(api().allocate(kBytes, &memory)), 0);
  EXPECT_EQ(returned(api().fill(stream_, memory, 0, kBytes)), 0);
  for (const int64_t k : {2560, 512, 3072}) {  // the first and the last take more than 48 KiB
    const cuda::DeviceMatrix weights{memory, 1, k, cuda::device_row_bytes(ElementType::kQ8_0, k), ElementType::kQ8_0};
    const DeviceRows x{memory, k, ElementType::kF32};
    EXPECT_EQ(returned(api().matmul(stream_, x, kRowsOfX, weights, nullptr, false, {numbers_, 1, ElementType::kF32})),
              0);
    EXPECT_EQ(finished(), (Row{0, 0, 1}));
  }
  EXPECT_EQ(returned(api().release(memory, kBytes)), 0);
}

// ---- memory

int64_t free_on_device() {
  int64_t free = 0;
  EXPECT_EQ(returned(api().free_memory(0, &free)), 0);
  return free;
}

int64_t free_by_the_driver() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}

TEST_F(PluginOverRuntime, PiecesComeFromAPoolThatKeepsLittle) {
  constexpr size_t kPiece = size_t{4} << 20, kMuch = size_t{64} << 20;
  constexpr int64_t kMostUnused = int64_t{16} << 20;  // of a device of 1 GiB
  const int64_t free = free_on_device();
  std::vector<void*> pieces(20);
  for (void*& piece : pieces) EXPECT_EQ(returned(api().allocate(kPiece, &piece)), 0);
  EXPECT_EQ(free_on_device(), free - int64_t{20 * kPiece});
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(returned(api().release(pieces[i], kPiece)), 0);
  EXPECT_EQ(free_on_device(), free - int64_t{17 * kPiece});
  EXPECT_LT(free_by_the_driver(), free_on_device());  // the pool has them
  for (size_t i = 3; i < pieces.size(); ++i) EXPECT_EQ(returned(api().release(pieces[i], kPiece)), 0);
  EXPECT_EQ(free_on_device(), free);
  EXPECT_GE(free_by_the_driver(), free - kMostUnused);
  EXPECT_LT(free_by_the_driver(), free);
  // What the pool has is there for others, if they need it; also what came back a moment ago.
  EXPECT_EQ(returned(api().allocate(kPiece, &pieces[0])), 0);
  EXPECT_EQ(returned(api().release(pieces[0], kPiece)), 0);
  void* all = nullptr;
  EXPECT_EQ(returned(api().allocate(static_cast<size_t>(free), &all)), 0);
  EXPECT_EQ(returned(api().release(all, static_cast<size_t>(free))), 0);
  EXPECT_EQ(free_by_the_driver(), free);
  void* much = nullptr;
  EXPECT_EQ(returned(api().allocate(kMuch, &much)), 0);
  EXPECT_EQ(free_by_the_driver(), free - int64_t{kMuch});
  EXPECT_EQ(returned(api().release(much, kMuch)), 0);
  EXPECT_EQ(free_by_the_driver(), free);  // it was no piece
  EXPECT_NE(returned(api().allocate(size_t{2} << 30, &much)), 0);
}

// On a device without pools everything comes from the driver.
TEST(PluginWithoutPools, AllocatesAllTheSame) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto use = [] {
    emulation::set_machine({.has_pools = false});
    int error = api().use_device(0);
    void* memory = nullptr;
    for (int i = 0; i < 2 && error == 0; ++i) {
      error = api().allocate(100, &memory);
      if (error == 0) error = api().release(memory, 100);
    }
    std::exit(error == 0 && device_use().n_streams == 0 && device_use().bytes == 0 ? 0 : 1);
  };
  EXPECT_EXIT(use(), testing::ExitedWithCode(0), "");
}

// ---- failures

// The functions of the table in a row, with all that they make. It stops at the first failure.
struct Life {
  cuda::Stream stream = nullptr, other = nullptr;
  cuda::Event event = nullptr;
  cuda::Graph graph = nullptr;
  void *memory = nullptr, *host = nullptr;
  int n_failures = 0;

  static constexpr int64_t kWidth = 32;
  static constexpr size_t kBytes = 4096, kWeights = 2048;

  void end() {
    for (const cuda::Stream each : {stream, other}) {
      if (each != nullptr) went(api().destroy_stream(each));
    }
    if (graph != nullptr) went(api().destroy_graph(graph));
    if (event != nullptr) went(api().destroy_event(event));
    if (memory != nullptr) went(api().release(memory, kBytes));
    if (host != nullptr) went(api().release_host(host));
  }
  bool went(int error) {
    if (returned(error) == 0) return true;
    EXPECT_STREQ(api().error_text(error), "unknown error");
    ++n_failures;
    return false;
  }
  DeviceRows row(int i) const { return {static_cast<float*>(memory) + i * kWidth, kWidth, ElementType::kF32}; }
  bool scale(float by) { return went(api().scale_rows(stream, row(0), 1, kWidth, by)); }
  // However making it ended, the stream works as before.
  template <typename Calls>
  bool make_graph(const Calls& calls) {
    if (!went(api().begin_graph(stream))) return false;
    const bool called = calls();
    return went(api().end_graph(stream, &graph)) && called;
  }
  // What came of ones: 2 * 3, 2 * 3 * 5 * 5 and a product with no weights. Empty: something failed.
  std::vector<float> run() {
    int64_t free = 0;
    bool done = false;
    if (!went(api().use_device(0)) || !went(api().free_memory(0, &free)) || !went(api().allocate(kBytes, &memory)) ||
        !went(api().allocate_host(kBytes, &host)) || !went(api().create_stream(&stream)) ||
        !went(api().create_stream(&other)) || !went(api().create_event(&event))) {
      return {};
    }
    auto* const numbers = static_cast<float*>(host);
    for (int64_t i = 0; i < kWidth; ++i) numbers[i] = 1;
    const cuda::DeviceMatrix weights{static_cast<char*>(memory) + kWeights, 2, kWidth, 48, ElementType::kQ8_0};
    const bool all = went(api().fill(stream, memory, 0, kBytes)) &&
                     went(api().upload(stream, memory, host, kBytes / 4)) &&
                     make_graph([&] { return scale(2) && scale(3); }) && went(api().launch_graph(graph, stream)) &&
                     went(api().copy(stream, row(1).data, row(0).data, kWidth * sizeof(float))) &&
                     make_graph([&] { return scale(5); }) && went(api().launch_graph(graph, stream)) &&
                     make_graph([&] { return scale(5); }) && went(api().launch_graph(graph, stream)) &&
                     went(api().matmul(stream, row(0), 1, weights, nullptr, false, row(2))) &&
                     went(api().record_event(event, stream)) && went(api().ask_event(event, &done)) &&
                     went(api().wait_event(other, event)) && went(api().finish_event(event)) &&
                     went(api().download(other, host, memory, kBytes)) && went(api().finish_stream(other));
    if (!all) return {};
    EXPECT_TRUE(done);
    return {numbers[kWidth], numbers[0], numbers[2 * kWidth]};
  }
};

class FailingRuntime : private WithPools, public LeavesNothing {};

// Each call of the runtime fails in turn, from the first to those that give things back. One function of the table says
// so, or none where the plugin does without, and nothing is left behind.
TEST_F(FailingRuntime, EachFailureIsSaidOnceAndLeavesNothing) {
  const std::vector<float> right = {6, 150, 0};
  const int64_t before = device_use().n_calls;
  // On threads of their own, so that a thread's first calls are among them.
  std::thread([&] {
    Life life;
    EXPECT_EQ(life.run(), right);
    life.end();
  }).join();
  const int64_t n_calls = device_use().n_calls - before;
  std::set<std::string> done_without;
  for (int64_t n = 1; n <= n_calls; ++n) {
    const Held at_first = held();
    emulation::set_device_faults({.call = n});
    std::thread([&] {
      Life life;
      const std::vector<float> got = life.run();
      if (!got.empty()) {
        EXPECT_EQ(got, right) << emulation::failed_call();
      }
      life.end();
      EXPECT_EQ(emulation::device_faults().call, 0) << "call " << n << " was not made";
      EXPECT_LE(life.n_failures, 1) << emulation::failed_call();
      if (life.n_failures == 0) done_without.insert(emulation::failed_call());
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << emulation::failed_call();
    }).join();
    EXPECT_EQ(held(), at_first) << emulation::failed_call();
  }
  EXPECT_THAT(done_without,
              testing::ElementsAre("cudaDeviceGetAttribute", "cudaGetDevice", "cudaGraphDestroy",
                                   "cudaGraphExecDestroy", "cudaGraphExecUpdate", "cudaMemPoolGetAttribute"));
}

}  // namespace
}  // namespace quire::test
