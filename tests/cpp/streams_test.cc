// Streams: what comes, how it ends, and who may stop it.
#include <poll.h>

#include <algorithm>
#include <thread>

#include "tests/cpp/with_model.h"

namespace quire_cpp {
namespace {

using quire::Event;
using quire::EventKind;
using quire::Finish;
using quire::Status;
using std::chrono::milliseconds;

class Streams : public WithModel {};

TEST_F(Streams, AreInputRanges) {
  quire::Session reader = fed("Every chapter began with a map.");
  const int64_t n_prompt = reader.token_counts().value().n_pending;
  auto stream = quire::Stream::open(reader, go(5)).value();
  const auto token =
      std::find_if(stream.begin(), stream.end(), [](const Event& event) { return event.kind() == EventKind::kToken; });
  ASSERT_NE(token, stream.end());
  EXPECT_EQ(token->n_tokens(), n_prompt + 1);
  EXPECT_LT(token->logprob(), 0);
  Finish finish = Finish::kNone;
  for (const Event& event : stream) finish = event.finish();
  EXPECT_EQ(finish, Finish::kMaxTokens);
  EXPECT_EQ(stream.failure(), std::nullopt);
  EXPECT_EQ(stream.begin(), stream.end());
  EXPECT_EQ(reader.token_counts().value().n_tokens, n_prompt + 5);
}

TEST_F(Streams, TextOfAllEvents) {
  quire::Session first = fed("Rain fell on the harbour all night."),
                 second = fed("Rain fell on the harbour all night.");
  quire::StreamOptions options = go(24);
  options.temperature = 1;
  options.top_k = 40;
  options.seed = 7;
  const std::string text = quire::Stream::open(first, options).value().read_all().value();
  std::string pieces;
  auto stream = quire::Stream::open(second, options).value();
  for (const Event& event : stream) pieces += event.text();
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text, pieces);
}

TEST_F(Streams, ProgressAndNotices) {
  quire::SessionOptions options;
  options.expected_tokens = 100;
  quire::Session reader = session("auto", options);
  reader.feed_tokens(some_ids(40)).value();
  auto stream = quire::Stream::open(reader, go(2)).value();
  auto event = stream.begin();
  EXPECT_EQ(event->kind(), EventKind::kNotice);
  EXPECT_EQ(event->code(), quire::MessageCode::kAutoChoice);
  EXPECT_THAT(std::string(event->message()), testing::HasSubstr(reader.strategy().value()));
  ++event;
  EXPECT_EQ(event->kind(), EventKind::kPrefill);
  EXPECT_EQ(event->total(), 40);
  EXPECT_LE(event->done() + event->reused() + event->moved(), 40);
  EXPECT_GE(event->n_per_second(), 0);
  EXPECT_EQ(event->reuse_miss(), quire::ReuseMiss::kComplete);  // there is not one whole chunk
}

TEST_F(Streams, Stops) {
  const std::string prompt = "The reader turns the leaves";
  quire::Session plain = fed(prompt);
  const auto tokens = generate(plain, go(12));
  quire::StreamOptions options = go(12);
  options.stop_ids = {tokens[3]};
  quire::Session by_id = fed(prompt);
  auto stream = quire::Stream::open(by_id, options).value();
  Event last;
  for (const Event& event : stream) last = event;
  EXPECT_EQ(last.finish(), Finish::kStopId);
  EXPECT_EQ(last.token(), tokens[3]);

  quire::Session again = fed(prompt), by_text = fed(prompt);
  const std::string whole = quire::Stream::open(again, go(12)).value().read_all().value();
  options = go(12);
  options.stop_strings = {"never this, surely", whole.substr(whole.size() / 2)};
  auto cut = quire::Stream::open(by_text, options).value();
  std::string text;
  for (const Event& event : cut) {
    text += event.text();
    last = event;
  }
  EXPECT_EQ(last.finish(), Finish::kStopString);
  EXPECT_EQ(last.stop_index(), 1);
  EXPECT_EQ(text, whole.substr(0, whole.find(options.stop_strings[1])));

  quire::Session later = fed(prompt);
  auto added = quire::Stream::open(later, go(12)).value();
  added.add_stop_ids({tokens[5]}).value();
  added.add_stop_strings({"never this, surely"}).value();
  for (const Event& event : added) last = event;
  EXPECT_EQ(last.finish(), Finish::kStopId);
}

TEST_F(Streams, Sampling) {
  const std::string prompt = "The reader turns the leaves";
  const auto tokens = [&](const quire::StreamOptions& options) {
    quire::Session reader = fed(prompt);
    return generate(reader, options);
  };
  quire::StreamOptions simple = go(12), chain = go(12);
  simple.temperature = 0.9f;
  simple.top_k = 30;
  simple.seed = chain.seed = 4;
  chain.samplers = {{quire::SamplerKind::kTemperature, 0, 0, 0.9f}, {quire::SamplerKind::kTopK, 30}};
  EXPECT_EQ(tokens(simple), tokens(chain));
  const auto greedy = tokens(go(12));
  quire::StreamOptions biased = go(12);
  biased.logit_bias = {{greedy[0], -INFINITY}};
  EXPECT_NE(tokens(biased)[0], greedy[0]);
  for (const auto& breakers : {std::vector<std::string>{}, std::vector<std::string>{"\n", "e"}}) {
    quire::StreamOptions dry = go(12);
    dry.samplers = {{quire::SamplerKind::kDry, 0, 2, 0.8f, 1.75f}, {quire::SamplerKind::kTopK, 1}};
    dry.dry_breakers = breakers;
    EXPECT_EQ(tokens(dry).size(), 12u);
  }
  quire::StreamOptions held = go(12);
  held.stop_ids = {greedy[0]};
  held.min_tokens = 3;
  EXPECT_GE(tokens(held).size(), 3u);
  quire::StreamOptions drafts = go(12);
  drafts.draft_tokens = 8;
  drafts.draft_match = 1;
  drafts.max_undelivered = 8;
  EXPECT_EQ(tokens(drafts), greedy);
}

TEST_F(Streams, TopLogprobs) {
  quire::Session reader = fed("The reader turns the leaves");
  quire::StreamOptions options = go(3);
  options.n_top_logprobs = 4;
  auto stream = quire::Stream::open(reader, options).value();
  for (const Event& event : stream) {
    if (event.kind() != EventKind::kToken) continue;
    ASSERT_EQ(event.top_logprobs().size(), 4u);
    EXPECT_EQ(event.top_logprobs()[0].token, event.token());
  }
}

TEST_F(Streams, Constrained) {
  quire::Session reader = fed("The reader turns the leaves");
  quire::StreamOptions options = go(3);
  options.constrain = true;
  auto stream = quire::Stream::open(reader, options).value();
  std::vector<uint32_t> allowed(10);
  allowed[17 / 32] = 1u << 17;
  std::vector<int32_t> tokens;
  stream.allow(allowed).value();
  for (const Event& event : stream) {
    if (event.kind() != EventKind::kToken) continue;
    tokens.push_back(event.token());
    if (tokens.size() == 1) {
      stream.allow(allowed).value();
    } else if (tokens.size() == 2) {
      stream.allow({}).value();
    }
  }
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0], 17);
  EXPECT_EQ(tokens[1], 17);
}

