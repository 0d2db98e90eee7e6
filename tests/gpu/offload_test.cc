// Models on the emulated device, or on a GPU (tests/gpu/test_device.h), with too little memory for their KV cache:
// device and host are two tiers, with the others below. Where records lie changes no bit of a prompt: what is expected
// is the same device with all of them in its memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <thread>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/cuda_plugin.h"
#include "lib/model/memory_plan.h"
#include "lib/session/estimate.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/test_device.h"
#include "tests/source_path.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

const char* const kStrategies[] = {"full(kv_chunk=16)", "dca(kv_chunk=16)", "longheads(chunk=16, chunks=5)",
                                   "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=16, one_in=6)",
                                   "beacon(ratio=4, kv_chunk=16)"};

std::string path_of(const std::string& name) { return source_path("tests/golden/models/" + name); }

std::shared_ptr<Runtime> make_runtime_with_gpu(RuntimeOptions options) {
  emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 1});
  options.n_threads = 1;
  options.find_cuda = []() -> const cuda::Plugin& {
    static const cuda::Plugin emulated{&emulation::device_api(), 1, "", ""};
    return wants_gpu() ? cuda::plugin() : emulated;
  };
  return std::make_shared<Runtime>(std::move(options));
}

std::shared_ptr<Model> load_on(const std::shared_ptr<Runtime>& runtime, const std::string& device,
                               const std::string& name = "short_128") {
  ModelLoadOptions loading;
  loading.device = device;
  if (name == kWithBeacons) {
    loading.beacon_directory = source_path("tests/golden/beacon/plugin");
    return take(load_model(runtime, path_of("text_256"), loading));
  }
  return take(load_model(runtime, path_of(name), loading));
}

std::shared_ptr<Model> on_device(const std::string& name = "short_128", RuntimeOptions options = {}) {
  return load_on(make_runtime_with_gpu(std::move(options)), "cuda:0", name);
}

SessionOptions options_for(const std::string& strategy) {
  SessionOptions options = with_strategy(strategy);
  options.old_text = {};
  options.prefill_block = 32;
  return options;
}

// What the emulated device has allocated, without what operations work in. Nobody counts it on a GPU.
int64_t bytes_beside_work(const Model& model) {
  if (wants_gpu()) return 0;
  return emulation::device_use().bytes - model.llama->backend().workspace_bytes();
}

// What a text comes to, and the most memory of these that the device had allocated at any event.
struct Answer {
  Status status;
  Logits logits;
  Tokens tokens;
  SessionStats stats;
  int64_t device_bytes = 0;
};

Answer answer(const std::shared_ptr<Session>& session, const Tokens& text, int64_t n_generated = 6) {
  Answer answer;
  expect_ok(session->feed_tokens(text));
  StreamOptions options = generating(n_generated);
  options.keep_logits = true;
  const auto stream = take(GenerationStream::open(session, options));
  for (;;) {
    const StreamEvent* event = nullptr;
    const auto next = stream->next(-1, &event);
    answer.device_bytes = std::max(answer.device_bytes, bytes_beside_work(session->model()));
    if (!next.ok()) {
      answer.status = next.status();
      return answer;
    }
    if (next.value() != NextResult::kEvent) break;
    if (event->type == StreamEvent::Type::kToken) answer.tokens.push_back(event->token);
  }
  answer.logits = kept_logits(*session, 0, static_cast<int64_t>(text.size()));
  answer.stats = stats(*session);
  return answer;
}

Answer answer(const std::shared_ptr<Model>& model, const SessionOptions& options, const Tokens& text) {
  return answer(make_session(model, options), text);
}

void expect_same(const Answer& expected, const Answer& got) {
  expect_ok(got.status);
  EXPECT_EQ(expected.tokens, got.tokens);
  EXPECT_TRUE(same_bits(expected.logits, got.logits));
}

// Of few rows, which generated tokens and beacon tokens are: where all keys are in device memory, they are shared out,
// and their sums come together in another order than where keys come in windows.
void expect_near(const Logits& expected, const Logits& got) {
  ASSERT_EQ(expected.size(), got.size());
  double error = 0, square = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (static_cast<double>(got[i]) - expected[i]) * (static_cast<double>(got[i]) - expected[i]);
    square += static_cast<double>(expected[i]) * expected[i];
  }
  EXPECT_LE(std::sqrt(error), std::sqrt(square) / 64);
}

// What stays in device memory, and a quarter of the records, or what a step needs.
int64_t quarter_of(const SessionStats& whole) {
  return whole.kv_bytes_peak - whole.kv_full_bytes + std::max(whole.kv_full_bytes / 4, 7 * whole.kv_record_bytes);
}

