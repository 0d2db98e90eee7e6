// What sessions hold: forks, edits, tiers, passages, snapshots, stores.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/cpp/with_model.h"

namespace quire_cpp {
namespace {

using nlohmann::json;
using quire::Status;
using testing::HasSubstr;

class Documents : public WithModel {
 protected:
  static quire::Session read(int n, const std::string& strategy = "dca(kv_chunk=16)") {
    quire::SessionOptions options;
    options.prefix_reuse = false;
    quire::Session made = session(strategy, options);
    made.feed_tokens(some_ids(n)).value();
    prefill(made);
    return made;
  }
};

TEST_F(Documents, KeepWhatLiesBehindWindows) {
  const std::string path = quire::test::source_path("tests/golden/models/qwen2_window_layers");
  const quire::Model some_layers = quire::Model::load(runtime, path).value();
  for (const bool keeps : {false, true}) {
    quire::SessionOptions options;
    options.strategy = "full(kv_chunk=16)";
    options.keep_behind_windows = keeps;
    quire::Session session = quire::Session::create(some_layers, options).value();
    session.feed_tokens(std::vector<int32_t>(240, 5)).value();
    prefill(session);
    EXPECT_EQ(session.stats().value().kv_chunks_dropped == 0, keeps);
  }
}

TEST_F(Documents, Forks) {
  quire::Session document = read(100);
  quire::Session fork = document.fork().value();
  EXPECT_EQ(fork.tokens().value(), document.tokens().value());
  fork.feed_tokens({5, 6}).value();
  EXPECT_EQ(fork.token_counts().value().n_pending, 2);
  fork.discard_pending().value();
  EXPECT_EQ(generate(fork, go(10)), generate(document, go(10)));
  fork.reset().value();
  EXPECT_EQ(fork.token_counts().value().n_tokens, 0);
  EXPECT_EQ(document.strategy().value(), fork.strategy().value());
  EXPECT_EQ(document.fingerprint().value(), fork.fingerprint().value());
}

TEST_F(Documents, Edits) {
  quire::Session document = read(200);
  std::vector<int32_t> changed = some_ids(200);
  changed.erase(changed.begin() + 80, changed.begin() + 100);
  quire::Session exact = document.fork().value();
  const quire::EditResult kept = exact.edit_tokens(changed).value();
  EXPECT_EQ(kept.n_tokens, 180);
  EXPECT_EQ(kept.n_kept, 80);
  EXPECT_EQ(kept.n_moved, 0);
  quire::EditOptions options;
  options.reuse = quire::EditReuse::kApproximate;
  EXPECT_GT(document.edit_tokens(changed, options).value().n_moved, 0);
  prefill(document);
  EXPECT_GT(document.stats().value().n_moved, 0);
  options = {};
  options.labels = {{0, 7, 1}};
  EXPECT_EQ(document.edit_text("The sky is grey.", options).value().n_kept, 0);
  options.reuse = quire::EditReuse::kApproximate;
  EXPECT_EQ(status(read(40, "longheads(chunk=16, chunks=4)").edit_tokens(changed, quire::EditOptions{options.reuse})),
            Status::kUnsupported);
}

TEST_F(Documents, Tiers) {
  const quire::test::TemporaryFolder folder;
  quire::SessionOptions options;
  options.kv_host_budget_bytes = 60'000;
  options.kv_file_directory = folder.path();
  options.prefill_block = 16;
  quire::Session spilling = session("full", options);
  spilling.feed_tokens(some_ids(200)).value();
  prefill(spilling);
  EXPECT_LE(spilling.tier_stats(quire::Tier::kHost).value().bytes_peak, 60'000);
  EXPECT_GT(spilling.tier_stats(quire::Tier::kFile).value().bytes_written, 0);
  EXPECT_GE(spilling.probes().value().tasks_after_cancel, 0);
  EXPECT_GE(runtime.stats().value().prefix_cache_bytes, 0);
}

TEST_F(Documents, Numbers) {
  quire::Session numbers = session("full");
  numbers.feed_tokens({1, 300, 301, 302}).value();
  quire::StreamOptions options;
  options.score = options.keep_logits = options.keep_hidden = true;
  prefill(numbers, options);
  const auto scores = numbers.scores(0, 4).value();
  EXPECT_TRUE(std::isnan(scores[0]));
  const auto rows = numbers.logits(0, 4).value();
  ASSERT_EQ(rows.size(), 4u * 320u);
  double sum = 0;
  for (size_t i = 0; i < 320; ++i) sum += std::exp(double{rows[i]});
  EXPECT_NEAR(scores[1], rows[300] - std::log(sum), 1e-4);
  EXPECT_EQ(numbers.logits().value(), std::vector<float>(rows.end() - 320, rows.end()));
  EXPECT_EQ(numbers.hidden_states(1, 3).value().size(), 3u * 64u);
  numbers.reset().value();
  numbers.feed_positions({5, 6}, {9, 11}).value();
  EXPECT_EQ(numbers.token_counts().value().n_pending, 2);
  numbers.reset().value();
  numbers.fill_random(1000, 7).value();
  EXPECT_EQ(numbers.token_counts().value().n_tokens, 1000);
}

TEST_F(Documents, Passages) {
  std::string text;
  std::vector<quire::Label> labels;
  for (int i = 0; i < 12; ++i) {
    const std::string page = "page " + std::to_string(i) + " tells of the number " + std::to_string(i * 7) + ". ";
    const auto begin = static_cast<int64_t>(text.size());
    text += page;
    labels.push_back({begin, static_cast<int64_t>(text.size()), 50 + i});
  }
  quire::Session document = session();
  document.feed_labelled(text, labels).value();
  quire::StreamOptions options = go(4);
  options.cite = true;
  options.cite_end = document.token_counts().value().n_pending;
  document.feed_text("which number is it? ").value();
  generate(document, options);
  const auto passages = document.passages(3).value();
  ASSERT_EQ(passages.size(), 3u);
  EXPECT_EQ(passages[0].label_id, 50 + passages[0].label);
  const auto shares = document.label_shares().value();
  ASSERT_EQ(shares.size(), 12u);
  EXPECT_NEAR(
      std::accumulate(shares.begin(), shares.end(), 0.0, [](double sum, const auto& s) { return sum + s.share; }), 1,
      1e-9);
  EXPECT_EQ(status(document.label_attention()), Status::kUnsupported);
}

TEST_F(Documents, SnapshotsInFiles) {
  const quire::test::TemporaryFolder folder;
  const std::string path = folder.file("saved.quire");
  quire::Session document = read(200);
  quire::SnapshotOptions options;
  std::pair<int64_t, int64_t> last;
  options.progress = [&](int64_t done, int64_t total) { last = {done, total}; };
  options.whole = true;
  document.save(path, options).value();
  EXPECT_EQ(last.first, last.second);
  EXPECT_EQ(json::parse(quire::describe_snapshot(path).value())["n_tokens"], 200);
  quire::verify_snapshot(path).value();
  quire::Session loaded = quire::Session::load(model, path).value();
  EXPECT_EQ(generate(loaded, go(10)), generate(document, go(10)));
  EXPECT_EQ(status(quire::verify_snapshot(folder.file("none"))), Status::kNotFound);
}

TEST_F(Documents, SnapshotsInMemory) {
  std::vector<unsigned char> bytes;
  bool committed = false;
  quire::SnapshotWriter writer;
  writer.write = [&](quire::Span<const unsigned char> part) -> quire::Result<void> {
    bytes.insert(bytes.end(), part.begin(), part.end());
    return {};
  };
  writer.commit = [&]() -> quire::Result<void> {
    committed = true;
    return {};
  };
  writer.name = "the shelf";
  quire::Session document = read(200);
  document.save(writer).value();
  EXPECT_TRUE(committed);
  quire::SnapshotReader reader;
  reader.n_bytes = static_cast<int64_t>(bytes.size());
  reader.read = [shared = std::make_shared<std::vector<unsigned char>>(bytes)](
                    int64_t offset, quire::Span<unsigned char> buffer) -> quire::Result<size_t> {
    std::copy_n(shared->begin() + offset, buffer.size(), buffer.begin());
    return buffer.size();
  };
  EXPECT_EQ(json::parse(quire::describe_snapshot(reader).value())["n_tokens"], 200);
  quire::verify_snapshot(reader).value();
  quire::Session fork;
  {
    quire::Session loaded = quire::Session::load(model, reader).value();
    reader = {};  // the session has its own
    fork = loaded.fork().value();
  }
  EXPECT_EQ(generate(fork, go(10)), generate(document, go(10)));
}

TEST_F(Documents, Stores) {
  const quire::test::TemporaryFolder folder;
  quire::StoreOptions must_exist;
  must_exist.must_exist = true;
  EXPECT_EQ(status(quire::Store::open(folder.file("store"), must_exist)), Status::kNotFound);
  quire::StoreOptions budget;
  budget.budget_bytes = 10'000'000;
  auto store = quire::Store::open(folder.file("store"), budget).value();
  const auto ids = some_ids(400);
  quire::SessionOptions options;
  options.strategy = "dca(kv_chunk=16)";
  EXPECT_STREQ(store.find(model, ids, options).value().name, "");
  EXPECT_EQ(status(store.load(model, ids, options)), Status::kNotFound);
  quire::Session document = read(300);
  const quire::StoreMatch put = store
                                    .put(document,
                                         "Gr\xc3\xb6\xc3\x9f"
                                         "e")
                                    .value();
  EXPECT_EQ(put.n_tokens, 300);
  EXPECT_EQ(store.find(model, ids, options).value().n_tokens, 300);
  EXPECT_EQ(json::parse(store.describe().value())["entries"][0]["title"],
            "Gr\xc3\xb6\xc3\x9f"
            "e");
  quire::StoredSession stored = store.load(model, ids, options).value();
  EXPECT_EQ(stored.match.n_tokens, 300);
  store.verify(put.name).value();
  store.remove(put.name).value();
  EXPECT_EQ(status(store.remove(put.name)), Status::kNotFound);
  EXPECT_EQ(generate(stored.session, go(10)), generate(document, go(10)));
  const quire::Store same = store;
  EXPECT_EQ(same, store);
}

}  // namespace
}  // namespace quire_cpp
