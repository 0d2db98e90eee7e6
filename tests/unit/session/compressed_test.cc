// A KV cache partly in compressed memory, alone or before a file, gives the bits of one in memory, within its budgets.

#include <gtest/gtest.h>

#include "lib/kv/compressed_tier.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

constexpr int64_t kLength = 300;

struct Case {
  const char* strategy;
  ElementType kv_type;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.strategy << ", " << element_name(c.kv_type); }
const Case kCases[] = {{"full(kv_chunk=16)", ElementType::kBF16},
                       {"dca(kv_chunk=16)", ElementType::kF16},
                       {"longheads(chunk=16, chunks=4)", ElementType::kF32},
                       {"streaming_llm(sinks=3, recent=50, kv_chunk=16)", ElementType::kBF16},
                       {"beacon(ratio=2, kv_chunk=16)", ElementType::kF16}};

class Compressed : public testing::TestWithParam<Case> {
 protected:
  Compressed() {
    const auto roomy = make_session(model_, options());
    expect_ok(roomy->feed_tokens(tokens_));
    StreamOptions keep;
    keep.keep_logits = true;
    expect_ok(run(roomy, keep).status);
    expected_ = kept_logits(*roomy, 0, kLength);
    whole_ = stats(*roomy).kv_bytes_peak;
    record_ = stats(*roomy).kv_record_bytes;
  }

  SessionOptions options() const {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.kv_type = GetParam().kv_type;
    options.prefill_block = 24;
    return options;
  }
  // Of compressed memory for so many records that do not compress.
  int64_t room_for(int64_t records) const {
    return CompressedTier::most_bytes(record_, static_cast<int64_t>(element_bytes(GetParam().kv_type)), records);
  }
  // Two thirds of it in memory; so much compressed; the rest in a file, or nowhere.
  SessionOptions compressing(int64_t compressed, bool file) const {
    SessionOptions options = this->options();
    options.kv_budget_bytes = whole_ * 2 / 3;
    options.compressed_budget_bytes = compressed;
    if (file) options.spill_directory = directory_.path();
    return options;
  }
  // Records leave memory, unless the strategy drops most of them itself.
  bool leaves() const { return std::string(GetParam().strategy).find("streaming") == std::string::npos; }

