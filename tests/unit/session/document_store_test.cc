// A directory of documents that were read: which entry a text finds, what stands there, and what leaves for room.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "lib/session/describe_snapshot.h"
#include "lib/session/document_store.h"
#include "tests/unit/model/file_bytes.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DocumentStores : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<DocumentStore> open(int64_t budget = 0) const {
    return take(DocumentStore::open(path_, {.budget_bytes = budget}));
  }
  SessionOptions options() const {
    SessionOptions options = with_strategy(strategy_);
    options.prefill_block = 24;
    options.expected_tokens = 400;
    return options;
  }
  std::shared_ptr<Session> read(const Tokens& tokens) const {
    const auto session = make_session(model_, options());
    read_on(session, tokens);
    return session;
  }
  static void read_on(const std::shared_ptr<Session>& session, std::span<const int32_t> tokens) {
    expect_ok(session->feed_tokens(tokens));
    expect_ok(run(session).status);
  }
  Tokens text(int64_t n, uint32_t seed = 1) const { return random_tokens(*model_, n, seed); }
  // The first n_same tokens of the text, and then others.
  Tokens turning(const Tokens& tokens, int64_t n_same, int64_t n, uint32_t seed = 9) const {
    Tokens other = text(n, seed);
    std::copy(tokens.begin(), tokens.begin() + n_same, other.begin());
    if (n_same < std::min(n, std::ssize(tokens))) {
      other[static_cast<size_t>(n_same)] = tokens[static_cast<size_t>(n_same)] == 5 ? 6 : 5;
    }
    return other;
  }
  std::string put(const Tokens& tokens, const std::string& title = "") {
    return take(store_->put(*read(tokens), {.title = title})).name;
  }
  std::string put_by(const std::shared_ptr<DocumentStore>& store, const Tokens& tokens) const {
    return take(store->put(*read(tokens), {})).name;
  }
  StoreMatch find(const Tokens& tokens) const { return take(store_->find(model_, options(), tokens)); }
  std::string snapshot(const std::string& name) const { return path_ + "/" + name + ".quire"; }
  std::string sidecar(const std::string& name) const { return path_ + "/" + name + ".text"; }
  bool is_there(const std::string& name) const { return fs::exists(snapshot(name)); }
  nlohmann::json described() const { return nlohmann::json::parse(take(store_->describe())); }
  int64_t size_of(const std::string& name) const {
    return static_cast<int64_t>(fs::file_size(snapshot(name)) + fs::file_size(sidecar(name)));
  }
  // Everything is as it should be, and nothing is left beside the entries.
  void expect_whole(size_t n_entries) const {
    const auto all = described();
    EXPECT_EQ(all["entries"].size(), n_entries) << all.dump(1);
    for (const auto& entry : all["entries"]) expect_ok(store_->verify(entry["name"].get<std::string>(), {}));
    EXPECT_EQ(std::distance(fs::directory_iterator(path_), fs::directory_iterator()),
              static_cast<int64_t>(2 * n_entries) + 1);
  }
  // Both read the rest of the text after what they have: they come to the same.
  void expect_goes_on(const std::shared_ptr<Session>& loaded, const Tokens& tokens) const {
    const auto n = static_cast<size_t>(position(*loaded).tokens);
    ASSERT_LT(n, tokens.size());
    read_on(loaded, std::span(tokens).subspan(n));
    const auto expected = read(tokens);
    EXPECT_TRUE(same_bits(last_logits(*loaded), last_logits(*expected)));
    EXPECT_EQ(run(loaded, generating(8)).tokens, run(expected, generating(8)).tokens);
  }

  std::string strategy_ = "full(kv_chunk=16)";
  std::shared_ptr<Model> model_ = quire::test::load("short_128", 2);
  TemporaryFolder folder_;
  const std::string path_ = folder_.file("store");
  std::shared_ptr<DocumentStore> store_ = open();
};

class EachStrategy : public DocumentStores {
 protected:
  EachStrategy() {
    strategy_ = GetParam();
    model_ = quire::test::load(model_for(strategy_), 2);
  }
};
INSTANTIATE_TEST_SUITE_P(Strategies, EachStrategy,
                         testing::Values("full(kv_chunk=16)", "longheads(chunk=16, chunks=5)",
                                         "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=48, dca_chunk=64)",
                                         "streaming_llm(sinks=20, recent=70, kv_chunk=16)",
                                         "beacon(ratio=4, kv_chunk=16)"));

