// Weights that hold NaN: the call that meets them says NUMERIC, and the session goes on.
#include <gtest/gtest.h>

#include <limits>

#include "tests/abi/harness.h"
#include "tests/fault/model_copy.h"

namespace quire::test {
namespace {

constexpr int32_t kVocab = 64, kHidden = 60;
constexpr int32_t kPoison = 63;  // the token whose embedding is not a number

class Numeric : public testing::Test {
 protected:
  Numeric() {
    Safetensors weights(copy_.read("model.safetensors"));
    weights.fill("model.embed_tokens.weight", size_t{kPoison} * kHidden, kHidden,
                 std::numeric_limits<float>::quiet_NaN());
    copy_.write("model.safetensors", weights.file());
    Outcome outcome;
    EXPECT_EQ(load_model(runtime_.get(), copy_.path(), &model_, &outcome), QUIRE_OK) << outcome.text();
  }

  const ModelCopy copy_{"short_128"};
  Owned<quire_runtime> runtime_ = make_runtime(2);
  Owned<quire_model> model_;
};

TEST_F(Numeric, InThePrompt) {
  const std::vector<int32_t> good = some_tokens(40, kVocab - 1);
  std::vector<int32_t> bad = some_tokens(40, kVocab - 1, 2);
  bad[20] = kPoison;
  const auto session = make_session(model_.get(), "full", 16);
  feed(session.get(), good);
  feed(session.get(), bad);
  const Generated run = generate(session.get(), 10);
  EXPECT_EQ(run.outcome.status, QUIRE_ERROR_NUMERIC) << run.outcome.text();
  EXPECT_TRUE(run.tokens.empty());
  // Blocks of 16: tokens 48 to 63 hold the poisoned one, and none of them was read.
  EXPECT_EQ(run.outcome.error.offset, 48);
  EXPECT_NE(std::string(run.outcome.error.message).find("48"), std::string::npos);
  EXPECT_EQ(position(session.get()), std::make_pair(int64_t{48}, int64_t{32}));

  EXPECT_EQ(quire_session_discard_pending(session.get(), nullptr), QUIRE_OK);
  const auto clean = make_session(model_.get(), "full", 16);
  feed(clean.get(), good);
  feed(clean.get(), {bad.begin(), bad.begin() + 8});
  EXPECT_EQ(generate(session.get(), 10).tokens, generate(clean.get(), 10).tokens);
}

// Nearly uniform sampling meets the token sooner or later; it is delivered, and what follows it cannot be computed.
TEST_F(Numeric, InTheAnswer) {
  const auto session = make_session(model_.get(), "streaming_llm(sinks=4, recent=60)");
  feed(session.get(), some_tokens(20, kVocab - 1));
  quire_stream_options options = greedy(5000);
  options.temperature = 1000;
  options.seed = 5;
  const Generated run = generate(session.get(), options);
  ASSERT_EQ(run.outcome.status, QUIRE_ERROR_NUMERIC) << run.outcome.text();
  ASSERT_FALSE(run.tokens.empty());
  EXPECT_EQ(run.tokens.back(), kPoison);
  EXPECT_EQ(position(session.get()), std::make_pair(static_cast<int64_t>(20 + run.tokens.size()), int64_t{0}));
  EXPECT_EQ(generate(session.get(), 1).outcome.status, QUIRE_ERROR_NUMERIC);  // that token is still the last
  EXPECT_EQ(quire_session_reset(session.get(), nullptr), QUIRE_OK);
  feed(session.get(), some_tokens(20, kVocab - 1));
  EXPECT_EQ(generate(session.get(), 1).outcome.status, QUIRE_OK);
}

}  // namespace
}  // namespace quire::test
