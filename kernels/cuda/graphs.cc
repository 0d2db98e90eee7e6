#include "kernels/cuda/graphs.h"

#include <utility>

namespace quire::cuda {
namespace {

struct Making {
  cudaGraph_t graph = nullptr;  // null: the thread makes none
  cudaStream_t stream = nullptr;
  cudaGraphNode_t last = nullptr;
};
thread_local Making making;

// A call that failed and is done without: its error stays behind for cudaGetLastError() otherwise.
bool succeeded(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess;
}

}  // namespace

int begin_graph(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaGraphCreate(&graph, 0);
  if (error == cudaSuccess) making = {graph, stream, nullptr};
  return error;
}

int end_graph(cudaStream_t, cudaGraphExec_t* graph) {
  const cudaGraph_t made = std::exchange(making, {}).graph;
  if (*graph != nullptr) {
    // Other calls than before may need a graph of another shape, which a change cannot give.
    cudaGraphExecUpdateResultInfo info{};
    if (!succeeded(cudaGraphExecUpdate(*graph, made, &info))) {
      (void)succeeded(cudaGraphExecDestroy(std::exchange(*graph, nullptr)));
    }
  }
  const cudaError_t error = *graph == nullptr ? cudaGraphInstantiate(graph, made, 0) : cudaSuccess;
  (void)succeeded(cudaGraphDestroy(made));
  return error;
}

int queue_kernel(const void* kernel, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,
                 cudaStream_t stream) {
  if (making.graph == nullptr || making.stream != stream) {
    return cudaLaunchKernel(kernel, grid, block, parameters, shared_bytes, stream);
  }
  cudaKernelNodeParams node{};
  node.func = const_cast<void*>(kernel);
  node.gridDim = grid;
  node.blockDim = block;
  node.sharedMemBytes = static_cast<unsigned>(shared_bytes);
  node.kernelParams = parameters;
  // A kernel begins when the one before it has ended, as in a stream.
  const cudaGraphNode_t before = making.last;
  return cudaGraphAddKernelNode(&making.last, making.graph, &before, before == nullptr ? 0 : 1, &node);
}

}  // namespace quire::cuda
