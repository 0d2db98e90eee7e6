#include "tests/gpu/emulation/emulated_device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/support/element.h"
#include "tests/gpu/emulation/block.h"

using Work = std::function<int()>;

struct CUstream_st {
  int device = 0;
  std::deque<Work> waiting;
  int64_t n_done = 0;
  int failure = 0;
  std::vector<Work>* graph = nullptr;  // that is being made: where work goes that is not done
};

struct CUgraphExec_st {
  std::vector<Work> work;
};

struct CUevent_st {
  int device = 0;
  CUstream_st* stream = nullptr;  // null: not recorded, or its stream is gone
  int64_t number = 0;             // done when so much of the stream's work is
  int failure = 0;
  int64_t n_asked = 0;  // since it was recorded
};

namespace quire::emulation {
namespace {

using cuda::DeviceFacts;
using cuda::Event;
using cuda::Graph;
using cuda::Probe;
using cuda::Stream;

constexpr int kOutOfMemory = 2, kRefused = 9, kKernelFailed = 719, kBadCall = 1;
constexpr size_t kAlignment = 256;
constexpr int kDevices = 2;

// Which device the thread has chosen.
thread_local int current_device = 0;

struct State {
  std::recursive_mutex mutex;
  DeviceFaults faults;
  DeviceUse use;
  int64_t n_late_answers = 0;
  int failure = 0;  // of every call, since a kernel failed for good
  std::map<const void*, size_t> device[kDevices], host;
  std::vector<CUevent_st*> events;
};
// Never destroyed: a library's thread may release memory when main() has returned.
State& state() {
  static State& one = *new State;
  return one;
}

int64_t memory_bytes() {
  const int64_t bytes = state().faults.memory_bytes;
  return bytes > 0 ? bytes : int64_t{1} << 30;
}

bool strikes(int64_t& countdown) { return countdown > 0 && --countdown == 0; }

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulated device: %s\n", what);
  std::abort();
}

// Runs what the stream waits with, up to `number`.
void run(CUstream_st& stream, int64_t number) {
  while (stream.n_done < number) {
    const Work work = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    ++stream.n_done;
    if (stream.failure == 0) stream.failure = state().failure != 0 ? state().failure : work();
    if (stream.failure != 0 && state().faults.for_good) state().failure = stream.failure;
  }
}
int64_t last(const CUstream_st& stream) { return stream.n_done + static_cast<int64_t>(stream.waiting.size()); }

// ---- memory
int allocate_in(std::map<const void*, size_t>& kind, int64_t& bytes_held, int64_t& fault, size_t bytes, void** out) {
  const std::lock_guard lock(state().mutex);
  if (state().failure != 0) return state().failure;
  if (strikes(fault)) return kOutOfMemory;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *out = std::aligned_alloc(kAlignment, rounded);
  if (*out == nullptr) return kOutOfMemory;
  std::memset(*out, 0xFF, rounded);
  kind[*out] = bytes;
  bytes_held += static_cast<int64_t>(bytes);
  return 0;
}
int release_in(std::map<const void*, size_t>& kind, int64_t& bytes_held, void* memory) {
  const std::lock_guard lock(state().mutex);
  const auto at = kind.find(memory);
  if (at == kind.end()) die("memory is released that is not its own");
  bytes_held -= static_cast<int64_t>(at->second);
  std::memset(memory, 0xFF, at->second);
  kind.erase(at);
  std::free(memory);
  return state().failure;
}
int allocate(size_t bytes, void** out) {
  const std::lock_guard lock(state().mutex);
  ++state().use.n_allocations;
  if (state().use.bytes + static_cast<int64_t>(bytes) > memory_bytes()) return kOutOfMemory;
  return allocate_in(state().device[current_device], state().use.bytes, state().faults.allocation, bytes, out);
}
int release(void* memory) {
  const std::lock_guard lock(state().mutex);
  const bool first = state().device[0].contains(memory);
  return release_in(state().device[first ? 0 : 1], state().use.bytes, memory);
}
int allocate_host(size_t bytes, void** out) {
  return allocate_in(state().host, state().use.host_bytes, state().faults.host_allocation, bytes, out);
}
int release_host(void* memory) { return release_in(state().host, state().use.host_bytes, memory); }

// Whether [p, p + bytes) lies in one piece of memory of the kind.
bool lies_in(const std::map<const void*, size_t>& kind, const void* p, size_t bytes) {
  auto after = kind.upper_bound(p);
  if (after == kind.begin()) return false;
  --after;
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - static_cast<const char*>(after->first));
  return offset + bytes <= after->second;
}

// What is queued on a stream must be queued by a thread that has chosen the stream's device.
void expect_chosen(Stream stream) {
  if (stream->device != current_device) die("a thread that has chosen another device uses a stream");
}

