// operator new fails at its n-th call, over everything an application does: each call gives OUT_OF_MEMORY or works,
// nothing leaks, the process lives.
//
// The program's operator new replaces the standard one for the library, too. QUIRE_FAULT_RUNS (default 150) says at how
// many places, evenly spread, allocation fails; 0: at each.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>
#include <string>
#include <thread>

#include "tests/abi/harness.h"
#include "tests/fault/bpe_models.h"
#include "tests/fault/store_reader.h"
#include "tests/unit/model/temporary_folder.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> n_calls{0};
std::atomic<int64_t> first_failure{0};  // 0: none
std::atomic<int64_t> last_failure{0};
std::atomic<int64_t> n_failures{0};
std::atomic<int64_t> n_bytes{0};  // that the library's allocator gave and that have not come back
std::atomic<int64_t> n_live{0};   // blocks that operator new gave and that have not come back

bool fails() {
  if (!counting.load(std::memory_order_relaxed)) return false;
  const int64_t call = ++n_calls;
  if (call < first_failure || call > last_failure) return false;
  ++n_failures;
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), size ? size : 1) != 0) return nullptr;
  ++n_live;
  return memory;
}

void release(void* memory) noexcept {
  if (memory) --n_live;
  std::free(memory);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = allocate(size, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t kDefault = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t size) { return allocate_or_throw(size, kDefault); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, kDefault); }
