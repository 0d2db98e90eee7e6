// LoRA adapters, merged into the weights and beside them in a session, against float64 logits of what PEFT merges.

#include <gtest/gtest.h>

#include "tests/golden/golden_file.h"
#include "tests/golden/golden_session.h"

namespace quire::golden {
namespace {

// Of the row's largest logit. These changes are as large as the weights: norms and angles in float32 alone, all else in
// float64, are 4e-5 off.
constexpr double kTolerance = 2e-5;

struct Case {
  const char* name;
  const char* strategy;
  const char* base = "text_256";
};

class GoldenAdapter : public testing::TestWithParam<Case> {
 protected:
  const std::string base_ = kFolder + "models/" + GetParam().base;
  const std::string adapter_ = kFolder + "adapters/" + GetParam().name;
  const GoldenFile file_{adapter_ + ".safetensors"};
  const std::vector<int32_t> ids_ = file_.ids("ids");

  double worst_error(const GoldenModel& model, const std::vector<std::string>& adapters) const {
    const Expected expected = file_.expected("merged");
    EXPECT_EQ(expected.max_abs.size(), ids_.size());
    const auto logits = model.logits(GetParam().strategy, ids_, adapters);
    const auto vocab = static_cast<size_t>(model.vocab_size());
    double worst = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      const auto row = std::span(logits).subspan(i * vocab, vocab);
      worst = std::max(worst, row_error(expected, static_cast<int64_t>(i), row));
    }
    return worst;
  }
};

TEST_P(GoldenAdapter, InASession) {
  const GoldenModel model(base_);
  EXPECT_LT(worst_error(model, {adapter_}), kTolerance);
  EXPECT_GT(worst_error(model, {}), 0.1);
}

TEST_P(GoldenAdapter, Merged) { EXPECT_LT(worst_error(GoldenModel(base_, {adapter_}), {}), kTolerance); }

// base(theta=2e8) is the one that the adapter was made with; without it the logits are others.
INSTANTIATE_TEST_SUITE_P(Adapters, GoldenAdapter,
                         testing::Values(Case{"attention", "full + base(theta=2e8)"}, Case{"everything", "full"},
                                         Case{"fused", "full", "phi3_longrope"}, Case{"multipliers", "full", "granite"},
                                         Case{"norms", "full", "gemma3"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire::golden