int queue(Stream stream, Work work) {
  expect_chosen(stream);
  if (stream->graph != nullptr) die("something that is no kernel is to be part of a graph");
  if (state().failure != 0) return state().failure;
  stream->waiting.push_back(std::move(work));
  return 0;
}

int upload(Stream stream, void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  ++state().use.n_uploads;
  if (!lies_in(state().device[stream->device], to, bytes)) die("an upload to what is not device memory");
  if (lies_in(state().host, from, bytes)) {
    return queue(stream, [=] { return std::memcpy(to, from, bytes), 0; });
  }
  const auto* bytes_of = static_cast<const char*>(from);
  return queue(stream, [to, copy = std::vector<char>(bytes_of, bytes_of + bytes)] {
    return std::memcpy(to, copy.data(), copy.size()), 0;
  });
}
int download(Stream stream, void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  ++state().use.n_downloads;
  if (strikes(state().faults.download)) return ++state().use.n_refused, kRefused;
  if (!lies_in(state().device[stream->device], from, bytes)) die("a download of what is not device memory");
  state().use.bytes_downloaded += static_cast<int64_t>(bytes);
  if (strikes(state().faults.late_download)) return queue(stream, [] { return kKernelFailed; });
  return queue(stream, [=] { return std::memcpy(to, from, bytes), 0; });
}
int copy(Stream stream, void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  return queue(stream, [=] { return std::memmove(to, from, bytes), 0; });
}
int fill(Stream stream, void* to, int byte, size_t bytes) {
  const std::lock_guard lock(state().mutex);
  return queue(stream, [=] { return std::memset(to, byte, bytes), 0; });
}

// ---- order
int create_stream(Stream* out) {
  const std::lock_guard lock(state().mutex);
  if (state().failure != 0) return state().failure;
  ++state().use.n_streams;
  *out = new CUstream_st();
  (*out)->device = current_device;
  return 0;
}
int finish_stream(Stream stream) {
  const std::lock_guard lock(state().mutex);
  if (stream->graph != nullptr) die("a stream is waited for while a graph is made");
  ++state().use.n_waits;
  run(*stream, last(*stream));
  return state().failure != 0 ? state().failure : stream->failure;
}
int destroy_stream(Stream stream) {
  const std::lock_guard lock(state().mutex);
  run(*stream, last(*stream));
  for (CUevent_st* event : state().events) {
    if (event->stream != stream) continue;
    event->failure = stream->failure;
    event->stream = nullptr;
  }
  --state().use.n_streams;
  delete stream;
  return state().failure;
}
int create_event(Event* out) {
  const std::lock_guard lock(state().mutex);
  if (state().failure != 0) return state().failure;
  ++state().use.n_events;
  *out = new CUevent_st();
  (*out)->device = current_device;
  state().events.push_back(*out);
  return 0;
}
int destroy_event(Event event) {
  const std::lock_guard lock(state().mutex);
  --state().use.n_events;
  std::erase(state().events, event);
  delete event;
  return state().failure;
}
int record_event(Event event, Stream stream) {
  const std::lock_guard lock(state().mutex);
  if (stream->graph != nullptr) die("an event is to be part of a graph");
  if (event->device != stream->device) die("an event of another device is recorded");
  expect_chosen(stream);
  *event = {stream->device, stream, last(*stream), 0, 0};
  return state().failure;
}
int finish_event(Event event) {
  const std::lock_guard lock(state().mutex);
  if (event->stream != nullptr) run(*event->stream, event->number);
  if (state().failure != 0) return state().failure;
  return event->stream != nullptr ? event->stream->failure : event->failure;
}
int ask_event(Event event, bool* done) {
  const std::lock_guard lock(state().mutex);
  *done =
      event->n_asked++ >= state().n_late_answers || event->stream == nullptr || event->stream->n_done >= event->number;
  return *done ? finish_event(event) : 0;
}
int wait_event(Stream stream, Event event) {
  const std::lock_guard lock(state().mutex);
  if (state().failure != 0) return state().failure;
  if (event->stream == nullptr) return 0;
  // The other stream outlives this work only if it is there when this runs: destroying it runs it to its end.
  return queue(stream, [event] {
    (void)finish_event(event);
    return 0;
  });
}

