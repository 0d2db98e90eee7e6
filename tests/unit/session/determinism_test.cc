// Logits are the same bits for any threads, any split of the tokens and any block length; and what they depend on.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

// short_128: train_len 128, so dca has s = 96 and C = 127; KV chunks of 32.
constexpr int64_t kLength = 300;
const std::vector<std::string> kStrategies = {"full",
                                              "dca",
                                              "longheads(chunk=16, chunks=4)",
                                              "longheads(chunk=32, chunks=3, begin=100, forced=paper, select=group)",
                                              "streaming_llm(sinks=3, recent=50)",
                                              "longheads(chunk=16, chunks=4, positions=dca, dca_chunk=60)",
                                              "dca_topk(chunk=16, chunks=4, one_in=5, dca_chunk=64, reading=selected)",
                                              "longheads(chunk=16, chunks=4, select=first_layer)",
                                              "rerope(window=40)",
                                              "rerope(window=40, leaky=3, log_n=0)",
                                              "self_extend(group=4, window=30)",
                                              "lm_infinite(sinks=5, recent=50)"};
// For models of three heads.
const std::vector<std::string> kHeadPatterns = {"sda(dilation=3)", "sda(dilation=3, reading=kv)",
                                                "scca_flow(chunks=3, chunk=20)",
                                                "long_mixed(heads=sda2.rolled.shift1, chunk=20)"};

const std::shared_ptr<Model>& short_model() {
  static const auto model = load("short_128");
  return model;
}

SessionOptions options_for(const std::string& strategy, ElementType type = ElementType::kF16, int64_t block = 256) {
  SessionOptions options = with_strategy(strategy);
  options.kv_type = type;
  options.prefill_block = block;
  return options;
}

class Determinism : public testing::TestWithParam<std::string> {};
std::string name_of(const testing::TestParamInfo<std::string>& info) {
  return info.param.substr(0, info.param.find('(')) + "_" + std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(Strategies, Determinism, testing::ValuesIn(kStrategies), name_of);
INSTANTIATE_TEST_SUITE_P(HeadPatterns, Determinism, testing::ValuesIn(kHeadPatterns), name_of);

TEST_P(Determinism, ThreadsSplitsAndBlocksChangeNoBit) {
  const std::shared_ptr<Model> models[] = {load("short_128", 1), load("short_128", 2), load("short_128", 4)};
  const Tokens tokens = random_tokens(*models[0], kLength);
  // Each number of threads with each block length, in one of the types.
  size_t first = 0;
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    const Logits expected = all_logits(models[0], options_for(GetParam(), type, 512), tokens);
    size_t threads = first++;
    for (const int64_t block : {1, 2, 7, 64, 512}) {
      const auto& model = models[threads++ % std::size(models)];
      const size_t step = block == 1 ? 0 : block == 64 ? 1 : static_cast<size_t>(block == 512 ? 29 : 100 + block);
      EXPECT_TRUE(same_bits(expected, all_logits(model, options_for(GetParam(), type, block), tokens, step)))
          << element_name(type) << ", " << model->runtime->pool().n_threads() << " threads, blocks of " << block
          << ", parts of " << step;
    }
  }
}

TEST_P(Determinism, OtherArchitecturesToo) {
  if (std::count(kHeadPatterns.begin(), kHeadPatterns.end(), GetParam()) > 0) GTEST_SKIP() << "their heads are others";
  for (const std::string name : {"gqa_biases_bf16", "mqa_yarn_sharded", "gqa_llama3_tied", "qwen3", "smollm3_yarn",
                                 "granite", "qwen2_window_layers", "gemma3"}) {
    const auto one = load(name, 1), three = load(name, 3);
    const Tokens tokens = random_tokens(*one, 150);
    EXPECT_TRUE(same_bits(all_logits(one, options_for(GetParam(), ElementType::kF16, 512), tokens),
                          all_logits(three, options_for(GetParam(), ElementType::kF16, 19), tokens, 1)))
        << name;
  }
}