TEST_P(EachStrategy, GoesOnFromAPrefixBitForBit) {
  const Tokens stored = text(200);
  put(stored);
  for (const int64_t n_same : {200, 199, 150, 128, 70}) {
    SCOPED_TRACE(n_same);
    const Tokens wanted = turning(stored, n_same, 230);
    StoreMatch match;
    const auto loaded = take(store_->load(model_, options(), wanted, &match));
    if (!loaded) {  // it dropped what it needs
      EXPECT_THAT(strategy_, testing::AnyOf(HasSubstr("streaming_llm"), HasSubstr("beacon")));
      EXPECT_THAT(match.reason, HasSubstr("cannot go on"));
      continue;
    }
    EXPECT_EQ(match.n_tokens, n_same);
    EXPECT_EQ(position(*loaded).tokens, n_same);
    EXPECT_GT(match.n_computed, 0);
    EXPECT_EQ(match.n_computed == n_same, n_same == 200);
    expect_goes_on(loaded, wanted);
    EXPECT_EQ(stats(*loaded).n_prefilled, 230 - match.n_computed);
  }
}

// Of a text that the entry has as a whole, the last token is left to be read.
TEST_P(EachStrategy, LeavesATokenToBeRead) {
  const Tokens stored = text(200);
  put(stored);
  StoreMatch match;
  const auto loaded = take(store_->load(model_, options(), stored, &match));
  if (!loaded) return;
  EXPECT_EQ(match.n_tokens, 199);
  expect_goes_on(loaded, stored);
}

TEST_F(DocumentStores, FindTheLongestPrefix) {
  const Tokens a = text(200), b = turning(a, 130, 220, 2), c = turning(a, 64, 90, 3);
  const std::string name_a = put(a), name_b = put(b), name_c = put(c);
  EXPECT_EQ(described()["entries"].size(), 3u);
  const auto expect_found = [&](const Tokens& wanted, const std::string& name, int64_t n) {
    const StoreMatch match = find(wanted);
    EXPECT_EQ(match.name, name) << match.reason;
    EXPECT_EQ(match.n_tokens, n);
    EXPECT_GE(match.n_computed, n - 16);  // the rest of the chunk where it turns
  };
  expect_found(turning(a, 200, 300), name_a, 200);
  expect_found(turning(b, 220, 300), name_b, 220);
  expect_found(turning(b, 200, 300), name_b, 200);
  expect_found(turning(c, 90, 91), name_c, 90);
  expect_found(turning(a, 160, 170), name_a, 160);
  // Less than a link of 64 tokens is not looked for, unless it is all of an entry.
  const StoreMatch little = find(turning(a, 63, 100));
  EXPECT_EQ(little.n_tokens, 0);
  EXPECT_THAT(little.reason, HasSubstr("from token 63 on"));
  const std::string name_d = put(turning(a, 20, 20));
  expect_found(turning(a, 63, 100), name_d, 20);
}

// One text, read by sessions whose keys and values differ: two entries, however short it is.
TEST_F(DocumentStores, KeepEqualTextsOfOtherSessionsApart) {
  for (const int64_t n : {40, 64, 100}) {
    SCOPED_TRACE(n);
    const Tokens tokens = text(n, static_cast<uint32_t>(n)), wanted = turning(tokens, n, n + 1);
    const std::string name = put(tokens);
    SessionOptions other = options();
    other.kv_type = ElementType::kF32;
    const auto session = make_session(model_, other);
    read_on(session, tokens);
    const StoreMatch match = take(store_->put(*session, {}));
    EXPECT_NE(match.name, name);
    EXPECT_EQ(take(store_->find(model_, other, wanted)).name, match.name);
    EXPECT_EQ(find(wanted).name, name);
  }
  expect_whole(6);
}

// `auto` chooses by the budgets of keys and values, which finding alone does not need.
TEST_F(DocumentStores, FindWhatTheyWouldLoad) {
  SessionOptions chosen = options();
  chosen.strategy = "auto";
  const std::string without_budget = take(Session::identify(*model_, chosen)).strategy;
  const int64_t bytes = stats(*read(text(400))).kv_bytes;
  chosen.kv_budget_bytes = bytes / 2;
  ASSERT_NE(take(Session::identify(*model_, chosen)).strategy, without_budget);
  const auto session = make_session(model_, chosen);
  const Tokens tokens = text(100), wanted = turning(tokens, 100, 110);
  read_on(session, tokens);
  const std::string name = take(store_->put(*session, {})).name;
  StoreMatch match;
  EXPECT_TRUE(take(store_->load(model_, chosen, wanted, &match)));
  EXPECT_EQ(match.name, name) << match.reason;
  const StoreMatch found = take(store_->find(model_, chosen, wanted));
  EXPECT_EQ(found.name, name) << found.reason;
  EXPECT_EQ(found.n_computed, match.n_computed);
}