// As a GPU that has work: what was recorded a moment ago is not done.
class LateAnswers : public testing::Environment {
 public:
  void SetUp() override { emulation::set_late_answers(2); }
};
[[maybe_unused]] testing::Environment* const late_answers = testing::AddGlobalTestEnvironment(new LateAnswers);

#define QUIRE_ONLY_EMULATED() \
  if (wants_gpu()) GTEST_SKIP() << "of the emulation"

class Offload : public testing::TestWithParam<const char*> {
 protected:
  ~Offload() override { emulation::set_device_faults({}); }
  SessionOptions options_ = options_for(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Strategies, Offload, testing::ValuesIn(kStrategies));

TEST_P(Offload, WithAQuarterOfTheMemoryTheBitsAreTheSame) {
  const SpillDirectory spill;
  for (const int n_io_threads : {1, -1}) {
    if (n_io_threads < 0 && GetParam() != kStrategies[0]) continue;  // the strategy makes no difference there
    SCOPED_TRACE(n_io_threads);
    RuntimeOptions runtime;
    runtime.n_io_threads = n_io_threads;
    const auto model = on_device(model_for(GetParam()), runtime);
    const bool condenses = GetParam() == kStrategies[4];
    const int64_t n_tokens = condenses ? 400 : 190;
    const Tokens text = random_tokens(*model, n_tokens);
    const Answer expected = answer(model, options_, text);
    EXPECT_EQ(expected.stats.kv_host.bytes_peak, 0);  // what fits takes nothing of the host
    EXPECT_EQ(expected.stats.kv_written_behind, 0);
    EXPECT_EQ(expected.stats.kv_misses + expected.stats.kv_hits > 0, true);

    SessionOptions small = options_;
    small.device_budget_bytes = quarter_of(expected.stats);
    // What is kept for cuts leaves first. The entries of all layers do not fit, so that some that are read leave, too.
    if (condenses) {
      const int64_t entries = n_tokens / 4 / 16 * model->llama->config().n_layers;
      small.device_budget_bytes =
          expected.stats.kv_bytes_peak - expected.stats.kv_full_bytes + (entries - 1) * expected.stats.kv_record_bytes;
    }
    (void)answer(model, small, text);  // so that all pinned memory for uploads is there
    expect_held(*model, 0);
    const int64_t before = bytes_beside_work(*model), host_before = emulation::device_use().host_bytes;
    {
      const int64_t gathers_before = emulation::device_use().n_gathers;
      const Answer got = answer(model, small, text);
      expect_same(expected, got);
      // Records come together, two and more by a launch where no thread writes them behind. Where one does, it depends
      // on its pace which are still in device memory; of beacon there are few.
      const int64_t n_gathers = emulation::device_use().n_gathers - gathers_before;
      const int64_t of_two = n_io_threads < 0 ? 4 : GetParam() == kStrategies[4] ? 2 : 3;
      EXPECT_LE(n_gathers * of_two, 2 * got.stats.kv_host.n_hits);
      // Complete records are written before they have to leave, where a thread does it.
      if (n_io_threads > 0) {
        EXPECT_GT(got.stats.kv_written_behind, 0);
      } else {
        EXPECT_EQ(got.stats.kv_written_behind, 0);
      }
      EXPECT_LE(got.stats.kv_bytes_peak, small.device_budget_bytes);
      EXPECT_LE(got.device_bytes - before, small.device_budget_bytes);
      EXPECT_EQ(got.stats.kv_host.name, "host");
      EXPECT_GT(got.stats.kv_host.n_hits, 0);
      EXPECT_GT(got.stats.kv_host.n_records, 0);
      EXPECT_EQ(got.stats.kv_host.bytes_read, got.stats.kv_host.n_hits * got.stats.kv_record_bytes);
      EXPECT_GT(got.stats.kv_host.bytes_written, 0);
      EXPECT_GT(got.stats.kv_chunks_left, 0);
      EXPECT_EQ(got.stats.kv_file_bytes, 0);
      EXPECT_EQ(got.stats.kv_chunks_in_file, 0);
    }
    expect_held(*model, 0);
    EXPECT_EQ(bytes_beside_work(*model), before);
    EXPECT_EQ(emulation::device_use().host_bytes, host_before);

    // The host is full, too: what it has no room for is in the file, or in compressed memory before it.
    small.kv_budget_bytes = 2 * expected.stats.kv_record_bytes;
    small.spill_directory = spill.path();
    for (const int64_t compressed : {0, 400000}) {
      small.compressed_budget_bytes = compressed;
      const Answer got = answer(model, small, text);
      expect_same(expected, got);
      EXPECT_LE(got.stats.kv_bytes_peak, small.device_budget_bytes);
      EXPECT_LE(got.stats.kv_host.bytes_peak, small.kv_budget_bytes);
      EXPECT_EQ(got.stats.kv_host.limit, small.kv_budget_bytes);
      EXPECT_GT(got.stats.kv_host.n_evicted, 0);
      EXPECT_GT(got.stats.kv_host.n_misses, 0);
      EXPECT_EQ(got.stats.kv_compressed.name.empty(), compressed == 0);
      EXPECT_GT(compressed > 0 ? got.stats.kv_compressed.bytes_read : got.stats.kv_file_bytes_read, 0);
    }
  }
}

// The host's budget is a hard end where nothing is below it: what a session has read stays as it was.
TEST_P(Offload, WhereTheHostIsFullASessionStaysWhole) {
  const auto model = on_device(model_for(GetParam()));
  const Tokens text = random_tokens(*model, 190);
  const Answer expected = answer(model, options_, text);
  SessionOptions small = options_;
  small.device_budget_bytes = quarter_of(expected.stats);
  small.kv_budget_bytes = expected.stats.kv_full_bytes / 8;
  const auto session = make_session(model, small);
  const Answer refused = answer(session, text);
  if (refused.status.ok()) {  // entries of beacon take little
    EXPECT_TRUE(std::string(GetParam()).starts_with("beacon"));
    return expect_same(expected, refused);
  }
  EXPECT_EQ(refused.status.code(), Code::kBudget);
  EXPECT_THAT(refused.status.message(), HasSubstr("bytes of"));
  const int64_t n = position(*session).tokens;
  EXPECT_EQ(n % 32, 0);
  EXPECT_LE(stats(*session).kv_bytes_peak, small.device_budget_bytes);
  EXPECT_LE(stats(*session).kv_host.bytes_peak, small.kv_budget_bytes);
  expect_ok(session->discard_pending());
  const auto plain = make_session(model, options_);
  expect_ok(session->truncate(n / 2));
  expect_ok(plain->feed_tokens(std::span(text).first(static_cast<size_t>(n))));
  expect_ok(run(plain).status);
  expect_ok(plain->truncate(n / 2));
  const Tokens more = random_tokens(*model, 8, 5);
  for (const auto& one : {plain, session}) expect_ok(one->feed_tokens(more));
  const Outcome right = run(plain, generating(4)), own = run(session, generating(4));
  expect_ok(own.status);
  EXPECT_EQ(own.tokens, right.tokens);
  EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*plain)));
}

