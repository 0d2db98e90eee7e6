// A session that is saved into the file of its own past: what is new goes behind it, and both snapshots stay whole.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "lib/session/describe_snapshot.h"
#include "lib/support/os_file.h"
#include "tests/unit/model/file_bytes.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/memory_streams.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

// All that a session is.
std::string whole(const std::shared_ptr<Session>& session) {
  MemorySink sink;
  expect_ok(session->save_to(sink, {}));
  return sink.bytes;
}

// Whether the file grew behind what it was.
bool begins_with(const std::string& path, const std::string& before) {
  const std::string now = read_file(path);
  return now.size() > before.size() && now.starts_with(before);
}

class AppendedSnapshots : public testing::TestWithParam<const char*> {
 protected:
  SessionOptions options() const {
    SessionOptions options = with_strategy(strategy_);
    options.prefill_block = 24;
    options.expected_tokens = 300;
    return options;
  }
  void read(const std::shared_ptr<Session>& session, int64_t n, uint32_t seed = 1) const {
    expect_ok(session->feed_tokens(random_tokens(*model_, n, seed)));
    expect_ok(run(session).status);
  }
  std::shared_ptr<Session> make(int64_t n, uint32_t seed = 1) const {
    const auto session = make_session(model_, options());
    read(session, n, seed);
    return session;
  }
  std::shared_ptr<Session> load(const std::string& path) const { return take(Session::load(model_, path, {})); }
  // `session` was saved to path_, and goes on being what it is.
  void expect_holds(const std::shared_ptr<Session>& session) const {
    expect_ok(verify_snapshot(path_, {}));
    ASSERT_TRUE(whole(load(path_)) == whole(session));
  }
  static int64_t described(const std::string& path, const char* key) {
    return nlohmann::json::parse(take(describe_snapshot(path)))[key].get<int64_t>();
  }

  std::string strategy_ = "full(kv_chunk=16)";
  std::shared_ptr<Model> model_ = quire::test::load("short_128", 2);
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("saved.quire");
};

