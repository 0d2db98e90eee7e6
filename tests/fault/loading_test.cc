// Loading: weight files that shrink under it or later, sessions that go on meanwhile, and what a cancel leaves unread.
//
// Reads of files pass through this program's own pread(), and allocations through its own operator new.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <string_view>

#include "tests/abi/harness.h"
#include "tests/fault/model_copy.h"
#include "tests/source_path.h"

namespace {

// Called before each pread() while it is set.
std::function<void(size_t bytes)>* read_hook = nullptr;
// The largest block that operator new was asked for.
std::atomic<std::size_t> largest_new{0};

}  // namespace

extern "C" [[gnu::visibility("default")]] ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  if (read_hook) (*read_hook)(bytes);
  return syscall(SYS_pread64, fd, buffer, bytes, offset);
}

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  std::size_t most = largest_new.load();
  while (size > most && !largest_new.compare_exchange_weak(most, size)) {
  }
  return std::malloc(size ? size : 1);
}
void* operator new(std::size_t size) {
  void* memory = operator new(size, std::nothrow);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace quire::test {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kVocab = 64;
const std::string kWeights = "model.safetensors";
const std::string kAdapter = source_path("tests/golden/adapters/attention");

// Lets `hook` see each read of a file while it lives.
class Reads {
 public:
  explicit Reads(std::function<void(size_t)> hook) : hook_(std::move(hook)) { read_hook = &hook_; }
  ~Reads() { read_hook = nullptr; }

 private:
  std::function<void(size_t)> hook_;
};

// What quire_model_load is called with, and its progress as a function.
class Load {
 public:
  Load() { quire_model_options_init(&options, sizeof options); }

  quire_status run(quire_runtime* runtime, const std::string& path) {
    if (on_progress) {
      options.progress = report;
      options.progress_user_data = this;
    }
    quire_model* handle = nullptr;
    outcome.status = quire_model_load(runtime, path.data(), path.size(), &options, &handle, &outcome.error);
    model.reset(handle);
    return outcome.status;
  }

  quire_model_options options;
  std::function<void()> on_progress;
  Outcome outcome;
  Owned<quire_model> model;

 private:
  static void report(void* self, int64_t, int64_t) { static_cast<Load*>(self)->on_progress(); }
};

std::vector<int32_t> answer(quire_model* model) {
  const auto session = make_session(model, "full");
  feed(session.get(), some_tokens(40, kVocab));
  const Generated run = generate(session.get(), 20);
  EXPECT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
  return run.tokens;
}

TEST(ShrinkingWeights, AModelInMemoryNeedsItsFilesNoMore) {
  const auto runtime = make_runtime(2);
  const std::vector<int32_t> expected = answer(load_model(runtime.get(), "short_128").get());
  const ModelCopy copy("short_128");
  Load load;
  ASSERT_EQ(load.run(runtime.get(), copy.path()), QUIRE_OK) << load.outcome.text();
  copy.truncate(kWeights, 0);
  EXPECT_EQ(answer(load.model.get()), expected);
}

TEST(ShrinkingWeights, DuringLoadingAreAnError) {
  HostMemory memory;
  const auto runtime = make_runtime(2, &memory);
  int n_failed = 0;
  for (int at = 1;; ++at) {
    const ModelCopy copy("short_128");
    Load load;
    int n_reports = 0;
    load.on_progress = [&] {
      if (++n_reports == at) copy.truncate(kWeights, 0);
    };
    if (load.run(runtime.get(), copy.path()) == QUIRE_OK) {
      EXPECT_GE(at, n_reports - 1);  // when all had been read
      break;
    }
    ++n_failed;
    EXPECT_EQ(load.outcome.status, QUIRE_ERROR_IO) << load.outcome.text();
    EXPECT_NE(std::string(load.outcome.error.message).find(kWeights + " ends early"), std::string::npos)
        << load.outcome.text();
    EXPECT_EQ(memory.bytes(), 0);
  }
  EXPECT_GT(n_failed, 10);
}

// Tensors go from the files into the host's memory: they are read once, and no block of the process's own memory ever
// holds one.
TEST(ReadingWeights, EachByteOnceAndStraightIntoTheHostsMemory) {
  constexpr int64_t kRows = 40000, kHidden = 60;
  const ModelCopy copy("short_128");
  Safetensors weights(copy.read(kWeights));
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const size_t begin = weights.data.size();
    weights.data.append(kRows * kHidden * 4, '\x01');
    weights.header[name]["shape"] = {kRows, kHidden};
    weights.header[name]["data_offsets"] = {begin, weights.data.size()};
  }
  // What the two were before.
  const size_t old = size_t{kVocab} * kHidden;
  nlohmann::ordered_json& header = weights.header;
  const std::string whole = copy.read(kWeights);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    header[std::string("unused.") + name] = {
        {"dtype", "F32"}, {"shape", {old}}, {"data_offsets", Safetensors(whole).header[name]["data_offsets"]}};
  }
  copy.write(kWeights, weights.file());
  copy.configure("vocab_size", kRows);
  int64_t expected = 0;
  for (const auto& entry : fs::directory_iterator(copy.path())) expected += static_cast<int64_t>(entry.file_size());
  expected -= static_cast<int64_t>(2 * old * 4);  // the unused tensors
  // Once for the tokenizer, and once for the chat template.
  expected += static_cast<int64_t>(fs::file_size(fs::path(copy.path()) / "tokenizer_config.json"));

  HostMemory memory;
  const auto runtime = make_runtime(2, &memory);
  int64_t bytes = 0;
  Load load;
  largest_new = 0;
  {
    const Reads reads([&](size_t n) { bytes += static_cast<int64_t>(n); });
    ASSERT_EQ(load.run(runtime.get(), copy.path()), QUIRE_OK) << load.outcome.text();
  }
  EXPECT_EQ(bytes, expected);
  EXPECT_LT(largest_new.load(), static_cast<size_t>(kRows * kHidden));
}