TEST_F(DocumentStores, StayWhereTheyAreWhenTheProcessGoesElsewhere) {
  const fs::path before = fs::current_path();
  fs::current_path(fs::path(path_).parent_path());
  const auto relative = take(DocumentStore::open(fs::path(path_).filename().string(), {}));
  fs::current_path(before);
  const Tokens tokens = text(100);
  const std::string name = put_by(relative, tokens);
  EXPECT_EQ(find(tokens).name, name);
  expect_whole(1);
}

TEST_F(DocumentStores, SayWhyThereIsNothing) {
  EXPECT_THAT(find(text(100)).reason, HasSubstr("empty"));
  const std::string name = put(text(100), "first.txt");
  EXPECT_THAT(find(text(100, 2)).reason, HasSubstr(name + " (first.txt) from token 0 on"));
  const auto reason = [&](const std::shared_ptr<Model>& model, const SessionOptions& other) {
    const StoreMatch match = take(store_->find(model, other, text(100)));
    EXPECT_EQ(match.name, "");
    EXPECT_EQ(match.n_tokens, 0);
    return match.reason;
  };
  SessionOptions other = options();
  other.kv_type = ElementType::kF32;
  EXPECT_THAT(reason(model_, other), HasSubstr("its kv_type is f16; here it is f32"));
  other = options();
  other.strategy = "dca(kv_chunk=16)";
  EXPECT_THAT(reason(model_, other), testing::AllOf(HasSubstr("none is of this model and strategy"), HasSubstr("dca")));
  const auto foreign = quire::test::load("text_256", 2);
  EXPECT_THAT(reason(foreign, options()), testing::AllOf(HasSubstr("none is of this model;"),
                                                         HasSubstr("its model is " + model_->llama->identity()),
                                                         HasSubstr("here it is " + foreign->llama->identity())));
}

TEST_F(DocumentStores, GrowWithTheirText) {
  const Tokens whole = text(300);
  const Tokens begin(whole.begin(), whole.begin() + 100);
  const std::string name = put(begin, "title");
  const std::string before = read_file(snapshot(name));
  StoreMatch match;
  const auto loaded = take(store_->load(model_, options(), whole, &match));
  read_on(loaded, std::span(whole).subspan(100));
  const StoreMatch grown = take(store_->put(*loaded, {}));
  EXPECT_EQ(grown.name, name);
  EXPECT_EQ(grown.n_tokens, 300);
  // What is new stands behind what was there, although the session itself has the entry open.
  EXPECT_TRUE(read_file(snapshot(name)).starts_with(before));
  EXPECT_EQ(find(turning(whole, 300, 310)).n_tokens, 300);
  EXPECT_EQ(described()["entries"][0]["title"], "title");
  // A part of it is there already, read from the start or not; nothing is written.
  const std::string after = read_file(snapshot(name));
  for (const int64_t n : {100, 170, 300}) EXPECT_EQ(put(Tokens(whole.begin(), whole.begin() + n)), name);
  EXPECT_TRUE(read_file(snapshot(name)) == after);
  // Read from the start, a longer text takes the place of the shorter one as a whole.
  const Tokens longer = turning(whole, 300, 330);
  EXPECT_EQ(put(longer), name);
  EXPECT_EQ(find(turning(longer, 330, 340)).n_tokens, 330);
  // Another way: another entry.
  EXPECT_NE(put(turning(whole, 250, 300)), name);
  expect_whole(2);
}

TEST_F(DocumentStores, CountUpToTheFirstGeneratedToken) {
  const Tokens prompt = text(100);
  const auto session = read(prompt);
  const Outcome answer = run(session, generating(30));
  expect_ok(session->feed_tokens(text(40, 3)));
  expect_ok(run(session).status);
  expect_ok(session->feed_tokens(text(4, 4)));
  const StoreMatch match = take(store_->put(*session, {}));
  EXPECT_EQ(match.n_tokens, 100);
  EXPECT_EQ(position(*session), (Position{170, 4}));  // it stays as it was
  Tokens wanted = prompt;
  wanted.insert(wanted.end(), answer.tokens.begin(), answer.tokens.end());
  EXPECT_EQ(find(wanted).n_tokens, 100);
  StoreMatch found;
  expect_goes_on(take(store_->load(model_, options(), wanted, &found)), wanted);
  // A snapshot with generated tokens that somebody else put there counts as far.
  fs::remove_all(path_);
  store_ = open();
  expect_ok(session->save(snapshot(std::string(32, 'a')), {}));
  EXPECT_EQ(find(wanted).n_tokens, 100);
  // Positions: likewise.
  const auto placed = make_session(model_, options());
  std::vector<int64_t> positions(100);
  for (size_t i = 0; i < 100; ++i) positions[i] = static_cast<int64_t>(i < 80 ? i : i + 5);
  expect_ok(placed->feed_positions(prompt, positions));
  expect_ok(run(placed).status);
  EXPECT_EQ(take(store_->put(*placed, {})).n_tokens, 80);
}

