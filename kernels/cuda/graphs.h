// Graphs of kernels, and how kernels are launched: at once, or as nodes of the graph that a thread is making.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace quire::cuda {

// DeviceApi::begin_graph and end_graph. A graph is made node by node rather than by capturing the stream: a capture
// forbids the whole process to wait for the device, and ends when somebody does.
int begin_graph(cudaStream_t stream);
int end_graph(cudaStream_t stream, cudaGraphExec_t* graph);

// parameters: where each of the kernel's own is.
int queue_kernel(const void* kernel, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,
                 cudaStream_t stream);

}  // namespace quire::cuda
