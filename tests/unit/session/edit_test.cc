// Edited sessions: exact ones are sessions of the new text, bit for bit; approximate ones take over what they say.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/session/describe_snapshot.h"
#include "tests/source_path.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

constexpr int64_t kChunk = 16;

const char* const kStrategies[] = {"full(kv_chunk=16)",
                                   "dca(kv_chunk=16)",
                                   "longheads(chunk=16, chunks=5)",
                                   "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)",
                                   "streaming_llm(sinks=3, recent=50, kv_chunk=16)",
                                   "self_extend(group=4, window=20, kv_chunk=16)",
                                   "scca_fixed(kv_chunk=16)",
                                   "beacon(ratio=4, kv_chunk=16)"};

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Tokens part(const Tokens& tokens, int64_t begin, int64_t end) { return {tokens.begin() + begin, tokens.begin() + end}; }

SessionOptions options_for(const std::string& strategy) {
  SessionOptions options = with_strategy(strategy);
  options.prefill_block = 24;
  return options;
}

EditResult edit(Session& session, const Tokens& tokens, EditReuse reuse = EditReuse::kExact, int64_t reread = 0) {
  EditResult result;
  EditOptions options;
  options.reuse = reuse;
  options.reread = reread;
  expect_ok(session.edit_tokens(tokens, options, &result));
  expect_counted(session);
  return result;
}

bool narrows() { return tested_old_text().narrows(); }

struct Answer {
  Tokens tokens;
  Logits logits;
  SessionStats stats;
};

Answer answer(const std::shared_ptr<Session>& session) {
  const Outcome outcome = run(session, generating(6, 0.8f));
  expect_ok(outcome.status);
  expect_counted(*session);
  return {outcome.tokens, last_logits(*session), stats(*session)};
}

Answer alone(const std::shared_ptr<Model>& model, const SessionOptions& options, const Tokens& tokens) {
  const auto session = make_session(model, options);
  expect_ok(session->feed_tokens(tokens));
  return answer(session);
}

void expect_equal(const Answer& answer, const Answer& expected) {
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_TRUE(same_bits(answer.logits, expected.logits));
}

// What a text of 150 tokens becomes.
std::vector<Tokens> edits(const Model& model, const Tokens& old_text) {
  const Tokens other = random_tokens(model, 23, 9);
  return {old_text + other,
          other + old_text,
          part(old_text, 0, 70) + other + part(old_text, 70, 150),
          part(old_text, 0, 70) + part(old_text, 100, 150),
          part(old_text, 0, 64) + other + part(old_text, 96, 150),
          part(old_text, 0, 149) + other,
          part(old_text, 0, 90),
          part(old_text, 0, 1),
          other};
}

class Edit : public testing::TestWithParam<const char*> {
 protected:
  static std::string model_name() {
    return std::string(GetParam()).starts_with("scca") ? "text_256" : model_for(GetParam());  // heads in two halves
  }
  std::shared_ptr<Model> model_ = load(model_name(), 2);
  const Tokens old_ = random_tokens(*model_, 150);
};
INSTANTIATE_TEST_SUITE_P(Strategies, Edit, testing::ValuesIn(kStrategies));

TEST_P(Edit, ExactIsASessionOfTheNewText) {
  for (const Tokens& now : edits(*model_, old_)) {
    SCOPED_TRACE(now.size());
    const Answer expected = alone(model_, options_for(GetParam()), now);
    for (const bool generated : {false, true}) {  // tokens of an answer are replaced as others are
      const auto session = make_session(model_, options_for(GetParam()));
      expect_ok(session->feed_tokens(old_));
      expect_ok(run(session, generating(generated ? 5 : 0)).status);
      const EditResult result = edit(*session, now);
      EXPECT_EQ(result.n_tokens, static_cast<int64_t>(now.size()));
      EXPECT_EQ(result.n_moved, 0);
      EXPECT_EQ(position(*session), (Position{result.n_kept, result.n_tokens - result.n_kept}));
      const int64_t before = stats(*session).n_prefilled;
      const Answer edited = answer(session);
      expect_equal(edited, expected);
      EXPECT_EQ(edited.stats.n_prefilled - before, result.n_tokens - result.n_kept);
      if (std::string(GetParam()).starts_with("full") || std::string(GetParam()).starts_with("dca(")) {
        const auto differs = std::mismatch(now.begin(), now.end(), old_.begin(), old_.end()).first - now.begin();
        const int64_t most = std::min<int64_t>(differs, static_cast<int64_t>(now.size()) - 1);
        // Where full records were dropped, the text goes on from an earlier place, if there is one.
        EXPECT_LE(result.n_kept, most);
        if (!narrows()) {
          EXPECT_EQ(result.n_kept, most);
        } else if (tested_old_text().after == 0) {
          EXPECT_GE(result.n_kept, most / kChunk * kChunk);
        }
      }
    }
  }
}

