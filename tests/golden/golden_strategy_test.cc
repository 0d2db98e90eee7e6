// Every strategy and RoPE scaling against logits computed in float64 from relative-position matrices.

#include <gtest/gtest.h>

#include "tests/golden/golden_file.h"
#include "tests/golden/golden_session.h"

namespace quire::golden {
namespace {

constexpr double kTolerance = 1e-5;  // of the row's largest logit

class GoldenStrategy : public testing::TestWithParam<std::string> {};

TEST_P(GoldenStrategy, MatchesThePositionMatrixAtEveryPosition) {
  const GoldenModel model(kFolder + "models/" + GetParam());
  const GoldenFile file(kFolder + "strategies/" + GetParam() + ".safetensors");
  const auto cases = read_cases(kFolder + "strategies/" + GetParam() + ".txt");
  ASSERT_GE(cases.size(), 80u);  // 8 visibilities times 6 scalings, and more
  ASSERT_EQ(cases.size(), file.cases().size());
  const auto vocab_size = static_cast<size_t>(model.vocab_size());
  for (const auto& [name, expression] : cases) {
    SCOPED_TRACE(name + ": " + expression);
    const Expected expected = file.expected(name);
    const auto ids = file.ids(file.has(name + ".ids") ? name + ".ids" : "ids");
    ASSERT_GE(static_cast<int64_t>(ids.size()), 4 * model.train_len());
    ASSERT_EQ(expected.max_abs.size(), ids.size());
    const auto logits = model.logits(expression, ids);
    size_t wrong = 0;
    size_t first_wrong = 0;
    double worst = 0;
    for (size_t i = ids.size(); i-- > 0;) {
      const double error =
          row_error(expected, static_cast<int64_t>(i), std::span(logits).subspan(i * vocab_size, vocab_size));
      worst = std::max(worst, error);
      if (error < kTolerance) continue;
      ++wrong;
      first_wrong = i;
    }
    EXPECT_EQ(wrong, 0u) << "first at position " << first_wrong << ", largest error " << worst;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenStrategy, testing::Values("text_256", "short_128"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire::golden