// ---- graphs
int begin_graph(Stream stream) {
  const std::lock_guard lock(state().mutex);
  if (stream->graph != nullptr) die("two graphs are made at once");
  expect_chosen(stream);
  if (state().failure != 0) return state().failure;
  if (strikes(state().faults.graph)) return kRefused;
  stream->graph = new std::vector<Work>();
  return 0;
}
int end_graph(Stream stream, Graph* graph) {
  const std::lock_guard lock(state().mutex);
  if (stream->graph == nullptr) die("no graph is being made");
  const std::unique_ptr<std::vector<Work>> work(std::exchange(stream->graph, nullptr));
  if (strikes(state().faults.graph)) return kRefused;
  if (*graph == nullptr) {
    *graph = new CUgraphExec_st();
    ++state().use.n_graphs;
  }
  (*graph)->work = std::move(*work);
  return 0;
}
int launch_graph(Graph graph, Stream stream) {
  const std::lock_guard lock(state().mutex);
  if (strikes(state().faults.launch)) return kRefused;
  ++state().use.n_graph_launches;
  for (const Work& work : graph->work) {
    (void)queue(stream, strikes(state().faults.kernel) ? Work([] { return kKernelFailed; }) : work);
  }
  return 0;
}
int destroy_graph(Graph graph) {
  const std::lock_guard lock(state().mutex);
  --state().use.n_graphs;
  delete graph;
  return 0;
}

// ---- kernels
template <auto kKernel>
struct Queued;
template <typename... Arguments, int (*kKernel)(Stream, Arguments...)>
struct Queued<kKernel> {
  static int call(Stream stream, Arguments... arguments) {
    const std::lock_guard lock(state().mutex);
    ++state().use.n_launches;
    if (state().failure != 0) return state().failure;
    if (strikes(state().faults.launch)) return kRefused;
    Work work = [own = std::tuple<std::decay_t<Arguments>...>(arguments...)] {
      try {
        return std::apply([](const auto&... of) { return kKernel(nullptr, of...); }, own);
      } catch (const Fault& fault) {
        std::fprintf(stderr, "emulated device: %s\n", fault.what());
        return kKernelFailed;
      }
    };
    if (stream->graph != nullptr) return stream->graph->push_back(std::move(work)), 0;
    if (strikes(state().faults.kernel)) work = [] { return kKernelFailed; };
    return queue(stream, std::move(work));
  }
};

int gather(Stream stream, const cuda::GatherList& list) {
  const std::lock_guard lock(state().mutex);
  for (int c = 0; c < list.n; ++c) {
    const auto& [from, to, bytes] = list.copies[c];
    for (const void* place : {from, static_cast<const void*>(to)}) {
      const auto size = static_cast<size_t>(bytes);
      if (!lies_in(state().device[stream->device], place, size) && !lies_in(state().host, place, size)) {
        die("a kernel is to gather where the device cannot");
      }
    }
  }
  ++state().use.n_gathers;
  return Queued<cuda::gather>::call(stream, list);
}

// ---- cuBLASLt
bool open_blas(char* why, size_t size) {
  if (why != nullptr && size > 0) *why = '\0';
  return true;
}

int multiply(Stream, cuda::DeviceRows x, int64_t n_rows, const cuda::DeviceMatrix& w, const float* bias, bool add,
             cuda::DeviceRows y, void* workspace) {
  std::memset(workspace, 0xFF, cuda::kBlasWorkspace);
  const auto wide = [&](const void* row) {
    std::vector<float> values(static_cast<size_t>(w.k));
    for (int64_t i = 0; i < w.k; ++i) values[static_cast<size_t>(i)] = load_element(w.type, row, i);
    return values;
  };
  std::vector<std::vector<float>> rows;
  for (int64_t r = 0; r < n_rows; ++r) {
    rows.push_back(wide(static_cast<const char*>(x.data) + row_bytes(x.type, r * x.stride)));
  }
  for (int64_t j = 0; j < w.n; ++j) {
    const std::vector<float> weights = wide(static_cast<const char*>(w.data) + j * w.row_bytes);
    for (int64_t r = 0; r < n_rows; ++r) {
      const int64_t at = r * y.stride + j;
      float sum = bias != nullptr ? bias[j] : 0.0f;
      if (add) sum += load_element(y.type, y.data, at);
      for (size_t i = 0; i < weights.size(); ++i) sum += rows[static_cast<size_t>(r)][i] * weights[i];
      store_element(y.type, y.data, at, sum);
    }
  }
  return 0;
}

int blas_matmul(Stream stream, cuda::DeviceRows x, int64_t n_rows, const cuda::DeviceMatrix& w, const float* bias,
                bool add, cuda::DeviceRows y, void* workspace) {
  const bool narrow = w.type == ElementType::kBF16 || w.type == ElementType::kF16;
  if (!narrow || x.type != w.type || (y.type != w.type && y.type != ElementType::kF32)) return kBadCall;
  {
    const std::lock_guard lock(state().mutex);
    ++state().use.n_blas_products;
    if (!lies_in(state().device[stream->device], workspace, cuda::kBlasWorkspace)) {
      die("a product's working memory is not device memory");
    }
  }
  return Queued<multiply>::call(stream, x, n_rows, w, bias, add, y, workspace);
}