// Tokens that the model generated become the caller's.
TEST_P(Edit, ExactIsSoWhereAnAnswerBecomesText) {
  const auto session = make_session(model_, options_for(GetParam()));
  expect_ok(session->feed_tokens(old_));
  expect_ok(run(session, generating(20)).status);
  Tokens text;
  expect_ok(session->tokens(&text));
  const Tokens now = text + random_tokens(*model_, 20, 3);
  edit(*session, now);
  expect_equal(answer(session), alone(model_, options_for(GetParam()), now));
}

TEST_P(Edit, ThatChangesNothingComputesNothing) {
  const auto session = make_session(model_, options_for(GetParam()));
  expect_ok(session->feed_tokens(old_));
  expect_ok(run(session).status);
  const Logits logits = last_logits(*session);
  EXPECT_EQ(edit(*session, old_).n_kept, 150);
  EXPECT_EQ(position(*session), (Position{150, 0}));
  EXPECT_TRUE(same_bits(last_logits(*session), logits));
  const Answer edited = answer(session);
  EXPECT_EQ(edited.stats.n_prefilled, 150);
  expect_equal(edited, alone(model_, options_for(GetParam()), old_));
}

// What is kept is a text of its own once the new tokens are forgotten, though no logits are known after its last one.
TEST_P(Edit, GoesOnWithoutItsNewTokens) {
  const Tokens now = part(old_, 0, 149) + random_tokens(*model_, 23, 9);
  for (const bool discards : {true, false}) {
    const auto session = make_session(model_, options_for(GetParam()));
    expect_ok(session->feed_tokens(old_));
    expect_ok(run(session).status);
    const int64_t n_kept = edit(*session, now).n_kept;
    expect_ok(discards ? session->discard_pending() : session->truncate(n_kept));
    EXPECT_EQ(position(*session), (Position{n_kept, 0}));
    if (n_kept == 0) continue;  // all was forgotten
    expect_equal(answer(session), alone(model_, options_for(GetParam()), part(now, 0, n_kept)));
  }
}

// With records in a file, after loading, and in forks that go other ways.
TEST_P(Edit, ExactIsSoWhereverTheRecordsAre) {
  const TemporaryFolder folder;
  const SpillDirectory spill;
  const auto measured = make_session(model_, options_for(GetParam()));
  expect_ok(measured->feed_tokens(old_));
  expect_ok(run(measured).status);
  expect_ok(measured->save(folder.file("old"), {}));
  const SessionStats whole = stats(*measured);
  SessionOptions spilling = options_for(GetParam());
  spilling.spill_directory = spill.path();
  const std::string name = GetParam();
  const bool drops = name.starts_with("streaming") || name.starts_with("beacon") || name.starts_with("scca");
  if (!drops)
    spilling.kv_budget_bytes =
        whole.kv_bytes_peak - (whole.kv_full_bytes + whole.kv_narrow_bytes) / (narrows() ? 3 : 2);
  const Tokens insertion = edits(*model_, old_)[2], replacement = edits(*model_, old_)[4];
  const Answer expected = alone(model_, options_for(GetParam()), insertion);
  const Answer of_fork = alone(model_, options_for(GetParam()), replacement);
  for (const bool loaded : {false, true}) {
    LoadOptions loading;
    loading.session.spill_directory = spilling.spill_directory;
    loading.session.kv_budget_bytes = spilling.kv_budget_bytes;
    const auto session =
        loaded ? take(Session::load(model_, folder.file("old"), loading)) : make_session(model_, spilling);
    if (!loaded) expect_ok(session->feed_tokens(old_));
    if (!loaded) expect_ok(run(session).status);
    const auto fork = take(session->fork());
    edit(*session, insertion);
    edit(*fork, replacement);
    expect_equal(answer(session), expected);
    expect_equal(answer(fork), of_fork);
    // Back again.
    edit(*session, replacement);
    expect_equal(answer(session), of_fork);
  }
}