// The chunk in progress is copied by who goes on with it, and read from a snapshot: its records have a place on the
// device where the host has none for them.
TEST_P(Offload, WhereTheHostIsFullForksAndLoadedSessionsGoOnOnTheDevice) {
  const auto model = on_device(model_for(GetParam()));
  const TemporaryFolder folder;
  SessionOptions small = options_;
  small.kv_budget_bytes = 1;
  const auto session = make_session(model, small);
  expect_ok(session->feed_tokens(random_tokens(*model, 150)));
  expect_ok(run(session).status);
  const std::string path = folder.path() + "/full.quire";
  expect_ok(session->save(path, {}));
  LoadOptions loading;
  loading.session.kv_budget_bytes = small.kv_budget_bytes;
  const auto forked = take(session->fork()), loaded = take(Session::load(model, path, loading));
  const Tokens more = random_tokens(*model, 20, 8);
  for (const auto& one : {session, forked, loaded}) expect_ok(one->feed_tokens(more));
  const Outcome right = run(session, generating(5));
  expect_ok(right.status);
  for (const auto& one : {forked, loaded}) {
    const Outcome own = run(one, generating(5));
    expect_ok(own.status);
    EXPECT_EQ(own.tokens, right.tokens);
    EXPECT_EQ(stats(*one).kv_host.bytes, 0);
  }
  EXPECT_TRUE(same_bits(last_logits(*forked), last_logits(*session)));
}

// Without a budget a session has what the device has.
TEST_P(Offload, WhatTheDeviceHasIsALimitToo) {
  QUIRE_ONLY_EMULATED();
  const auto model = on_device(model_for(GetParam()));
  const Tokens text = random_tokens(*model, 190);
  const Answer expected = answer(model, options_, text);
  SessionOptions warm = options_;
  warm.device_budget_bytes = quarter_of(expected.stats);
  (void)answer(model, warm, text);  // so that all working memory is there
  expect_held(*model, 0);
  const int64_t quarter = warm.device_budget_bytes;
  // Once it says beforehand what is left, and once an allocation fails.
  for (const bool says : {true, false}) {
    SCOPED_TRACE(says);
    emulation::DeviceFaults faults;
    faults.memory_bytes = emulation::device_use().bytes + quarter;
    if (says) faults.memory_bytes += model->llama->backend().device_bytes_for_work();
    faults.hides_free_memory = !says;
    emulation::set_device_faults(faults);
    const Answer got = answer(model, options_, text);
    expect_same(expected, got);
    EXPECT_GT(got.stats.kv_chunks_left, 0);
    EXPECT_GT(got.stats.kv_host.bytes_written, 0);
    emulation::set_device_faults({});
    expect_held(*model, 0);
  }
}

