// Models written as GGUF files, and what they give when they are loaded again.
#include "lib/model/quantize_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/format/gguf_files.h"
#include "lib/model/checkpoint.h"
#include "tests/gguf_model.h"
#include "tests/unit/model/file_bytes.h"
#include "tests/unit/model/loaded_model.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire {
namespace {

using test::difference;
using test::kModels;
using test::largest;
using test::Loaded;
using testing::HasSubstr;

class QuantizeModel : public testing::Test {
 protected:
  Status write(const std::string& path, const std::string& recipe, const std::string& out,
               const CancelToken* cancel = nullptr) {
    QuantizeRequest request{path, out, recipe, &pool_, cancel, {}};
    request.progress = [&](int64_t done, int64_t total) { done_ = done, total_ = total; };
    return quantize_model(request);
  }
  std::string file(const std::string& name) const { return folder_.file(name); }
  // A copy of a golden model with other values of some keys of its config.json.
  std::string changed(const std::string& model, const nlohmann::json& values) const {
    std::filesystem::copy(kModels + model, file(model));
    auto config = nlohmann::json::parse(std::ifstream(file(model + "/config.json")));
    config.update(values);
    std::ofstream(file(model + "/config.json")) << config.dump();
    return file(model);
  }
  // A copy of a golden model of f32 weights with another one at the beginning of a row.
  std::string with_weight(const std::string& model, const std::string& tensor, int64_t row, float weight) const {
    std::filesystem::copy(model, file("changed"));
    const std::string path = file("changed/model.safetensors");
    std::string bytes = test::read_file(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const auto info = nlohmann::json::parse(bytes.substr(sizeof length, length)).at(tensor);
    const size_t begin = info["data_offsets"][0], columns = info["shape"][1];
    std::memcpy(&bytes[sizeof length + length + begin + static_cast<size_t>(row) * columns * sizeof weight], &weight,
                sizeof weight);
    test::write_file(path, bytes);
    return file("changed");
  }
  // smollm3_yarn with the layers that do not rotate where GGUF has them: every fourth.
  std::string smollm3() const {
    return changed("smollm3_yarn", {{"no_rope_layers", nullptr}});  // what then counts is no_rope_layer_interval
  }
  // gemma3 with the scale of attention that GGUF takes for granted.
  std::string gemma3() const { return changed("gemma3", {{"query_pre_attn_scalar", 8}}); }
  size_t n_files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
  }