// ---- approximate

// Gives the tensors of the second layer names of no layer, which are as long: so none of the file moves.
void take_out_second_layer(const std::filesystem::path& path) {
  const std::string layer = "model.layers.1.", other = "other_layers_1.";
  std::ifstream in(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (size_t at = bytes.find(layer); at != std::string::npos; at = bytes.find(layer, at)) {
    bytes.replace(at, layer.size(), other);
  }
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

// A model of which one layer is left: its keys and values depend on no other token.
std::shared_ptr<Model> one_layer(RuntimeOptions options = {}) {
  static const TemporaryFolder folder;
  const std::filesystem::path path = folder.file("one_layer");
  if (!std::filesystem::exists(path)) {
    std::filesystem::copy(source_path("tests/golden/models/short_128"), path);
    std::ifstream in(path / "config.json");
    auto config = nlohmann::json::parse(in);
    in.close();
    config["num_hidden_layers"] = 1;
    std::filesystem::remove(path / "config.json");
    std::ofstream(path / "config.json") << config;
    take_out_second_layer(path / "model.safetensors");
  }
  options.n_threads = 2;
  return take(load_model(make_runtime(std::move(options)), path, {}));
}

const char* const kMoving[] = {"full(kv_chunk=16)", "dca(kv_chunk=16)",
                               "dca_topk(chunk=16, chunks=6, sticky=2, kv_chunk=32, one_in=6)",
                               "self_extend(group=4, window=20, kv_chunk=16)"};

class MovedChunks : public testing::TestWithParam<const char*> {
 protected:
  static SessionOptions options() {
    SessionOptions o = options_for(GetParam());
    o.kv_type = ElementType::kF32;
    return o;
  }
  std::shared_ptr<Session> read_session(const Tokens& tokens) const {
    const auto session = make_session(model_, options());
    expect_ok(session->feed_tokens(tokens));
    expect_ok(run(session).status);
    return session;
  }
  std::shared_ptr<Model> model_ = one_layer();
  const Tokens old_ = random_tokens(*model_, 400);
};
INSTANTIATE_TEST_SUITE_P(Strategies, MovedChunks, testing::ValuesIn(kMoving));

double worst_difference(const Logits& a, const Logits& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max<double>(worst, std::fabs(a[i] - b[i]));
  return a.size() == b.size() ? worst : INFINITY;
}

// In one layer nothing is approximate but the turning of keys, and that not where the shift is whole chunks. With
// narrow old text so are full records that are made of narrow ones.
TEST_P(MovedChunks, AreThoseOfTheNewTextInOneLayer) {
  for (const int64_t shift : {int64_t{64}, int64_t{5}, int64_t{-64}, int64_t{-37}}) {
    SCOPED_TRACE(shift);
    const Tokens other = random_tokens(*model_, 64 + shift, 5);
    const Tokens now = part(old_, 0, 50) + other + part(old_, 114, 400);  // 64 tokens became others
    const auto session = read_session(old_);
    const EditResult result = edit(*session, now, EditReuse::kApproximate);
    if (!narrows()) {
      EXPECT_EQ(result.n_kept, 50);
    }
    EXPECT_GE(result.n_moved, 400 - 114 - 3 * 32);
    const int64_t prefilled = stats(*session).n_prefilled;
    const auto fork = take(session->fork());
    const Outcome outcome = run(session);
    expect_ok(outcome.status);
    const StreamEvent& last = outcome.prefill.back();
    EXPECT_EQ(last.moved, result.n_moved);
    EXPECT_EQ(last.done, result.n_tokens - result.n_kept - result.n_moved);
    EXPECT_EQ(last.total, last.done + last.moved);
    EXPECT_EQ(stats(*session).n_moved, result.n_moved);
    EXPECT_EQ(stats(*session).n_prefilled - prefilled, last.done);
    const auto expected = read_session(now);
    const Logits own = last_logits(*session), right = last_logits(*expected);
    const bool selects = std::string(GetParam()).starts_with("dca_topk");  // by what narrow records say, perhaps others
    // What is narrowed twice may be a step off, and a step of int4 (a range / 15) is up to 17 of int8 (a maximum /
    // 127).
    const double steps = tested_old_text().type == ElementType::kInt4 ? 2 * 127.0 / 15 : 1;
    const double most = !narrows() ? 1e-4 : selects ? 0.5 : steps * 2e-2;
    if (shift % 64 == 0 && !narrows()) {
      EXPECT_TRUE(same_bits(own, right));
    } else {
      EXPECT_LE(worst_difference(own, right), most);
    }
    // A fork takes over the same.
    expect_ok(run(fork).status);
    EXPECT_TRUE(same_bits(last_logits(*fork), own));
    EXPECT_EQ(stats(*fork).n_moved, result.n_moved);
    // And so does what is cut and goes on.
    for (const auto& one : {session, expected}) {
      expect_ok(one->truncate(result.n_tokens - 7));
      expect_ok(one->feed_tokens(random_tokens(*model_, 5, 6)));
      expect_ok(run(one).status);
    }
    const bool exact = shift % 64 == 0 && !narrows();
    EXPECT_LE(worst_difference(last_logits(*session), last_logits(*expected)), exact ? 0 : most);
    if (exact) expect_equal(answer(session), answer(expected));  // chosen chunks are the same
  }
}

// Records in a file, few of which fit into memory; a session that was loaded; the same bits as in memory.
// Two layers of Gemma, of which the first one adds nothing, since its last norms multiply by 1 - 1: keys depend on no
// other token. The second one has a window of 40 tokens, and a RoPE base of its own.
std::shared_ptr<Model> window_layer(const TemporaryFolder& folder) {
  const std::filesystem::path path = folder.file("window_layer"), weights = path / "model.safetensors";
  std::filesystem::copy(source_path("tests/golden/models/gemma3"), path);
  std::ifstream config_file(path / "config.json"), weights_file(weights, std::ios::binary);
  auto config = nlohmann::json::parse(config_file);
  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"full_attention", "sliding_attention"};
  std::string bytes{std::istreambuf_iterator<char>(weights_file), {}};
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  for (const char* norm : {"post_attention_layernorm", "post_feedforward_layernorm"}) {
    const auto& offsets = header.at("model.layers.0." + std::string(norm) + ".weight").at("data_offsets");
    for (size_t at = offsets[0]; at < offsets[1]; at += sizeof(float)) {
      constexpr float kNothing = -1;
      std::memcpy(&bytes[sizeof length + length + at], &kNothing, sizeof kNothing);
    }
  }
  for (const std::string layer : {"2", "3"}) {  // other names of the same length
    const std::string from = "model.layers." + layer + ".", to = "other_layers_" + layer + ".";
    for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) {
      bytes.replace(at, from.size(), to);
    }
  }
  std::filesystem::remove(path / "config.json");
  std::filesystem::remove(weights);
  std::ofstream(path / "config.json") << config;
  std::ofstream(weights, std::ios::binary) << bytes;
  return take(load_model(make_runtime({}), path, {}));
}