void* operator new(std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t size, std::align_val_t a) {
  return allocate_or_throw(size, static_cast<std::size_t>(a));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, kDefault); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, kDefault); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace quire::test {
namespace {

// Between its construction and its end, calls count and fail.
class Failing {
 public:
  Failing(int64_t first, int64_t last) {
    n_calls = 0;
    n_failures = 0;
    first_failure = first;
    last_failure = last;
    counting = true;
  }
  ~Failing() { counting = false; }
};

constexpr char kText[] = "Every chapter began with a map, and every map left out the road that they had taken.";
constexpr int64_t kNew = 6;
constexpr char kSelecting[] = "longheads(chunk=16, chunks=4)";
constexpr char kStrategy[] = "dca(chunk=48) + yarn(factor=2)";

struct Result {
  quire_status status = QUIRE_OK;
  const char* call = "";
  int32_t tokens[kNew] = {};
  int64_t n_tokens = 0;
  int64_t kv_bytes = 0;
};

// The everyday calls, from C structs on the stack alone. Stops at the first failure.
struct Application {
  quire_runtime* runtime = nullptr;
  quire_model* model = nullptr;
  quire_session* session = nullptr;
  quire_stream* stream = nullptr;
  const char* strategy = kStrategy;
  const char* kv_directory = nullptr;                              // of the session's spill file
  const char* packed_directory = nullptr;                          // of the model's packed weights
  LoadWay way;                                                     // of the model's weights
  uint32_t flags = QUIRE_STREAM_SCORE | QUIRE_STREAM_KEEP_LOGITS;  // of its streams
  Result result;

  ~Application() {
    quire_stream_release(stream);
    quire_session_release(session);
    quire_model_release(model);
    if (runtime) quire_runtime_close(runtime, nullptr);
    quire_runtime_release(runtime);
  }

  quire_status load(const char* path) {
    quire_model_options options;
    quire_model_options_init(&options, sizeof options);
    options.load = way.load;
    options.weight_type = way.weight_type;
    options.packed_directory = packed_directory;
    options.packed_directory_len = packed_directory ? std::strlen(packed_directory) : 0;
    return quire_model_load(runtime, path, std::strlen(path), &options, &model, nullptr);
  }

  bool good(quire_status status, const char* call) {
    result.status = status;
    result.call = call;
    return status == QUIRE_OK;
  }

  bool open(const char* path, int64_t prefix_cache_bytes = 0) {
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

  void run(const char* path) {
    if (open(path)) read();
  }

  void read() {
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

  void generate() {
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

  // After a failure of the stream: the session goes on.
  void resume() {
    quire_stream_release(stream);
    stream = nullptr;
    generate();
  }
};

int64_t step_between_failures(int64_t total) {
  const char* wanted = std::getenv("QUIRE_FAULT_RUNS");
  const int64_t runs = wanted ? std::atoll(wanted) : 150;
  return runs > 0 ? std::max<int64_t>(1, total / runs) : 1;
}

int64_t n_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

// A released session's files may be closed on the engine thread, a moment later. False after ten seconds.
bool wait_for_open_files(int64_t n) {
  for (int i = 0; i < 10'000; ++i) {
    if (n_open_files() == n) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

class NewFault : public testing::TestWithParam<bool> {};

TEST_P(NewFault, EverywhereInTurn) {
  const std::string path = model_directory("text_256");
  Result expected;
  int64_t total = 0;
  {
    Application application;
    Failing none(0, 0);
    application.run(path.c_str());
    expected = application.result;
    total = n_calls;
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  ASSERT_EQ(expected.n_tokens, kNew);
  const int64_t step = step_between_failures(total);
  int64_t n_failed = 0, n_resumed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Application application;
    bool failed = false;
    {
      Failing failing(n, GetParam() ? INT64_MAX : n);
      application.run(path.c_str());
      failed = n_failures > 0;
    }
    const Result& result = application.result;
    ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
        << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
    n_failed += result.status != QUIRE_OK;
    if (failed && GetParam()) {
      ASSERT_NE(result.status, QUIRE_OK) << "allocation " << n;
    }
    if (result.status != QUIRE_OK && application.session && std::strncmp(result.call, "stream", 6) == 0) {
      application.resume();
      ++n_resumed;
      ASSERT_EQ(result.status, QUIRE_OK) << "allocation " << n << ": resumed " << result.call;
    }
    if (result.status == QUIRE_OK) {
      ASSERT_EQ(result.n_tokens, kNew) << "allocation " << n;
      ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
      ASSERT_EQ(result.kv_bytes, expected.kv_bytes) << "allocation " << n;
    }
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_resumed, 0);
  std::printf("%lld allocations; failed at %lld, of which %lld in a stream\n", static_cast<long long>(total),
              static_cast<long long>(n_failed), static_cast<long long>(n_resumed));
}

// Metadata, vocabularies, merges, expressions and headers are read, weights are mapped and quantised, and all of it
// goes back. A sample of places is shared out among the ways to load.
TEST_P(NewFault, LoadingModelsWithBpe) {
  constexpr int64_t kWays = std::size(kLoadWays);
  const BpeModels models;
  for (const std::string& path : {models.gguf(), models.gguf_parts(), models.directory()}) {
    for (int64_t w = 0; w < kWays; ++w) {
      const LoadWay& way = kLoadWays[w];
      SCOPED_TRACE(path + ", load " + std::to_string(way.load) + ", type " + std::to_string(way.weight_type));
      for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
        Application application;
        application.way = way;
        Failing none(0, 0);
        application.open(path.c_str());
        ASSERT_EQ(application.result.status, QUIRE_OK) << application.result.call;
      }
      const int64_t total = n_calls, step = step_between_failures(kWays * total), live = n_live;
      int64_t n_failed = 0;
      for (int64_t n = 1 + w * step / kWays; n <= total; n += step) {
        Result result;
        {
          Application application;
          application.way = way;
          Failing failing(n, GetParam() ? INT64_MAX : n);
          application.open(path.c_str());
          result = application.result;
        }
        ASSERT_EQ(n_live, live) << "allocation " << n << ": " << result.call << " leaks";
        ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
            << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
        n_failed += result.status != QUIRE_OK;
      }
      EXPECT_GT(n_failed, 0);
      std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total),
                  static_cast<long long>(n_failed));
    }
  }
}

// A text is edited, and chunks of the one before are taken over; what fails leaves the session as it was, or at a token
// boundary, from which it goes on to the same answer.
TEST_P(NewFault, EditingATextAndTakingOverItsChunks) {
  const std::string model = model_directory("text_256");
  Application first;
  first.strategy = "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=16)";
  first.flags = 0;
  ASSERT_TRUE(first.open(model.c_str()));
  int32_t ids[150];
  for (int32_t i = 0; i < 150; ++i) ids[i] = 3 + i * i % 300;
  quire_session_options so;
  quire_session_options_init(&so, sizeof so);
  so.strategy = first.strategy;
  so.strategy_len = std::strlen(first.strategy);
  so.flags = QUIRE_SESSION_NO_PREFIX_REUSE;
  ASSERT_EQ(quire_session_create(first.model, &so, &first.session, nullptr), QUIRE_OK);
  ASSERT_EQ(quire_session_feed_tokens(first.session, ids, 150, nullptr), QUIRE_OK);
  first.generate();
  ASSERT_EQ(first.result.status, QUIRE_OK) << first.result.call;
  quire_stream_release(first.stream);
  first.stream = nullptr;
  quire_edit_options options;
  quire_edit_options_init(&options, sizeof options);
  options.reuse = QUIRE_EDIT_APPROXIMATE;
  const auto edit_and_read = [&](Application* second) {
    if (second->good(quire_session_edit_tokens(second->session, ids + 9, 141, &options, nullptr, nullptr), "edit")) {
      second->generate();
    }
  };
  const auto fork = [&](Application* second) {
    second->flags = 0;
    ASSERT_EQ(quire_session_fork(first.session, &second->session, nullptr), QUIRE_OK);
  };
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    Application second;
    fork(&second);
    Failing none(0, 0);
    edit_and_read(&second);
    expected = second.result;
    total = n_calls;
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total);
  int64_t n_failed = 0, n_resumed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Application second;
    fork(&second);
    {
      Failing failing(n, GetParam() ? INT64_MAX : n);
      edit_and_read(&second);
    }
    Result& result = second.result;
    ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
        << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
    if (result.status != QUIRE_OK) {
      ++n_failed;
      if (std::strcmp(result.call, "edit") == 0) {
        int64_t n_tokens = 0, n_pending = 0;
        ASSERT_EQ(quire_session_get_token_counts(second.session, &n_tokens, &n_pending, nullptr), QUIRE_OK);
        ASSERT_EQ(n_tokens, 150 + kNew) << "allocation " << n;
        ASSERT_EQ(n_pending, 0) << "allocation " << n;
        edit_and_read(&second);
      } else {
        second.resume();
        ++n_resumed;
      }
    }
    ASSERT_EQ(result.status, QUIRE_OK) << "allocation " << n << ": " << result.call;
    ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_resumed, 0);
}

// A session is forked, saved, loaded and read on; what fails leaves no file, no memory, and the first session as it
// was.
void fork_save_and_load(bool all_later, const char* kv_directory) {
  const TemporaryFolder folder;
  const std::string path = folder.file("saved.quire");
  const std::string model = model_directory("text_256");
  Application first;
  first.kv_directory = kv_directory;
  first.run(model.c_str());
  ASSERT_EQ(first.result.status, QUIRE_OK) << first.result.call;
  quire_stream_release(first.stream);
  first.stream = nullptr;
  const auto round_trip = [&](Result* result) {
    Application second;
    const auto give_back = [&] {  // it is the first one's
      *result = second.result;
      second.model = nullptr;
    };
    second.model = first.model;
    quire_session* forked = nullptr;
    if (second.good(quire_session_fork(first.session, &forked, nullptr), "fork") &&
        second.good(quire_session_save(first.session, path.data(), path.size(), nullptr, nullptr), "save") &&
        second.good(quire_session_load(first.model, path.data(), path.size(), nullptr, &second.session, nullptr),
                    "load")) {
      second.generate();
    }
    quire_session_release(forked);
    give_back();
  };
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    Failing none(0, 0);
    round_trip(&expected);
    total = n_calls;
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total);
  int64_t n_failed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Result result;
    {
      Failing failing(n, all_later ? INT64_MAX : n);
      round_trip(&result);
    }
    ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
        << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
    n_failed += result.status != QUIRE_OK;
    if (result.status == QUIRE_OK) {
      ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
    }
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()),
              1)
        << "allocation " << n << " left a file";
    ASSERT_EQ(quire_snapshot_verify(path.data(), path.size(), nullptr, nullptr), QUIRE_OK) << "allocation " << n;
  }
  EXPECT_GT(n_failed, 0);
  std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total), static_cast<long long>(n_failed));
  // The first session is as it was.
  Result again;
  round_trip(&again);
  ASSERT_EQ(std::memcmp(again.tokens, expected.tokens, sizeof again.tokens), 0);
}