class EachStrategy : public AppendedSnapshots {
 protected:
  EachStrategy() {
    strategy_ = GetParam();
    model_ = quire::test::load(model_for(strategy_), 2);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Strategies, EachStrategy,
    testing::Values("full", "full(kv_chunk=32) + dynamic_ntk(factor=2)", "self_extend(group=4, window=20)",
                    "longheads(chunk=16, chunks=5)",
                    "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=48, dca_chunk=64, represent=minmax)",
                    "streaming_llm(sinks=20, recent=70, kv_chunk=16)", "beacon(ratio=4, kv_chunk=16)"));

TEST_P(EachStrategy, HoldWhatAWholeOneHolds) {
  auto session = make(47);
  expect_ok(session->save(path_, {}));
  int n_appended = 0;
  for (const int64_t n : {1, 16, 50, 33}) {
    SCOPED_TRACE(n);
    const std::string before = read_file(path_);
    read(session, n, 5);
    expect_ok(run(session, generating(2, 0.8f)).status);
    expect_ok(session->feed_tokens(random_tokens(*model_, 4, 6)));
    expect_ok(session->save(path_, {}));
    n_appended += begins_with(path_, before);
    expect_holds(session);
    if (n == 16) session = load(path_);  // whose records are in the file
    expect_ok(session->discard_pending());
  }
  EXPECT_GT(n_appended, 0);
}

// What the text was is cut, and other tokens stand there.
TEST_P(EachStrategy, HoldWhatStandsAfterACut) {
  const auto session = make(100);
  expect_ok(session->save(path_, {}));
  for (const int64_t n : {90, 64, 63, 48, 97, 17}) {
    SCOPED_TRACE(n);
    expect_ok(session->truncate(n));
    read(session, 100 - n, static_cast<uint32_t>(n));
    expect_ok(session->save(path_, {}));
    expect_holds(session);
  }
}

TEST_F(AppendedSnapshots, GrowByWhatIsNew) {
  const auto session = make(2000);
  expect_ok(session->save(path_, {}));
  std::string before = read_file(path_);
  const auto loaded = load(path_);
  read(loaded, 16, 7);
  expect_ok(loaded->save(path_, {}));
  ASSERT_TRUE(begins_with(path_, before));
  const auto written = static_cast<int64_t>(read_file(path_).size() - before.size());
  const int64_t record = 2 * 16 * 2 * 16 * 2;  // keys and values of a chunk, heads, their size, f16: about
  EXPECT_LT(written, static_cast<int64_t>(before.size()) / 4);
  EXPECT_GT(written, record);
  EXPECT_EQ(described(path_, "bytes") - described(path_, "unused_bytes"), static_cast<int64_t>(whole(loaded).size()));
  // Nothing is new: nothing is written.
  before = read_file(path_);
  expect_ok(loaded->save(path_, {}));
  EXPECT_TRUE(read_file(path_) == before);
  // Pending tokens alone.
  expect_ok(loaded->feed_tokens(random_tokens(*model_, 3, 9)));
  expect_ok(loaded->save(path_, {}));
  ASSERT_TRUE(begins_with(path_, before));
  EXPECT_LT(static_cast<int64_t>(read_file(path_).size() - before.size()), written);
  EXPECT_EQ(described(path_, "n_pending"), 3);
}

// Records that the file has are not read for saving: nobody sees that one is damaged.
TEST_F(AppendedSnapshots, LeaveRecordsOfThePastAlone) {
  expect_ok(make(100)->save(path_, {}));
  const auto loaded = load(path_);
  std::string bytes = read_file(path_);
  bytes[64] = static_cast<char>(bytes[64] ^ 1);  // the first record
  write_file(path_, bytes);
  expect_ok(loaded->feed_tokens(random_tokens(*model_, 1)));
  expect_ok(loaded->save(path_, {}));
  EXPECT_TRUE(begins_with(path_, bytes));
  EXPECT_EQ(verify_snapshot(path_, {}).code(), Code::kBadFile);
  EXPECT_EQ(loaded->save(path_, {.whole = true}).code(), Code::kBadFile);
  // What is computed again is compared with what the file really has.
  expect_ok(loaded->reset());
  read(loaded, 100);
  expect_ok(loaded->save(path_, {}));
  expect_holds(loaded);
}

TEST_F(AppendedSnapshots, LeaveAnOpenSessionWhatItReads) {
  const auto session = make(300);
  expect_ok(session->save(path_, {}));
  const auto reader = load(path_), expected = take(session->fork());
  for (int i = 0; i < 5; ++i) {
    read(session, 20, 7);
    expect_ok(session->save(path_, {}));
  }
  for (const auto& each : {reader, expected}) read(each, 40, 3);
  EXPECT_TRUE(same_bits(last_logits(*reader), last_logits(*expected)));
  EXPECT_GT(stats(*reader).kv_chunks_restored, 0);
  // It was saved to the same file before the others: its own past is still there.
  const std::string before = read_file(path_);
  expect_ok(reader->save(path_, {}));
  EXPECT_TRUE(begins_with(path_, before));
  expect_holds(reader);
}

TEST_F(AppendedSnapshots, AreRewrittenWhereMostOfTheFileIsOfNoUse) {
  const auto session = make(600);
  expect_ok(session->save(path_, {}));
  const auto full_size = std::filesystem::file_size(path_);
  expect_ok(session->truncate(400));  // 200 of 600 are of no use
  std::string before = read_file(path_);
  expect_ok(session->save(path_, {}));
  EXPECT_TRUE(begins_with(path_, before));
  expect_ok(session->truncate(100));
  expect_ok(session->save(path_, {}));
  EXPECT_LT(std::filesystem::file_size(path_), full_size / 2);
  EXPECT_EQ(described(path_, "unused_bytes"), 0);
  expect_holds(session);
  // A file that grows by little is rewritten before it is twice as large as it must be.
  int n_rewritten = 0;
  for (int i = 0; i < 40; ++i) {
    read(session, 1, static_cast<uint32_t>(i));
    before = read_file(path_);
    expect_ok(session->save(path_, {}));
    n_rewritten += !begins_with(path_, before);
    ASSERT_LE(described(path_, "unused_bytes"), described(path_, "kv_bytes"));
  }
  EXPECT_GT(n_rewritten, 0);
  EXPECT_LT(n_rewritten, 20);
  expect_holds(session);
}

// A crash can leave any part of what was appended, and garbage where the system had not written yet.
TEST_F(AppendedSnapshots, LeaveTheOldOneWhereACrashCutsThem) {
  const auto session = make(100);
  expect_ok(session->save(path_, {}));
  const std::string before = read_file(path_), old_whole = whole(load(path_));
  read(session, 40);
  expect_ok(session->save(path_, {}));
  const std::string after = read_file(path_);
  ASSERT_TRUE(after.starts_with(before));
  const auto session_in = [&](const std::string& bytes) {
    write_file(path_, bytes);
    EXPECT_EQ(verify_snapshot(path_, {}).code(), bytes == before ? Code::kOk : Code::kBadFile);
    return load(path_);
  };
  for (size_t n = before.size(); n<after.size(); n += n + 200> after.size() ? 1 : 997) {
    ASSERT_TRUE(whole(session_in(after.substr(0, n))) == old_whole) << n;
  }
  std::string zeros = after;
  std::fill(zeros.begin() + static_cast<std::ptrdiff_t>(before.size()), zeros.end(), '\0');
  ASSERT_TRUE(whole(session_in(zeros)) == old_whole);
  for (size_t at = after.size() - 64; at < after.size(); ++at) {
    std::string torn = after;
    torn[at] = static_cast<char>(torn[at] ^ 0x40);
    ASSERT_TRUE(whole(session_in(torn)) == old_whole) << at;
  }
  // Far behind the old one, over several windows of the search.
  const auto found = session_in(before + std::string(5 << 20, 'x'));
  EXPECT_EQ(described(path_, "unused_bytes"), 5 << 20);
  // The next one takes the place of what was cut short.
  read(found, 40);
  expect_ok(found->save(path_, {}));
  EXPECT_TRUE(begins_with(path_, before));
  EXPECT_LE(std::filesystem::file_size(path_), after.size());
  expect_holds(found);
  // The index that a whole footer names is damaged: no crash does that.
  std::string damaged = after;
  const size_t index = after.rfind("{\"contents\"");
  damaged[index + 3] ^= 1;
  write_file(path_, damaged);
  EXPECT_EQ(verify_snapshot(path_, {}).code(), Code::kBadFile);
}

// Whichever of a file's snapshots it belongs to.
TEST_F(AppendedSnapshots, VerifyingFindsEveryOtherByte) {
  const auto session = make(90);
  expect_ok(session->save(path_, {}));
  for (const int64_t cut : {90, 80}) {
    const std::string before = read_file(path_);
    expect_ok(session->truncate(cut));
    read(session, 2, 8);
    expect_ok(session->save(path_, {}));
    ASSERT_TRUE(begins_with(path_, before));
  }
  const std::string bytes = read_file(path_);
  expect_holds(session);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ (1 << at % 8));
    ASSERT_EQ(verify_snapshot(std::make_shared<MemorySource>(std::move(other)), {}).code(), Code::kBadFile) << at;
  }
  // What the last one does not need is told apart.
  std::string earlier = bytes;
  earlier[bytes.find("{\"contents\"")] ^= 1;
  EXPECT_THAT(verify_snapshot(std::make_shared<MemorySource>(earlier), {}).message(),
              testing::HasSubstr("the last snapshot is whole, but not one before it"));
}

