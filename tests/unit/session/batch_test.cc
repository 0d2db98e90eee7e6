// Sessions of one model that decode at once: their steps are shared, their tokens are those that each gives alone.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "tests/unit/model/watched_backend.h"
#include "tests/unit/session/hold.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

struct Task {
  const char* strategy;
  int64_t prompt;
  ElementType type;
  float temperature;
};

constexpr int64_t kNew = 40;
const Task kTasks[] = {{"full", 50, ElementType::kF16, 0},
                       {"dca", 200, ElementType::kF32, 0.8f},
                       {"longheads(chunk=16, chunks=4)", 130, ElementType::kF16, 1.1f},
                       {"streaming_llm(sinks=3, recent=50)", 87, ElementType::kBF16, 0.7f},
                       // Their windows of 32 tokens end in different steps.
                       {"beacon(ratio=4)", 50, ElementType::kF16, 0.9f},
                       {"beacon(ratio=2, attn=segmentation, kv_chunk=16)", 213, ElementType::kF32, 0}};
constexpr size_t kSessions = std::size(kTasks);

SessionOptions options_of(const Task& task) {
  SessionOptions options = with_strategy(task.strategy);
  options.kv_type = task.type;
  return options;
}

std::shared_ptr<Session> fed(const std::shared_ptr<Model>& model, const Task& task, const SessionOptions& options) {
  auto session = make_session(model, options);
  expect_ok(session->feed_tokens(random_tokens(*model, task.prompt, static_cast<uint32_t>(task.prompt))));
  return session;
}

StreamOptions generation(const Task& task) { return generating(kNew, task.temperature, 5); }

std::vector<Outcome> run_alone(const std::shared_ptr<Model>& model) {
  std::vector<Outcome> all;
  for (const Task& task : kTasks) {
    all.push_back(run(fed(model, task, options_of(task)), generation(task)));
    EXPECT_EQ(all.back().tokens.size(), static_cast<size_t>(kNew));
  }
  return all;
}

void expect_beginning_of(const Outcome& whole, const Outcome& part, const std::string& what) {
  const auto n = static_cast<std::ptrdiff_t>(part.tokens.size());
  ASSERT_LE(part.tokens.size(), whole.tokens.size()) << what;
  EXPECT_EQ(part.tokens, Tokens(whole.tokens.begin(), whole.tokens.begin() + n)) << what;
  EXPECT_EQ(part.logprobs, std::vector<float>(whole.logprobs.begin(), whole.logprobs.begin() + n)) << what;
}

// Reads the streams in step: each round takes one event of each while the engine is held. Calls during(round) then.
template <typename During>
std::vector<Outcome> read_in_step(Model& model, const std::vector<std::shared_ptr<GenerationStream>>& streams,
                                  const During& during) {
  std::vector<Outcome> outcomes;
  for (const auto& stream : streams) outcomes.push_back(read(*stream, 1));  // what comes before the first token, and it
  std::vector<bool> ended(streams.size(), false);
  for (int round = 0; std::find(ended.begin(), ended.end(), false) != ended.end(); ++round) {
    for (size_t s = 0; s < streams.size(); ++s) {
      if (!ended[s]) wait_for_event(*streams[s]);
    }
    const auto hold = hold_engine(model);
    for (size_t s = 0; s < streams.size(); ++s) {
      if (ended[s]) continue;
      const StreamEvent* event = nullptr;
      const auto next = streams[s]->next(0, &event);
      if (next.ok() && next.value() == NextResult::kTimeout) continue;  // a cancel took the token back
      ended[s] = !next.ok() || next.value() == NextResult::kEnd || event->type == StreamEvent::Type::kEnd;
      if (!next.ok()) {
        outcomes[s].status = next.status();
      } else if (!ended[s]) {
        outcomes[s].tokens.push_back(event->token);
        outcomes[s].logprobs.push_back(event->logprob);
      } else {
        outcomes[s].end = *event;
      }
    }
    during(round);
    hold->release();
  }
  return outcomes;
}