TEST_P(NewFault, ForkingSavingAndLoadingASession) { fork_save_and_load(GetParam(), nullptr); }

TEST_P(NewFault, ForkingSavingAndLoadingASpillingSession) {
  const TemporaryFolder spill;
  fork_save_and_load(GetParam(), spill.path().c_str());
}

// A session reads a text, and another one takes it over; each may have a directory for a spill file.
struct TakeOver {
  const char* directory = nullptr;
  const char* second_directory = nullptr;
  int64_t n_allocations = 0, n_reused = 0, n_failed = 0;  // of the last second session; of all
  Result expected{};

  quire_status read(const Application& first, int64_t from, int64_t to, bool resumes = true) {
    Application second;
    second.model = first.model;
    second.kv_directory = second_directory;
    second.strategy = kSelecting;
    second.flags = 0;
    {
      Failing failing(from, to);
      second.read();
    }
    n_allocations = n_calls;
    const quire_status status = second.result.status;
    const bool in_stream = second.session && std::strncmp(second.result.call, "stream", 6) == 0;
    if (status != QUIRE_OK && in_stream && resumes) second.resume();
    quire_session_stats stats{};
    stats.struct_size = sizeof stats;
    if (second.session) quire_session_get_stats(second.session, &stats, nullptr);
    n_reused = stats.n_reused;
    n_failed += status != QUIRE_OK;
    second.model = nullptr;  // it is the first one's
    if (second.result.status == QUIRE_OK) {
      EXPECT_EQ(std::memcmp(second.result.tokens, expected.tokens, sizeof expected.tokens), 0) << "allocation " << from;
    }
    return status;
  }