TEST_P(Offload, AFailingAllocationLeavesTheSessionWhole) {
  QUIRE_ONLY_EMULATED();
  const auto model = on_device(model_for(GetParam()));
  const Tokens text = random_tokens(*model, 70);
  SessionOptions options = options_;
  options.prefill_block = 24;
  const Answer expected = answer(model, options, text);
  SessionOptions small = options;
  small.device_budget_bytes = quarter_of(expected.stats) + 3 * expected.stats.kv_record_bytes;
  int n_failed = 0, n_served = 0;
  for (const bool of_host : {false, true}) {
    for (int64_t n = 1; n < 60; n += 7) {
      SCOPED_TRACE(std::to_string(n) + (of_host ? " of the host" : ""));
      const auto session = make_session(model, small);
      expect_ok(session->feed_tokens(text));
      emulation::DeviceFaults faults;
      (of_host ? faults.host_allocation : faults.allocation) = n;
      emulation::set_device_faults(faults);
      StreamOptions reading = generating(0);
      reading.keep_logits = true;
      const Status status = run(session, reading).status;
      emulation::set_device_faults({});
      if (status.ok()) {
        ++n_served;
        // What turned out to be left of device memory may make windows necessary.
        const Logits got = kept_logits(*session, 0, 70);
        if (!of_host && std::string_view(GetParam()).starts_with("beacon")) {
          expect_near(expected.logits, got);
        } else {
          EXPECT_TRUE(same_bits(expected.logits, got));
        }
      } else {
        ++n_failed;
        EXPECT_TRUE(status.code() == Code::kOutOfMemory || status.code() == Code::kBudget) << status.message();
        EXPECT_EQ(position(*session).tokens + position(*session).pending, 70);
        expect_ok(run(session).status);
      }
      const Outcome outcome = run(session, generating(6));
      expect_ok(outcome.status);
      EXPECT_EQ(outcome.tokens, expected.tokens);
    }
  }
  EXPECT_GT(n_served, 0);
}

// Two sessions and their forks, in a runtime whose sessions do not fit the device together.
TEST_P(Offload, ForksCutsAndEditsGiveTheBitsOfASessionInMemory) {
  const auto plain = on_device(model_for(GetParam()));
  const Answer whole = answer(plain, options_, random_tokens(*plain, 150));
  RuntimeOptions runtime;
  runtime.kv_device_bytes = 3 * (whole.stats.kv_bytes_peak - whole.stats.kv_full_bytes) + whole.stats.kv_bytes_peak;
  const auto model = on_device(model_for(GetParam()), runtime);
  using Story = std::vector<std::function<void(const std::shared_ptr<Session>&)>>;
  std::vector<std::pair<std::shared_ptr<Session>, Story>> told;
  for (int s = 0; s < 2; ++s) told.emplace_back(make_session(model, options_), Story());
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
  for (uint32_t call = 0; call < 30; ++call) {
    SCOPED_TRACE(call);
    const auto which = static_cast<size_t>(below(static_cast<int64_t>(told.size())));
    std::shared_ptr<Session>& session = told[which].first;
    Story& story = told[which].second;
    const auto tell = [&](std::function<void(const std::shared_ptr<Session>&)> what) {
      what(session);
      story.push_back(std::move(what));
    };
    const Position at = position(*session);
    switch (below(5)) {
      case 0:
      case 1:
        if (at.tokens + at.pending > 150) break;
        tell([tokens = random_tokens(*plain, 10 + below(40), call)](const std::shared_ptr<Session>& s) {
          expect_ok(s->feed_tokens(tokens));
          expect_ok(run(s, generating(2)).status);
        });
        break;
      case 2:
        if (at.tokens > 0) {
          tell([n = below(at.tokens)](const std::shared_ptr<Session>& s) { expect_ok(s->truncate(n)); });
        }
        break;
      case 3:
        tell([call](const std::shared_ptr<Session>& s) {
          Tokens text;
          expect_ok(s->tokens(&text));
          if (text.size() > 20) text.erase(text.begin() + static_cast<int64_t>(call % 15));
          EditResult result;
          expect_ok(s->edit_tokens(text, {}, &result));
        });
        break;
      default:
        if (told.size() < 4) {
          auto fork = take(session->fork());
          told.emplace_back(std::move(fork), story);
        } else {
          told.erase(told.begin() + static_cast<int64_t>(which));
        }
    }
    if (HasFailure()) return;
    ASSERT_LE(model->residency->budget()->used(), runtime.kv_device_bytes);
  }
  int64_t n_left = 0;
  for (auto& [session, story] : told) {
    const auto expected = make_session(plain, options_);
    for (const auto& what : story) what(expected);
    ASSERT_EQ(position(*session), position(*expected));
    for (const auto& one : {session, expected}) expect_ok(one->feed_tokens(random_tokens(*plain, 9, 77)));
    EXPECT_EQ(run(session, generating(3)).tokens, run(expected, generating(3)).tokens);
    EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*expected)));
    n_left += stats(*session).kv_chunks_left;
  }
  EXPECT_GT(n_left, 0);
}

