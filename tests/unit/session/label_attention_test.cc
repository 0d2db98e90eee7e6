#include "lib/session/label_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace quire::test {
namespace {

// Chunk by chunk, as the header says it.
double expected_share(const std::vector<int64_t>& choices, int64_t chunk, const LabelAttention& label) {
  double sum = 0, all = 0;
  for (size_t c = 0; c < choices.size(); ++c) {
    const int64_t begin = static_cast<int64_t>(c) * chunk;
    const int64_t inside =
        std::min(label.first_token + label.n_tokens, begin + chunk) - std::max(label.first_token, begin);
    all += static_cast<double>(choices[c]);
    if (inside > 0) sum += static_cast<double>(choices[c] * inside) / static_cast<double>(chunk);
  }
  return all > 0 ? sum / all : 0;
}

TEST(LabelAttention, IsTheShareOfTheChoicesInEachLabel) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int64_t chunk = 1 + random() % 40;
    std::vector<int64_t> choices(random() % 12);
    for (int64_t& n : choices) n = random() % 5;
    const int64_t end = static_cast<int64_t>(choices.size()) * chunk + 20;  // some lie behind the last choice
    std::vector<LabelAttention> labels(20);
    for (LabelAttention& label : labels) {
      label.first_token = static_cast<int64_t>(random()) % (end + 1);
      label.n_tokens = static_cast<int64_t>(random()) % (end - label.first_token + 1);
    }
    share_choices(choices, chunk, labels);
    for (const LabelAttention& label : labels) {
      EXPECT_NEAR(label.share, expected_share(choices, chunk, label), 1e-12);
    }
  }
}

// As many labels as a call takes, each as long as the text: a pass over the text for each would take hours.
TEST(LabelAttention, ALabelCostsTheSameHoweverLongItIs) {
  constexpr int64_t kMany = 1 << 20;
  const std::vector<int64_t> choices(kMany, 3);
  std::vector<LabelAttention> labels(kMany);
  for (int64_t i = 0; i < kMany; ++i) labels[static_cast<size_t>(i)] = {i, i, 16 * kMany - i, 0};
  share_choices(choices, 16, labels);
  EXPECT_EQ(labels.front().share, 1.0);
  EXPECT_NEAR(labels.back().share, 15.0 / 16, 1e-6);
}

}  // namespace
}  // namespace quire::test