  std::shared_ptr<Model> model_ = load(model_for(GetParam().strategy), 2);
  Tokens tokens_ = random_tokens(*model_, kLength);
  Logits expected_;
  int64_t whole_ = 0, record_ = 0;
  SpillDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(Cases, Compressed, testing::ValuesIn(kCases),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

TEST_P(Compressed, ChangesNoBit) {
  RuntimeOptions alone;
  alone.n_threads = 2;
  alone.n_io_threads = -1;
  const auto without_io_thread = load(model_for(GetParam().strategy), std::move(alone));
  for (const auto& model : {model_, without_io_thread}) {
    for (const auto& [records, file] :
         {std::pair(1, true), std::pair(9, true), std::pair(400, true), std::pair(400, false)}) {
      SCOPED_TRACE(std::to_string(records) + (file ? " records and a file" : " records"));
      const auto session = make_session(model, compressing(room_for(records), file));
      expect_ok(session->feed_tokens(tokens_));
      StreamOptions keep;
      keep.keep_logits = true;
      expect_ok(run(session, keep).status);
      ASSERT_TRUE(same_bits(expected_, kept_logits(*session, 0, kLength)));
      const SessionStats now = stats(*session);
      EXPECT_LE(now.kv_bytes_peak, whole_ * 2 / 3);
      EXPECT_LE(now.kv_compressed.bytes_peak, room_for(records));
      if (!leaves()) continue;
      EXPECT_GT(now.kv_compressed.bytes_written, 0);
      if (records == 400) {
        EXPECT_GT(now.kv_compressed.n_hits, 0);
        EXPECT_EQ(now.kv_compressed.n_evicted, 0);
        if (!file) {
          EXPECT_EQ(now.kv_compressed.n_misses + now.kv_chunks_in_file, 0);
        }
      } else {
        EXPECT_GT(now.kv_compressed.n_evicted, 0);
        if (records == 1) {  // otherwise it may have been dropped with its text
          EXPECT_GT(now.kv_chunks_in_file, 0);
        }
        EXPECT_EQ(now.kv_compressed.n_misses, now.kv_chunks_read);
      }
    }
  }
}

// Alone, from one byte on: each refusal names the bytes that were missing, the session lives, and with those it gets
// further, at last to the end.
TEST_P(Compressed, ABudgetTooSmallNamesWhatIsNeededAndTheSessionLives) {
  SessionOptions small = compressing(1, false);
  for (int attempt = 0;; ++attempt) {
    ASSERT_LT(attempt, 60);
    auto made = Session::create(model_, small);
    Status status = made.status();
    if (made.ok()) {
      const auto session = *made;
      expect_ok(session->feed_tokens(tokens_));
      StreamOptions keep;
      keep.keep_logits = true;
      status = run(session, keep).status;
      const Position here = position(*session);
      EXPECT_LE(stats(*session).kv_compressed.bytes_peak, small.compressed_budget_bytes);
      EXPECT_EQ(here.tokens + here.pending, kLength);
      if (here.tokens > 0) {
        EXPECT_TRUE(same_bits(row_of(expected_, *model_, here.tokens - 1), last_logits(*session)));
      }
      if (status.ok()) break;
    }
    ASSERT_EQ(status.code(), Code::kBudget) << status.message();
    const std::string& message = status.message();
    ASSERT_NE(message.find("of compressed memory"), std::string::npos) << message;
    const int64_t needed = std::stoll(message.substr(message.find("needs ") + 6));
    ASSERT_GT(needed, small.compressed_budget_bytes) << message;
    small.compressed_budget_bytes = needed;
  }
}

// What the runtime allocates while the session works is within both budgets, and is what the statistics say.
TEST_P(Compressed, NeverTakesMoreThanItsBudgets) {
  static TestMemory memory;
  const auto model = load(model_for(GetParam().strategy), memory.runtime());
  const auto holder = make_session(model, options());  // of the RoPE tables, which no budget counts
  for (const auto& [records, file] : {std::pair(2, true), std::pair(30, true), std::pair(400, false)}) {
    int64_t scratch = 0;
    for (const bool warm : {false, true}) {  // the first run leaves the scratch memory that it needed
      const int64_t before = memory.bytes;
      memory.peak = before;
      const SessionOptions with = compressing(room_for(records), file);
      const auto session = make_session(model, with);
      expect_ok(session->feed_tokens(tokens_));
      expect_ok(run(session).status);
      const SessionStats now = stats(*session);
      EXPECT_LE(now.kv_compressed.bytes_peak, with.compressed_budget_bytes);
      if (warm) {
        // By how many records came in time, and rows of logits.
        const int64_t grown = now.scratch_bytes - scratch + logits_row_bytes(*model);
        EXPECT_LE(memory.peak - before - grown, now.kv_bytes_peak + now.kv_compressed.bytes_peak);
        EXPECT_LE(memory.bytes - before - grown, now.kv_bytes + now.kv_compressed.bytes);
        if (file) {  // nothing is promised
          EXPECT_EQ(memory.bytes - before - grown, now.kv_bytes + now.kv_compressed.bytes);
        }
      }
      scratch = now.scratch_bytes;
      session->close();  // gives its memory back before it returns
    }
  }
}

TEST_P(Compressed, TruncatedForkedAndSavedTextsGoOn) {
  for (const bool file : {false, true}) {
    SessionOptions with = compressing(room_for(file ? 9 : 800), file);
    with.kv_budget_bytes = whole_ * 3 / 2;  // forks and loaded sessions need a little more; a fork begins with nothing
    const auto session = make_session(model_, with);
    expect_ok(session->feed_tokens(tokens_));
    expect_ok(run(session).status);
    const auto go_on = [&](const std::shared_ptr<Session>& to, int64_t from, int64_t end) {
      expect_ok(
          to->feed_tokens(std::span(tokens_).subspan(static_cast<size_t>(from), static_cast<size_t>(end - from))));
      expect_ok(run(to).status);
      EXPECT_TRUE(same_bits(row_of(expected_, *model_, end - 1), last_logits(*to))) << from << " to " << end;
    };
    const auto fork = take(session->fork());
    for (const int64_t n : {299, 208, 100}) {
      expect_ok(session->truncate(n));
      go_on(session, n, std::min(kLength, n + 40));
    }
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/saved.quire";
    expect_ok(session->save(path, {}));
    LoadOptions loading;
    loading.session.kv_budget_bytes = with.kv_budget_bytes;
    loading.session.compressed_budget_bytes = with.compressed_budget_bytes;
    loading.session.spill_directory = with.spill_directory;
    go_on(take(Session::load(model_, path, loading)), 140, kLength);
    session->close();
    expect_ok(fork->truncate(250));
    go_on(fork, 250, kLength);
  }
}

// Narrow records have a tier of their own: whatever the budget, a refusal names what both need.
TEST(CompressedBudget, NamesWhatFullAndNarrowRecordsNeedTogether) {
  const auto model = load("short_128", 2);
  SessionOptions options = with_strategy("full(kv_chunk=16)");
  options.old_text = {.type = ElementType::kInt8, .after = 40};
  const auto needed_beyond = [&](int64_t budget) {
    options.compressed_budget_bytes = budget;
    const Status status = Session::create(model, options).status();
    EXPECT_EQ(status.code(), Code::kBudget);
    EXPECT_EQ(status.message(), Session::check(*model, options).message());
    return std::stoll("0" + status.message().substr(status.message().find("needs ") + 6));
  };
  const int64_t needed = needed_beyond(1);
  EXPECT_EQ(needed_beyond(needed - 1), needed);
  options.compressed_budget_bytes = needed;
  EXPECT_TRUE(Session::create(model, options).ok());
}

TEST(CompressedBudget, IsSharedByTheSessionsOfARuntime) {
  const auto probe = make_session(load("short_128"), with_strategy("full(kv_chunk=16)"));
  expect_ok(probe->feed_tokens(random_tokens(probe->model(), 16)));
  expect_ok(run(probe).status);
  const int64_t one = CompressedTier::least_bytes(stats(*probe).kv_record_bytes, 2);
  RuntimeOptions runtime;
  runtime.kv_compressed_bytes = one * 3 / 2;
  const auto model = load("short_128", std::move(runtime));
  SessionOptions options = with_strategy("full(kv_chunk=16)");
  options.compressed_budget_bytes = one;
  auto first = make_session(model, options);
  const Status refused = Session::create(model, options).status();
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find("the runtime's budget is " + std::to_string(one * 3 / 2)), std::string::npos)
      << refused.message();
  first->close();
  EXPECT_TRUE(Session::create(model, options).ok());
}

}  // namespace
}  // namespace quire::test