bool on_a_thread_of_the_runtime() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return std::string_view(name).starts_with("quire-");
}

// A slow disk holds up who loads, and no session.
TEST(LoadingBesideSessions, TheRuntimesThreadsReadNoFile) {
  const auto runtime = make_runtime(2);
  std::atomic<int> n_reads{0}, n_there{0};
  const Reads reads([&](size_t) {
    ++n_reads;
    n_there += on_a_thread_of_the_runtime();
  });
  load_model(runtime.get(), "mqa_yarn_sharded");
  const quire_adapter_source merge{kAdapter.data(), kAdapter.size(), 1};
  const std::string beacons = source_path("tests/golden/beacon/plugin");
  Load load;
  load.options.merge = &merge;
  load.options.n_merge = 1;
  load.options.beacon_path = beacons.data();
  load.options.beacon_path_len = beacons.size();
  ASSERT_EQ(load.run(runtime.get(), model_directory("text_256")), QUIRE_OK) << load.outcome.text();
  quire_adapter* adapter = nullptr;
  EXPECT_EQ(quire_adapter_load(load.model.get(), kAdapter.data(), kAdapter.size(), nullptr, &adapter, nullptr),
            QUIRE_OK);
  quire_adapter_release(adapter);
  EXPECT_GT(n_reads, 50);
  EXPECT_EQ(n_there, 0);
}

// At every read of a load, its configuration's and its headers' too, another session takes its next token.
TEST(LoadingBesideSessions, ATokenBetweenAnyTwoReads) {
  constexpr char kEndless[] = "streaming_llm(sinks=4, recent=60)";
  const auto runtime = make_runtime(2);
  const auto model = load_model(runtime.get(), "short_128");
  const auto session = make_session(model.get(), kEndless), alone = make_session(model.get(), kEndless);
  for (const auto* s : {&session, &alone}) feed(s->get(), some_tokens(20, kVocab));
  const auto stream = open_stream(session.get(), greedy(100000));
  const auto next_token = [&](std::vector<int32_t>& tokens) {
    quire_event event;
    quire_event_init(&event, sizeof event);
    do {
      const quire_status status = next(stream.get(), &event, nullptr, 10000);
      if (status != QUIRE_OK) return status;
    } while (event.kind != QUIRE_EVENT_TOKEN);
    tokens.push_back(event.token);
    return QUIRE_OK;
  };
  std::vector<int32_t> tokens;
  quire_status stalled = QUIRE_OK;
  {
    const Reads reads([&](size_t) {
      if (stalled == QUIRE_OK) stalled = next_token(tokens);
    });
    const quire_adapter_source merge{kAdapter.data(), kAdapter.size(), 1};
    Load load;
    load.options.merge = &merge;
    load.options.n_merge = 1;
    EXPECT_EQ(load.run(runtime.get(), model_directory("text_256")), QUIRE_OK) << load.outcome.text();
  }
  EXPECT_EQ(stalled, QUIRE_OK);
  EXPECT_GT(tokens.size(), 40u);
  EXPECT_EQ(tokens, generate(alone.get(), static_cast<int64_t>(tokens.size())).tokens);
}

// Cancelled at any read: what is read afterwards is at most the rest of one step, such as the tokenizer's three files.
TEST(CancelledLoading, ReadsAtMostAStepFurther) {
  constexpr int kMostReadsOfAStep = 3;
  const quire_adapter_source merge{kAdapter.data(), kAdapter.size(), 1};
  for (const std::string& name : {std::string("mqa_yarn_sharded"), std::string("text_256")}) {
    HostMemory memory;
    const auto runtime = make_runtime(2, &memory);
    for (int at = 1;; ++at) {
      quire_cancel* handle = nullptr;
      ASSERT_EQ(quire_cancel_create(&handle, nullptr), QUIRE_OK);
      const Owned<quire_cancel> cancel(handle);
      int n_reads = 0;
      const Reads reads([&](size_t) {
        if (++n_reads == at) quire_cancel_trigger(handle);
      });
      Load load;
      load.options.cancel = handle;
      load.options.merge = &merge;
      load.options.n_merge = name == "text_256" ? 1 : 0;
      if (load.run(runtime.get(), model_directory(name)) == QUIRE_OK) {
        EXPECT_GE(at, n_reads);  // at the last one
        EXPECT_GT(at, 30);
        break;
      }
      ASSERT_EQ(load.outcome.status, QUIRE_ERROR_CANCELLED) << load.outcome.text();
      EXPECT_LT(n_reads, at + kMostReadsOfAStep) << name << ", cancelled at read " << at;
      EXPECT_EQ(memory.bytes(), 0);
    }
  }
}

}  // namespace
}  // namespace quire::test
