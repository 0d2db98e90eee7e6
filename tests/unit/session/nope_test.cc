// Layers without RoPE (SmolLM3): who sees whom is the strategy's matter there too, how far away is not.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

// smollm3_yarn with other layers: 1 rotates.
class Nope : public testing::Test {
 protected:
  std::shared_ptr<Model> load_with(const std::vector<int>& no_rope_layers) {
    const std::string source = source_path("tests/golden/models/smollm3_yarn");
    std::filesystem::copy(source, folder_.path());
    std::ifstream in(source + "/config.json");
    auto config = nlohmann::json::parse(in);
    config["no_rope_layers"] = no_rope_layers;
    std::ofstream(folder_.file("config.json")) << config.dump();
    RuntimeOptions options;
    options.n_threads = 2;
    return take(load_model(make_runtime(options), folder_.path(), {}));
  }
  static Logits logits(const std::shared_ptr<Model>& model, const std::string& strategy) {
    SessionOptions options = with_strategy(strategy);
    options.kv_type = ElementType::kF32;
    return all_logits(model, options, random_tokens(*model, 200));
  }

  const TemporaryFolder folder_;
};

double worst_error(const Logits& a, const Logits& b) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(double{a[i]} - b[i]));
    largest = std::max(largest, std::fabs(double{a[i]}));
  }
  return worst / largest;
}

// Methods that leave every key visible and only move it, scalings with and without a factor of the logits, raw and
// rotated storage.
const char* const kOnlyDistances[] = {"full + none",
                                      "full + pi(factor=8)",
                                      "full + yarn(factor=16, original=32)",
                                      "dca(chunk=48)",
                                      "dca(chunk=48, kv_chunk=32) + yarn(factor=4)",
                                      "rerope(window=40, log_n=0)",
                                      "self_extend(group=4, window=30) + yarn(factor=4)"};

TEST_F(Nope, DistancesMeanNothingWhereNoLayerRotates) {
  const auto model = load_with({0, 0, 0, 0});
  const Logits full = logits(model, "full");
  for (const char* strategy : kOnlyDistances) EXPECT_LT(worst_error(full, logits(model, strategy)), 1e-5) << strategy;
}

TEST_F(Nope, DistancesMeanMuchWhereOneLayerRotates) {
  const auto model = load_with({0, 0, 1, 0});
  const Logits full = logits(model, "full");
  for (const char* strategy : kOnlyDistances) EXPECT_GT(worst_error(full, logits(model, strategy)), 1e-2) << strategy;
}

// What hides keys, or scales queries by where they stand, does so in every layer.
TEST_F(Nope, VisibilityAndTheScaleOfLongTextsStay) {
  const auto model = load_with({0, 0, 0, 0});
  const Logits full = logits(model, "full");
  for (const char* strategy :
       {"streaming_llm(sinks=3, recent=50)", "lm_infinite(sinks=5, recent=50)", "longheads(chunk=16, chunks=4)",
        "rerope(window=20, train_len=32)", "dca(train_len=32, logit_scale=yarn_0.1)"}) {
    EXPECT_GT(worst_error(full, logits(model, strategy)), 1e-2) << strategy;
  }
}

}  // namespace
}  // namespace quire::test
