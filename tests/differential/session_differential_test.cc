// How a text came to a session never shows: cut into calls, blocks, batches and budgets, generated and fed, cancelled,
// truncated and fed again, it leaves the logits and tokens of a fresh session that reads what is left of it at once.
//
// QUIRE_DIFFERENTIAL_SEED repeats the calls of one run, though not where a cancel met the computation.
// QUIRE_DIFFERENTIAL_RUNS=n makes n runs of fresh seeds, which a failure names.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/differential/traced_session.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kFixedSeeds = 60;
#else
constexpr int kFixedSeeds = 500;
#endif
constexpr int kCalls = 60;
constexpr int64_t kLongest = 400;  // tokens of a session, more or less

class Sequence {
 public:
  explicit Sequence(uint32_t seed)
      : dice_(seed),
        kind_(static_cast<ModelKind>(dice_.below(3))),
        runtime_(make_runtime(static_cast<int32_t>(dice_.between(1, 3)))),
        other_runtime_(make_runtime(static_cast<int32_t>(dice_.between(1, 2)))),
        model_(load(runtime_.get())),
        other_(load(other_runtime_.get())) {
    quire_tokenizer* tokenizer = nullptr;
    EXPECT_EQ(quire_model_get_tokenizer(model_.get(), &tokenizer, nullptr), QUIRE_OK);
    tokenizer_.reset(tokenizer);
    vocab_ = quire_tokenizer_get_vocab_size(tokenizer);
    for (const size_t n = 2 + dice_.below(4); at_ < n; ++at_) sessions_.push_back(new_session());
  }

  void run() {
    for (int call = 0; call < kCalls && !testing::Test::HasFailure(); ++call) {
      at_ = dice_.below(sessions_.size());
      if (dice_.one_in(6)) {
        read_all_in_turn();
      } else if (session().busy()) {
        call_busy();
      } else {
        call_idle();
      }
    }
    for (at_ = 0; at_ < sessions_.size() && !testing::Test::HasFailure(); ++at_) {
      StreamPlan last = random_stream(dice_, vocab_);
      last.max_tokens = dice_.between(1, 12);
      say("compares, then " + last.text());
      session().compare(other_.get(), last);
    }
  }

  const std::string& calls() const { return calls_; }

 private:
  TracedSession& session() { return *sessions_[at_]; }
  void say(const std::string& what) { calls_ += "  " + std::to_string(at_) + ": " + what + "\n"; }
  Owned<quire_model> load(quire_runtime* runtime) const {
    if (kind_ == ModelKind::kBeacon) return load_beacon_model(runtime);
    return load_model(runtime, kind_ == ModelKind::kShort ? "short_128" : "mistral_window_64");
  }
  std::unique_ptr<TracedSession> new_session() {
    SessionPlan plan = random_session(dice_, kind_, directory_.path());
    say("created: " + plan.text());
    return std::make_unique<TracedSession>(model_.get(), tokenizer_.get(), std::move(plan));
  }
  std::vector<int32_t> some_ids() {
    const size_t most = dice_.one_in(4) ? 120 : 20;
    return some_tokens(dice_.below(most), vocab_, static_cast<uint32_t>(dice_.below(1000)));
  }

  void call_idle() {
    if (session().length() > kLongest) return truncate();
    switch (dice_.below(10)) {
      case 0:
      case 1: {
        const auto ids = some_ids();
        say("feeds " + std::to_string(ids.size()) + " tokens");
        return session().feed_tokens(ids);
      }
      case 2: {
        const std::string text = random_text(dice_);
        const uint32_t flags = static_cast<uint32_t>(dice_.below(4));  // PARSE_SPECIAL, NO_BOS
        say("feeds text of " + std::to_string(text.size()) + " bytes, flags " + std::to_string(flags));
        return session().feed_text(text, flags);
      }
      case 3: {
        if (!session().takes_positions()) return;
        const auto ids = some_ids();
        const int64_t gap = dice_.between(0, 5);
        say("feeds " + std::to_string(ids.size()) + " tokens after a gap of " + std::to_string(gap));
        return session().feed_positions(ids, gap);
      }
      case 4:
        return truncate();
      case 5:
        if (dice_.one_in(3)) {
          say("discards what is pending");
          session().discard_pending();
        } else if (dice_.one_in(4)) {
          say("is reset");
          session().reset();
        } else if (dice_.one_in(4)) {
          sessions_[at_] = new_session();
        }
        return;
      default: {
        const StreamPlan plan = random_stream(dice_, vocab_);
        say("opens a stream: " + plan.text());
        session().open(plan);
        if (session().busy() && dice_.one_in(4)) call_busy();
      }
    }
  }

  void truncate() {
    const int64_t n = dice_.between(0, session().length());
    say("is cut to " + std::to_string(n) + " of " + std::to_string(session().length()));
    session().truncate(n);
  }

  void call_busy() {
    switch (dice_.below(8)) {
      case 0:
        say("cancels");
        return session().cancel();
      case 1:
        say("closes its stream");
        return session().close_stream();
      case 2:
        say("releases its stream");
        return session().release_stream();
      case 3:
        say("is busy");
        return session().expect_busy();
      default: {
        const int64_t n = dice_.one_in(3) ? 1000 : dice_.between(1, 6);
        say("reads " + std::to_string(n) + " tokens");
        return session().read(n);
      }
    }
  }

  // Streams that are read in turn decode together.
  void read_all_in_turn() {
    for (int64_t n = dice_.between(1, 8); n > 0; --n) {
      for (size_t s = 0; s < sessions_.size(); ++s) {
        if (sessions_[s]->busy()) sessions_[s]->read(1);
      }
    }
    say("and all others read in turn");
  }

  Dice dice_;
  const ModelKind kind_;
  const SpillDirectory directory_;
  const Owned<quire_runtime> runtime_, other_runtime_;
  const Owned<quire_model> model_, other_;
  Owned<quire_tokenizer> tokenizer_;
  int32_t vocab_ = 0;
  std::string calls_;
  size_t at_ = 0;
  std::vector<std::unique_ptr<TracedSession>> sessions_;
};

void run_seed(uint32_t seed) {
  SCOPED_TRACE("QUIRE_DIFFERENTIAL_SEED=" + std::to_string(seed));
  Sequence sequence(seed);
  sequence.run();
  if (testing::Test::HasFailure()) {
    ADD_FAILURE() << "after these calls, each with the number of its session:\n" << sequence.calls();
  }
}

TEST(SessionDifferential, AFreshSessionSaysTheSame) {
  if (const char* seed = std::getenv("QUIRE_DIFFERENTIAL_SEED")) {
    return run_seed(static_cast<uint32_t>(std::strtoul(seed, nullptr, 10)));
  }
  const char* fresh = std::getenv("QUIRE_DIFFERENTIAL_RUNS");
  const int n = fresh ? std::atoi(fresh) : kFixedSeeds;
  const uint32_t first = fresh ? std::random_device()() : 1;
  if (fresh) std::printf("%d seeds from %u on\n", n, first);
  for (int run = 0; run < n && !HasFailure(); ++run) run_seed(first + static_cast<uint32_t>(run));
}

}  // namespace
}  // namespace quire::test
