// Activation Beacon with a plug-in against logits that a float64 model computes window by window.

#include <gtest/gtest.h>

#include "tests/golden/golden_file.h"
#include "tests/golden/golden_session.h"

namespace quire::golden {
namespace {

constexpr double kTolerance = 1e-5;  // of the row's largest logit

TEST(GoldenBeacon, MatchesTheReferenceAtEveryPosition) {
  const GoldenModel model(kFolder + "models/text_256", {}, kFolder + "beacon/plugin");
  const GoldenFile file(kFolder + "beacon/text_256.safetensors");
  const auto cases = read_cases(kFolder + "beacon/text_256.txt");
  ASSERT_GE(cases.size(), 15u);
  ASSERT_EQ(cases.size(), file.cases().size());
  const auto vocab = static_cast<size_t>(model.vocab_size());
  for (const auto& [name, expression] : cases) {
    const Expected expected = file.expected(name);
    const auto ids = file.ids(name + ".ids");
    ASSERT_EQ(expected.max_abs.size(), ids.size());
    // Windows whole and in parts, and token by token.
    for (const int32_t block : {0, 19, 1}) {
      SCOPED_TRACE(name + ": " + expression + ", blocks of " + std::to_string(block));
      const auto logits = model.logits(expression, ids, {}, block);
      double worst = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const auto row = std::span(logits).subspan(i * vocab, vocab);
        worst = std::max(worst, row_error(expected, static_cast<int64_t>(i), row));
      }
      EXPECT_LT(worst, kTolerance);
    }
  }
}

}  // namespace
}  // namespace quire::golden