TEST(MovedChunksOfWindows, AreTurnedByTheirOwnBase) {
  const TemporaryFolder folder;
  const auto model = window_layer(folder);
  SessionOptions options = with_strategy("full(kv_chunk=16)");
  options.keep_behind_windows = true;
  options.kv_type = ElementType::kF32;
  const Tokens old = random_tokens(*model, 250);
  const auto read = [&](const Tokens& tokens) {
    auto session = make_session(model, options);
    expect_ok(session->feed_tokens(tokens));
    expect_ok(run(session).status);
    return session;
  };
  for (const int64_t shift : {int64_t{16}, int64_t{5}, int64_t{-9}}) {
    SCOPED_TRACE(shift);
    const Tokens now = part(old, 0, 30) + random_tokens(*model, 20 + shift, 5) + part(old, 50, 250);
    const auto session = read(old);
    EXPECT_GE(edit(*session, now, EditReuse::kApproximate).n_moved, 250 - 50 - 3 * 16);
    expect_ok(run(session).status);
    EXPECT_LE(worst_difference(last_logits(*session), last_logits(*read(now))), shift % 16 == 0 ? 0 : 1e-4);
  }
}

TEST_P(MovedChunks, AreTheSameWhereverTheRecordsAre) {
  const TemporaryFolder folder;
  const SpillDirectory spill;
  const Tokens now = random_tokens(*model_, 37, 5) + old_;
  const auto in_memory = read_session(old_);
  expect_ok(in_memory->save(folder.file("old"), {}));
  const SessionStats whole = stats(*in_memory);
  const EditResult result = edit(*in_memory, now, EditReuse::kApproximate);
  const Answer expected = answer(in_memory);
  SessionOptions spilling = options();
  spilling.spill_directory = spill.path();
  spilling.kv_budget_bytes = whole.kv_bytes_peak - (whole.kv_full_bytes + whole.kv_narrow_bytes) / 2;
  const auto spilled = make_session(model_, spilling);
  expect_ok(spilled->feed_tokens(old_));
  expect_ok(run(spilled).status);
  EXPECT_EQ(edit(*spilled, now, EditReuse::kApproximate).n_moved, result.n_moved);
  // Records that wait for their place are held, in memory or not.
  const SessionStats waiting = stats(*spilled);
  EXPECT_GE(waiting.kv_chunks, result.n_moved / 32);
  expect_equal(answer(spilled), expected);
  EXPECT_EQ(stats(*spilled).n_moved, result.n_moved);
  EXPECT_LE(stats(*spilled).kv_bytes_peak, spilling.kv_budget_bytes);
  const auto loaded = take(Session::load(model_, folder.file("old"), {}));
  EXPECT_EQ(edit(*loaded, now, EditReuse::kApproximate).n_moved, result.n_moved);
  expect_equal(answer(loaded), expected);
  EXPECT_EQ(stats(*loaded).n_moved, result.n_moved);
}

