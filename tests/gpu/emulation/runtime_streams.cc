// Streams and events of the emulated CUDA runtime. A stream's work runs when somebody waits for it, or asks for an
// event behind it.
#include "tests/gpu/emulation/runtime.h"

namespace quire::emulation {
namespace {

template <typename Handle, typename Object>
const Object& find_in(const std::map<Handle, Object>& objects, Handle handle, const char* otherwise) {
  const auto at = objects.find(handle);
  if (at == objects.end()) die(otherwise);
  return at->second;
}

}  // namespace

const std::shared_ptr<CUstream_st>& find(cudaStream_t stream) {
  return find_in(state().streams, stream, "a stream that does not exist is used, or the default one");
}
CUevent_st& find(cudaEvent_t event) { return *find_in(state().events, event, "an event that does not exist is used"); }
CUgraph_st& find(cudaGraph_t graph) { return *find_in(state().graphs, graph, "a graph that does not exist is used"); }
CUgraphExec_st& find(cudaGraphExec_t executable) {
  return *find_in(state().executables, executable, "an executable graph that does not exist is used");
}

bool Point::done() const { return stream == nullptr || stream->n_done >= number; }

cudaError_t Point::finish() const {
  if (stream == nullptr) return cudaSuccess;
  while (stream->n_done < number) {
    const Work work = std::move(stream->waiting.front());
    stream->waiting.pop_front();
    ++stream->n_done;
    if (stream->failure == cudaSuccess) stream->failure = state().failure != cudaSuccess ? state().failure : work();
    if (stream->failure != cudaSuccess && state().faults.for_good) state().failure = stream->failure;
  }
  return state().failure != cudaSuccess ? state().failure : stream->failure;
}

Point end_of(cudaStream_t stream) {
  const std::shared_ptr<CUstream_st>& found = find(stream);
  return {found, found->n_done + static_cast<int64_t>(found->waiting.size())};
}

void queue(cudaStream_t stream, Work work) { find(stream)->waiting.push_back(std::move(work)); }

void expect_queueable(cudaStream_t stream) {
  if (this_thread().n_graphs > 0) die("something that is no kernel is called for while a graph is made");
  if (find(stream)->device != this_thread().device) die("a thread that has chosen another device uses a stream");
}

cudaError_t queue_kernel_work(cudaStream_t stream, Work work) {
  if (find(stream)->device != this_thread().device) return cudaErrorInvalidResourceHandle;
  if (strikes(state().faults.kernel)) work = [] { return cudaErrorLaunchFailure; };
  queue(stream, std::move(work));
  return cudaSuccess;
}

}  // namespace quire::emulation

using namespace quire::emulation;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return perform("cudaStreamCreateWithFlags", [&] {
    if (flags != cudaStreamNonBlocking) die("a stream that waits for the default one");
    auto made = std::make_shared<CUstream_st>();
    made->device = this_thread().device;
    *stream = made.get();
    state().streams[*stream] = std::move(made);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return end("cudaStreamDestroy", [&] {
    (void)end_of(stream).finish();
    state().streams.erase(stream);
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return perform("cudaStreamSynchronize", [&] {
    if (this_thread().n_graphs > 0) die("a stream is waited for while a graph is made");
    ++state().use.n_waits;
    for (const auto& [handle, pool] : state().pools) pool->not_waited_for.erase(stream);
    return end_of(stream).finish();
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return perform("cudaStreamWaitEvent", [&] {
    expect_queueable(stream);
    // What the event stands for now: it may be recorded anew, or destroyed.
    queue(stream, [point = find(event).recorded] { return (void)point.finish(), cudaSuccess; });
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return perform("cudaEventCreateWithFlags", [&] {
    auto made = std::make_unique<CUevent_st>();
    made->device = this_thread().device;
    *event = made.get();
    state().events[*event] = std::move(made);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return end("cudaEventDestroy", [&] {
    (void)find(event);
    state().events.erase(event);
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return perform("cudaEventRecord", [&] {
    if (this_thread().n_graphs > 0) die("an event is recorded while a graph is made");
    CUevent_st& recorded = find(event);
    const int device = find(stream)->device;
    // The real one asks nothing of the thread, but device_api.h does.
    if (recorded.device != device || this_thread().device != device) return cudaErrorInvalidResourceHandle;
    recorded.recorded = end_of(stream);
    recorded.n_asked = 0;
    ++state().use.n_recorded;
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return perform("cudaEventQuery", [&] {
    if (const cudaError_t forbidden = captured_elsewhere(); forbidden != cudaSuccess) return forbidden;
    CUevent_st& asked = find(event);
    const bool may_run = asked.n_asked++ >= state().n_late_answers;
    return may_run || asked.recorded.done() ? asked.recorded.finish() : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return perform("cudaEventSynchronize", [&] { return find(event).recorded.finish(); });
}

}  // extern "C"