TEST_P(Offload, ASnapshotOfRecordsInAllTiersIsWhole) {
  const auto model = on_device(model_for(GetParam()));
  const Tokens text = random_tokens(*model, 160);
  const TemporaryFolder folder;
  const SpillDirectory spill;
  const Answer expected = answer(model, options_, text);
  SessionOptions small = options_;
  small.device_budget_bytes = quarter_of(expected.stats) + 2 * expected.stats.kv_record_bytes;
  small.kv_budget_bytes = 5 * expected.stats.kv_record_bytes;
  small.spill_directory = spill.path();
  const auto session = make_session(model, small);
  expect_same(expected, answer(session, text));
  const std::string path = folder.path() + "/all.quire";
  expect_ok(session->save(path, {}));
  LoadOptions loading;
  loading.session.device_budget_bytes = small.device_budget_bytes;
  loading.session.kv_budget_bytes = small.kv_budget_bytes;
  loading.session.spill_directory = small.spill_directory;
  const auto loaded = take(Session::load(model, path, loading));
  const auto forked = take(session->fork());
  const Tokens more = random_tokens(*model, 20, 8);
  for (const auto& one : {session, loaded, forked}) expect_ok(one->feed_tokens(more));
  const Outcome right = run(session, generating(5));
  expect_ok(right.status);
  EXPECT_EQ(run(forked, generating(5)).tokens, right.tokens);
  EXPECT_TRUE(same_bits(last_logits(*forked), last_logits(*session)));
  const Outcome own = run(loaded, generating(5));
  expect_ok(own.status);
  EXPECT_EQ(own.tokens, right.tokens);
  EXPECT_LE(stats(*loaded).kv_bytes_peak, small.device_budget_bytes);
}

// Narrow records of old text move as full ones do, and these go when nobody reads them any more.
TEST(OffloadOldText, WithLittleMemoryThePromptsBitsAreTheSame) {
  const SpillDirectory spill;
  const TemporaryFolder folder;
  for (const auto& [strategy, type] : {std::pair{kStrategies[0], ElementType::kInt4},
                                       {kStrategies[1], ElementType::kInt8},
                                       {kStrategies[2], ElementType::kInt8}}) {
    SCOPED_TRACE(std::string(strategy) + ", " + element_name(type));
    const auto model = on_device();
    const Tokens text = random_tokens(*model, 190), more = random_tokens(*model, 20, 8);
    SessionOptions options = options_for(strategy);
    options.old_text = {.type = type, .after = 40};
    const auto whole = make_session(model, options);
    const Answer expected = answer(whole, text);
    EXPECT_GT(expected.stats.kv_narrow_bytes, 0);
    EXPECT_FALSE(same_bits(expected.logits, answer(model, options_for(strategy), text).logits));
    expect_ok(whole->feed_tokens(more));
    const Outcome right = run(whole, generating(5));
    expect_ok(right.status);

    SessionOptions small = options;
    const int64_t records = expected.stats.kv_full_bytes + expected.stats.kv_narrow_bytes;
    small.device_budget_bytes =
        expected.stats.kv_bytes_peak - records + records / 4 + 6 * expected.stats.kv_record_bytes;
    const Answer with_host = answer(model, small, text);
    expect_same(expected, with_host);
    EXPECT_LE(with_host.stats.kv_bytes_peak, small.device_budget_bytes);
    EXPECT_EQ(with_host.stats.kv_narrow_bytes, expected.stats.kv_narrow_bytes);
    EXPECT_EQ(with_host.stats.kv_full_bytes, expected.stats.kv_full_bytes);
    EXPECT_GT(with_host.stats.kv_host.n_hits, 0);

    // With a file behind the host; and a snapshot of what lies in all tiers goes on there.
    small.kv_budget_bytes = 2 * expected.stats.kv_record_bytes;
    small.spill_directory = spill.path();
    const auto session = make_session(model, small);
    expect_same(expected, answer(session, text));
    EXPECT_GT(stats(*session).kv_file_bytes_read, 0);
    const std::string path = folder.path() + "/old.quire";
    expect_ok(session->save(path, {}));
    LoadOptions loading;
    loading.session.device_budget_bytes = small.device_budget_bytes;
    loading.session.kv_budget_bytes = small.kv_budget_bytes;
    loading.session.spill_directory = small.spill_directory;
    const auto loaded = take(Session::load(model, path, loading));
    for (const auto& one : {session, loaded}) {
      expect_ok(one->feed_tokens(more));
      const Outcome own = run(one, generating(5));
      expect_ok(own.status);
      EXPECT_EQ(own.tokens, right.tokens);
      expect_near(last_logits(*whole), last_logits(*one));
    }
    EXPECT_TRUE(same_bits(last_logits(*session), last_logits(*loaded)));
  }
}