// Memory for the old text and the new one beside it is not there: what does not fit is computed.
TEST_P(MovedChunks, StayWithinTheBudget) {
  const auto measured = read_session(old_ + random_tokens(*model_, 37, 5));
  SessionOptions tight = options();
  tight.kv_budget_bytes = stats(*measured).kv_bytes_peak;
  const auto session = make_session(model_, tight);
  expect_ok(session->feed_tokens(old_));
  expect_ok(run(session).status);
  edit(*session, random_tokens(*model_, 37, 5) + old_, EditReuse::kApproximate);
  expect_ok(run(session).status);
  EXPECT_EQ(position(*session), (Position{437, 0}));
  EXPECT_LE(stats(*session).kv_bytes_peak, tight.kv_budget_bytes);
  EXPECT_EQ(stats(*session).n_prefilled + stats(*session).n_moved, 837);
}

// A cancel at any event: what was taken over stays, the rest is taken over by the next stream.
TEST_P(MovedChunks, GoOnAfterACancel) {
  const Tokens now = random_tokens(*model_, 37, 5) + old_;
  const auto whole = read_session(old_);
  const EditResult result = edit(*whole, now, EditReuse::kApproximate);
  const Answer expected = answer(whole);
  for (int n_events = 0; n_events < 4; ++n_events) {
    const auto session = read_session(old_);
    edit(*session, now, EditReuse::kApproximate);
    const auto stream = take(GenerationStream::open(session, generating(6, 0.8f)));
    const StreamEvent* event = nullptr;
    for (int i = 0; i < n_events; ++i) (void)stream->next(-1, &event);
    expect_ok(stream->cancel());
    (void)read(*stream);
    const Position at = position(*session);
    EXPECT_EQ(at.tokens + at.pending, result.n_tokens + at.tokens - std::min(at.tokens, result.n_tokens));
    if (at.tokens > result.n_tokens) expect_ok(session->truncate(result.n_tokens));
    expect_equal(answer(session), expected);
    EXPECT_EQ(stats(*session).n_moved, result.n_moved);
  }
}

// Memory that runs out at each allocation in turn while chunks are taken over: an error that leaves a token boundary,
// and another stream does the rest.
TEST_P(MovedChunks, SurviveFailingAllocations) {
  static TestMemory memory;
  const auto model = one_layer(memory.runtime());
  const Tokens now = random_tokens(*model, 37, 5) + part(old_, 0, 150);
  const auto edited = [&] {
    const auto session = make_session(model, options());
    expect_ok(session->feed_tokens(part(old_, 0, 150)));
    expect_ok(run(session).status);
    EXPECT_GE(edit(*session, now, EditReuse::kApproximate).n_moved, 64);
    return session;
  };
  const auto whole = edited();
  const Answer expected = answer(whole);
  bool done = false;
  for (int64_t n = 0; !done; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 300);
    const auto session = edited();
    memory.left = n;
    const Outcome outcome = run(session);
    memory.left = INT64_MAX;
    done = outcome.status.ok();
    EXPECT_EQ(outcome.status.code(), done ? Code::kOk : Code::kOutOfMemory);
    const Position at = position(*session);
    EXPECT_EQ(at.tokens + at.pending, 187);
    const auto fork = take(session->fork());  // with some chunks at their new places, and others to come
    expect_equal(answer(session), expected);
    expect_equal(answer(fork), expected);
    EXPECT_EQ(stats(*session).n_moved, expected.stats.n_moved);
    EXPECT_EQ(stats(*session).n_prefilled, expected.stats.n_prefilled);
  }
}

