// A device that computes nothing and takes no time: what is left of a step is the host's part. It counts calls.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/device_api.h"

namespace quire::bench {

struct DeviceCalls {
  int64_t launches = 0;  // of kernels, beside those in graphs
  int64_t graphs = 0;    // launched
  int64_t made_graphs = 0;
  int64_t uploads = 0;
  int64_t downloads = 0;
  int64_t waits = 0;   // of the host
  int64_t events = 0;  // recorded
};
inline DeviceCalls device_calls;  // one thread at a time, as the engine's is

namespace idle {

// Memory that takes none until somebody writes there.
class Addresses {
 public:
  int take(size_t bytes, void** out) {
    bytes = bytes > 0 ? bytes : 1;
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 1;
    const std::lock_guard lock(mutex_);
    bytes_[at] = bytes;
    *out = at;
    return 0;
  }
  int give_back(void* at) {
    const std::lock_guard lock(mutex_);
    const auto found = bytes_.find(at);
    if (found == bytes_.end()) return 0;
    ::munmap(at, found->second);
    bytes_.erase(found);
    return 0;
  }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> bytes_;
};
// Never destroyed: the engine may let the last session go when main() has returned.
inline Addresses& addresses = *new Addresses;
inline bool makes_graph = false;

template <typename... Arguments>
int launch(cuda::Stream, Arguments...) {
  device_calls.launches += makes_graph ? 0 : 1;
  return 0;
}
template <typename... Arguments>
void ignore(int (*&kernel)(cuda::Stream, Arguments...)) {
  kernel = launch<Arguments...>;
}

// Zeros are choices of the first chunk. What is said of one row of logits (RankedRows) has another size: a sum of 1,
// finite logits, and tokens that are not the end of a text.
inline void answer(void* to, size_t bytes) {
  std::memset(to, 0, bytes);
  constexpr size_t kTokens = sizeof(double) + sizeof(int32_t);
  if (bytes < kTokens || bytes % 8 != kTokens % 8) return;
  const double sum = 1;
  const int32_t finite = 1, token = 100;
  std::memcpy(to, &sum, sizeof(sum));
  std::memcpy(static_cast<char*>(to) + sizeof(sum), &finite, sizeof(finite));
  for (size_t at = kTokens; at + 8 <= bytes; at += 8) {
    std::memcpy(static_cast<char*>(to) + kTokens + (at - kTokens) / 2, &token, sizeof(token));
  }
}

}  // namespace idle

inline const cuda::DeviceApi& idle_device() {
  static const cuda::DeviceApi api = [] {
    using namespace cuda;
    constexpr int64_t kMemory = int64_t{141} << 30;
    DeviceApi a;
    a.error_text = [](int) { return "an error"; };
    a.is_out_of_memory = [](int) { return false; };
    a.describe = [](int, DeviceFacts* out) {
      *out = {
          .name = "idle", .major = 9, .n_processors = 132, .usable = true, .warpgroups = true, .memory_bytes = kMemory};
      return 0;
    };
    a.free_memory = [](int, int64_t* out) { return *out = kMemory, 0; };
    a.use_device = [](int) { return 0; };
    a.get_context = [](void**) { return 1; };
    a.allocate = a.allocate_host = [](size_t bytes, void** out) { return idle::addresses.take(bytes, out); };
    a.release = [](void* memory, size_t) { return idle::addresses.give_back(memory); };
    a.release_host = [](void* memory) { return idle::addresses.give_back(memory); };
    a.upload = [](Stream, void*, const void*, size_t) { return ++device_calls.uploads, 0; };
    a.download = [](Stream, void* to, const void*, size_t bytes) {
      ++device_calls.downloads;
      return idle::answer(to, bytes), 0;
    };
    a.copy = [](Stream, void*, const void*, size_t) { return 0; };
    a.fill = [](Stream, void*, int, size_t) { return 0; };
    static char handle;  // of all streams, events and graphs
    a.create_stream = [](Stream* out) { return *out = reinterpret_cast<Stream>(&handle), 0; };
    a.destroy_stream = [](Stream) { return 0; };
    a.finish_stream = [](Stream) { return ++device_calls.waits, 0; };
    a.create_event = [](Event* out) { return *out = reinterpret_cast<Event>(&handle), 0; };
    a.destroy_event = [](Event) { return 0; };
    a.record_event = [](Event, Stream) { return ++device_calls.events, 0; };
    a.ask_event = [](Event, bool* done) { return *done = true, 0; };
    a.finish_event = [](Event) { return ++device_calls.waits, 0; };
    a.wait_event = [](Stream, Event) { return 0; };
    a.begin_graph = [](Stream) { return idle::makes_graph = true, 0; };
    a.end_graph = [](Stream, Graph* out) {
      idle::makes_graph = false;
      ++device_calls.made_graphs;
      return *out = reinterpret_cast<Graph>(&handle), 0;
    };
    a.launch_graph = [](Graph, Stream) { return ++device_calls.graphs, 0; };
    a.destroy_graph = [](Graph) { return 0; };
    idle::ignore(a.rms_norm), idle::ignore(a.head_norm), idle::ignore(a.scale_unrotated),
        idle::ignore(a.gated_linear_unit), idle::ignore(a.embed);
    idle::ignore(a.copy_rows), idle::ignore(a.copy_to_turn), idle::ignore(a.scale_rows), idle::ignore(a.write_row);
    idle::ignore(a.store_kv), idle::ignore(a.move_kv), idle::ignore(a.narrow_kv), idle::ignore(a.gather);
    idle::ignore(a.matmul), idle::ignore(a.dequantize_rows), idle::ignore(a.attention);
    idle::ignore(a.attention_shares), idle::ignore(a.keep_peaks), idle::ignore(a.summarise_keys);
    idle::ignore(a.attend_in_chunks), idle::ignore(a.score_chunks), idle::ignore(a.choose_chunks);
    idle::ignore(a.list_chosen), idle::ignore(a.rank_logits);
    return a;
  }();
  return api;
}

}  // namespace quire::bench
