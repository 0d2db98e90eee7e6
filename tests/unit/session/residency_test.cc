// A KV cache in a file gives the bits of one in memory, within its budget.

#include <gtest/gtest.h>

#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

constexpr int64_t kLength = 400;
const std::vector<std::string> kStrategies = {"full",
                                              "dca",
                                              "longheads(chunk=16, chunks=4)",
                                              "longheads(chunk=16, chunks=4, select=group)",
                                              "streaming_llm(sinks=3, recent=50)",
                                              "longheads(chunk=16, chunks=4, positions=dca, dca_chunk=60)",
                                              "dca_topk(chunk=16, chunks=4, one_in=5, dca_chunk=64, reading=selected)",
                                              "longheads(chunk=16, chunks=4, select=first_layer)",
                                              "rerope(window=40)",
                                              "long_mixed(heads=sda2.rolled.shift1, chunk=20)",
                                              "beacon(ratio=2, kv_chunk=16)",
                                              "beacon(window=48, stride=16, sequence=x2.x0.x4, kv_chunk=16)"};

class Residency : public testing::TestWithParam<std::string> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam());
    options.prefill_block = 24;
    return options;
  }
  std::shared_ptr<Model> model_ = load(model_for(GetParam()), 2);
  Tokens tokens_ = random_tokens(*model_, kLength);
};
INSTANTIATE_TEST_SUITE_P(Strategies, Residency, testing::ValuesIn(kStrategies),
                         [](const auto& info) { return "strategy_" + std::to_string(info.index); });

TEST_P(Residency, ChangesNoBit) {
  const Logits expected = all_logits(model_, options(), tokens_);
  RuntimeOptions alone;
  alone.n_threads = 2;
  alone.n_io_threads = -1;
  const auto without_io_thread = load(model_for(GetParam()), std::move(alone));
  const auto roomy = make_session(model_, options());
  ASSERT_TRUE(roomy->feed_tokens(tokens_).ok());
  expect_ok(run(roomy).status);
  const int64_t whole = stats(*roomy).kv_bytes_peak;
  for (const int64_t part : {1, 2}) {
    SessionOptions spilling = options();
    spilling.spill_directory = testing::TempDir();
    spilling.kv_budget_bytes = whole / part;
    EXPECT_TRUE(same_bits(expected, all_logits(model_, spilling, tokens_))) << "1/" << part;
    EXPECT_TRUE(same_bits(expected, all_logits(without_io_thread, spilling, tokens_))) << "1/" << part;
  }
}

TEST(Residencies, OfBlocksThatSeeNothingChangeNoBit) {
  const auto model = load("short_128");
  const Tokens tokens = random_tokens(*model, 200);
  SessionOptions options = with_strategy("long_mixed(heads=rolledx3, mask=slot, chunk=60)");
  options.prefill_block = 24;  // the first 30 queries see nothing
  const Logits expected = all_logits(model, options, tokens);
  options.spill_directory = testing::TempDir();
  EXPECT_TRUE(same_bits(expected, all_logits(model, options, tokens)));
}

// From one byte on, each refusal names the bytes that were missing; with those it gets further, at last to the end.
TEST_P(Residency, ABudgetTooSmallNamesWhatIsNeededAndTheSessionLives) {
  const Logits expected = all_logits(model_, options(), tokens_);
  SessionOptions spilling = options();
  spilling.spill_directory = testing::TempDir();
  spilling.kv_budget_bytes = 1;
  for (int attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 20);
    const auto session = make_session(model_, spilling);
    ASSERT_TRUE(session->feed_tokens(tokens_).ok());
    const Outcome outcome = run(session);
    const SessionStats now = stats(*session);
    EXPECT_LE(now.kv_bytes_peak, spilling.kv_budget_bytes);
    EXPECT_EQ(now.n_tokens + now.n_pending, kLength);
    if (outcome.status.ok()) {
      EXPECT_GT(now.kv_chunks_written, 0);
      EXPECT_TRUE(same_bits(expected, all_logits(model_, spilling, tokens_)));
      break;
    }
    ASSERT_EQ(outcome.status.code(), Code::kBudget) << outcome.status.message();
    const std::string& message = outcome.status.message();
    const int64_t needed = std::stoll(message.substr(message.find("needs ") + 6));
    ASSERT_GT(needed, spilling.kv_budget_bytes) << message;
    spilling.kv_budget_bytes = needed;
  }
}

