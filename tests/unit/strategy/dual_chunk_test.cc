#include <gmock/gmock.h>

#include "tests/unit/strategy/strategies.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST(DualChunk, MatchesFigure2OfThePaper) {
  EXPECT_EQ(text_of(positions(*make("dca(chunk=6, cap=9)", 10), 12)), plain_rows(0, 10) +
                                                                          "9 8 7 6 5 4 4 3 2 1 0\n"
                                                                          "9 8 7 6 5 4 5 4 3 2 1 0\n");
}

TEST(DualChunk, MatchesFigure8OfThePaper) {
  EXPECT_EQ(text_of(positions(*make("dca(chunk=4, cap=7)", 8), 12)), plain_rows(0, 8) +
                                                                         "7 6 5 4 4 3 2 1 0\n"
                                                                         "7 6 5 4 5 4 3 2 1 0\n"
                                                                         "7 6 5 4 6 5 4 3 2 1 0\n"
                                                                         "7 6 5 4 7 6 5 4 3 2 1 0\n");
}

TEST(DualChunk, MatchesTheChunkLlamaImplementation) {
  EXPECT_EQ(text_of(positions(*make("dca(preset=chunkllama, local=2)", 8), 12)), plain_rows(0, 7) +
                                                                                     "6 5 4 3 3 2 1 0\n"
                                                                                     "6 5 4 3 4 3 2 1 0\n"
                                                                                     "6 5 4 3 5 4 3 2 1 0\n"
                                                                                     "6 5 4 3 6 5 4 3 2 1 0\n"
                                                                                     "6 5 4 3 6 5 4 3 3 2 1 0\n");
}

// The definition, with no spans: distance between query i and key j <= i.
int64_t defined(int64_t s, int64_t cap, int64_t i, int64_t j) {
  const int64_t chunks_apart = i / s - j / s;
  const int64_t query = chunks_apart == 0 ? i % s : chunks_apart == 1 ? std::min(s + i % s, cap) : cap;
  return query - j % s;
}

TEST(DualChunk, HasItsPropertiesForAllSmallLengths) {
  for (int64_t s = 2; s <= 8; ++s) {
    for (int64_t cap = s; cap <= 2 * s - 1; ++cap) {
      const auto dca = make("dca(chunk=" + std::to_string(s) + ", cap=" + std::to_string(cap) + ")", 2 * s);
      const Matrix m = positions(*dca, 6 * s);
      double largest = 0;
      for (int64_t i = 0; i < 6 * s; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          const double d = m[static_cast<size_t>(i)][static_cast<size_t>(j)];
          const std::string where = dca->canonical() + " at " + std::to_string(i) + ", " + std::to_string(j);
          ASSERT_EQ(d, static_cast<double>(defined(s, cap, i, j))) << where;
          ASSERT_TRUE(d >= 0 && d <= static_cast<double>(i - j)) << where;
          if (i <= cap || i - j <= cap - s) {
            ASSERT_EQ(d, static_cast<double>(i - j)) << where;
          }
          largest = std::max(largest, d);
        }
      }
      EXPECT_EQ(largest, static_cast<double>(cap));
    }
  }
}

TEST(DualChunk, EqualsPlainAttentionUpToItsCap) {
  EXPECT_EQ(text_of(positions(*make("dca", 64), 64)), plain_rows(0, 64));  // the whole trained length
  const auto chunkllama = make("dca(preset=chunkllama)", 64);
  EXPECT_EQ(text_of(positions(*chunkllama, 49)), plain_rows(0, 49));
  EXPECT_NE(text_of(positions(*chunkllama, 50)), plain_rows(0, 50));
}

TEST(DualChunk, KnowsThePublishedPresets) {
  const auto lengths = [](const std::string& arguments, int64_t train_len) {
    const std::string text = make("dca(" + arguments + ")", train_len)->canonical();
    const size_t begin = text.find("chunk=");
    return text.substr(begin, text.find(", logit") - begin);
  };
  EXPECT_EQ(lengths("", 4096), "chunk=3072, cap=4095");
  EXPECT_EQ(lengths("preset=paper", 4096), "chunk=3072, cap=4095");
  EXPECT_EQ(lengths("preset=chunkllama", 4096), "chunk=2560, cap=3072");
  EXPECT_EQ(lengths("preset=chunkllama_flashdec", 4096), "chunk=2816, cap=3072");
  EXPECT_EQ(lengths("preset=chunkqwen", 4096), "chunk=2816, cap=3072");
  EXPECT_EQ(lengths("preset=chunkllama_ppl", 4096), "chunk=2048, cap=3072");
  EXPECT_EQ(lengths("preset=vllm", 8192), "chunk=7168, cap=8192");
  EXPECT_EQ(lengths("preset=vllm, local=8192", 262144), "chunk=253952, cap=262144");
  EXPECT_EQ(lengths("preset=vllm, local=0", 8), "chunk=8, cap=8");
  EXPECT_EQ(lengths("chunk=1024", 4096), "chunk=1024, cap=2047");
  EXPECT_EQ(lengths("preset=vllm, chunk=1024", 8192), "chunk=1024, cap=2047");
  EXPECT_EQ(lengths("", 2), "chunk=1, cap=1");
}