// Only the session itself may be kept for others when it goes, not what putting or finding made meanwhile.
TEST_F(DocumentStores, LeaveThePrefixCacheAlone) {
  RuntimeOptions keeping;
  keeping.prefix_cache_bytes = int64_t{1} << 30;
  model_ = quire::test::load("short_128", keeping);
  SessionOptions sharing = options();
  sharing.reuse_prefixes = true;
  const auto n_kept = [&] { return model_->runtime->prefix_cache().stats().n_texts; };
  const Tokens tokens = text(200);
  const auto session = make_session(model_, sharing);
  read_on(session, tokens);
  expect_ok(run(session, generating(3)).status);
  expect_ok(session->feed_tokens(text(4, 4)));
  const std::string name = take(store_->put(*session, {})).name;
  EXPECT_EQ(n_kept(), 0);
  EXPECT_EQ(take(store_->find(model_, sharing, tokens)).name, name);
  EXPECT_EQ(n_kept(), 0);
  // An entry that turns out to have less than another one.
  const Tokens other = turning(tokens, 100, 150);
  const auto shorter = make_session(model_, sharing);
  read_on(shorter, other);
  take(store_->put(*shorter, {}));
  StoreMatch match;
  const auto loaded = take(store_->load(model_, sharing, turning(tokens, 110, 150, 5), &match));
  EXPECT_EQ(match.n_tokens, 110);
  EXPECT_EQ(n_kept(), 0);
  session->close();
  EXPECT_EQ(n_kept(), 1);
}

TEST_F(DocumentStores, AppendToTheirEntryOfASessionWithPendingTokens) {
  const Tokens whole = text(300);
  const auto session = read(Tokens(whole.begin(), whole.begin() + 100));
  expect_ok(session->feed_tokens(std::span(whole).subspan(100, 100)));
  const std::string name = take(store_->put(*session, {})).name;
  const std::string before = read_file(snapshot(name));
  expect_ok(run(session).status);
  expect_ok(session->feed_tokens(std::span(whole).subspan(200)));
  const StoreMatch grown = take(store_->put(*session, {}));
  EXPECT_EQ(grown.name, name);
  EXPECT_EQ(grown.n_tokens, 200);
  EXPECT_TRUE(read_file(snapshot(name)).starts_with(before));
  EXPECT_EQ(find(whole).n_tokens, 200);
  expect_whole(1);
}

TEST_F(DocumentStores, RefuseWhatWasNotRead) {
  const auto session = make_session(model_, options());
  EXPECT_EQ(store_->put(*session, {}).status().code(), Code::kEmpty);
  expect_ok(session->feed_tokens(text(10)));
  EXPECT_EQ(store_->put(*session, {}).status().code(), Code::kEmpty);
  EXPECT_EQ(store_->find(model_, options(), {}).status().code(), Code::kInvalidArgument);
  strategy_ = "streaming_llm(sinks=20, recent=40, kv_chunk=16)";
  const auto forgetful = read(text(200));
  for (int turn = 0; turn < 5; ++turn) {  // what is seen where the first one began goes
    expect_ok(run(forgetful, generating(20)).status);
    expect_ok(forgetful->feed_tokens(text(20)));
  }
  expect_ok(run(forgetful).status);
  EXPECT_EQ(store_->put(*forgetful, {}).status().code(), Code::kUnsupported);
  expect_whole(0);
}

// Keys were dropped in the middle, and behind the text an answer is known.
TEST_F(DocumentStores, HoldTextsOfStrategiesThatDropKeys) {
  strategy_ = "streaming_llm(sinks=20, recent=40, kv_chunk=16)";
  const Tokens longer = text(230), stored(longer.begin(), longer.begin() + 200);
  const auto session = read(stored);
  expect_ok(run(session, generating(20)).status);
  EXPECT_EQ(take(store_->put(*session, {})).n_tokens, 200);
  expect_whole(1);
  StoreMatch match;
  const auto loaded = take(store_->load(model_, options(), longer, &match));
  EXPECT_EQ(match.n_computed, 199);  // its last token is read again
  expect_goes_on(loaded, longer);
}