// ---- what an approximate text is not taken for

class Approximate : public testing::Test {
 protected:
  std::shared_ptr<Session> make(bool share = true) const {
    SessionOptions options = options_for("full(kv_chunk=16)");
    options.reuse_prefixes = share;
    return make_session(model_, options);
  }
  // A session of now_ that took over chunks of old_.
  std::shared_ptr<Session> edited() const {
    const auto session = make();
    expect_ok(session->feed_tokens(old_));
    expect_ok(run(session).status);
    EXPECT_GT(edit(*session, now_, EditReuse::kApproximate).n_moved, 0);
    expect_ok(run(session).status);
    return session;
  }

  std::shared_ptr<Model> model_ = load("short_128", 2);
  const Tokens old_ = random_tokens(*model_, 120);
  const Tokens now_ = part(old_, 0, 40) + random_tokens(*model_, 16, 7) + part(old_, 40, 120);
};

TEST_F(Approximate, TextsAreNotSharedWithOtherSessions) {
  const auto session = edited();
  const auto other = make();
  expect_ok(other->feed_tokens(now_));
  const Answer own = answer(other);
  EXPECT_EQ(own.stats.n_reused, 64);  // the chunks before, one of which was computed anew
  expect_equal(own, alone(model_, options_for("full(kv_chunk=16)"), now_));
  // Nor does it take over what others have computed behind its approximate chunks.
  const Tokens more = random_tokens(*model_, 40, 8);
  expect_ok(other->truncate(static_cast<int64_t>(now_.size())));
  expect_ok(other->feed_tokens(more));
  expect_ok(run(other).status);
  expect_ok(session->feed_tokens(more));
  const Outcome outcome = run(session);
  EXPECT_EQ(outcome.prefill.back().reused, 0);
  EXPECT_EQ(outcome.prefill.back().reuse_miss, ReuseMiss::kApproximate);
}

TEST_F(Approximate, TextsAreExactAgainWhereTheyAreCut) {
  const Answer expected = alone(model_, options_for("full(kv_chunk=16)"), now_);
  const auto session = edited();
  EXPECT_FALSE(same_bits(last_logits(*session), last_logits(*[&] {
                           const auto exact = make(false);
                           expect_ok(exact->feed_tokens(now_));
                           expect_ok(run(exact).status);
                           return exact;
                         }())));
  const auto fork = take(session->fork());
  // The first chunk that was taken over begins at token 64.
  expect_ok(session->truncate(63));
  expect_ok(session->feed_tokens(part(now_, 63, 136)));
  expect_equal(answer(session), expected);
  // So it is by an exact edit that changes nothing.
  EXPECT_EQ(edit(*fork, now_).n_kept, 64);
  expect_equal(answer(fork), expected);
}

TEST_F(Approximate, TextsAreKnownAsSuchFromTheirSnapshots) {
  const TemporaryFolder folder;
  const auto session = edited();
  expect_ok(session->save(folder.file("now"), {}));
  EXPECT_NE(take(describe_snapshot(folder.file("now"))).find("\"n_approximate\":72"), std::string::npos);
  const auto loaded = take(Session::load(model_, folder.file("now"), {}));
  expect_equal(answer(loaded), answer(session));
  StorableText text;
  expect_ok(loaded->storable_text(&text));
  EXPECT_EQ(text.tokens, part(now_, 0, 64));
  EXPECT_FALSE(text.is_all);
  EXPECT_EQ(edit(*loaded, now_).n_kept, 64);
  expect_ok(run(loaded).status);
  expect_ok(loaded->save(folder.file("exact"), {}));
  EXPECT_NE(take(describe_snapshot(folder.file("exact"))).find("\"n_approximate\":0"), std::string::npos);
}