  const test::TemporaryFolder folder_;
  ThreadPool pool_{2};
  int64_t done_ = 0, total_ = 0;
};

// Names, orders of rows, configuration: a file of f32 weights is the same model to the bit.
TEST_F(QuantizeModel, KeepsTheModel) {
  for (const std::string& model :
       {kModels + "mha_default", kModels + "gqa_llama3_tied", kModels + "gqa_linear", kModels + "mha_yarn_f16",
        kModels + "mqa_yarn_sharded", kModels + "mistral_window_64", kModels + "gqa_biases_bf16",
        kModels + "qwen2_yarn", kModels + "qwen3", smollm3(), kModels + "phi3_window", kModels + "phi3_longrope",
        kModels + "granite", gemma3()}) {
    SCOPED_TRACE(model);
    const std::string name = std::filesystem::path(model).filename(), path = file(name + ".gguf");
    const Status written = write(model, "f32", path);
    ASSERT_TRUE(written.ok()) << written.message();
    EXPECT_EQ(done_, total_);
    ModelLoader::Options exact;
    exact.activation_type = ElementType::kF32;
    Loaded original(model, exact);
    ASSERT_TRUE(original.status().ok()) << original.status().message();
    for (const bool map : {false, true}) {
      ModelLoader::Options options;
      options.map = map;
      Loaded again(path, options);
      ASSERT_TRUE(again.status().ok()) << again.status().message();
      EXPECT_EQ(again.model().weights().n_parameters, original.model().weights().n_parameters);
      const auto a = original.logits(), b = again.logits();
      ASSERT_EQ(a.size(), b.size());
      // GGUF keeps the divisors of frequencies, and YaRN's factor of the logits, as f32.
      const bool is_rounded = name == "gqa_llama3_tied" || name == "mha_yarn_f16" || name == "phi3_longrope";
      EXPECT_LE(difference(a, b), is_rounded ? 1e-5 * largest(a) : 0);
    }
  }
}

// GGUF has no keys for the dual chunk attention that a checkpoint asks for, and strategy auto follows it.
TEST_F(QuantizeModel, KeepsTheRequestForDualChunkAttention) {
  const nlohmann::json request = {{"chunk_size", 256}, {"local_size", 32}, {"original_max_position_embeddings", 256}};
  const std::string model = changed("gqa_biases_bf16", {{"dual_chunk_attention_config", request}});
  ASSERT_TRUE(write(model, "q8_0", file("a.gguf")).ok());
  ASSERT_TRUE(write(file("a.gguf"), "f32", file("b.gguf")).ok());
  for (const std::string& path : {model, file("a.gguf"), file("b.gguf")}) {
    SCOPED_TRACE(path);
    Loaded loaded(path);
    ASSERT_TRUE(loaded.status().ok()) << loaded.status().message();
    auto chosen = make_strategy("auto", strategy_context(loaded.model().config(), {.expected_tokens = 100}));
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    EXPECT_THAT((*chosen)->canonical(), HasSubstr("dca(preset=vllm, chunk=224, cap=256, logit_scale=yarn_0.1"));
  }
}

TEST_F(QuantizeModel, KeepsTheIdsThatEndATextOfBothConfigurations) {
  const std::string model = changed("mha_default", {{"eos_token_id", {2, 7, 9}}});
  std::ofstream(model + "/generation_config.json") << R"({"eos_token_id": [2, 7, 11]})";
  ASSERT_TRUE(write(model, "f32", file("m.gguf")).ok());
  const auto written = Checkpoint::open(file("m.gguf"));
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_THAT(written.value().config().eos_token_ids, testing::ElementsAre(2, 7, 9, 11));
}

// GGUF has norms as they are computed with, adapters have them as directories do: less 1.
TEST_F(QuantizeModel, NormsOfAnAdapterAreTheSameBesideBothFiles) {
  const std::string model = gemma3(), adapter = test::source_path("tests/golden/adapters/norms");
  ASSERT_TRUE(write(model, "f32", file("m.gguf")).ok());
  ModelLoader::Options plain, merging;
  merging.merge = {{adapter, 1}};
  std::vector<std::vector<float>> logits;
  for (const std::string& path : {model, file("m.gguf")}) {
    Loaded beside(path, plain), merged(path, merging);
    ASSERT_TRUE(beside.status().ok() && merged.status().ok());
    EXPECT_GT(difference(beside.logits(), merged.logits()), 0.1 * largest(merged.logits()));  // the adapter matters
    logits.push_back(beside.logits(adapter));
    logits.push_back(merged.logits());
  }
  for (const auto& other : logits) EXPECT_LT(difference(logits[0], other), 1e-5 * largest(other));
}

TEST_F(QuantizeModel, LosesLittleInEveryRecipe) {
  Loaded original(kModels + "text_256");
  const auto exact = original.logits();
  const std::pair<const char*, double> recipes[] = {{"f16", 1e-2},   {"bf16", 4e-2}, {"q8_0", 4e-2},  {"q6_k", 0.2},
                                                    {"q5_k_m", 0.3}, {"q5_1", 0.3},  {"q5_0", 0.3},   {"q4_k_m", 0.5},
                                                    {"q4_1", 0.5},   {"q4_0", 0.5},  {"iq4_nl", 0.5}, {"iq4_xs", 0.5},
                                                    {"q3_k_m", 0.5}, {"q2_k", 0.5}};
  for (const auto& [recipe, tolerance] : recipes) {
    SCOPED_TRACE(recipe);
    const Status written = write(kModels + "text_256", recipe, file("m.gguf"));
    ASSERT_TRUE(written.ok()) << written.message();
    Loaded rounded(file("m.gguf"));
    ASSERT_TRUE(rounded.status().ok()) << rounded.status().message();
    const auto logits = rounded.logits();
    EXPECT_GT(difference(exact, logits), 0);
    EXPECT_LT(difference(exact, logits), tolerance * largest(exact));
  }
}

// Of two layers the second one is sensitive. Only rows of the down projections are whole blocks of 256.
TEST_F(QuantizeModel, GivesEachMatrixTheTypeOfItsRecipe) {
  struct Types {
    const char *recipe, *query, *value, *down, *sensitive_value, *sensitive_down;
  };
  test::write_file(file("model.gguf"), test::make_gguf_model({}).file());
  for (const Types& t : {Types{"q4_k_m", "Q5_0", "Q5_0", "Q4_K", "Q8_0", "Q6_K"},
                         {"iq4_nl", "IQ4_NL", "IQ4_NL", "IQ4_NL", "Q5_1", "Q5_K"},
                         {"iq4_xs", "IQ4_NL", "IQ4_NL", "IQ4_XS", "Q5_1", "Q5_K"},
                         {"q3_k_m", "IQ4_NL", "IQ4_NL", "Q3_K", "Q5_1", "Q5_K"},
                         {"q2_k", "IQ4_NL", "IQ4_NL", "Q2_K", "Q5_0", "Q4_K"}}) {
    SCOPED_TRACE(t.recipe);
    const Status written = write(file("model.gguf"), t.recipe, file("m.gguf"));
    ASSERT_TRUE(written.ok()) << written.message();
    auto made = open_gguf(file("m.gguf"));
    ASSERT_TRUE(made.ok());
    const auto type_of = [&](const std::string& name) { return made->header.tensors.at(name).type->name; };
    EXPECT_STREQ(type_of("blk.0.attn_q.weight"), t.query);
    EXPECT_STREQ(type_of("blk.0.attn_v.weight"), t.value);
    EXPECT_STREQ(type_of("blk.0.ffn_down.weight"), t.down);
    EXPECT_STREQ(type_of("blk.1.attn_v.weight"), t.sensitive_value);
    EXPECT_STREQ(type_of("blk.1.ffn_down.weight"), t.sensitive_down);
    Loaded loaded(file("m.gguf"));
    EXPECT_TRUE(loaded.status().ok()) << loaded.status().message();
  }
}

// A file made of a file: nothing is rounded twice where the types stay.
TEST_F(QuantizeModel, WritesAFileOfAFile) {
  ASSERT_TRUE(write(kModels + "text_256", "q8_0", file("a.gguf")).ok());
  ASSERT_TRUE(write(file("a.gguf"), "q8_0", file("b.gguf")).ok());
  Loaded a(file("a.gguf")), b(file("b.gguf"));
  ASSERT_TRUE(a.status().ok() && b.status().ok());
  EXPECT_EQ(a.logits(), b.logits());
  auto first = open_gguf(file("a.gguf")), second = open_gguf(file("b.gguf"));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->header.metadata.size(), second->header.metadata.size());
}