TEST_P(Residency, TruncatedTextsGoOnAsNewOnes) {
  SessionOptions spilling = options();
  spilling.spill_directory = testing::TempDir();
  const auto roomy = make_session(model_, options());
  ASSERT_TRUE(roomy->feed_tokens(tokens_).ok());
  expect_ok(run(roomy).status);
  spilling.kv_budget_bytes = stats(*roomy).kv_bytes_peak / 2;
  const auto session = make_session(model_, spilling);
  ASSERT_TRUE(session->feed_tokens(tokens_).ok());
  expect_ok(run(session).status);
  const Logits expected = all_logits(model_, options(), tokens_);
  for (const int64_t n : {399, 385, 384, 383, 260, 200, 64, 17, 1}) {
    ASSERT_TRUE(session->truncate(n).ok());
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model_, n - 1), last_logits(*session))) << n;
    const int64_t again = std::min<int64_t>(kLength - n, 40);
    ASSERT_TRUE(
        session->feed_tokens(std::span(tokens_).subspan(static_cast<size_t>(n), static_cast<size_t>(again))).ok());
    expect_ok(run(session).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model_, n + again - 1), last_logits(*session))) << n;
  }
}

// From the smallest budget that serves the text upwards: the bits are the same, and what the runtime allocates while
// the session works is what the statistics say, within the budget.
TEST_P(Residency, NeverTakesMoreThanItsBudget) {
  static TestMemory memory;
  const auto model = load(model_for(GetParam()), memory.runtime());
  const auto holder = make_session(model, options());  // of the RoPE tables, which no budget counts
  const Logits expected = all_logits(model_, options(), tokens_);
  const SpillDirectory directory;
  SessionOptions spilling = options();
  spilling.spill_directory = directory.path();
  spilling.kv_budget_bytes = 1;
  for (int served = 0; served < 8;) {
    const int64_t before = memory.bytes;
    memory.peak = before;
    const auto session = make_session(model, spilling);
    expect_ok(session->feed_tokens(tokens_));
    StreamOptions keep;
    keep.keep_logits = true;
    const Status status = run(session, keep).status;
    const SessionStats now = stats(*session);
    EXPECT_LE(now.kv_bytes_peak, spilling.kv_budget_bytes);
    const bool warm = served % 2 == 1;  // the first run with a budget leaves the scratch memory that it needed
    if (!status.ok()) {
      ASSERT_EQ(status.code(), Code::kBudget) << status.message();
      const std::string& message = status.message();
      spilling.kv_budget_bytes = std::stoll(message.substr(message.find("needs ") + 6));
    } else {
      EXPECT_TRUE(same_bits(expected, kept_logits(*session, 0, kLength))) << spilling.kv_budget_bytes;
      if (warm) {
        EXPECT_EQ(memory.peak - before, now.kv_bytes_peak);
        EXPECT_EQ(memory.bytes - before, now.kv_bytes);
        spilling.kv_budget_bytes += 3000 * served;
      }
      ++served;
    }
    session->close();  // gives its memory back before it returns
  }
  EXPECT_EQ(directory.n_names(), 0);
}

TEST_P(Residency, GeneratesTheSameTokens) {
  const auto generate = [&](const SessionOptions& with) {
    const auto session = make_session(model_, with);
    expect_ok(session->feed_tokens(std::span(tokens_).first(150)));
    const Outcome outcome = run(session, generating(40, 1.0f));
    expect_ok(outcome.status);
    return std::pair(outcome.tokens, outcome.logprobs);
  };
  SessionOptions spilling = options();
  spilling.spill_directory = testing::TempDir();
  const auto roomy = make_session(model_, options());
  expect_ok(roomy->feed_tokens(tokens_));
  expect_ok(run(roomy).status);
  spilling.kv_budget_bytes = stats(*roomy).kv_bytes_peak * 2 / 3;
  EXPECT_EQ(generate(options()), generate(spilling));
}

