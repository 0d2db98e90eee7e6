// Sessions of one model on several threads, with other threads calling whatever is any-thread.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/abi/harness.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64;
constexpr int64_t kNew = 30;

struct Task {
  const char* strategy;
  size_t prompt;
  float temperature;
};

constexpr std::array<Task, 5> kTasks{{{"full", 90, 0},
                                      {"dca", 300, 0.8f},
                                      {"streaming_llm(sinks=4, recent=60)", 200, 0},
                                      {"full + ntk(factor=4)", 150, 1.2f},
                                      {"longheads(chunk=16, chunks=4)", 170, 0.9f}}};

std::vector<int32_t> run(quire_session* session, const Task& task) {
  quire_stream_options options = greedy(kNew);
  options.temperature = task.temperature;
  options.seed = 11;
  const Generated run = generate(session, options);
  EXPECT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
  return run.tokens;
}

std::vector<int32_t> run_alone(quire_model* model, const Task& task) {
  const auto session = make_session(model, task.strategy, 40);
  feed(session.get(), some_tokens(task.prompt, kVocab));
  return run(session.get(), task);
}

class Concurrency : public testing::Test {
 protected:
  Owned<quire_runtime> runtime_ = make_runtime(2);
  Owned<quire_model> model_ = load_model(runtime_.get(), "short_128");
};

TEST_F(Concurrency, SessionsGiveTheTokensTheyGiveAlone) {
  std::array<std::vector<int32_t>, kTasks.size()> alone, together;
  for (size_t t = 0; t < kTasks.size(); ++t) alone[t] = run_alone(model_.get(), kTasks[t]);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kTasks.size(); ++t) {
      threads.emplace_back([&, t] { together[t] = run_alone(model_.get(), kTasks[t]); });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(together, alone);
  }
}

// One of every any-thread call. Statuses may differ with the moment; races and crashes may not be.
void hammer_session(const quire_session* session) {
  char text[256];
  size_t needed = 0;
  const auto [n_tokens, n_pending] = position(session);
  EXPECT_GE(n_tokens, 0);
  EXPECT_GE(n_pending, 0);
  const quire_tier_stats now = tier_stats(session, QUIRE_TIER_HOST);
  EXPECT_LE(now.bytes, now.bytes_peak);
  EXPECT_GE(stats(session).n_tokens, 0);
  EXPECT_EQ(quire_session_get_strategy(session, text, sizeof text, &needed, nullptr), QUIRE_OK);
}

void hammer_model(quire_model* model, const quire_tokenizer* tokenizer) {
  int32_t ids[16];
  char text[256];
  double matrix[4];
  size_t needed = 0;
  quire_model_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(quire_model_get_info(model, &info, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_model_get_metadata(model, "tokenizer", 9, text, sizeof text, &needed, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_tokenizer_encode(tokenizer, "a leaf", 6, 0, ids, 16, &needed, nullptr), QUIRE_OK);
  EXPECT_EQ(quire_tokenizer_decode(tokenizer, ids, needed, 0, text, sizeof text, &needed, nullptr), QUIRE_OK);
  quire_strategy_options options;
  quire_strategy_options_init(&options, sizeof options);
  options.strategy = "dca";
  options.strategy_len = 3;
  options.train_len = 256;
  EXPECT_EQ(quire_strategy_describe(&options, text, sizeof text, &needed, nullptr), QUIRE_OK);
  quire_position_view view;
  quire_position_view_init(&view, sizeof view);
  view.n_queries = view.n_keys = 2;
  EXPECT_EQ(quire_strategy_get_positions(&options, &view, matrix, std::size(matrix), nullptr, nullptr), QUIRE_OK);
}

TEST_F(Concurrency, AnyThreadCallsMeanwhile) {
  const std::vector<int32_t> alone = run_alone(model_.get(), kTasks[1]);
  quire_tokenizer* tokenizer_handle = nullptr;
  ASSERT_EQ(quire_model_get_tokenizer(model_.get(), &tokenizer_handle, nullptr), QUIRE_OK);
  const Owned<quire_tokenizer> tokenizer(tokenizer_handle);
  const auto session = make_session(model_.get(), kTasks[1].strategy, 40);
  const auto cancelled = make_session(model_.get(), "full", 40);
  const auto other = make_session(model_.get(), "full", 40);
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::shared_ptr<quire_stream> current;  // of `cancelled`
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      while (!stop) {
        hammer_session(t % 2 == 0 ? session.get() : cancelled.get());
        if (t < 2) hammer_model(model_.get(), tokenizer.get());
        std::shared_ptr<quire_stream> stream;
        {
          std::lock_guard lock(mutex);
          stream = current;
        }
        if (!stream) continue;
        int64_t handle = 0;
        int32_t kind = 0;
        EXPECT_EQ(quire_stream_get_wait_handle(stream.get(), &handle, &kind, nullptr), QUIRE_OK);
        if (t >= 6) {
          EXPECT_EQ(quire_stream_cancel(stream.get(), nullptr), QUIRE_OK);
        }
      }
    });
  }
  threads.emplace_back([&] {  // a session that is cancelled all the time
    while (!stop) {
      feed(cancelled.get(), some_tokens(50, kVocab));
      const std::shared_ptr<quire_stream> stream(open_stream(cancelled.get(), greedy(10)).release(), Deleter());
      {
        std::lock_guard lock(mutex);
        current = stream;
      }
      const Generated run = read_to_end(stream.get());
      EXPECT_EQ(run.outcome.status, QUIRE_OK) << run.outcome.text();
      EXPECT_EQ(quire_session_reset(cancelled.get(), nullptr), QUIRE_OK);
      std::lock_guard lock(mutex);
      current.reset();
    }
  });
  for (int round = 0; round < 4; ++round) {
    feed(session.get(), some_tokens(kTasks[1].prompt, kVocab));
    EXPECT_EQ(run(session.get(), kTasks[1]), alone);
    EXPECT_EQ(quire_session_reset(session.get(), nullptr), QUIRE_OK);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(position(other.get()), std::make_pair(int64_t{0}, int64_t{0}));
}

// Loading between the steps of a session: neither disturbs the other.
TEST_F(Concurrency, LoadWhileASessionComputes) {
  const std::vector<int32_t> alone = run_alone(model_.get(), kTasks[1]);
  std::atomic<bool> stop{false};
  std::thread loader([&] {
    while (!stop) EXPECT_TRUE(load_model(runtime_.get(), "text_256"));
  });
  for (int round = 0; round < 4; ++round) EXPECT_EQ(run_alone(model_.get(), kTasks[1]), alone);
  stop = true;
  loader.join();
}

}  // namespace
}  // namespace quire::test