TEST_F(Approximate, MovesAreForgottenWithTheirTokens) {
  const auto session = make();
  expect_ok(session->feed_tokens(old_));
  expect_ok(run(session).status);
  edit(*session, now_, EditReuse::kApproximate);
  expect_ok(session->truncate(90));  // in the third chunk that would be taken over
  const Tokens other = random_tokens(*model_, 60, 4);
  expect_ok(session->feed_tokens(other));
  expect_ok(run(session).status);
  EXPECT_EQ(stats(*session).n_moved, 16);
  edit(*session, old_, EditReuse::kApproximate);
  expect_ok(session->discard_pending());
  expect_ok(session->feed_tokens(part(old_, position(*session).tokens, 120)));
  expect_ok(run(session).status);
  EXPECT_EQ(stats(*session).n_moved, 16);
}

// The session keeps a chunk for a move, and takes the same one over from another session before that comes.
// Of edits that follow each other before a stream, each takes over what the one before was to.
TEST_F(Approximate, MovesWaitWhileTheTextIsEditedBehindThem) {
  const Tokens inserted = part(old_, 0, 20) + random_tokens(*model_, 3, 5) + part(old_, 20, std::ssize(old_));
  const Tokens longer = inserted + random_tokens(*model_, 2, 6);
  const auto reader = [&] {
    const auto session = make_session(model_, options_for("full(kv_chunk=16)"));
    expect_ok(session->feed_tokens(old_));
    expect_ok(run(session).status);
    return session;
  };
  const auto once = reader(), twice = reader();
  const EditResult expected = edit(*once, longer, EditReuse::kApproximate);
  EXPECT_GT(expected.n_moved, 0);
  edit(*twice, inserted, EditReuse::kApproximate);
  const EditResult result = edit(*twice, longer, EditReuse::kApproximate);
  EXPECT_EQ(result.n_kept, expected.n_kept);
  EXPECT_GE(result.n_moved, expected.n_moved - 16);  // the first edit left its last token to be computed
  if (result.n_moved == expected.n_moved) expect_equal(answer(twice), answer(once));
  // What differs is not taken over, and nothing by an exact edit.
  const auto turning = reader();
  edit(*turning, inserted, EditReuse::kApproximate);
  const Tokens turned = part(inserted, 0, 100) + random_tokens(*model_, 40, 7);
  const int64_t n_moved = edit(*turning, turned, EditReuse::kApproximate).n_moved;
  EXPECT_TRUE(n_moved >= 96 - 48 && n_moved <= 96 - 16) << n_moved;
  EXPECT_EQ(edit(*turning, turned).n_moved, 0);
  expect_equal(answer(turning), alone(model_, options_for("full(kv_chunk=16)"), turned));
}

TEST_F(Approximate, ChunksMayBeSharedWhileTheyWait) {
  SessionOptions options = options_for("streaming_llm(sinks=0, recent=50, kv_chunk=16)");
  options.reuse_prefixes = true;
  const Tokens old = random_tokens(*model_, 200, 6);
  auto other = make_session(model_, options);
  expect_ok(other->feed_tokens(part(old, 0, 100)));
  expect_ok(run(other).status);
  const auto session = make_session(model_, options);
  expect_ok(session->feed_tokens(old));
  EXPECT_EQ(run(session).prefill.front().reused, 96);
  // Keys were dropped that the tokens before the edit need, so that nothing of the text is kept as it is.
  const Tokens now = part(old, 0, 110) + random_tokens(*model_, 16, 7) + part(old, 110, 200);
  EXPECT_EQ(edit(*session, now, EditReuse::kApproximate).n_kept, 0);
  EXPECT_GT(run(session).prefill.back().reused, 0);
  other->close();
  other.reset();
  expect_ok(session->feed_tokens(random_tokens(*model_, 40, 8)));
  const auto fork = take(session->fork());
  expect_equal(answer(fork), answer(session));
}

// Streams that need each token computed compute it.
TEST_F(Approximate, ChunksAreComputedWhereTheyAreScored) {
  const auto session = make();
  expect_ok(session->feed_tokens(old_));
  expect_ok(run(session).status);
  edit(*session, now_, EditReuse::kApproximate);
  StreamOptions scoring;
  scoring.score = true;
  const Outcome outcome = run(session, scoring);
  expect_ok(outcome.status);
  EXPECT_EQ(outcome.prefill.back().moved, 0);
  EXPECT_EQ(outcome.prefill.back().reuse_miss, ReuseMiss::kStream);
  expect_equal(answer(session), alone(model_, options_for("full(kv_chunk=16)"), now_));
}