// Floats of the same values give the same logits.
TEST_F(QuantizeModel, ReadsFilesOfEveryType) {
  for (const uint32_t type : {12, 13, 14, 10, 11, 23}) {
    SCOPED_TRACE(type);
    test::GgufShape shape;
    shape.types = {20, type};  // the first layer's down projection has rows of whole blocks of `type`
    test::write_file(file("a.gguf"), test::make_gguf_model(shape).file());
    const Status written = write(file("a.gguf"), "f32", file("b.gguf"));
    ASSERT_TRUE(written.ok()) << written.message();
    EXPECT_EQ(done_, total_);
    ModelLoader::Options exact;
    exact.activation_type = ElementType::kF32;
    Loaded floats(file("b.gguf"), exact);
    ASSERT_TRUE(floats.status().ok()) << floats.status().message();
    for (const bool map : {false, true}) {
      exact.map = map;
      Loaded original(file("a.gguf"), exact);
      ASSERT_TRUE(original.status().ok()) << original.status().message();
      EXPECT_LT(difference(floats.logits(), original.logits()), 1e-5 * largest(floats.logits()));
    }
  }
}

TEST_F(QuantizeModel, RefusesWhatItCannotWrite) {
  EXPECT_EQ(write(kModels + "text_256", "q3", file("m.gguf")).code(), Code::kInvalidArgument);
  EXPECT_THAT(write(kModels + "text_256", "q3", file("m.gguf")).message(), HasSubstr("known: f32, f16, bf16, q8_0"));
  EXPECT_EQ(write(file("none"), "q8_0", file("m.gguf")).code(), Code::kNotFound);
  EXPECT_EQ(write(kModels + "text_256", "q8_0", file("none/m.gguf")).code(), Code::kNotFound);
  const Status longrope = write(kModels + "gqa_longrope", "q8_0", file("m.gguf"));
  EXPECT_EQ(longrope.code(), Code::kUnsupported);
  EXPECT_THAT(longrope.message(), HasSubstr("RoPE scaling \"longrope\""));
  EXPECT_THAT(write(kModels + "smollm3_yarn", "q8_0", file("m.gguf")).message(), HasSubstr("which layers rotate"));
  for (const std::string model : {"qwen2_yarn", "qwen3"}) {
    const std::string windowed = changed(
        model,
        {{"use_sliding_window", true}, {"sliding_window", 16}, {"layer_types", nullptr}, {"max_window_layers", 0}});
    const Status window = write(windowed, "q8_0", file("m.gguf"));
    EXPECT_EQ(window.code(), Code::kUnsupported) << model;
    EXPECT_THAT(window.message(),
                HasSubstr("which layers of a " + model.substr(0, 5) + " model have a sliding window"));
    std::filesystem::remove_all(windowed);
  }
  EXPECT_THAT(write(kModels + "gemma3", "q8_0", file("m.gguf")).message(), HasSubstr("scale of attention"));
  const auto gemma3_with = [&](const nlohmann::json& types) {
    const std::string model = changed("gemma3", {{"query_pre_attn_scalar", 8}, {"layer_types", types}});
    const Status status = write(model, "q8_0", file("m.gguf"));
    std::filesystem::remove_all(model);
    return status.message();
  };
  const std::string s = "sliding_attention", f = "full_attention";
  EXPECT_THAT(gemma3_with({s, f, f, s}), HasSubstr("every 2th not to, but layer 2 has none"));
  EXPECT_THAT(gemma3_with({s, s, s, s}), HasSubstr("a window of all layers"));
  CancelToken cancel;
  cancel.cancel();
  EXPECT_EQ(write(kModels + "text_256", "q8_0", file("m.gguf"), &cancel).code(), Code::kCancelled);
  EXPECT_EQ(n_files(), 0u);
}