TEST(DeterminismOfAWindow, ThreadsSplitsAndBlocksChangeNoBit) {
  const auto one = load("mistral_window_64", 1), three = load("mistral_window_64", 3);
  const Tokens tokens = random_tokens(*one, kLength);
  Logits before;
  for (const std::string strategy : {"full", "streaming_llm(sinks=3, recent=50)", "dca(ignore_window=1, chunk=48)"}) {
    const Logits expected = all_logits(one, options_for(strategy), tokens);
    EXPECT_TRUE(same_bits(expected, all_logits(three, options_for(strategy, ElementType::kF16, 19), tokens, 1)));
    EXPECT_FALSE(same_bits(expected, before));
    before = expected;
  }
}

// Keys that the method drops stay for the layers with a window, and those behind the window for the others.
TEST(DeterminismOfWindowLayers, ThreadsSplitsAndBlocksChangeNoBit) {
  const auto one = load("qwen2_window_layers", 1), three = load("qwen2_window_layers", 3);
  const Tokens tokens = random_tokens(*one, kLength);
  Logits before;
  for (const std::string strategy :
       {"full", "streaming_llm(sinks=3, recent=10)", "streaming_llm(sinks=3, recent=10, ignore_window=1)",
        "lm_infinite(sinks=0, recent=90)", "longheads(chunk=16, chunks=4, select=first_layer)"}) {
    SCOPED_TRACE(strategy);
    const Logits expected = all_logits(one, options_for(strategy), tokens);
    EXPECT_TRUE(same_bits(expected, all_logits(three, options_for(strategy, ElementType::kF16, 19), tokens, 1)));
    EXPECT_FALSE(same_bits(expected, before));
    before = expected;
  }
}

TEST_P(Determinism, GeneratedTokensAreReadAsFedOnesAre) {
  const auto session = make_session(short_model(), options_for(GetParam(), ElementType::kF16, 16));
  Tokens tokens = random_tokens(*short_model(), 90);
  ASSERT_TRUE(session->feed_tokens(tokens).ok());
  StreamOptions options = generating(60, 1.0f);
  options.keep_logits = true;
  const Outcome outcome = run(session, options);
  ASSERT_EQ(outcome.tokens.size(), 60u);
  tokens.insert(tokens.end(), outcome.tokens.begin(), outcome.tokens.end());
  const Logits all = all_logits(short_model(), options_for(GetParam()), tokens);
  // The last delivered token is computed when the next one is wanted.
  const Logits kept = kept_logits(*session, 0, 149);
  EXPECT_TRUE(same_bits(kept, std::span(all).first(kept.size())));
}

TEST_P(Determinism, EarlierLogitsDoNotSeeLaterTokens) {
  const Tokens tokens = random_tokens(*short_model(), kLength);
  const Logits before = all_logits(short_model(), options_for(GetParam()), tokens);
  for (const int64_t changed : {0, 1, 31, 32, 95, 96, 127, 200, 299}) {
    Tokens other = tokens;
    auto& token = other[static_cast<size_t>(changed)];
    token = token == 3 ? 4 : 3;
    const Logits after = all_logits(short_model(), options_for(GetParam()), other);
    const auto same = static_cast<size_t>(changed * vocab_size(*short_model()));
    EXPECT_TRUE(same_bits(std::span(before).first(same), std::span(after).first(same))) << "token " << changed;
    EXPECT_FALSE(same_bits(row_of(before, *short_model(), changed), row_of(after, *short_model(), changed)));
  }
}

// Texts that end around every boundary: KV chunks of 32, dca's s, C and 2s, the window's S + R, the trained length.
TEST_P(Determinism, ATextsLogitsAreThoseOfItsPrefixes) {
  const Tokens tokens = random_tokens(*short_model(), kLength);
  const Logits all = all_logits(short_model(), options_for(GetParam()), tokens);
  for (const int64_t boundary : {1, 3, 32, 50, 53, 54, 64, 96, 127, 128, 192, 224, 288}) {
    for (int64_t n = std::max<int64_t>(1, boundary - 1); n <= boundary + 1; ++n) {
      const auto session = make_session(short_model(), options_for(GetParam()));
      ASSERT_TRUE(session->feed_tokens(std::span(tokens).first(static_cast<size_t>(n))).ok());
      expect_ok(run(session).status);
      EXPECT_TRUE(same_bits(row_of(all, *short_model(), n - 1), last_logits(*session))) << n << " tokens";
    }
  }
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0, scale = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - b[i]));
    scale = std::max(scale, std::fabs(static_cast<double>(a[i])));
  }
  return most / scale;
}