TEST_P(Residency, AFullDiskEndsTheStreamAndTheSessionLives) {
  const Logits expected = all_logits(model_, options(), tokens_);
  const SpillDirectory directory;
  SessionOptions spilling = options();
  spilling.spill_directory = directory.path();
  const auto session = make_session(model_, spilling);
  expect_ok(session->feed_tokens(tokens_));
  const bool condensed = GetParam().starts_with("beacon");                    // and blocks end where windows do
  const bool bounded = condensed || GetParam().starts_with("streaming_llm");  // the file does not grow with the text
  for (const int64_t disk : {10 << 10, 60 << 10}) {
    const FullDisk full(disk);
    const Outcome outcome = run(session);
    const Position here = position(*session);
    if (!bounded || disk < 20 << 10) {
      EXPECT_EQ(outcome.status.code(), Code::kIo);
      EXPECT_NE(outcome.status.message().find(directory.path()), std::string::npos) << outcome.status.message();
      EXPECT_LT(here.tokens, kLength);
    }
    EXPECT_EQ(here.tokens + here.pending, kLength);
    if (!condensed) {
      EXPECT_EQ(here.tokens % 24 % kLength, here.pending == 0 ? kLength % 24 : 0);
    }
    EXPECT_LE(stats(*session).kv_file_bytes, disk);
    if (here.tokens > 0) {
      EXPECT_TRUE(same_bits(row_of(expected, *model_, here.tokens - 1), last_logits(*session)));
    }
  }
  expect_ok(run(session).status);
  EXPECT_EQ(position(*session), (Position{kLength, 0}));
  EXPECT_TRUE(same_bits(row_of(expected, *model_, kLength - 1), last_logits(*session)));
}

// What one session holds, another cannot; a session that closes gives it back.
TEST(RuntimeBudget, IsSharedByTheSessionsOfARuntime) {
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  const auto probe_model = load("short_128");
  const Tokens tokens = random_tokens(*probe_model, 64);
  const auto probe = make_session(probe_model, with_strategy("full(kv_chunk=16)"));
  expect_ok(probe->feed_tokens(tokens));
  expect_ok(run(probe).status);
  runtime.kv_memory_bytes = stats(*probe).kv_bytes * 3 / 2;
  const auto model = load("short_128", std::move(runtime));
  const auto first = make_session(model, with_strategy("full(kv_chunk=16)"));
  expect_ok(first->feed_tokens(tokens));
  expect_ok(run(first).status);
  const auto second = make_session(model, with_strategy("full(kv_chunk=16)"));
  expect_ok(second->feed_tokens(tokens));
  const Status refused = run(second).status;
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find("the runtime's budget is " + std::to_string(stats(*probe).kv_bytes * 3 / 2)),
            std::string::npos)
      << refused.message();
  first->close();
  expect_ok(run(second).status);
  EXPECT_TRUE(same_bits(last_logits(*probe), last_logits(*second)));
}

