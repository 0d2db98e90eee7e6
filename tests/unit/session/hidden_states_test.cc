// Last hidden states on request: lm_head makes the logits of them, and they do not depend on the company.

#include <cmath>

#include "lib/format/safetensors.h"
#include "lib/support/element.h"
#include "tests/source_path.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

StreamOptions keeping(int64_t max_tokens) {
  StreamOptions options = generating(max_tokens);
  options.keep_hidden = options.keep_logits = true;
  return options;
}

Logits hidden_states(const Session& session, int64_t first, int64_t n) {
  Logits out(static_cast<size_t>(n * session.model().llama->config().hidden_size));
  expect_ok(session.hidden_states(first, n, out.data()));
  return out;
}

// The model's lm_head from its files: [vocab_size][hidden_size].
std::vector<double> lm_head(const std::string& name, int64_t vocab, int64_t hidden) {
  const auto files = take(open_safetensors(source_path("tests/golden/models/" + name), TensorFiles::Access::kRead));
  const int64_t shape[] = {vocab, hidden};
  const bool tied = !files->tensors().contains("lm_head.weight");
  const std::string tensor = tied ? "model.embed_tokens.weight" : "lm_head.weight";
  const auto view = take(files->view(tensor, shape));
  std::vector<std::byte> bytes(static_cast<size_t>(view.bytes));
  expect_ok(files->read(tensor, 0, bytes));
  std::vector<double> values(static_cast<size_t>(vocab * hidden));
  for (size_t e = 0; e < values.size(); ++e) values[e] = load_element(view.type, bytes.data(), static_cast<int64_t>(e));
  return values;
}

// Granite's logits are divided by a factor of its configuration; its hidden states are not.
TEST(HiddenStatesTest, LmHeadMakesTheLogitsOfThem) {
  for (const std::string name : {"text_256", "granite"}) {
    const auto model = load(name);
    const auto session = make_session(model, {});
    expect_ok(session->feed_tokens(random_tokens(*model, 70)));
    expect_ok(run(session, keeping(5)).status);
    const ModelConfig& config = model->llama->config();
    const int64_t n = 75 - 1, vocab = vocab_size(*model), width = config.hidden_size;
    const Logits states = hidden_states(*session, 0, n), logits = kept_logits(*session, 0, n);
    const auto head = lm_head(name, vocab, width);
    for (int64_t row = 0; row < n; ++row) {
      double largest = 0, error = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        double sum = 0;
        for (int64_t c = 0; c < width; ++c) {
          sum += head[static_cast<size_t>(v * width + c)] * states[static_cast<size_t>(row * width + c)];
        }
        sum /= config.logits_scaling;
        largest = std::max(largest, std::fabs(sum));
        error = std::max(error, std::fabs(sum - logits[static_cast<size_t>(row * vocab + v)]));
      }
      ASSERT_LE(error, 1e-5 * largest) << name << " " << row;
    }
  }
}

TEST(HiddenStatesTest, FewerThanOneRowIsRefusedAsOfLogitsAndScores) {
  const auto model = load("text_256");
  const auto session = make_session(model, {});
  expect_ok(session->feed_tokens(random_tokens(*model, 10)));
  StreamOptions options = keeping(0);
  options.score = true;
  expect_ok(run(session, options).status);
  Logits out(static_cast<size_t>(vocab_size(*model)));
  for (const int64_t n : {0, -1}) {
    const std::string end = " is " + std::to_string(n) + "; expected 1 or more";
    EXPECT_EQ(session->logits(0, n, out.data()).message(), "n_rows" + end);
    EXPECT_EQ(session->hidden_states(0, n, out.data()).message(), "n_rows" + end);
    EXPECT_EQ(session->scores(0, n, out.data()).message(), "n" + end);
  }
}

TEST(HiddenStatesTest, AreTheSameInPartsAndInCompany) {
  const auto model = load("text_256");
  const Tokens tokens = random_tokens(*model, 50);
  const auto alone = make_session(model, {});
  expect_ok(alone->feed_tokens(tokens));
  expect_ok(run(alone, keeping(6)).status);
  const int64_t n = 55;
  const Logits expected = hidden_states(*alone, 0, n);

  const auto parts = make_session(model, {});
  expect_ok(parts->feed_tokens(std::span(tokens).first(20)));
  expect_ok(run(parts).status);  // without: only those of the second part are kept
  expect_ok(parts->feed_tokens(std::span(tokens).subspan(20)));
  expect_ok(run(parts, keeping(6)).status);
  const auto from_20 = static_cast<std::ptrdiff_t>(20 * model->llama->config().hidden_size);
  EXPECT_TRUE(same_bits(hidden_states(*parts, 20, n - 20), Logits(expected.begin() + from_20, expected.end())));
  Logits none(static_cast<size_t>(model->llama->config().hidden_size));
  EXPECT_EQ(parts->hidden_states(19, 1, none.data()).code(), Code::kNotFound);

  // Three streams that decode in shared steps.
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(make_session(model, {}));
    expect_ok(sessions.back()->feed_tokens(i == 1 ? tokens : random_tokens(*model, 40 + i, 7)));
    streams.push_back(take(GenerationStream::open(sessions.back(), keeping(6))));
  }
  for (int token = 0; token < 6; ++token) {
    for (const auto& stream : streams) expect_ok(read(*stream, 1).status);
  }
  for (const auto& stream : streams) expect_ok(read(*stream).status);
  EXPECT_TRUE(same_bits(hidden_states(*sessions[1], 0, n), expected));
}

}  // namespace
}  // namespace quire::test