TEST_F(DocumentStores, RemakeWhatIsKnownOfAnEntry) {
  const Tokens stored = text(150), wanted = turning(stored, 140, 180);
  const std::string name = put(stored, "title");
  const std::string good = read_file(sidecar(name));
  const auto expect_remade = [&](const char* how) {
    SCOPED_TRACE(how);
    const StoreMatch match = find(wanted);
    EXPECT_EQ(match.name, name) << match.reason;
    EXPECT_EQ(match.n_tokens, 140);
    EXPECT_TRUE(read_file(sidecar(name)) == good);
  };
  fs::remove(sidecar(name));
  expect_remade("missing");
  for (size_t at = 0; at < good.size(); at += 37) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    write_file(sidecar(name), damaged);
    EXPECT_EQ(find(wanted).n_tokens, 140) << at;
  }
  write_file(sidecar(name), good.substr(0, good.size() / 2));
  expect_remade("cut");
  write_file(sidecar(name), "");
  expect_remade("empty");
  // Whole, but another entry's.
  const Tokens other = text(150, 2);
  const std::string name_other = put(other);
  fs::copy_file(sidecar(name_other), sidecar(name), fs::copy_options::overwrite_existing);
  expect_remade("of another one");
  // Even one that fits the file in size and time only costs what it does not find.
  StoredText wrong = take(read_stored_text(sidecar(name_other)));
  const StoredText right = take(read_stored_text(sidecar(name)));
  wrong.snapshot_bytes = right.snapshot_bytes;
  wrong.snapshot_modified_ns = right.snapshot_modified_ns;
  expect_ok(write_stored_text(sidecar(name), wrong));
  ASSERT_EQ(store_->remove(name_other).code(), Code::kOk);
  const StoreMatch match = find(other);
  EXPECT_EQ(match.n_tokens, 0);
  EXPECT_EQ(find(wanted).n_tokens, 0);
  expect_ok(store_->verify(name, {}));
  EXPECT_EQ(find(wanted).n_tokens, 140);
}

// What is known of entries, by their names.
std::map<std::string, StoredTextCache::Shared> known_of(const StoreDirectory& directory) {
  std::map<std::string, StoredTextCache::Shared> known;
  for (const StoreEntry& entry : take(directory.list()).entries) known[entry.name] = entry.text;
  return known;
}

void let_files_settle() { wait_milliseconds(3 * StoredTextCache::kSettledNs / 1'000'000); }

TEST_F(DocumentStores, ReadAgainOnlyWhatHasChanged) {
  const Tokens stored = text(150);
  const std::string a = put(stored, "a"), b = put(text(150, 2), "b"), c = put(text(150, 3), "c");
  const StoreDirectory directory = take(StoreDirectory::open(path_, false));
  let_files_settle();
  const auto first = known_of(directory);
  EXPECT_EQ(first.size(), 3u);
  EXPECT_TRUE(known_of(directory) == first);  // the same objects
  // A longer text takes the place of an entry; another store wrote it.
  const auto other = open();
  EXPECT_EQ(put_by(other, turning(stored, 150, 180)), a);
  auto next = known_of(directory);
  EXPECT_NE(next[a], first.at(a));
  EXPECT_EQ(next[a]->chain.n_tokens(), 180);
  EXPECT_EQ(next[b], first.at(b));
  EXPECT_EQ(next[c], first.at(c));
  let_files_settle();
  next = known_of(directory);
  EXPECT_TRUE(known_of(directory) == next);
  // Damage that leaves size and times of the file as they were.
  const auto time = fs::last_write_time(sidecar(b));
  std::string damaged = read_file(sidecar(b));
  const std::string good = damaged;
  damaged[damaged.size() / 2] ^= 1;
  write_file(sidecar(b), damaged);
  fs::last_write_time(sidecar(b), time);
  EXPECT_NE(known_of(directory)[b], next[b]);
  EXPECT_TRUE(read_file(sidecar(b)) == good);
  // Removed, and put again.
  ASSERT_EQ(other->remove(c).code(), Code::kOk);
  EXPECT_EQ(known_of(directory).size(), 2u);
  EXPECT_EQ(put_by(other, text(150, 3)), c);
  EXPECT_NE(known_of(directory)[c], next[c]);
  // A snapshot that is damaged.
  write_file(snapshot(a), read_file(snapshot(a)).substr(0, 100));
  EXPECT_EQ(known_of(directory)[a], nullptr);
}