// An end that is still being written is no damage.
TEST_F(AppendedSnapshots, VerifyWhileTheyAreWritten) {
  const auto session = make(200);
  expect_ok(session->save(path_, {}));
  read(session, 40);
  int n_seen = 0;
  const auto verify = [&](int64_t, int64_t) {
    expect_ok(verify_snapshot(path_, {}));
    ++n_seen;
  };
  expect_ok(session->save(path_, {.progress = verify}));
  EXPECT_GT(n_seen, 0);
  expect_holds(session);
}

// Whoever opened the file while another one was behind it, which was never completed.
TEST_F(AppendedSnapshots, AreReadWhereAnotherOneIsTakenBackMeanwhile) {
  const auto session = make(200);
  expect_ok(session->save(path_, {}));
  const std::string old_whole = whole(load(path_));
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path_));
  read(session, 40);
  std::shared_ptr<const ByteSource> opened;
  CancelToken cancel;
  const auto open = [&](int64_t, int64_t) {
    opened = take(ReadFile::open(path_));
    if (opened->size() > size) cancel.cancel();
  };
  EXPECT_EQ(session->save(path_, {.cancel = &cancel, .progress = open}).code(), Code::kCancelled);
  ASSERT_GT(opened->size(), size);
  ASSERT_EQ(opened->size_now(), size);
  expect_ok(verify_snapshot(opened, {}));
  EXPECT_TRUE(whole(take(Session::load(model_, opened, {}))) == old_whole);
}