// ---- the device
const char* error_text(int error) {
  switch (error) {
    case 0:
      return "no error";
    case kOutOfMemory:
      return "out of memory";
    case kRefused:
      return "the launch was refused";
    case kKernelFailed:
      return "a kernel failed";
    default:
      return "an invalid value";
  }
}

int probe(Probe* out) {
  *out = {.obstacle = cuda::Obstacle::kNone,
          .error = 0,
          .driver_version = 13000,
          .runtime_version = 13000,
          .n_devices = kDevices};
  return 0;
}

int describe(int device, DeviceFacts* out) {
  if (device < 0 || device >= kDevices) return kBadCall;
  std::snprintf(out->name, sizeof out->name, "emulated");
  out->major = 9;
  out->n_processors = 6;
  out->usable = true;
  out->warpgroups = true;
  out->memory_bytes = memory_bytes();
  return 0;
}

int use_device(int device) {
  if (device < 0 || device >= kDevices) return kBadCall;
  current_device = device;
  return 0;
}

int free_memory(int device, int64_t* out) {
  const std::lock_guard lock(state().mutex);
  if (state().faults.hides_free_memory) return kBadCall;
  *out = std::max<int64_t>(0, memory_bytes() - state().use.bytes);
  return use_device(device);
}

cuda::DeviceApi make_api() {
  cuda::DeviceApi api;
  api.error_text = error_text;
  api.is_out_of_memory = [](int error) { return error == kOutOfMemory; };
  api.probe = probe;
  api.describe = describe;
  api.free_memory = free_memory;
  api.use_device = use_device;
  api.allocate = allocate;
  api.release = release;
  api.allocate_host = allocate_host;
  api.release_host = release_host;
  api.upload = upload;
  api.download = download;
  api.copy = copy;
  api.fill = fill;
  api.create_stream = create_stream;
  api.destroy_stream = destroy_stream;
  api.finish_stream = finish_stream;
  api.create_event = create_event;
  api.destroy_event = destroy_event;
  api.record_event = record_event;
  api.ask_event = ask_event;
  api.finish_event = finish_event;
  api.wait_event = wait_event;
  api.begin_graph = begin_graph;
  api.end_graph = end_graph;
  api.launch_graph = launch_graph;
  api.destroy_graph = destroy_graph;
  api.rms_norm = Queued<cuda::rms_norm>::call;
  api.head_norm = Queued<cuda::head_norm>::call;
  api.swiglu = Queued<cuda::swiglu>::call;
  api.embed = Queued<cuda::embed>::call;
  api.copy_rows = Queued<cuda::copy_rows>::call;
  api.copy_to_turn = Queued<cuda::copy_to_turn>::call;
  api.scale_rows = Queued<cuda::scale_rows>::call;
  api.write_row = Queued<cuda::write_row>::call;
  api.store_kv = Queued<cuda::store_kv>::call;
  api.move_kv = Queued<cuda::move_kv>::call;
  api.narrow_kv = Queued<cuda::narrow_kv>::call;
  api.gather = gather;
  api.matmul = Queued<cuda::matmul>::call;
  api.dequantize_rows = Queued<cuda::dequantize_rows>::call;
  api.attention = Queued<cuda::attention>::call;
  api.attention_shares = Queued<cuda::attention_shares>::call;
  api.keep_peaks = Queued<cuda::keep_peaks>::call;
  api.summarise_keys = Queued<cuda::summarise_keys>::call;
  api.attend_in_chunks = Queued<cuda::attend_in_chunks>::call;
  api.score_chunks = Queued<cuda::score_chunks>::call;
  api.choose_chunks = Queued<cuda::choose_chunks>::call;
  api.list_chosen = Queued<cuda::list_chosen>::call;
  api.rank_logits = Queued<cuda::rank_logits>::call;
  return api;
}

}  // namespace

const cuda::DeviceApi& device_api() {
  static const cuda::DeviceApi api = make_api();
  return api;
}

const cuda::DeviceApi& device_api_with_blas() {
  static const cuda::DeviceApi api = [] {
    cuda::DeviceApi with = make_api();
    with.open_blas = open_blas;
    with.blas_matmul = blas_matmul;
    return with;
  }();
  return api;
}

void set_device_faults(const DeviceFaults& faults) {
  const std::lock_guard lock(state().mutex);
  state().faults = faults;
  state().failure = 0;
}

void set_late_answers(int64_t n) {
  const std::lock_guard lock(state().mutex);
  state().n_late_answers = n;
}

DeviceUse device_use() {
  const std::lock_guard lock(state().mutex);
  return state().use;
}

}  // namespace quire::emulation