TEST(StoredTextCaches, KeepTheirLimit) {
  const auto text = std::make_shared<const StoredText>(
      StoredText{{}, "title", TokenChain("", std::vector<int32_t>(size_t{64} * 1000, 7)), 1, 1});
  const StoredTextCache::Files files = {{.is_file = true, .changed_ns = 5}, {.is_file = true, .changed_ns = 6}};
  constexpr int64_t kLater = 7 + StoredTextCache::kSettledNs;
  StoredTextCache cache(40000);  // of 16 KB each
  for (const char* name : {"a", "b", "c"}) cache.keep(name, files, text, kLater);
  EXPECT_EQ(cache.find("a", files), text);
  EXPECT_EQ(cache.find("b", files), text);
  EXPECT_EQ(cache.find("c", files), nullptr);
  cache.keep("a", files, text, kLater);  // takes its own place
  const std::string_view names[] = {"b", "c"};
  cache.keep_only(names);
  EXPECT_EQ(cache.find("a", files), nullptr);
  cache.keep("c", files, text, kLater);
  EXPECT_EQ(cache.find("c", files), text);
  auto changed = files;
  changed.text.number = 1;
  EXPECT_EQ(cache.find("c", changed), nullptr);
  cache.keep("c", changed, text, kLater - 2);  // it changed a moment ago
  EXPECT_EQ(cache.find("c", changed), nullptr);
  EXPECT_EQ(cache.find("c", files), nullptr);
}

TEST_F(DocumentStores, NameDamagedEntries) {
  const Tokens stored = text(150);
  const std::string name = put(stored), whole = read_file(snapshot(name));
  write_file(snapshot(name), whole.substr(0, 100));
  EXPECT_THAT(find(turning(stored, 150, 160)).reason, HasSubstr("damaged"));
  EXPECT_THAT(described()["entries"][0]["damage"].get<std::string>(), HasSubstr(name));
  EXPECT_EQ(store_->verify(name, {}).code(), Code::kBadFile);
  // Keys that are damaged are seen when they are read.
  std::string bytes = whole;
  bytes[64] = static_cast<char>(bytes[64] ^ 1);
  write_file(snapshot(name), bytes);
  EXPECT_EQ(store_->verify(name, {}).code(), Code::kBadFile);
  StoreMatch match;
  const auto loaded = take(store_->load(model_, options(), turning(stored, 150, 160), &match));
  expect_ok(loaded->feed_tokens(text(10)));
  EXPECT_EQ(run(loaded).status.code(), Code::kBadFile);
  // What is put again takes the place of such an entry, unless the session itself was loaded from it.
  const auto sibling = take(store_->load(model_, options(), turning(stored, 150, 160), &match));
  EXPECT_EQ(take(store_->put(*sibling, {})).name, name);
  EXPECT_EQ(read_file(snapshot(name)), bytes);
  EXPECT_EQ(put(stored), name);
  expect_whole(1);
  // And of one that cannot be opened.
  write_file(snapshot(name), "no snapshot");
  EXPECT_EQ(put(stored), name);
  EXPECT_EQ(find(turning(stored, 150, 160)).n_tokens, 150);
  expect_whole(1);
}

TEST_F(DocumentStores, KeepTheirBudget) {
  const std::string first = put(text(100, 1)), second = put(text(100, 2)), third = put(text(100, 3));
  const int64_t size = size_of(first);
  StorableText storable;
  expect_ok(read(text(100))->storable_text(&storable));
  EXPECT_GE(storable.snapshot_bytes, size_of(first) - static_cast<int64_t>(fs::file_size(sidecar(first))));
  store_ = open(3 * size + storable.snapshot_bytes - size);
  EXPECT_GT(find(text(100, 1)).n_tokens, 0);  // used: the second one is the oldest
  const std::string fourth = put(text(100, 4));
  EXPECT_TRUE(is_there(first) && !is_there(second) && is_there(third) && is_there(fourth));
  put(text(100, 3));  // there already: used
  const std::string fifth = put(text(100, 5));
  EXPECT_TRUE(!is_there(first) && is_there(third) && is_there(fourth) && is_there(fifth));
  EXPECT_LE(described()["bytes"].get<int64_t>(), 3 * size + storable.snapshot_bytes - size);
  expect_whole(3);
  // The clock went back a year: what is used is still the newest.
  const auto future = fs::file_time_type::clock::now() + std::chrono::hours(24 * 365);
  for (const std::string& name : {third, fourth, fifth}) fs::last_write_time(sidecar(name), future);
  EXPECT_GT(find(text(100, 3)).n_tokens, 0);
  EXPECT_GT(find(text(100, 5)).n_tokens, 0);
  const std::string sixth = put(text(100, 6));
  EXPECT_TRUE(is_there(third) && !is_there(fourth) && is_there(fifth) && is_there(sixth));
  const std::string seventh = put(text(100, 7));
  EXPECT_TRUE(!is_there(third) && is_there(fifth) && is_there(sixth) && is_there(seventh));
}