// ---- budgets of a runtime

TEST(OffloadBudgets, DevicesDoNotCountInEachOthers) {
  RuntimeOptions options;
  options.kv_device_bytes = 60000;
  const auto runtime = make_runtime_with_gpu(options);
  const auto gpu = load_on(runtime, "cuda:0"), cpu = load_on(runtime, "cpu"), again = load_on(runtime, "cuda");
  EXPECT_NE(gpu->residency, cpu->residency);
  EXPECT_EQ(gpu->residency, again->residency);
  EXPECT_EQ(gpu->residency->budget()->limit(), 60000);
  EXPECT_EQ(cpu->residency->budget()->limit(), 0);
  SessionOptions small = options_for("full(kv_chunk=16)");
  small.device_budget_bytes = 60000;  // the model on the CPU takes no notice
  const auto on_cpu = make_session(cpu, small), on_gpu = make_session(gpu, small);
  const Tokens text = random_tokens(*cpu, 200);
  for (const auto& session : {on_cpu, on_gpu}) {
    expect_ok(session->feed_tokens(text));
    expect_ok(run(session).status);
  }
  EXPECT_GT(stats(*on_cpu).kv_bytes, 60000);
  EXPECT_EQ(stats(*on_cpu).kv_chunks_left, 0);
  EXPECT_EQ(cpu->residency->budget()->used(), stats(*on_cpu).kv_bytes + stats(*on_gpu).kv_host.bytes);
  EXPECT_EQ(gpu->residency->budget()->used(), stats(*on_gpu).kv_bytes);
  EXPECT_LE(stats(*on_gpu).kv_bytes_peak, 60000);
  EXPECT_GT(stats(*on_gpu).kv_host.bytes, 0);
}

// Two streams at once, of sessions that do not fit the device together.
TEST(OffloadBudgets, TwoSessionsShareASmallDevice) {
  const auto plain = on_device();
  const SessionOptions options = options_for("longheads(chunk=16, chunks=5)");
  const Answer whole = answer(plain, options, random_tokens(*plain, 190));
  RuntimeOptions runtime;
  runtime.kv_device_bytes = 2 * quarter_of(whole.stats);
  const auto model = on_device("short_128", runtime);
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (uint32_t s = 0; s < 2; ++s) {
    sessions.push_back(make_session(model, options));
    expect_ok(sessions[s]->feed_tokens(random_tokens(*model, 190, s + 1)));
    streams.push_back(take(GenerationStream::open(sessions[s], generating(8))));
  }
  for (bool open = true; open;) {
    open = false;
    for (const auto& stream : streams) {
      const StreamEvent* event = nullptr;
      const auto next = stream->next(-1, &event);
      expect_ok(next.status());
      open = open || (next.ok() && next.value() == NextResult::kEvent);
      ASSERT_LE(model->residency->budget()->used(), runtime.kv_device_bytes);
    }
  }
  for (const auto& session : sessions) {
    EXPECT_EQ(position(*session).tokens, 198);
    EXPECT_GT(stats(*session).kv_host.n_hits, 0);
  }
}