// The error names the row of the checkpoint, though GGUF has the rows of Q in another order.
TEST_F(QuantizeModel, RefusesAWeightThatATypeCannotHold) {
  const std::string q = "model.layers.1.self_attn.q_proj.weight", down = "model.layers.0.mlp.down_proj.weight";
  struct Case {
    std::string tensor;
    int64_t row;
    float weight;
    std::string recipe, error;  // "": none
  };
  const Case cases[] = {{q, 9, -7e4f, "f16", "tensor " + q + ", row 9: a weight of -70000.0 is too large for F16"},
                        {q, 9, -7e4f, "bf16", ""},
                        {q, 9, -7e4f, "q4_0", ""},
                        {q, 9, 1e7f, "q8_0", "tensor " + q + ", row 9: a weight of 10000000.0 is too large for Q8_0"},
                        {q, 8, 1e7f, "q4_1", "tensor " + q + ", row 8: a weight of 10000000.0 is too large for Q4_1"},
                        {down, 3, NAN, "q5_1", "tensor " + down + ", row 3: a weight is not finite"},
                        {down, 3, INFINITY, "bf16", "tensor " + down + ", row 3: a weight is not finite"},
                        {down, 3, NAN, "f32", ""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.tensor + " " + std::to_string(c.weight) + " " + c.recipe);
    const std::string model = with_weight(kModels + "text_256", c.tensor, c.row, c.weight);
    const Status written = write(model, c.recipe, file("m.gguf"));
    EXPECT_EQ(written.message(), c.error);
    const Code expected = std::isfinite(c.weight) ? Code::kUnsupported : Code::kBadFile;
    EXPECT_EQ(written.code(), c.error.empty() ? Code::kOk : expected);
    EXPECT_EQ(std::filesystem::exists(file("m.gguf")), c.error.empty());
    std::filesystem::remove_all(model);
    std::filesystem::remove(file("m.gguf"));
    EXPECT_EQ(n_files(), 0u);
  }
}

TEST_F(QuantizeModel, LeavesNothingWhenItIsCancelledHalfway) {
  CancelToken cancel;
  QuantizeRequest request{kModels + "text_256", file("m.gguf"), "q8_0", &pool_, &cancel, {}};
  request.progress = [&](int64_t done, int64_t total) {
    if (2 * done > total) cancel.cancel();
  };
  EXPECT_EQ(quantize_model(request).code(), Code::kCancelled);
  EXPECT_EQ(n_files(), 0u);
}

}  // namespace
}  // namespace quire