// Representations alone outgrow the budget in mid-text, where a page for 64 chunks more does not fit: that is said in
// bytes between two blocks, and the session that stands there saves, forks, and goes on with more.
TEST(RepresentationBudgets, StopBetweenBlocksAndGoOnWithMore) {
  constexpr int64_t kText = 2500, kPage = 16 * Representations::kPageChunks, kBlock = 40;
  const TemporaryFolder folder;
  const SpillDirectory directory;
  const std::string path = folder.path() + "/refused.quire";
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  const auto model = load("short_128", std::move(runtime));
  SessionOptions options = with_strategy("longheads(chunk=16, chunks=4)");
  options.prefill_block = kBlock;
  const Tokens tokens = random_tokens(*model, kText);
  const auto from = [&](int64_t first) { return std::span(tokens).subspan(static_cast<size_t>(first)); };
  const auto rest_of = [&](const Logits& all, int64_t first) {
    return std::span(all).subspan(static_cast<size_t>(first * vocab_size(*model)));
  };
  StreamOptions keep;
  keep.keep_logits = true;
  const Logits expected = all_logits(model, options, tokens);
  const auto beside_records = [&](int64_t n) {  // representations, and the queries of the chunk in progress
    const auto session = make_session(model, options);
    expect_ok(session->feed_tokens(from(0).first(static_cast<size_t>(n))));
    expect_ok(run(session).status);
    return stats(*session).kv_bytes - stats(*session).kv_full_bytes;
  };
  const int64_t one_page = beside_records(kPage), page = beside_records(kPage + 1) - one_page;
  ASSERT_GT(page, 0);
  options.spill_directory = directory.path();
  for (const int64_t n_pages : {1, 2}) {
    SCOPED_TRACE(n_pages);
    // All that a step needs beside so many pages, and most of another page.
    SessionOptions small = options;
    small.kv_budget_bytes = one_page + n_pages * page - 1;
    const auto session = make_session(model, small);
    ASSERT_LT(stats(*session).kv_record_bytes * 8, page);
    expect_ok(session->feed_tokens(tokens));
    const Outcome refused = run(session, keep);
    const int64_t n = n_pages * kPage / kBlock * kBlock;  // and not at the end of a chunk
    ASSERT_NE(n % 16, 0);
    ASSERT_EQ(refused.status.code(), Code::kBudget) << refused.status.message();
    const std::string& message = refused.status.message();
    const auto at = message.find("needs ");
    ASSERT_NE(at, std::string::npos) << message;
    const int64_t needed = std::stoll(message.substr(at + 6));
    EXPECT_GT(needed, small.kv_budget_bytes) << message;
    EXPECT_LT(needed, small.kv_budget_bytes + page) << message;
    EXPECT_NE(message.find(" bytes of memory for " + std::to_string(n + kBlock) + " tokens"), std::string::npos)
        << message;
    EXPECT_NE(message.find("budget is " + std::to_string(small.kv_budget_bytes)), std::string::npos) << message;
    ASSERT_EQ(position(*session), (Position{n, kText - n}));
    EXPECT_LE(stats(*session).kv_bytes_peak, small.kv_budget_bytes);
    EXPECT_TRUE(
        same_bits(std::span(expected).first(static_cast<size_t>(n * vocab_size(*model))), kept_logits(*session, 0, n)));

    // A fork has the same pages, and the same budget: it is refused what the session is, and cut it goes on.
    const auto fork = take(session->fork());
    ASSERT_EQ(position(*fork), (Position{n, kText - n}));
    EXPECT_EQ(run(fork).status.code(), Code::kBudget);
    ASSERT_EQ(position(*fork), (Position{n, kText - n}));
    expect_ok(fork->truncate(n - 100));
    expect_ok(fork->feed_tokens(from(n - 100).first(90)));
    expect_ok(run(fork).status);
    EXPECT_TRUE(same_bits(row_of(expected, *model, n - 11), last_logits(*fork)));

    // With the bytes that the message names it comes into the next page, and with as much as it likes to the end.
    expect_ok(session->save(path, {}));
    for (const int64_t budget : {needed, int64_t{0}}) {
      SCOPED_TRACE(budget);
      LoadOptions more;
      more.session.spill_directory = directory.path();
      more.session.prefill_block = kBlock;
      more.session.kv_budget_bytes = budget;
      const auto loaded = take(Session::load(model, path, more));
      ASSERT_EQ(position(*loaded), (Position{n, kText - n}));
      const Status status = run(loaded, keep).status;
      const int64_t end = position(*loaded).tokens;
      EXPECT_EQ(status.code(), budget > 0 && n_pages == 1 ? Code::kBudget : Code::kOk) << status.message();
      EXPECT_EQ(end, budget > 0 && n_pages == 1 ? 2 * kPage / kBlock * kBlock : kText);
      const Logits rest = kept_logits(*loaded, n, end - n);
      EXPECT_TRUE(same_bits(rest_of(expected, n).first(rest.size()), rest));
    }
    // The session that was refused is as it was.
    EXPECT_EQ(run(session).status.code(), Code::kBudget);
    EXPECT_TRUE(same_bits(row_of(expected, *model, n - 1), last_logits(*session)));
  }
}