// Another model finds the memory of a session that rests, and that session goes on where it was.
TEST(OffloadBudgets, ASessionThatRestsGivesWayToAModel) {
  QUIRE_ONLY_EMULATED();
  for (const bool is_released : {false, true}) {
    SCOPED_TRACE(is_released ? "kept of a released session" : "of a session");
    RuntimeOptions runtime_options;
    runtime_options.prefix_cache_bytes = is_released ? int64_t{1} << 30 : 0;
    const auto runtime = make_runtime_with_gpu(std::move(runtime_options));
    const auto model = load_on(runtime, "cuda:0");
    const SessionOptions options = options_for("full(kv_chunk=16)");
    const Tokens text = random_tokens(*model, 190), more = random_tokens(*model, 20, 2);
    auto session = make_session(model, options);
    const Answer first = answer(session, text);
    emulation::DeviceFaults faults;
    faults.memory_bytes = emulation::device_use().bytes + model->llama->weights().bytes - first.stats.kv_full_bytes / 2;
    const auto load_other = [&](const std::string& device) {
      emulation::set_device_faults(faults);
      ModelLoadOptions loading;
      loading.device = device;
      auto other = load_model(runtime, path_of("short_128"), loading);
      emulation::set_device_faults({});
      return other;
    };
    const auto working = take(GenerationStream::open(session, generating(100)));
    (void)read(*working, 2);  // it is open while nobody reads on
    EXPECT_EQ(load_other("cuda:0").status().code(), Code::kOutOfMemory);
    EXPECT_EQ(take(load_other("auto"))->device, "cpu");
    working->close();
    const int64_t before = model->residency->budget()->used();
    if (is_released) session.reset();
    const auto other = take(load_other("auto"));
    EXPECT_EQ(other->device, "cuda:0");
    EXPECT_LE(model->residency->budget()->used(), before - first.stats.kv_full_bytes / 4);
    if (is_released) continue;
    const auto untouched = make_session(model, options);
    (void)answer(untouched, text);
    std::vector<Logits> went_on;
    for (const auto& s : {untouched, session}) {
      expect_ok(s->truncate(std::ssize(text)));
      expect_ok(s->feed_tokens(more));
      StreamOptions reading = generating(0);
      reading.keep_logits = true;
      expect_ok(run(s, reading).status);
      went_on.push_back(kept_logits(*s, std::ssize(text), std::ssize(more)));
    }
    EXPECT_TRUE(same_bits(went_on[0], went_on[1]));
    EXPECT_GT(stats(*session).kv_host.bytes_written, 0);
  }
}

// ---- what is said beforehand