TEST(Batch, GivesEachSessionTheTokensItGivesAlone) {
  const auto model = load(kWithBeacons, 2);
  const auto alone = run_alone(model);
  const ThreadPool& pool = model->runtime->pool();
  // What decoding takes alone, in tasks of the thread pool.
  int64_t tasks_alone = 0;
  for (const Task& task : kTasks) {
    const auto session = fed(model, task, options_of(task));
    expect_ok(run(session).status);
    const int64_t before = pool.tasks_started();
    expect_ok(run(session, generation(task)).status);
    tasks_alone += pool.tasks_started() - before;
  }
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (const Task& task : kTasks) {
    const auto session = fed(model, task, options_of(task));
    expect_ok(run(session).status);
    streams.push_back(take(GenerationStream::open(session, generation(task))));
  }
  const int64_t before = pool.tasks_started();
  const auto together = read_in_step(*model, streams, [](int) {});
  const int64_t tasks_together = pool.tasks_started() - before;
  for (size_t s = 0; s < kSessions; ++s) {
    EXPECT_EQ(together[s].tokens, alone[s].tokens) << kTasks[s].strategy;
    EXPECT_EQ(together[s].logprobs, alone[s].logprobs) << kTasks[s].strategy;
    EXPECT_EQ(together[s].end.finish, FinishReason::kMaxTokens);
  }
  // A shared step multiplies by each weight matrix once for all.
  EXPECT_LT(tasks_together, tasks_alone * 3 / 4);
}

// Drafts are for those that step alone: others wait then for their readers to take what they generated so.
TEST(Batch, MembersMayHaveDrafts) {
  const auto model = load(kWithBeacons, 2);
  const auto alone = run_alone(model);
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (const Task& task : kTasks) {
    sessions.push_back(fed(model, task, options_of(task)));
    StreamOptions options = generation(task);
    options.draft_tokens = 1 + static_cast<int64_t>(sessions.size());
    options.draft_match = 1;
    streams.push_back(take(GenerationStream::open(sessions.back(), options)));
  }
  const auto together = read_in_step(*model, streams, [](int) {});
  for (size_t s = 0; s < kSessions; ++s) {
    EXPECT_EQ(together[s].tokens, alone[s].tokens) << kTasks[s].strategy;
    EXPECT_EQ(together[s].logprobs, alone[s].logprobs) << kTasks[s].strategy;
    EXPECT_EQ(together[s].end.finish, FinishReason::kMaxTokens);
  }
}

TEST(Batch, AMemberThatIsCancelledLeavesTheOthersAlone) {
  const auto model = load(kWithBeacons, 2);
  const auto alone = run_alone(model);
  const ThreadPool& pool = model->runtime->pool();
  for (size_t victim = 0; victim < kSessions; ++victim) {
    std::vector<std::shared_ptr<Session>> sessions;
    std::vector<std::shared_ptr<GenerationStream>> streams;
    for (const Task& task : kTasks) {
      sessions.push_back(fed(model, task, options_of(task)));
      streams.push_back(take(GenerationStream::open(sessions.back(), generation(task))));
    }
    std::thread canceller;
    const auto together = read_in_step(*model, streams, [&](int round) {
      if (canceller.joinable()) canceller.join();
      if (round != static_cast<int>(4 + 5 * victim)) return;
      // While the others go on: when so many tasks of their next steps have begun, or they wait for their reader.
      canceller = std::thread([&, begun = pool.tasks_started()] {
        while (pool.tasks_started() < begun + 12 * static_cast<int64_t>(victim) && !has_event(*streams[victim])) {
          std::this_thread::yield();
        }
        expect_ok(streams[victim]->cancel());
      });
    });
    if (canceller.joinable()) canceller.join();
    for (size_t s = 0; s < kSessions; ++s) {
      if (s == victim) continue;
      EXPECT_EQ(together[s].tokens, alone[s].tokens) << kTasks[s].strategy;
      EXPECT_EQ(together[s].logprobs, alone[s].logprobs) << kTasks[s].strategy;
    }
    EXPECT_EQ(together[victim].end.finish, FinishReason::kCancelled);
    expect_beginning_of(alone[victim], together[victim], kTasks[victim].strategy);
    // It goes on where it was.
    Outcome rest = together[victim];
    StreamOptions options = generation(kTasks[victim]);
    options.max_tokens -= static_cast<int64_t>(rest.tokens.size());
    const Outcome more = run(sessions[victim], options);
    rest.tokens.insert(rest.tokens.end(), more.tokens.begin(), more.tokens.end());
    EXPECT_EQ(rest.tokens, alone[victim].tokens);
  }
}