  using Failures = std::vector<std::pair<int64_t, int64_t>>;  // first and last allocation
  // With each of these failures in turn, after which the first session is as it was. Returns the bytes that the model
  // holds when all sessions are gone.
  int64_t run(const Failures& failures, int64_t expected_bytes = -1) {
    const std::string model = model_directory("text_256");
    Application first;
    first.kv_directory = directory;
    first.strategy = kSelecting;
    first.flags = 0;
    first.run(model.c_str());
    EXPECT_EQ(first.result.status, QUIRE_OK) << first.result.call;
    quire_stream_release(first.stream);
    first.stream = nullptr;
    expected = first.result;
    for (const auto& [from, to] : failures) {
      const quire_status status = read(first, from, to, failures.size() > 1);
      EXPECT_TRUE(status == QUIRE_OK || status == QUIRE_ERROR_OUT_OF_MEMORY)
          << "allocation " << from << " gave " << quire_get_status_name(status);
    }
    if (failures.size() != 1) {
      EXPECT_EQ(read(first, 0, 0), QUIRE_OK);
      EXPECT_GT(n_reused, 0);
    }
    EXPECT_EQ(quire_session_close(first.session, nullptr), QUIRE_OK);
    quire_session_release(first.session);
    first.session = nullptr;
    // The library may still be letting go of the second one: on a busy machine not soon.
    const int most_waits = expected_bytes < 0 ? 500 : 10'000;
    for (int wait = 0; wait < most_waits && n_bytes != expected_bytes; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return n_bytes;
  }
};

void take_over(bool all_later, TakeOver story) {
  const int64_t bytes = story.run({});
  const int64_t total = story.n_allocations, step = step_between_failures(total);
  TakeOver::Failures failures;
  for (int64_t n = 1; n <= total; n += step) failures.emplace_back(n, all_later ? INT64_MAX : n);
  EXPECT_EQ(story.run(failures, bytes), bytes) << "memory is left behind";
  EXPECT_GT(story.n_failed, 0);
  // By itself, so that nothing that follows makes up for it.
  for (const auto& failure : failures) {
    ASSERT_EQ(story.run({failure}, bytes), bytes) << "allocation " << failure.first << ": memory is left behind";
  }
  std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total),
              static_cast<long long>(story.n_failed));
}