TEST(OffloadPlan, SaysWhereTheCacheWillBe) {
  QUIRE_ONLY_EMULATED();
  const auto model = on_device();
  Backend& backend = model->llama->backend();
  MemoryRequest request;
  request.path = path_of("short_128");
  request.strategy = "full(kv_chunk=16)";
  request.n_tokens = 196;
  request.prefill_block = 32;
  const MemoryPlan all = take(plan_memory(backend, request));
  EXPECT_EQ(all.host_bytes, 0);
  const SessionOptions options = options_for(request.strategy);
  const Answer whole = answer(model, options, random_tokens(*model, 190));
  EXPECT_EQ(all.kv_bytes, whole.stats.kv_full_bytes);
  // It just fits: an eighth of the device's budget is written behind.
  request.device_budget_bytes = whole.stats.kv_full_bytes + whole.stats.kv_record_bytes;
  const MemoryPlan fits = take(plan_memory(backend, request));
  EXPECT_EQ(fits.kv_bytes, whole.stats.kv_full_bytes);
  EXPECT_EQ(fits.host_bytes, round_up(request.device_budget_bytes / 8, whole.stats.kv_record_bytes));
  EXPECT_FALSE(fits.in_windows);
  SessionOptions just = options;
  just.device_budget_bytes = request.device_budget_bytes;
  const auto in_memory = make_session(model, just);
  EXPECT_EQ(answer(in_memory, random_tokens(*model, 190)).stats.kv_chunks_left, 0);
  // The thread that writes behind may have some of it before it still.
  for (int i = 0; i < 1000 && stats(*in_memory).kv_host.bytes_written < fits.host_bytes; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(stats(*in_memory).kv_host.bytes_written, fits.host_bytes);
  request.device_budget_bytes = 2 * request.device_budget_bytes;
  EXPECT_EQ(take(plan_memory(backend, request)).host_bytes, 0);
  request.device_budget_bytes = quarter_of(whole.stats) + 2 * whole.stats.kv_record_bytes;
  const MemoryPlan quarter = take(plan_memory(backend, request));
  EXPECT_EQ(quarter.kv_bytes, request.device_budget_bytes);
  EXPECT_EQ(quarter.host_bytes, whole.stats.kv_full_bytes);
  EXPECT_EQ(quarter.spill_bytes, 0);
  EXPECT_TRUE(quarter.in_windows);
  request.kv_budget_bytes = whole.stats.kv_full_bytes / 4;
  EXPECT_EQ(plan_memory(backend, request).status().code(), Code::kBudget);
  request.spill = true;
  const MemoryPlan with_file = take(plan_memory(backend, request));
  EXPECT_EQ(with_file.host_bytes, request.kv_budget_bytes);
  EXPECT_EQ(with_file.spill_bytes, whole.stats.kv_full_bytes - request.kv_budget_bytes);
  // What the device has, where no budget is set.
  emulation::DeviceFaults faults;
  faults.memory_bytes = all.weight_bytes + request.device_budget_bytes;
  emulation::set_device_faults(faults);
  const auto tiny = take(cuda::create_cuda_backend(model->runtime->allocator(), emulation::device_api(), 0));
  emulation::set_device_faults({});
  request.device_budget_bytes = request.kv_budget_bytes = 0;
  const MemoryPlan on_tiny = take(plan_memory(*tiny, request));
  EXPECT_EQ(on_tiny.kv_bytes, tiny->device_bytes() - tiny->device_bytes_for_work() - all.weight_bytes);
  EXPECT_EQ(on_tiny.host_bytes, whole.stats.kv_full_bytes);
}

// What is kept beside what is seen goes where neither the device nor the host has room, and the text goes on.
TEST(OffloadPlan, AsMuchAsIsSeenSuffices) {
  QUIRE_ONLY_EMULATED();
  constexpr int64_t kTokens = 320, kFeed = 64;
  for (const auto& [name, strategy] : {std::pair{"short_128", "streaming_llm(sinks=3, recent=50, kv_chunk=16)"},
                                       {"text_256", "scca_fixed(chunk=32, kv_chunk=16)"},
                                       {kWithBeacons, "beacon(ratio=4, kv_chunk=16)"}}) {
    SCOPED_TRACE(strategy);
    const auto model = on_device(name);
    MemoryRequest request;
    request.path = path_of(name == kWithBeacons ? "text_256" : name);
    if (name == kWithBeacons) request.beacon_directory = source_path("tests/golden/beacon/plugin");
    request.strategy = strategy;
    request.n_tokens = kTokens;
    request.prefill_block = 32;
    const auto fits = [&](int64_t budget) {
      request.device_budget_bytes = budget;
      return plan_memory(model->llama->backend(), request).ok();
    };
    const Tokens text = random_tokens(*model, kTokens);
    SessionOptions small = options_for(strategy);
    small.prefill_block = request.prefill_block;
    const auto roomy = make_session(model, small);
    small.kv_budget_bytes = request.kv_budget_bytes = 1;  // the host's memory holds nothing
    int64_t least = int64_t{1} << 30;
    for (int64_t step = least / 2; step > 0; step /= 2) least -= fits(least - step) ? step : 0;
    small.device_budget_bytes = least;
    const auto session = make_session(model, small);
    for (int64_t n = 0; n < kTokens; n += kFeed) {
      for (const auto& fed : {roomy, session}) {
        expect_ok(fed->feed_tokens(std::span(text).subspan(n, kFeed)));
        expect_ok(run(fed).status);
      }
    }
    EXPECT_LE(stats(*session).kv_bytes_peak, least);
    EXPECT_GT(stats(*roomy).kv_bytes_peak, least);
    EXPECT_TRUE(same_bits(last_logits(*roomy), last_logits(*session)));
  }
}

// Products and attention keep what they work in, each its own.
TEST(OffloadPlan, CountsTheMemoryThatIsWorkedIn) {
  for (const char* const strategy : {"full(kv_chunk=16)", "longheads(chunk=16, chunks=4)"}) {
    const auto model = on_device();
    MemoryRequest request;
    request.path = path_of("short_128");
    request.strategy = strategy;
    request.n_tokens = 400;
    request.prefill_block = 200;
    const int64_t planned = take(plan_memory(model->llama->backend(), request)).scratch_bytes;
    SessionOptions options = options_for(strategy);
    options.prefill_block = 200;
    const int64_t held = answer(model, options, random_tokens(*model, 390)).stats.scratch_bytes;
    constexpr double kTables = 64 << 10;  // of records' addresses, which are not planned
    EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(held), static_cast<double>(held) / 10 + kTables)
        << strategy;
  }
}

TEST(OffloadPlan, TheEstimateReadsFromTheHost) {
  const auto model = on_device();
  SessionOptions options = options_for("full(kv_chunk=16)");
  options.device_budget_bytes = 60000;
  const RateEstimate estimate = take(estimate_rates(model, options, 300));
  EXPECT_GT(estimate.tier_read_rate, 0);
  EXPECT_GT(estimate.rates.decode_token_seconds, 0);
}

}  // namespace
}  // namespace quire::test
