#include "tests/fault/new_fault.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

namespace quire::test {
namespace {

constexpr char kText[] = "Every chapter began with a map, and every map left out the road that they had taken.";

std::atomic<int64_t> n_bytes{0};

}  // namespace

testing::AssertionResult is_good_or_out_of_memory(const Result& result) {
  if (result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY) return testing::AssertionSuccess();
  return testing::AssertionFailure() << result.call << " gave " << quire_get_status_name(result.status);
}

Application::~Application() {
  quire_stream_release(stream);
  quire_session_release(session);
  quire_model_release(model);
  if (runtime) quire_runtime_close(runtime, nullptr);
  quire_runtime_release(runtime);
}

bool Application::good(quire_status status, const char* call) {
  result.status = status;
  result.call = call;
  return status == QUIRE_OK;
}

quire_status Application::load(const char* path) {
  quire_model_options options;
  quire_model_options_init(&options, sizeof options);
  options.load = way.load;
  options.weight_type = way.weight_type;
  options.packed_directory = packed_directory;
  options.packed_directory_len = packed_directory ? std::strlen(packed_directory) : 0;
  return quire_model_load(runtime, path, std::strlen(path), &options, &model, nullptr);
}

bool Application::open(const char* path, int64_t prefix_cache_bytes) {
  quire_runtime_options options;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = 2;
  options.prefix_cache_bytes = prefix_cache_bytes;
  options.alloc = [](void*, size_t size, size_t alignment) {
    void* const memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory) n_bytes += static_cast<int64_t>(size);
    return memory;
  };
  options.free = [](void*, void* memory, size_t size, size_t) {
    n_bytes -= static_cast<int64_t>(size);
    std::free(memory);
  };
  return good(quire_runtime_create(&options, &runtime, nullptr), "runtime_create") && good(load(path), "model_load");
}

void Application::read() {
  quire_session_options so;
  quire_session_options_init(&so, sizeof so);
  so.strategy = strategy;
  so.strategy_len = std::strlen(strategy);
  so.prefill_block = 16;
  if (kv_directory) {
    so.kv_file_directory = kv_directory;
    so.kv_file_directory_len = std::strlen(kv_directory);
  }
  so.kv_old_type = QUIRE_TYPE_INT8;
  so.old_after = QUIRE_OLD_AT_ONCE;
  if (good(quire_session_create(model, &so, &session, nullptr), "session_create") &&
      good(quire_session_feed_text(session, kText, sizeof kText - 1, 0, nullptr), "feed_text")) {
    generate();
  }
}

void Application::run(const char* path) {
  if (open(path)) read();
}

void Application::generate() {
  const quire_text stop{"\x01never", 6};
  quire_stream_options go;
  quire_stream_options_init(&go, sizeof go);
  go.flags = QUIRE_STREAM_IGNORE_EOS | flags;
  go.max_tokens = kNew - result.n_tokens;
  go.temperature = 0.7f;
  go.stop_strings = &stop;
  go.n_stop_strings = 1;
  if (!good(quire_stream_open(session, &go, &stream, nullptr), "stream_open")) return;
  quire_event event;
  quire_event_init(&event, sizeof event);
  quire_status status;
  while ((status = quire_stream_next(stream, -1, &event, nullptr)) == QUIRE_OK) {
    if (event.kind == QUIRE_EVENT_TOKEN) result.tokens[result.n_tokens++] = event.token;
  }
  good(status == QUIRE_END ? QUIRE_OK : status, "stream_next");
  quire_tier_stats stats{};
  stats.struct_size = sizeof stats;
  quire_session_get_tier_stats(session, QUIRE_TIER_HOST, &stats, nullptr);
  result.kv_bytes = stats.bytes;
}

void Application::resume() {
  quire_stream_release(stream);
  stream = nullptr;
  generate();
}

int64_t n_allocator_bytes() { return n_bytes; }

int64_t n_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

bool wait_for_open_files(int64_t n) {
  for (int i = 0; i < 10'000; ++i) {
    if (n_open_files() == n) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace quire::test