// Calls `act` once, when hidden states of a step of two streams are read: that is the first norm behind the fence of
// the logits, which comes behind that of the layers.
class ActsWhileReading : public WatchedBackend {
 public:
  ActsWhileReading(std::unique_ptr<Backend> real, const std::function<void()>& act)
      : WatchedBackend(*real), owned_(std::move(real)), act_(act) {}
  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    is_shared_ = sequences.size() == 2;
    n_fences_ = 0;
    return WatchedBackend::prepare_step(exec, n_query_heads, sequences);
  }
  Result<std::unique_ptr<Fence>> record(Queue& queue) override {
    ++n_fences_;
    return WatchedBackend::record(queue);
  }
  Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Write write,
                  Rows out) override {
    if (is_shared_ && n_fences_ == 2 && !std::exchange(acted_, true)) act_();
    return WatchedBackend::rms_norm(exec, x, weight, eps, n, width, write, out);
  }

 private:
  const std::unique_ptr<Backend> owned_;
  const std::function<void()>& act_;
  bool is_shared_ = false, acted_ = false;
  int n_fences_ = 0;
};

TEST(Batch, ACancelWhileHiddenStatesAreReadLeavesTheOthersAlone) {
  std::vector<std::shared_ptr<GenerationStream>> streams;
  bool acted = false;
  const std::function<void()> act = [&] {
    acted = true;
    expect_ok(streams[1]->cancel());
  };
  RuntimeOptions runtime;
  runtime.n_threads = 1;
  runtime.wrap_backend = [&](std::unique_ptr<Backend> real) {
    return std::make_unique<ActsWhileReading>(std::move(real), act);
  };
  const auto model = load(kWithBeacons, runtime);
  for (int s = 0; s < 2; ++s) {
    StreamOptions options = generation(kTasks[0]);
    options.keep_hidden = true;
    streams.push_back(take(GenerationStream::open(fed(model, kTasks[0], options_of(kTasks[0])), options)));
  }
  const auto outcomes = read_in_step(*model, streams, [](int) {});
  EXPECT_TRUE(acted);
  for (const Outcome& outcome : outcomes) expect_ok(outcome.status);
  EXPECT_EQ(outcomes[0].end.finish, FinishReason::kMaxTokens);
  EXPECT_EQ(outcomes[0].tokens.size(), static_cast<size_t>(kNew));
  EXPECT_EQ(outcomes[1].end.finish, FinishReason::kCancelled);
}

TEST(Batch, AMemberThatFailsLeavesTheOthersAlone) {
  const auto model = load(kWithBeacons, 2);
  const auto alone = run_alone(model);
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (size_t s = 0; s < kSessions; ++s) {
    SessionOptions options = options_of(kTasks[s]);
    if (s == 0) {  // room for 64 tokens
      const auto probe = make_session(model, options);
      expect_ok(probe->feed_tokens(random_tokens(*model, 64)));
      expect_ok(run(probe).status);
      options.kv_budget_bytes = stats(*probe).kv_bytes;
    }
    sessions.push_back(fed(model, kTasks[s], options));
    streams.push_back(take(GenerationStream::open(sessions.back(), generation(kTasks[s]))));
  }
  const auto together = read_in_step(*model, streams, [](int) {});
  EXPECT_EQ(together[0].status.code(), Code::kBudget);
  EXPECT_EQ(together[0].tokens.size(), 15u);  // the last one is not in the cache
  expect_beginning_of(alone[0], together[0], "the failed one");
  EXPECT_EQ(position(*sessions[0]), (Position{65, 0}));
  for (size_t s = 1; s < kSessions; ++s) {
    EXPECT_EQ(together[s].tokens, alone[s].tokens) << kTasks[s].strategy;
    EXPECT_EQ(together[s].logprobs, alone[s].logprobs) << kTasks[s].strategy;
  }
}