TEST(DualChunk, RefusesLengthsThatMakeNoSense) {
  struct Case {
    const char* expression;
    int64_t column;
    const char* message;
  };
  const Case cases[] = {
      {"dca(chunk=0)", 10, "chunk is '0'; expected an integer from 1 to 4096"},
      {"dca(chunk=4097)", 10, "expected an integer from 1 to 4096"},
      {"dca(chunk=4096)", 10, "chunk 4096 and cap 4095"},  // position L - 1 is the paper's largest
      {"dca(cap=4096)", 8, "expected an integer from 1 to 4095"},
      {"dca(preset=vllm, cap=4097)", 21, "expected an integer from 1 to 4096"},
      {"dca(preset=chunkllama, cap=4096)", 27, "expected an integer from 1 to 4095"},
      {"dca(chunk=1024, cap=2048)", 10, "min(2 * chunk - 1, 4095)"},
      {"dca(cap=3071)", 8, "chunk 3072 and cap 3071"},
      {"dca(local=3)", 10, "preset paper has no local"},
      {"dca(preset=vllm, chunk=8, local=3)", 32, "one of local and chunk"},
      {"dca(preset=vllm, local=2049)", 23, "chunk 2047 and cap 4096"},
      {"dca(preset=vllm, local=4096)", 23, "chunk 0 and cap 4096"},
      {"dca(train_len=1)", 14, "expected at least 2"},
      {"dca(preset=llama)", 11, "paper, chunkllama, chunkllama_flashdec, chunkqwen, chunkllama_ppl, vllm"},
      {"dca(logit_scale=0.1)", 16, "none, yarn_0.05, yarn_0.1"},
  };
  for (const Case& c : cases) {
    const auto strategy = make_strategy(c.expression, trained_for(4096));
    ASSERT_FALSE(strategy.ok()) << c.expression;
    EXPECT_EQ(strategy.status().code(), Code::kBadStrategy) << c.expression;
    EXPECT_EQ(strategy.status().offset(), c.column) << c.expression << ": " << strategy.status().message();
    EXPECT_THAT(strategy.status().message(), HasSubstr(c.message)) << c.expression;
  }
}

TEST(DualChunk, ScalesTheLogitsOfQueriesBeyondTheTrainedLength) {
  const auto scales = [](const char* mode) {
    Plan plan;
    make(std::string("dca(logit_scale=") + mode + ")", 64)->plan(0, 256, plan);
    return plan.query_scale;
  };
  EXPECT_TRUE(scales("none").empty());
  const std::vector<float> weak = scales("yarn_0.05"), strong = scales("yarn_0.1");
  ASSERT_EQ(weak.size(), 256u);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(weak[i], 1.0f) << i;
  EXPECT_GT(weak[64], 1.0f);
  EXPECT_NEAR(weak[127], 1.070516, 1e-6);  // n = i + 1 = 2 L
  EXPECT_NEAR(strong[127], 1.143434, 1e-6);
}

// The released ChunkLlama program multiplies the rotations of queries and keys by m for the prompt's length.
TEST(DualChunk, ScalesAllLogitsAlikeByAnAttentionFactor) {
  const double m = 1 + 0.1 * std::log(32768.0 / 4096);
  const auto plain = make("dca(preset=chunkllama)", 4096);
  const auto scaled =
      make("dca(preset=chunkllama, train_len=4096) + yarn(factor=1, attention_factor=" + std::to_string(m) + ")", 4096);
  EXPECT_NEAR(scaled->rope().attention_factor, 1.207944, 1e-6);
  ASSERT_EQ(scaled->rope().theta.size(), plain->rope().theta.size());
  for (size_t a = 0; a < plain->rope().theta.size(); ++a) {
    EXPECT_DOUBLE_EQ(scaled->rope().theta[a], plain->rope().theta[a]);
  }
  EXPECT_THAT(scaled->canonical(), HasSubstr("chunk=2560, cap=3072, logit_scale=none, train_len=4096"));
  Plan one, other;
  plain->plan(8000, 500, one);
  scaled->plan(8000, 500, other);
  EXPECT_TRUE(other.query_scale.empty());
  EXPECT_EQ(text_of(rows_of(one, 500, 100)), text_of(rows_of(other, 500, 100)));
}

TEST(DualChunk, TakesTheLengthThatAScalingReaches) {
  EXPECT_THAT(make("dca + pi(factor=4)", 4096)->canonical(), HasSubstr("chunk=12288, cap=16383"));
}

TEST(DualChunk, NamesOneSpanForAllOlderChunks) {
  Plan plan;
  make("dca", 64)->plan(48 * 1000 + 40, 20, plan);  // crosses into chunk 1001
  ASSERT_EQ(plan.blocks.size(), 2u);
  for (const int64_t own : {1000, 1001}) {
    const Plan::List& list = plan.lists[static_cast<size_t>(own - 1000)];
    ASSERT_EQ(list.end - list.begin, 3);
    const Span& older = plan.spans[static_cast<size_t>(list.begin)];
    EXPECT_EQ(older.first_key, 0);
    EXPECT_EQ(older.count, (own - 1) * 48);
    EXPECT_EQ(older.key_period, 48);
  }
}

}  // namespace
}  // namespace quire::test