// The methods leave short texts alone: up to C + 1 and S + R + 1 tokens, and up to the trained length those that change
// frequencies, they are plain attention. (Numerically: their rotations are composed of other numbers.)
TEST(ShortTexts, SeePlainAttention) {
  const struct {
    std::string strategy;
    int64_t same;
  } cases[] = {{"dca", 128},
               {"dca(chunk=40, cap=55)", 56},
               {"longheads(chunk=16, chunks=4)", 64},
               {"longheads(chunk=32, chunks=3, begin=100, forced=paper, select=group)", 100},
               {"streaming_llm(sinks=3, recent=50)", 54},
               {"streaming_llm(sinks=0, recent=33)", 34},
               {"longheads(chunk=16, chunks=4, positions=dca)", 64},
               {"rerope(window=50)", 51},
               {"self_extend(group=4, window=40)", 41},
               {"lm_infinite(sinks=4, recent=60)", 61},
               {"sda(dilation=3, full_below=70)", 70},
               {"scca_flow(chunks=3, chunk=20, full_below=90)", 90}};
  const Model& model = *short_model();
  const Tokens tokens = random_tokens(model, kLength);
  const Logits full = all_logits(short_model(), options_for("full", ElementType::kF32), tokens);
  for (const auto& c : cases) {
    const Logits other = all_logits(short_model(), options_for(c.strategy, ElementType::kF32), tokens);
    for (int64_t i = 0; i < c.same; ++i) {
      ASSERT_LT(largest_difference(row_of(full, model, i), row_of(other, model, i)), 1e-5) << c.strategy << " " << i;
    }
    EXPECT_GT(largest_difference(row_of(full, model, c.same), row_of(other, model, c.same)), 1e-5) << c.strategy;
    EXPECT_GT(largest_difference(row_of(full, model, 290), row_of(other, model, 290)), 1e-3) << c.strategy;
  }
}

// dynamic_ntk's frequencies are those of the whole text's length, which leaves the trained ones up to train_len.
TEST(ShortTexts, SeePlainAttentionWithDynamicFrequencies) {
  const Model& model = *short_model();
  const Tokens tokens = random_tokens(model, 128);
  const Logits full = all_logits(short_model(), options_for("full", ElementType::kF32), tokens);
  const auto difference = [&](const std::string& strategy) {
    return largest_difference(full, all_logits(short_model(), options_for(strategy, ElementType::kF32), tokens));
  };
  EXPECT_LT(difference("full + dynamic_ntk(factor=2, length=128)"), 1e-5);
  EXPECT_GT(difference("full + dynamic_ntk(factor=2, length=129)"), 1e-5);
  EXPECT_GT(difference("full + dynamic_ntk(factor=2, length=300)"), 1e-3);
}

// What generates together with it changes no session's tokens.
TEST(Sessions, DoNotDisturbEachOther) {
  const auto model = load("short_128", 2);
  const auto generate = [&](uint32_t seed, bool crowd) {
    std::vector<std::shared_ptr<GenerationStream>> others;
    for (uint32_t other = 0; crowd && other < 3; ++other) {
      const auto session = make_session(model, options_for(kStrategies[other], ElementType::kBF16, 8));
      expect_ok(session->feed_tokens(random_tokens(*model, 400, 100 + other)));
      others.push_back(take(GenerationStream::open(session, generating(1000, 1.0f))));
    }
    const auto session = make_session(model, options_for("dca"));
    expect_ok(session->feed_tokens(random_tokens(*model, 120, seed)));
    const Outcome outcome = run(session, generating(40, 0.9f, seed));
    for (const auto& stream : others) stream->close();
    return outcome.tokens;
  };
  for (uint32_t seed = 1; seed <= 3; ++seed) EXPECT_EQ(generate(seed, false), generate(seed, true));
}

}  // namespace
}  // namespace quire::test