TEST_F(Approximate, RunsCanBeReadAgainAtTheirBeginning) {
  if (narrows()) GTEST_SKIP() << "the run begins elsewhere";
  for (const int64_t reread : {0, 1, 16, 17, 40, 1000}) {
    const auto session = make(false);
    expect_ok(session->feed_tokens(old_));
    expect_ok(run(session).status);
    // The run is tokens [64, 136), from the first chunk that was not cut in two on.
    const int64_t expected = std::max<int64_t>(0, 128 - ceil_div(64 + reread, kChunk) * kChunk);
    EXPECT_EQ(edit(*session, now_, EditReuse::kApproximate, reread).n_moved, expected) << reread;
  }
}

// ---- what cannot be edited

TEST(EditErrors, LeaveTheSessionAsItWas) {
  EditResult result;
  EditOptions approximate;
  approximate.reuse = EditReuse::kApproximate;
  for (const std::string strategy : {"longheads(chunk=16, chunks=5)", "beacon(ratio=4, kv_chunk=16)"}) {
    const auto model = load(model_for(strategy));
    const auto session = make_session(model, options_for(strategy));
    const Tokens text = random_tokens(*model, 100);
    expect_ok(session->feed_tokens(text));
    expect_ok(run(session).status);
    const Status status = session->edit_tokens(part(text, 10, 100), approximate, &result);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find(strategy.substr(0, 6)), std::string::npos) << status.message();
    EXPECT_EQ(position(*session), (Position{100, 0}));
    EXPECT_EQ(session->edit_tokens(Tokens{1, -1}, {}, &result).code(), Code::kInvalidToken);
    EXPECT_EQ(position(*session), (Position{100, 0}));
    const auto stream = take(GenerationStream::open(session, generating(3)));
    EXPECT_EQ(session->edit_tokens(text, {}, &result).code(), Code::kBusy);
    stream->close();
    session->close();
    EXPECT_EQ(session->edit_tokens(text, {}, &result).code(), Code::kClosed);
  }
}

// Texts: the new one is fed at once, with its labels and marks.
TEST(EditText, IsFedAsOneText) {
  const auto model = load("text_256");
  const std::string text = "The grass is green. The sky is blue. The sun is yellow. Here we go.";
  const std::string changed = "The grass is green. The sky is grey today. The sun is yellow. Here we go.";
  const auto session = make_session(model, options_for("full(kv_chunk=16)"));
  const TextLabel old_label{0, 10, 1}, label{20, 42, 2};
  expect_ok(session->feed_text(text.substr(0, 20), false, true, {&old_label, 1}));
  expect_ok(session->feed_text(text.substr(20), false, true));
  expect_ok(run(session, generating(3)).status);
  EditOptions options;
  options.labels = {&label, 1};
  EditResult result;
  expect_ok(session->edit_text(changed, options, &result));
  const auto expected = make_session(model, options_for("full(kv_chunk=16)"));
  expect_ok(expected->feed_text(changed, false, true, {&label, 1}));
  Tokens own, right;
  expect_ok(session->tokens(&own));
  expect_ok(expected->tokens(&right));
  EXPECT_EQ(own, right);
  EXPECT_GT(result.n_kept, 3);
  StreamOptions citing = generating(4);
  citing.cite = true;
  citing.cite_end = static_cast<int64_t>(own.size());
  expect_equal({run(session, citing).tokens, last_logits(*session), {}},
               {run(expected, citing).tokens, last_logits(*expected), {}});
  std::vector<Passage> passages, right_passages;
  std::vector<int64_t> ids, right_ids;
  expect_ok(session->passages(-1, 0, 5, &passages, &ids));
  expect_ok(expected->passages(-1, 0, 5, &right_passages, &right_ids));
  ASSERT_EQ(passages.size(), right_passages.size());
  ASSERT_FALSE(passages.empty());
  for (size_t i = 0; i < passages.size(); ++i) {
    EXPECT_EQ(passages[i].begin, right_passages[i].begin);
    EXPECT_EQ(passages[i].end, right_passages[i].end);
    EXPECT_EQ(passages[i].feed, right_passages[i].feed);
  }
  EXPECT_EQ(ids, right_ids);
}

}  // namespace
}  // namespace quire::test