TEST_P(NewFault, TakingOverAPrefix) { take_over(GetParam(), {}); }

TEST_P(NewFault, TakingOverThePrefixOfASpillingSession) {
  const TemporaryFolder spill;
  take_over(GetParam(), {.directory = spill.path().c_str()});
}

// Which takes a copy of each chunk.
TEST_P(NewFault, TakingOverAPrefixByASpillingSession) {
  const TemporaryFolder spill;
  take_over(GetParam(), {.second_directory = spill.path().c_str()});
}

// A document is put into a store, found, described, and loaded from there; whatever fails, the directory is whole, and
// another one puts it and reads on.
TEST_P(NewFault, KeepingADocumentInAStore) {
  const TemporaryFolder folder;
  const std::string path = folder.file("store"), model = model_directory("text_256"), spill = folder.path();
  StoreReader reader(path);
  Application first;
  first.flags = 0;
  ASSERT_TRUE(first.open(model.c_str()));
  quire_session_options so;
  quire_session_options_init(&so, sizeof so);
  so.strategy = kSelecting;
  so.strategy_len = std::strlen(kSelecting);
  so.flags = QUIRE_SESSION_NO_PREFIX_REUSE;  // what the store has is read from there
  so.kv_file_directory = spill.data();
  so.kv_file_directory_len = spill.size();
  constexpr int32_t kRead = 100;
  int32_t ids[kRead + 10];
  for (int32_t i = 0; i < kRead + 10; ++i) ids[i] = 3 + i * i % 300;
  ASSERT_EQ(quire_session_create(first.model, &so, &first.session, nullptr), QUIRE_OK);
  ASSERT_EQ(quire_session_feed_tokens(first.session, ids, kRead, nullptr), QUIRE_OK);
  ASSERT_EQ(generate(first.session, 0).outcome.status, QUIRE_OK);
  quire_store_match match;
  quire_store_match_init(&match, sizeof match);
  const auto find = [&](quire_store* store) {
    return quire_store_find(store, first.model, &so, ids, kRead + 10, &match, nullptr);
  };
  const auto round_trip = [&](Result* result) {
    Application second;
    second.flags = 0;
    second.model = first.model;
    quire_store* store = nullptr;
    char text[4096];
    size_t n = 0;
    if (second.good(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), "store_open") &&
        second.good(quire_store_put(store, first.session, "A title", 7, nullptr, &match, nullptr), "store_put") &&
        second.good(find(store), "store_find") &&
        second.good(quire_store_describe(store, text, sizeof text, &n, nullptr), "store_describe") &&
        second.good(quire_store_load(store, first.model, &so, ids, kRead + 10, nullptr, &second.session, nullptr),
                    "store_load") &&
        second.good(quire_session_feed_tokens(second.session, ids + kRead, 10, nullptr), "feed_tokens")) {
      second.generate();
    }
    quire_store_release(store);
    *result = second.result;
    second.model = nullptr;  // it is the first one's
  };
  const int64_t n_open = n_open_files();
  Result expected;
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    reader.clear();
    Failing none(0, 0);
    round_trip(&expected);
    total = n_calls;
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  const int64_t step = step_between_failures(total);
  int64_t n_failed = 0, n_put = 0;
  for (int64_t n = 1; n <= total; n += step) {
    reader.clear();
    Result result;
    {
      Failing failing(n, GetParam() ? INT64_MAX : n);
      round_trip(&result);
    }
    ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
        << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
    n_failed += result.status != QUIRE_OK;
    if (result.status == QUIRE_OK) {
      ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
    }
    ASSERT_TRUE(wait_for_open_files(n_open)) << "allocation " << n << ": " << result.call;
    for (const auto& file : std::filesystem::directory_iterator(path)) {  // who opens the store removes these, too
      ASSERT_NE(file.path().extension(), ".tmp") << "allocation " << n << " left " << file.path();
    }
    quire_store* store = nullptr;
    ASSERT_EQ(quire_store_open(path.data(), path.size(), nullptr, &store, nullptr), QUIRE_OK);
    const Owned<quire_store> owner(store);
    ASSERT_EQ(find(store), QUIRE_OK);
    const bool is_there = match.n_tokens > 0;
    ASSERT_TRUE(is_there || std::strcmp(result.call, "store_open") == 0 || std::strcmp(result.call, "store_put") == 0)
        << "allocation " << n << ": " << result.call;
    if (is_there) {
      ASSERT_EQ(match.n_tokens, kRead);
    }
    n_put += is_there;
    reader.expect_whole(is_there ? 1 : 0);
    ASSERT_FALSE(HasFailure()) << "allocation " << n << ": " << result.call;
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_put, 0);
  std::printf("%lld allocations; failed at %lld, the document was there after %lld\n", static_cast<long long>(total),
              static_cast<long long>(n_failed), static_cast<long long>(n_put));
  Result again;
  round_trip(&again);
  ASSERT_EQ(again.status, QUIRE_OK) << again.call;
  ASSERT_EQ(std::memcmp(again.tokens, expected.tokens, sizeof again.tokens), 0);
}