// Adds stops to streams between the choice of who takes the next step together and that step: the scheduler asks this
// job whether it shares the step as it asks them, and after them, because it was added after them.
class StopAdder : public HostJob {
 public:
  explicit StopAdder(const Model& model) : pass_(model.pass.get()) {}
  bool ready() override { return done_; }
  bool step() override { return true; }
  const void* pass() override { return pass_; }
  bool shares_step() override {
    for (auto& [stream, stops] : std::exchange(next_, {})) expect_ok(stream->add_stops(std::move(stops)));
    return false;
  }
  // While the engine is held.
  void add(GenerationStream& stream, StopSet stops) { next_.emplace_back(&stream, std::move(stops)); }
  bool idle() const { return next_.empty(); }
  void finish(Scheduler& scheduler) {
    done_ = true;
    scheduler.wake();
  }

 private:
  const void* const pass_;
  std::vector<std::pair<GenerationStream*, StopSet>> next_;
  std::atomic<bool> done_{false};
};

// What a stream gets when one of its rounds of reading is over.
using MoreStops = std::map<int, StopSet>;

// Reads streams that work ahead, one event of each in a round, and adds stops before the step that follows.
std::vector<Outcome> read_adding_stops(Model& model, const std::vector<std::shared_ptr<GenerationStream>>& streams,
                                       const std::vector<MoreStops>& more) {
  const auto adder = std::make_shared<StopAdder>(model);
  EXPECT_TRUE(model.runtime->scheduler().add(adder));
  std::vector<Outcome> outcomes(streams.size());
  std::vector<bool> ended(streams.size(), false);
  for (int round = 0; std::find(ended.begin(), ended.end(), false) != ended.end(); ++round) {
    work_ahead(model);
    const auto hold = hold_engine(model);
    EXPECT_TRUE(adder->idle()) << "there was no step in round " << round - 1;
    for (size_t s = 0; s < streams.size(); ++s) {
      if (ended[s]) continue;
      const StreamEvent* event = nullptr;
      EXPECT_EQ(take(streams[s]->next(0, &event)), NextResult::kEvent) << "stream " << s << ", round " << round;
      outcomes[s].text += event->text;
      ended[s] = event->type == StreamEvent::Type::kEnd;
      if (ended[s]) outcomes[s].end = *event;
      if (event->type == StreamEvent::Type::kToken) {
        outcomes[s].tokens.push_back(event->token);
        outcomes[s].logprobs.push_back(event->logprob);
      }
      const auto found = more[s].find(round);
      if (!ended[s] && found != more[s].end()) adder->add(*streams[s], found->second);
    }
    hold->release();
  }
  adder->finish(model.runtime->scheduler());
  return outcomes;
}