// A text that takes far longer than any of the tests waits for.
class LongPrompt : public Streams {
 protected:
  LongPrompt() {
    quire::SessionOptions options;
    options.prefill_block = 16;
    long_ = session("dca", options);
    long_.feed_tokens(some_ids(kTokens)).value();
  }
  void expect_cut() {
    const auto counts = long_.token_counts().value();
    EXPECT_EQ(counts.n_tokens + counts.n_pending, kTokens);
    EXPECT_GT(counts.n_pending, 0);
  }

  static constexpr int kTokens = 200'000;
  quire::Session long_;
};

TEST_F(LongPrompt, CancelledFromAnotherThread) {
  auto stream = quire::Stream::open(long_, go(10)).value();
  std::thread other;
  Event last;
  for (const Event& event : stream) {
    last = event;
    // Reading has begun: another thread, with a reference of its own, stops it.
    if (!other.joinable()) other = std::thread([mine = stream]() mutable { mine.cancel().value(); });
  }
  other.join();
  EXPECT_EQ(last.finish(), Finish::kCancelled);
  EXPECT_EQ(stream.failure(), std::nullopt);
  expect_cut();
}

TEST_F(LongPrompt, ClosedFromAnotherThread) {
  auto stream = quire::Stream::open(long_, go(10)).value();
  std::thread other;
  for (const Event& event : stream) {
    if (event.kind() == EventKind::kPrefill && !other.joinable()) {
      other = std::thread([mine = stream]() mutable { mine.close().value(); });
    }
  }
  other.join();
  // Whether the loop saw the stream's end or found it closed is a matter of luck; afterwards it is closed.
  EXPECT_EQ(status(stream.read_all()), Status::kClosed);
  expect_cut();
}

TEST_F(LongPrompt, Deadline) {
  quire::StreamOptions options;
  options.deadline = milliseconds(20);
  auto stream = quire::Stream::open(long_, options).value();
  Event last;
  for (const Event& event : stream) last = event;
  EXPECT_EQ(last.finish(), Finish::kDeadline);
  expect_cut();
}

TEST_F(LongPrompt, TimeoutAndWaitHandle) {
  auto stream = quire::Stream::open(long_).value();
  Event event;
  while (stream.next(&event, milliseconds(0)).value() != Status::kTimeout) continue;  // until nothing waits
  const quire::WaitHandle handle = stream.wait_handle().value();
  ASSERT_EQ(handle.kind, quire::WaitKind::kFd);
  pollfd waiting = {static_cast<int>(handle.handle), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 60'000), 1);
  EXPECT_EQ(stream.next(&event, milliseconds(0)).value(), Status::kOk);
  stream.cancel().value();
  while (event.kind() != EventKind::kEnd) EXPECT_EQ(stream.next(&event, milliseconds(-1)).value(), Status::kOk);
  EXPECT_EQ(stream.next(&event, milliseconds::max()).value(), Status::kEnd);
}

TEST_F(LongPrompt, LeavingTheLoopEarlyLosesNothing) {
  {
    auto stream = quire::Stream::open(long_, go(10)).value();
    EXPECT_NE(stream.begin(), stream.end());
  }
  expect_cut();
}

TEST_F(Streams, EightAtOnce) {
  std::vector<quire::Session> sessions;
  std::vector<std::vector<int32_t>> expected, found(8);
  for (int i = 0; i < 8; ++i) {
    quire::Session alone = fed("Chapter " + std::to_string(i));
    expected.push_back(generate(alone, go(20)));
    sessions.push_back(fed("Chapter " + std::to_string(i)));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 8; ++i) threads.emplace_back([&, i] { found[i] = generate(sessions[i], go(20)); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace quire_cpp