// A model is loaded while its packed weights are written, and again while they are mapped; whatever fails, no other
// file is left, and what is there serves the next load.
TEST_P(NewFault, KeepingPackedWeights) {
  const TemporaryFolder folder;
  const std::string model = model_directory("text_256"), packed = folder.file("packed");
  const auto load_and_answer = [&](Result* result) {
    Application a;
    a.flags = 0;
    a.packed_directory = packed.c_str();
    a.run(model.c_str());
    *result = a.result;
  };
  const int64_t n_open = n_open_files();
  Result expected;
  int64_t totals[2] = {};        // allocations of a load that writes, and of one that maps
  for (int i = 0; i < 3; ++i) {  // what is made once in a process is made in the first run
    if (i < 2) std::filesystem::remove_all(packed);
    Failing none(0, 0);
    load_and_answer(&expected);
    totals[i / 2] = n_calls;
  }
  ASSERT_EQ(expected.status, QUIRE_OK) << expected.call;
  EXPECT_NE(totals[0], totals[1]);
  int64_t n_failed = 0, n_kept = 0;
  for (const bool writes : {true, false}) {
    const int64_t total = totals[writes ? 0 : 1], step = step_between_failures(total);
    for (int64_t n = 1; n <= total; n += step) {
      if (writes) std::filesystem::remove_all(packed);
      Result result;
      {
        Failing failing(n, GetParam() ? INT64_MAX : n);
        load_and_answer(&result);
      }
      ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
          << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
      n_failed += result.status != QUIRE_OK;
      if (result.status == QUIRE_OK) {
        ASSERT_EQ(std::memcmp(result.tokens, expected.tokens, sizeof result.tokens), 0) << "allocation " << n;
      }
      ASSERT_TRUE(wait_for_open_files(n_open)) << "allocation " << n << ": " << result.call;
      if (!std::filesystem::exists(packed)) continue;
      for (const auto& file : std::filesystem::directory_iterator(packed)) {
        ASSERT_EQ(file.path().extension(), ".packed") << "allocation " << n;
        ++n_kept;
      }
    }
  }
  EXPECT_GT(n_failed, 0);
  EXPECT_GT(n_kept, 0);
  Result again;
  load_and_answer(&again);
  ASSERT_EQ(again.status, QUIRE_OK) << again.call;
  ASSERT_EQ(std::memcmp(again.tokens, expected.tokens, sizeof again.tokens), 0);
}

