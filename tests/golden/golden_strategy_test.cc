// Every strategy and RoPE scaling against logits computed in float64 from relative-position matrices.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/golden/golden_file.h"
#include "tests/golden/golden_session.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::golden {
namespace {

constexpr double kTolerance = 1e-5;  // of the row's largest logit
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kTokenByToken = false;  // minutes there, of code that the other tests run
#else
constexpr bool kTokenByToken = true;
#endif

// The first n rows of a case, computed in blocks of `block` tokens (0: the default).
void check(const GoldenModel& model, const Expected& expected, const std::string& expression,
           std::span<const int32_t> ids, int32_t block) {
  SCOPED_TRACE(expression + ", blocks of " + std::to_string(block));
  const auto logits = model.logits(expression, ids, {}, block);
  const auto vocab_size = static_cast<size_t>(model.vocab_size());
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

class GoldenStrategy : public testing::TestWithParam<std::string> {
 protected:
  const GoldenModel model_{kFolder + "models/" + GetParam()};
  const GoldenFile file_{kFolder + "strategies/" + GetParam() + ".safetensors"};
};

TEST_P(GoldenStrategy, MatchesThePositionMatrixAtEveryPosition) {
  const auto cases = read_cases(kFolder + "strategies/" + GetParam() + ".txt");
  const bool all = GetParam() == "text_256" || GetParam() == "short_128";
  ASSERT_GE(cases.size(), all ? 80u : 4u);  // 8 visibilities times 6 scalings, and more; or some methods
  ASSERT_EQ(cases.size(), file_.cases().size());
  for (const auto& [name, expression] : cases) {
    SCOPED_TRACE(name);
    const Expected expected = file_.expected(name);
    const auto ids = file_.ids(file_.has(name + ".ids") ? name + ".ids" : "ids");
    ASSERT_GE(static_cast<int64_t>(ids.size()), 4 * model_.train_len());
    ASSERT_EQ(expected.max_abs.size(), ids.size());
    check(model_, expected, expression, ids, 0);
    // Token by token, as in decode, past the borders at up to twice the trained length.
    if (!kTokenByToken) continue;
    check(model_, expected, expression, std::span(ids).first(static_cast<size_t>(2 * model_.train_len() + 3)), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenStrategy,
                         testing::Values("text_256", "short_128", "qwen3", "smollm3_yarn", "phi3_longrope", "granite",
                                         "qwen2_window_layers", "gemma3"),
                         [](const auto& info) { return info.param; });

// PoSE checkpoints (Zhu et al. 2023) are Llama checkpoints for four times the length with a rope_scaling of one of
// these types; what their config calls yarn is the harmonic form, which the expression must name.
TEST(GoldenPose, CheckpointsOfEveryVariantLoadAndRun) {
  const std::tuple<const char*, const char*, const char*> variants[] = {
      {R"({"type": "linear", "factor": 4.0})", "full", "full+pi"},
      {R"({"type": "vanilla_ntk", "factor": 4.0, "original_max_position_embeddings": 256})", "full", "full+ntk"},
      {R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})", "full", "full+yarn"},
      {R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})",
       "full + yarn(factor=4, variant=pose)", "yarn_pose"},
      {R"({"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 256})", "full + dynamic_ntk(factor=2)",
       "product_full"}};
  const GoldenFile file(kFolder + "strategies/text_256.safetensors");
  const auto ids = file.ids("ids");
  for (const auto& [scaling, expression, name] : variants) {
    SCOPED_TRACE(std::string(scaling) + ": " + name);
    const test::TemporaryFolder folder;
    std::filesystem::copy(kFolder + "models/text_256", folder.path());
    std::ifstream in(kFolder + "models/text_256/config.json");
    auto config = nlohmann::json::parse(in);
    config.erase("rope_parameters");
    config["rope_scaling"] = nlohmann::json::parse(scaling);
    config["max_position_embeddings"] = 1024;
    std::ofstream(folder.file("config.json")) << config.dump();
    check(GoldenModel(folder.path()), file.expected(name), expression, ids, 0);
  }
}

}  // namespace
}  // namespace quire::golden
