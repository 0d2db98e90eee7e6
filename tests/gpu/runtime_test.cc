// The emulated CUDA runtime is as strict as the real one: what tests of the plugin rely on.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/emulation/kernel_registry.h"
#include "tests/gpu/runtime_fixture.h"

namespace quire::test {
namespace {

using emulation::device_use;
using emulation::known_kernel;

void append_kernel(List list, int value) { list.values[(*list.n)++] = value; }

struct Runtime : RuntimeFixture {
  // Launches append_kernel, or adds it to a graph.
  cudaError_t launch(int value, dim3 grid = 1, dim3 block = 1, size_t shared_bytes = 0) {
    void* parameters[] = {&list_, &value};
    return cudaLaunchKernel(known_kernel(append_kernel), grid, block, parameters, shared_bytes, stream_);
  }
};

TEST_F(Runtime, KeepsTheLastErrorOfAThreadUntilItIsAskedFor) {
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);  // a success takes nothing back
  EXPECT_EQ(device, 0);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  std::thread([] { EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST_F(Runtime, CopiesParametersWhenAKernelIsLaunched) {
  {
    int value = 1;
    void* parameters[] = {&list_, &value};
    EXPECT_EQ(cudaLaunchKernel(known_kernel(append_kernel), 1, 1, parameters, 0, stream_), cudaSuccess);
    value = 2;
  }
  EXPECT_EQ(appended(), (std::vector<int>{1}));
}

TEST_F(Runtime, RefusesGridsAndBlocksThatNoDeviceHas) {
  struct Shape {
    dim3 grid, block;
  };
  const Shape refused[] = {
      {0, 1},           {dim3(1, 0), 1}, {dim3(1, 1, 0), 1}, {dim3(1, 65536), 1}, {dim3(1, 1, 65536), 1},
      {0x80000000u, 1}, {1, 0},          {1, 1025},          {1, dim3(1, 1, 65)}, {1, dim3(32, 33)}};
  for (const Shape& shape : refused) EXPECT_EQ(launch(1, shape.grid, shape.block), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(appended(), std::vector<int>());
  int value = 0;
  void* parameters[] = {&value};
  EXPECT_EQ(cudaLaunchKernel(&value, 1, 1, parameters, 0, stream_), cudaErrorInvalidDeviceFunction);
  (void)cudaGetLastError();
}

void asking_kernel(List list) { list.values[(*list.n)++] = emulation::shared_memory()[50000]; }

TEST_F(Runtime, GivesMoreThan48KiBToKernelsThatAskedForItOnTheDevice) {
  constexpr size_t kBytes = 64 << 10;
  constexpr auto kMost = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const void* const kernel = known_kernel(asking_kernel);
  const auto launch_with = [&](size_t bytes) {
    void* parameters[] = {&list_};
    return cudaLaunchKernel(kernel, 1, 1, parameters, bytes, stream_);
  };
  EXPECT_EQ(launch_with(kBytes), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, kMost, kBytes), cudaSuccess);  // on the other device
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(launch_with(kBytes), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, kMost, (227 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(kernel, kMost, kBytes), cudaSuccess);
  EXPECT_EQ(launch_with(kBytes + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(launch_with(kBytes), cudaSuccess);
  EXPECT_EQ(appended(), (std::vector<int>{255}));
}

TEST_F(Runtime, RefusesWhatIsOfAnotherDevice) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(launch(1), cudaErrorInvalidResourceHandle);
  std::thread([&] { EXPECT_EQ(launch(2), cudaSuccess); }).join();  // threads begin with the first device
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  (void)cudaGetLastError();
  EXPECT_EQ(appended(), (std::vector<int>{2}));
}

TEST_F(Runtime, WaitsForWhatAnEventStoodForThen) {
  cudaEvent_t event = nullptr;
  cudaStream_t other = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // it stands for nothing yet
  EXPECT_EQ(launch(1), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  EXPECT_EQ(launch(2), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  emulation::set_late_answers(1);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  emulation::set_late_answers(0);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(n_, 0);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(n_, 1);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(appended(), (std::vector<int>{1, 2}));
}

// ---- graphs

struct RuntimeGraphs : Runtime {
  RuntimeGraphs() { begin(); }
  ~RuntimeGraphs() override {
    end();
    if (executable_ != nullptr) {
      EXPECT_EQ(cudaGraphExecDestroy(executable_), cudaSuccess);
    }
  }
  void begin() {
    end();
    EXPECT_EQ(cudaGraphCreate(&graph_, 0), cudaSuccess);
  }
  void end() {
    if (graph_ != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(std::exchange(graph_, nullptr)), cudaSuccess);
    }
  }
  cudaError_t try_to_add(int value, const std::vector<cudaGraphNode_t>& behind, cudaGraphNode_t* node) {
    void* parameters[] = {&list_, &value};
    cudaKernelNodeParams params{};
    params.func = const_cast<void*>(known_kernel(append_kernel));
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = parameters;
    return cudaGraphAddKernelNode(node, graph_, behind.data(), behind.size(), &params);
  }
  cudaGraphNode_t add(int value, const std::vector<cudaGraphNode_t>& behind = {}) {
    cudaGraphNode_t node = nullptr;
    EXPECT_EQ(try_to_add(value, behind, &node), cudaSuccess);
    return node;
  }
  void instantiate() { EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess); }
  cudaGraphExecUpdateResult update() {
    cudaGraphExecUpdateResultInfo info{};
    const cudaError_t error = cudaGraphExecUpdate(executable_, graph_, &info);
    EXPECT_EQ(error == cudaSuccess, info.result == cudaGraphExecUpdateSuccess);
    EXPECT_EQ(cudaGetLastError(), error);
    return info.result;
  }
  // What the executable graph appends when the graph that it was made of is no more.
  std::vector<int> launched() {
    end();
    EXPECT_EQ(cudaGraphLaunch(executable_, stream_), cudaSuccess);
    return appended();
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_F(RuntimeGraphs, OutliveWhatTheyWereMadeOf) {
  const cudaGraphNode_t first = add(1);
  add(2, {first});
  instantiate();
  EXPECT_EQ(device_use().n_graphs, 1);
  EXPECT_EQ(launched(), (std::vector<int>{1, 2}));
  EXPECT_EQ(launched(), (std::vector<int>{1, 2}));
}

TEST_F(RuntimeGraphs, KeepNoOrderThatTheyWereNotTold) {
  const cudaGraphNode_t first = add(1), second = add(2), third = add(3, {first});
  add(4, {third, second});
  add(5);
  instantiate();
  EXPECT_EQ(launched(), (std::vector<int>{5, 2, 1, 3, 4}));
}

TEST_F(RuntimeGraphs, RefuseDependenciesThatAreNone) {
  const cudaGraphNode_t first = add(1);
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(try_to_add(2, {first, first}, &node), cudaErrorInvalidValue);
  EXPECT_EQ(try_to_add(2, {nullptr}, &node), cudaErrorInvalidValue);
  EXPECT_EQ(node, nullptr);
  (void)cudaGetLastError();
}

TEST_F(RuntimeGraphs, ChangeIntoOthersOfTheSameShape) {
  cudaGraphNode_t first = add(1);
  add(2, {first});
  instantiate();
  EXPECT_EQ(cudaGraphLaunch(executable_, stream_), cudaSuccess);
  begin();
  first = add(3);
  add(4, {first});
  EXPECT_EQ(update(), cudaGraphExecUpdateSuccess);
  EXPECT_EQ(launched(), (std::vector<int>{1, 2, 3, 4}));  // what was launched before stays as it was
  // Another number of nodes, and other dependencies.
  begin();
  add(5);
  EXPECT_EQ(update(), cudaGraphExecUpdateErrorTopologyChanged);
  add(6);
  EXPECT_EQ(update(), cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(launched(), (std::vector<int>{3, 4}));
}

TEST_F(RuntimeGraphs, StayOnTheirDevice) {
  add(1);
  instantiate();
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  begin();
  add(2);
  EXPECT_EQ(update(), cudaGraphExecUpdateErrorUnsupportedFunctionChange);
  EXPECT_EQ(cudaGraphLaunch(executable_, stream_), cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(launched(), (std::vector<int>{1}));
}

}  // namespace
}  // namespace quire::test