// Sessions read texts and are released; the runtime keeps one of the texts for the next session, and lets the other one
// go. Whatever fails, what it keeps stays within its limit, and can be taken over.
TEST_P(NewFault, KeepingReleasedSessions) {
  const std::string model = model_directory("text_256");
  constexpr int64_t kLimit = 120'000;
  Application first;
  ASSERT_TRUE(first.open(model.c_str(), kLimit));
  int32_t ids[2][100];
  for (int32_t i = 0; i < 100; ++i) {
    ids[0][i] = 3 + i * i % 300;
    ids[1][i] = 3 + i * i % 299;
  }
  const auto kept = [&] {
    quire_runtime_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(quire_runtime_get_stats(first.runtime, &stats, nullptr), QUIRE_OK);
    return stats;
  };
  // A session reads one of the texts, and answers.
  const auto read = [&](int which, Result* result) {
    Application reader;
    reader.flags = 0;
    reader.model = first.model;
    quire_session_options so;
    quire_session_options_init(&so, sizeof so);
    so.strategy = kSelecting;
    so.strategy_len = std::strlen(kSelecting);
    so.prefill_block = 16;
    if (reader.good(quire_session_create(first.model, &so, &reader.session, nullptr), "session_create") &&
        reader.good(quire_session_feed_tokens(reader.session, ids[which], 100, nullptr), "feed_tokens")) {
      reader.generate();
    }
    *result = reader.result;
    reader.model = nullptr;  // it is the first one's
  };
  constexpr int kTexts[] = {0, 0, 1, 0};  // taken over, pushed out, and read again
  Result expected[2];
  int64_t total = 0;
  for (int i = 0; i < 2; ++i) {  // what is made once is made in the first run
    Failing none(0, 0);
    for (const int which : kTexts) read(which, &expected[which]);
    total = n_calls;
  }
  for (const Result& result : expected) ASSERT_EQ(result.status, QUIRE_OK) << result.call;
  ASSERT_EQ(kept().prefix_cache_texts, 1);
  ASSERT_GT(kept().prefix_cache_tokens, 0);
  const int64_t step = step_between_failures(total);
  int64_t n_failed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    Result results[std::size(kTexts)];
    {
      Failing failing(n, GetParam() ? INT64_MAX : n);
      for (size_t i = 0; i < std::size(kTexts); ++i) read(kTexts[i], &results[i]);
    }
    for (size_t i = 0; i < std::size(kTexts); ++i) {
      const Result& result = results[i];
      ASSERT_TRUE(result.status == QUIRE_OK || result.status == QUIRE_ERROR_OUT_OF_MEMORY)
          << "allocation " << n << ": " << result.call << " gave " << quire_get_status_name(result.status);
      n_failed += result.status != QUIRE_OK;
      if (result.status == QUIRE_OK) {
        ASSERT_EQ(std::memcmp(result.tokens, expected[kTexts[i]].tokens, sizeof result.tokens), 0)
            << "allocation " << n;
      }
    }
    ASSERT_LE(kept().prefix_cache_bytes, kLimit) << "allocation " << n;
    // A text that was read and kept is taken over.
    Result again;
    read(1, &again);
    const int64_t before = kept().prefix_cache_tokens;
    read(1, &again);
    ASSERT_EQ(again.status, QUIRE_OK) << "allocation " << n;
    ASSERT_EQ(std::memcmp(again.tokens, expected[1].tokens, sizeof again.tokens), 0) << "allocation " << n;
    ASSERT_GT(kept().prefix_cache_tokens, before) << "allocation " << n;
  }
  EXPECT_GT(n_failed, 0);
  std::printf("%lld allocations; failed at %lld\n", static_cast<long long>(total), static_cast<long long>(n_failed));
}

INSTANTIATE_TEST_SUITE_P(Mode, NewFault, testing::Bool(),
                         [](const auto& info) { return info.param ? "AllLater" : "Once"; });

}  // namespace
}  // namespace quire::test