// Files that nothing may be appended to get a new one in their place.
TEST_F(AppendedSnapshots, AreWholeWhereTheFileIsNotTheirs) {
  const auto session = make(100), other = make(100, 2);
  const std::string link = folder_.file("link"), copy = folder_.file("copy");
  expect_ok(session->save(path_, {}));
  const std::string first = read_file(path_);
  const auto expect_replaced = [&](const std::string& before) {
    read(session, 5);
    expect_ok(session->save(path_, {}));
    EXPECT_FALSE(begins_with(path_, before));
    expect_holds(session);
  };
  // Another session's, a damaged one, none at all.
  expect_ok(other->save(path_, {}));
  expect_replaced(read_file(path_));
  std::string damaged = read_file(path_);
  damaged[damaged.size() - 1] ^= 1;
  write_file(path_, damaged);
  expect_replaced(damaged);
  write_file(path_, "");
  expect_replaced("x");
  // A second name: what that shows stays.
  const std::string before_link = read_file(path_);
  std::filesystem::create_hard_link(path_, link);
  expect_replaced(before_link);
  EXPECT_TRUE(read_file(link) == before_link);
  // Locked by someone who appends.
  const std::string before_lock = read_file(path_);
  const int held = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  expect_replaced(before_lock);
  ::close(held);
  // Asked for.
  const std::string before_asked = read_file(path_);
  read(session, 1);
  expect_ok(session->save(path_, {.whole = true}));
  EXPECT_FALSE(begins_with(path_, before_asked));
  // A copy has the same past, though.
  std::filesystem::copy_file(path_, copy);
  const std::string before_copy = read_file(copy);
  read(session, 5);
  expect_ok(session->save(copy, {}));
  EXPECT_TRUE(begins_with(copy, before_copy));
}

TEST_F(AppendedSnapshots, AreWrittenAgainWhereTheFileWasReplacedMeanwhile) {
  const auto session = make(200), other = make(30, 2);
  expect_ok(session->save(path_, {}));
  const std::string old = folder_.file("old");
  std::filesystem::create_hard_link(path_, old);
  const std::string before = read_file(path_);
  std::filesystem::remove(old);
  read(session, 20);
  bool replaced = false;
  const auto replace = [&](int64_t, int64_t) {
    if (std::exchange(replaced, true)) return;
    std::filesystem::create_hard_link(path_, old);
    expect_ok(other->save(path_, {}));
  };
  expect_ok(session->save(path_, {.progress = replace}));
  ASSERT_TRUE(replaced);
  EXPECT_FALSE(begins_with(path_, before));
  expect_holds(session);
  EXPECT_TRUE(begins_with(old, before));  // what it had appended to
}

TEST_F(AppendedSnapshots, OfForksShareAFile) {
  const auto session = make(200);
  expect_ok(session->save(path_, {}));
  const auto fork = take(session->fork());
  for (int i = 0; i < 3; ++i) {
    for (const auto& each : {session, fork}) {
      const std::string before = read_file(path_);
      read(each, 8, each == fork ? 3 : 4);
      expect_ok(each->save(path_, {}));
      EXPECT_TRUE(begins_with(path_, before));
      expect_holds(each);
    }
  }
}

// Whoever comes last, the file is whole, and of one of them.
TEST_F(AppendedSnapshots, OfSeveralSaversAtOnceAreWhole) {
  std::vector<std::shared_ptr<Session>> sessions = {make(200)};
  expect_ok(sessions[0]->save(path_, {}));
  for (int i = 0; i < 2; ++i) sessions.push_back(take(sessions[0]->fork()));
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < sessions.size(); ++i) read(sessions[i], 3, static_cast<uint32_t>(i + 10));
    std::vector<std::thread> savers;
    std::vector<Status> statuses(sessions.size());
    for (size_t i = 0; i < sessions.size(); ++i) {
      savers.emplace_back([&, i] { statuses[i] = sessions[i]->save(path_, {}); });
    }
    for (std::thread& saver : savers) saver.join();
    for (const Status& status : statuses) expect_ok(status);
    expect_ok(verify_snapshot(path_, {}));
    const std::string found = whole(load(path_));
    EXPECT_TRUE(std::ranges::any_of(sessions, [&](const auto& s) { return whole(s) == found; }));
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), std::filesystem::directory_iterator()),
              1);
  }
}

}  // namespace
}  // namespace quire::test