// A stream that gets more stops forgets what it generated ahead, whether it was about to share a step or not.
TEST(Batch, MembersMayGetMoreStops) {
  const auto model = load(kWithBeacons, 2);
  const auto whole = run_alone(model);
  const auto open = [&](const Task& task) {
    StreamOptions options = generation(task);
    options.max_undelivered = 9;
    return take(GenerationStream::open(fed(model, task, options_of(task)), options));
  };
  std::vector<std::shared_ptr<GenerationStream>> streams;
  std::vector<MoreStops> stops(kSessions);
  for (size_t s = 0; s < kSessions; ++s) {
    const int first = 2 + static_cast<int>(s);
    for (int round = first; round < 20; round += 4) {
      stops[s][round] = {{-5}, {"never in a text of \x01"}};  // nothing but the way there changes
    }
    const size_t at = 24 + s;
    if (s % 2 == 0) {
      stops[s][20] = {{whole[s].tokens[at]}, {}};
    } else {
      stops[s][20] = {{}, {whole[s].text.substr(whole[s].text.size() * 4 / 5, 5)}};
    }
    streams.push_back(open(kTasks[s]));
  }
  const auto together = read_adding_stops(*model, streams, stops);
  for (size_t s = 0; s < kSessions; ++s) {
    SCOPED_TRACE(kTasks[s].strategy);
    const Outcome alone = read_adding_stops(*model, {open(kTasks[s])}, {stops[s]}).at(0);
    EXPECT_EQ(together[s].tokens, alone.tokens);
    EXPECT_EQ(together[s].logprobs, alone.logprobs);
    EXPECT_EQ(together[s].text, alone.text);
    EXPECT_EQ(together[s].end.finish, s % 2 == 0 ? FinishReason::kStopId : FinishReason::kStopString);
    EXPECT_EQ(together[s].end.finish, alone.end.finish);
    EXPECT_EQ(together[s].end.stop_index, alone.end.stop_index);
    EXPECT_EQ(together[s].end.text, alone.end.text);
    EXPECT_LT(together[s].tokens.size(), static_cast<size_t>(kNew));
    expect_beginning_of(whole[s], together[s], "and of the whole answer");
  }
}

// A step that fails as a whole is tried again by each alone: who needs no memory goes on.
TEST(Batch, RunsOutOfMemoryOneByOne) {
  static TestMemory memory;
  const auto model = load(kWithBeacons, memory.runtime());
  const auto alone = run_alone(model);
  int failures = 0;
  for (const int off_from : {0, 3, 11, 20}) {
    std::vector<std::shared_ptr<Session>> sessions;
    std::vector<std::shared_ptr<GenerationStream>> streams;
    for (const Task& task : kTasks) {
      sessions.push_back(fed(model, task, options_of(task)));
      streams.push_back(take(GenerationStream::open(sessions.back(), generation(task))));
    }
    const auto together =
        read_in_step(*model, streams, [&](int round) { memory.left = round >= off_from ? 0 : INT64_MAX; });
    memory.left = INT64_MAX;
    for (size_t s = 0; s < kSessions; ++s) {
      expect_beginning_of(alone[s], together[s], kTasks[s].strategy);
      if (together[s].status.ok()) continue;
      ++failures;
      EXPECT_EQ(together[s].status.code(), Code::kOutOfMemory);
      StreamOptions options = generation(kTasks[s]);
      options.max_tokens -= static_cast<int64_t>(together[s].tokens.size());
      Tokens all = together[s].tokens;
      const Outcome more = run(sessions[s], options);
      expect_ok(more.status);
      all.insert(all.end(), more.tokens.begin(), more.tokens.end());
      EXPECT_EQ(all, alone[s].tokens) << kTasks[s].strategy;
    }
  }
  EXPECT_GT(failures, 0);
}

// Readers at their own pace: who shares steps with whom changes all the time.
TEST(Batch, CompanyMayChange) {
  const auto model = load(kWithBeacons, 2);
  const auto alone = run_alone(model);
  std::vector<Outcome> together(kSessions);
  std::vector<std::thread> readers;
  for (size_t s = 0; s < kSessions; ++s) {
    readers.emplace_back([&, s] {
      for (int round = 0; round < 3; ++round) {
        together[s] = run(fed(model, kTasks[s], options_of(kTasks[s])), generation(kTasks[s]));
      }
    });
  }
  for (auto& reader : readers) reader.join();
  for (size_t s = 0; s < kSessions; ++s) {
    EXPECT_EQ(together[s].tokens, alone[s].tokens) << kTasks[s].strategy;
    EXPECT_EQ(together[s].logprobs, alone[s].logprobs) << kTasks[s].strategy;
  }
}

}  // namespace
}  // namespace quire::test
