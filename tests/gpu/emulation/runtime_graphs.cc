// Graphs of the emulated CUDA runtime. Nodes that do not depend on each other run in the order that their maker expects
// least: the last one first.
#include <algorithm>

#include "tests/gpu/emulation/runtime.h"

namespace quire::emulation {
namespace {

// The place of a node in its graph, or what is not one.
size_t place_of(const CUgraph_st& graph, cudaGraphNode_t node) {
  const auto at = std::ranges::find(graph.nodes, node, [](const auto& each) { return each.get(); });
  return static_cast<size_t>(at - graph.nodes.begin());
}

cudaError_t add_node(cudaGraphNode_t* node, CUgraph_st& graph, const cudaGraphNode_t* dependencies,
                     size_t n_dependencies, const cudaKernelNodeParams& parameters) {
  auto made = std::make_unique<CUgraphNode_st>();
  made->graph = &graph;
  for (size_t d = 0; d < n_dependencies; ++d) {
    const size_t place = place_of(graph, dependencies[d]);
    const bool twice = std::ranges::find(made->dependencies, place) != made->dependencies.end();
    if (place == graph.nodes.size() || twice) return cudaErrorInvalidValue;
    made->dependencies.push_back(place);
  }
  if (parameters.extra != nullptr) return cudaErrorInvalidValue;
  cudaError_t error = cudaSuccess;
  made->call = prepare_kernel(parameters.func, parameters.gridDim, parameters.blockDim, parameters.kernelParams,
                              parameters.sharedMemBytes, cudaErrorInvalidValue, error);
  if (error != cudaSuccess) return error;
  *node = made.get();
  graph.nodes.push_back(std::move(made));
  return cudaSuccess;
}

// What is to change, compared with what there is. Kernels may be any of the same device.
cudaGraphExecUpdateResultInfo compare(const CUgraphExec_st& executable, const CUgraph_st& graph) {
  if (executable.nodes.size() != graph.nodes.size()) return {cudaGraphExecUpdateErrorTopologyChanged, nullptr, nullptr};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    CUgraphNode_st* const node = graph.nodes[i].get();
    if (executable.nodes[i].dependencies != node->dependencies) {
      return {cudaGraphExecUpdateErrorTopologyChanged, node, nullptr};
    }
    if (executable.nodes[i].call->device() != node->call->device()) {
      return {cudaGraphExecUpdateErrorUnsupportedFunctionChange, node, nullptr};
    }
  }
  return {cudaGraphExecUpdateSuccess, nullptr, nullptr};
}

std::vector<CUgraphNode_st> copies_of_nodes(const CUgraph_st& graph) {
  std::vector<CUgraphNode_st> copies;
  for (const auto& node : graph.nodes) copies.push_back(*node);
  return copies;
}

// Of the nodes whose dependencies ran, the last one is next.
std::vector<size_t> order_of(const std::vector<CUgraphNode_st>& nodes) {
  std::vector<size_t> order;
  std::vector<bool> ran(nodes.size());
  while (order.size() < nodes.size()) {
    size_t next = nodes.size() - 1;
    const auto is_ready = [&](const CUgraphNode_st& node) {
      return std::ranges::all_of(node.dependencies, [&](size_t d) { return ran[d]; });
    };
    while (ran[next] || !is_ready(nodes[next])) --next;  // dependencies stand in front: some node is ready
    ran[next] = true;
    order.push_back(next);
  }
  return order;
}

}  // namespace
}  // namespace quire::emulation

using namespace quire::emulation;

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return perform("cudaGraphCreate", [&] {
    if (flags != 0) return cudaErrorInvalidValue;
    if (strikes(state().faults.graph)) return cudaErrorUnknown;
    auto made = std::make_unique<CUgraph_st>();
    *graph = made.get();
    state().graphs[*graph] = std::move(made);
    ++this_thread().n_graphs;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return end("cudaGraphDestroy", [&] {
    (void)find(graph);
    state().graphs.erase(graph);
    --this_thread().n_graphs;
  });
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   size_t n_dependencies, const cudaKernelNodeParams* parameters) {
  return perform("cudaGraphAddKernelNode",
                 [&] { return add_node(node, find(graph), dependencies, n_dependencies, *parameters); });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return perform("cudaGraphInstantiate", [&] {
    const CUgraph_st& made_of = find(graph);
    if (flags != 0) return cudaErrorInvalidValue;
    if (strikes(state().faults.graph)) return cudaErrorUnknown;
    auto made = std::make_unique<CUgraphExec_st>();
    made->nodes = copies_of_nodes(made_of);
    *executable = made.get();
    state().executables[*executable] = std::move(made);
    return cudaSuccess;
  });
}

// Launches that were queued have nodes of their own, so they go on as they were.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  return perform("cudaGraphExecUpdate", [&] {
    CUgraphExec_st& changed = find(executable);
    *info = compare(changed, find(graph));
    if (info->result != cudaGraphExecUpdateSuccess) return cudaErrorGraphExecUpdateFailure;
    changed.nodes = copies_of_nodes(find(graph));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return end("cudaGraphExecDestroy", [&] {
    (void)find(executable);
    state().executables.erase(executable);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return perform("cudaGraphLaunch", [&] {
    CUgraphExec_st& launched = find(executable);
    const int device = find(stream)->device;
    if (device != this_thread().device) return cudaErrorInvalidResourceHandle;
    // The real one runs each node on its own device. Here graphs are of one.
    const auto is_elsewhere = [&](const CUgraphNode_st& node) { return node.call->device() != device; };
    if (std::ranges::any_of(launched.nodes, is_elsewhere)) die("a graph is launched on another device than its own");
    if (strikes(state().faults.graph_launch)) return cudaErrorMemoryAllocation;
    if (strikes(state().faults.launch)) return cudaErrorLaunchOutOfResources;
    ++state().use.n_graph_launches;
    // Behind its launches on other streams, too.
    if (launched.last_launch.stream != nullptr && launched.last_launch.stream.get() != stream) {
      queue(stream, [point = launched.last_launch] { return (void)point.finish(), cudaSuccess; });
    }
    for (const size_t i : order_of(launched.nodes)) {
      (void)queue_kernel_work(stream, [call = launched.nodes[i].call] { return call->run(); });
    }
    launched.last_launch = end_of(stream);
    return cudaSuccess;
  });
}

}  // extern "C"