// Likewise where another session holds the rest of the runtime's memory, until it closes.
TEST(RepresentationBudgets, OfTheRuntimeGrowWhenAnotherSessionEnds) {
  constexpr int64_t kText = 2500;
  const SpillDirectory directory;
  SessionOptions options = with_strategy("longheads(chunk=16, chunks=4)");
  options.prefill_block = 40;
  int64_t whole = 0;
  Tokens tokens;
  Logits expected;
  {
    const auto model = load("short_128");
    tokens = random_tokens(*model, kText);
    expected = all_logits(model, options, tokens);
    const auto probe = make_session(model, options);
    expect_ok(probe->feed_tokens(tokens));
    expect_ok(run(probe).status);
    whole = stats(*probe).kv_bytes - stats(*probe).kv_full_bytes;  // of three pages
  }
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  runtime.kv_memory_bytes = 2 * whole;
  const auto model = load("short_128", std::move(runtime));
  options.spill_directory = directory.path();
  const auto first = make_session(model, options), second = make_session(model, options);
  for (const auto& session : {first, second}) expect_ok(session->feed_tokens(random_tokens(*model, kText)));
  expect_ok(run(first).status);
  const Outcome refused = run(second);
  ASSERT_EQ(refused.status.code(), Code::kBudget) << refused.status.message();
  EXPECT_NE(refused.status.message().find("the runtime's budget is " + std::to_string(2 * whole)), std::string::npos)
      << refused.status.message();
  const Position here = position(*second);
  EXPECT_EQ(here, (Position{2040, kText - 2040}));
  EXPECT_TRUE(same_bits(row_of(expected, *model, here.tokens - 1), last_logits(*second)));
  first->close();
  StreamOptions keep;
  keep.keep_logits = true;
  expect_ok(run(second, keep).status);
  const Logits rest = kept_logits(*second, here.tokens, here.pending);
  EXPECT_TRUE(same_bits(std::span(expected).last(rest.size()), rest));
}

TEST(SpillDirectories, MustBeThereAndWritable) {
  const auto model = load("short_128");
  const SpillDirectory directory;
  SessionOptions spilling = with_strategy("full");
  spilling.spill_directory = directory.path() + "/missing";
  EXPECT_EQ(Session::create(model, spilling).status().code(), Code::kNotFound);
  spilling.spill_directory = directory.path();
  {
    const WithoutRights nobody(directory.path());
    const Status refused = Session::create(model, spilling).status();
    EXPECT_EQ(refused.code(), Code::kIo);
    EXPECT_NE(refused.message().find(directory.path()), std::string::npos) << refused.message();
  }
  EXPECT_TRUE(Session::create(model, spilling).ok());
}

TEST(SpillDirectories, ASpillBudgetIsNamedToo) {
  const auto model = load("short_128");
  const SpillDirectory directory;
  SessionOptions spilling = with_strategy("full(kv_chunk=16)");
  spilling.spill_directory = directory.path();
  spilling.spill_budget_bytes = 50000;
  spilling.prefill_block = 16;
  const auto session = make_session(model, spilling);
  expect_ok(session->feed_tokens(random_tokens(*model, kLength)));
  const Outcome outcome = run(session);
  EXPECT_EQ(outcome.status.code(), Code::kBudget);
  EXPECT_NE(outcome.status.message().find("50000"), std::string::npos) << outcome.status.message();
  EXPECT_LE(stats(*session).kv_file_bytes, 50000);
  const Position here = position(*session);
  EXPECT_GT(here.tokens, 0);
  EXPECT_EQ(here.tokens % 16, 0);
  expect_ok(session->discard_pending());
  expect_ok(session->truncate(here.tokens - 20));  // makes room for other tokens
  EXPECT_EQ(run(session, generating(5)).tokens.size(), 5u);
}

}  // namespace
}  // namespace quire::test
