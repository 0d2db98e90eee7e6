// Plain attention against transformers: every model under models/, at every position of every prompt.

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/golden/golden_file.h"
#include "tests/golden/golden_session.h"

namespace quire::golden {
namespace {

constexpr double kTolerance = 1e-4;  // of the row's largest logit: the expected ones were computed in float32

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder + "models")) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

class GoldenLogits : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLogits, MatchTransformersAtEveryPosition) {
  const GoldenModel model(kFolder + "models/" + GetParam());
  const GoldenFile file(kFolder + "logits/" + GetParam() + ".safetensors");
  ASSERT_GE(file.cases().size(), 3u);
  const auto vocab_size = static_cast<size_t>(model.vocab_size());
  for (const std::string& length : file.cases()) {
    SCOPED_TRACE(length + " tokens");
    const auto ids = file.ids(length + ".ids");
    const Expected expected = file.expected(length);
    ASSERT_EQ(expected.max_abs.size(), ids.size());
    const auto logits = model.logits("full", ids);
    double worst = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const double error =
          row_error(expected, static_cast<int64_t>(i), std::span(logits).subspan(i * vocab_size, vocab_size));
      ASSERT_LT(error, kTolerance) << "position " << i;
      worst = std::max(worst, error);
    }
    RecordProperty("worst_error_" + length, std::to_string(worst));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenLogits, testing::ValuesIn(model_names()),
                         [](const auto& info) { return info.param; });

// The comparison itself can fail: logits of the same prompt moved by one position are far away.
TEST(GoldenLogits, ComparisonSeesAWrongRow) {
  const GoldenModel model(kFolder + "models/mha_default");
  const GoldenFile file(kFolder + "logits/mha_default.safetensors");
  const auto ids = file.ids("7.ids");
  const Expected expected = file.expected("7");
  const auto logits = model.logits("full", ids);
  const auto vocab_size = static_cast<size_t>(model.vocab_size());
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    EXPECT_GT(row_error(expected, static_cast<int64_t>(i) + 1, std::span(logits).subspan(i * vocab_size, vocab_size)),
              0.01);
  }
}

}  // namespace
}  // namespace quire::golden