TEST_F(DocumentStores, RefuseMoreThanTheBudget) {
  const std::string name = put(text(50));
  store_ = open(20'000);
  const Status status = store_->put(*read(text(300, 2)), {}).status();
  EXPECT_EQ(status.code(), Code::kBudget);
  EXPECT_THAT(status.message(), HasSubstr("20000"));
  EXPECT_TRUE(is_there(name));
  expect_whole(1);
}

TEST_F(DocumentStores, KeepWhatIsInUse) {
  const Tokens stored = text(100), wanted = turning(stored, 100, 140);
  const std::string name = put(stored);
  StorableText storable;
  expect_ok(read(text(100))->storable_text(&storable));
  store_ = open(storable.snapshot_bytes + 1000);
  StoreMatch match;
  auto loaded = take(store_->load(model_, options(), wanted, &match));
  EXPECT_TRUE(described()["entries"][0]["in_use"].get<bool>());
  const Status status = store_->put(*read(text(100, 2)), {}).status();
  EXPECT_EQ(status.code(), Code::kBudget);
  EXPECT_THAT(status.message(), HasSubstr("by entries in use"));
  EXPECT_TRUE(is_there(name));
  // It may be removed by name all the same, and is read on.
  expect_ok(store_->remove(name));
  EXPECT_FALSE(is_there(name));
  expect_goes_on(loaded, wanted);
  loaded->close();
  put(stored);
  EXPECT_FALSE(described()["entries"][0]["in_use"].get<bool>());
  put(text(100, 2));
  EXPECT_FALSE(is_there(name));
  expect_whole(1);
}

TEST_F(DocumentStores, LeaveForeignFilesAlone) {
  const std::string name = put(text(100));
  const std::string outside = folder_.file("outside.quire");
  expect_ok(read(text(100, 2))->save(outside, {}));
  const std::string before = read_file(outside);
  const std::vector<std::string> foreign = {"notes.txt",
                                            "book.quire",
                                            "a\nb",
                                            "\xff\xfe",
                                            std::string(32, 'A') + ".quire",
                                            std::string(32, 'b') + ".quire.tmp"};
  for (const std::string& file : foreign) write_file(path_ + "/" + file, "mine");
  fs::create_directory(path_ + "/" + std::string(32, 'c') + ".quire");
  // Links are never followed: neither to read, nor to write.
  fs::create_symlink(outside, snapshot(std::string(32, 'd')));
  const std::string linked = put(text(100, 3));
  fs::remove(snapshot(linked));
  fs::create_symlink(outside, snapshot(linked));
  EXPECT_EQ(store_->put(*read(text(100, 3)), {}).status().code(), Code::kIo);
  EXPECT_EQ(find(text(100, 2)).n_tokens, 0);
  EXPECT_EQ(store_->verify(linked, {}).code(), Code::kIo);
  EXPECT_EQ(store_->remove(linked).code(), Code::kNotFound);
  store_ = open(1);
  store_ = open();
  EXPECT_TRUE(read_file(outside) == before);
  const auto all = described();
  EXPECT_EQ(all["entries"].size(), 1u);
  EXPECT_EQ(all["unknown"].size(), foreign.size() + 3) << all.dump(1);
  for (const std::string& file : foreign) EXPECT_EQ(read_file(path_ + "/" + file), "mine");
  for (const char* odd : {"", "../outside", "/etc/passwd", "x", "store.lock"}) {
    EXPECT_EQ(store_->remove(odd).code(), Code::kInvalidArgument) << odd;
    EXPECT_EQ(store_->verify(odd, {}).code(), Code::kInvalidArgument) << odd;
  }
  EXPECT_EQ(store_->remove(std::string(32, '0')).code(), Code::kNotFound);
  EXPECT_EQ(store_->verify(std::string(32, '0'), {}).code(), Code::kNotFound);
  EXPECT_TRUE(is_there(name));
}

TEST_F(DocumentStores, AreTheirOwners) {
  ::umask(0);
  const std::string name = put(text(100));
  const auto mode = [](const std::string& path) {
    return static_cast<unsigned>(fs::status(path).permissions() & fs::perms::all);
  };
  EXPECT_EQ(mode(path_), 0700u);
  for (const std::string& file : {snapshot(name), sidecar(name), path_ + "/store.lock"}) EXPECT_EQ(mode(file), 0600u);
  ::umask(022);
  EXPECT_EQ(DocumentStore::open(folder_.path(), {.must_exist = true}).status().code(), Code::kNotFound);
  EXPECT_EQ(DocumentStore::open(folder_.file("none"), {.must_exist = true}).status().code(), Code::kNotFound);
  EXPECT_EQ(DocumentStore::open(folder_.file("no/store"), {}).status().code(), Code::kNotFound);
  EXPECT_EQ(DocumentStore::open(snapshot(name), {}).status().code(), Code::kNotFound);
  fs::remove(path_ + "/store.lock");
  fs::create_symlink(folder_.file("elsewhere"), path_ + "/store.lock");
  EXPECT_EQ(DocumentStore::open(path_, {}).status().code(), Code::kIo);
  EXPECT_FALSE(fs::exists(folder_.file("elsewhere")));
}

TEST_F(DocumentStores, LoseWhatKilledProcessesLeft) {
  const std::string name = put(text(100));
  const std::string left = snapshot(name) + ".123-0.tmp", other = sidecar(std::string(32, 'a')) + ".7-12.tmp";
  const std::string orphan = sidecar(std::string(32, 'b'));
  for (const std::string& file : {left, other, orphan}) write_file(file, "half");
  {
    const auto writing = take(take(StoreDirectory::open(path_, false))
                                  .try_lock(name, StoreDirectory::Lock::kWrite, FileLock::Kind::kExclusive));
    ASSERT_NE(writing, nullptr);
    open();
    EXPECT_TRUE(fs::exists(left));  // it may be that one's
    EXPECT_FALSE(fs::exists(other));
    EXPECT_EQ(store_->remove(name).code(), Code::kBusy);
  }
  open();
  EXPECT_FALSE(fs::exists(left));
  expect_whole(1);
}

// All at once, on one directory, with two handles: each finds what it put, or that it had to leave.
TEST_F(DocumentStores, ServeThreads) {
  const Tokens shared = text(80);
  std::vector<std::shared_ptr<Session>> sessions;
  for (uint32_t i = 0; i < 8; ++i) sessions.push_back(read(turning(shared, i < 2 ? 80 : 64, 120, i < 2 ? 1 : i)));
  const auto other = open();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sessions.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto& store = i % 2 == 0 ? store_ : other;
      Tokens wanted;
      expect_ok(sessions[i]->tokens(&wanted));
      wanted.push_back(7);
      for (int round = 0; round < 4; ++round) {
        const StoreMatch put = take(store->put(*sessions[i], {}));
        EXPECT_EQ(put.n_tokens, 120);
        StoreMatch match;
        const auto loaded = take(store->load(model_, options(), wanted, &match));
        EXPECT_TRUE(!loaded || match.n_tokens >= 64) << match.n_tokens;
        take(store->describe());
        if (round % 2 == 1 && i == 0) (void)store->remove(put.name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = described();
  for (const auto& entry : all["entries"]) expect_ok(store_->verify(entry["name"].get<std::string>(), {}));
}

// Who asks which entries are in use takes none of them away from others meanwhile.
TEST_F(DocumentStores, AreDescribedWhileOthersReadThem) {
  const std::string name = put(text(100));
  std::atomic<bool> done = false;
  std::thread other([&] {
    while (!done) take(store_->describe());
  });
  const auto directory = take(StoreDirectory::open(path_, false));
  int n_refused = 0;
  for (int i = 0; i < 20000; ++i) {
    n_refused += take(directory.try_lock(name, StoreDirectory::Lock::kUse, FileLock::Kind::kShared)) ? 0 : 1;
  }
  EXPECT_EQ(n_refused, 0);
  done = true;
  other.join();
}

// A wait for another writer ends when it is cancelled.
TEST_F(DocumentStores, WaitForEachOther) {
  const std::string name = put(text(100));
  expect_ok(store_->remove(name));
  CancelToken cancel;
  const auto directory = take(StoreDirectory::open(path_, false));
  auto writing = take(directory.try_lock(name, StoreDirectory::Lock::kWrite, FileLock::Kind::kExclusive));
  const auto session = read(text(100));
  cancel.cancel();
  EXPECT_EQ(store_->put(*session, {.cancel = &cancel}).status().code(), Code::kCancelled);
  Result<StoreMatch> waited = Status(Code::kInternal, "");
  std::thread waiter([&] { waited = store_->put(*session, {}); });
  // The other one writes it, and lets go.
  expect_ok(read(text(100))->save(snapshot(name), {}));
  const auto time = fs::last_write_time(snapshot(name));
  writing.reset();
  waiter.join();
  EXPECT_EQ(take(std::move(waited)).name, name);
  EXPECT_EQ(fs::last_write_time(snapshot(name)), time);  // nobody wrote it again
  expect_whole(1);
}

}  // namespace
}  // namespace quire::test
