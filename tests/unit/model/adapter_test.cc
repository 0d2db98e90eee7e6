// Adapter files against a model's shape, what is refused of them, and the arithmetic of merging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/format/safetensors.h"
#include "lib/model/adapter_merge.h"
#include "tests/unit/model/adapter_directory.h"

namespace quire {
namespace {

using test::AdapterDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

// hidden 8, 2 heads of 6, one KV head, intermediate 10, vocabulary 12, one layer.
ModelConfig small_model() {
  return *parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 10,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "vocab_size": 12})");
}

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";

// q_proj with rank 2, as it should be.
class AdapterFilesTest : public testing::Test {
 protected:
  AdapterFilesTest() {
    files_.fill(std::string(kQuery) + ".lora_A.weight", {2, 8});
    files_.fill(std::string(kQuery) + ".lora_B.weight", {12, 2});
    files_.config["target_modules"] = {"q_proj"};
  }
  Result<std::shared_ptr<const AdapterFiles>> open() {
    files_.write();
    return AdapterFiles::open(files_.path(), small_model(), TensorFiles::Access::kRead);
  }
  void expect_refused(Code code, const std::vector<std::string>& parts) {
    const Status status = open().status();
    EXPECT_EQ(status.code(), code) << status.message();
    for (const std::string& part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
  }

  AdapterDirectory files_;
};

TEST_F(AdapterFilesTest, FindsWhatChangesAWeight) {
  files_.config["modules_to_save"] = {"embed_tokens", "norm"};
  files_.fill("model.embed_tokens.weight", {12, 8});
  files_.fill("model.norm.modules_to_save.weight", {8});
  files_.fill("model.layers.0.input_layernorm.weight", {8});
  files_.fill("model.layers.0.post_attention_layernorm.weight", {8});
  auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  const LowRankTensors* change = (*files)->changes().low_rank(std::string(kQuery) + ".weight");
  ASSERT_NE(change, nullptr);
  EXPECT_EQ(change->rank, 2);
  EXPECT_EQ(change->in, 8);
  EXPECT_EQ(change->out, 12);
  EXPECT_EQ(change->scale, 2);
  EXPECT_EQ((*files)->changes().low_rank("model.layers.0.self_attn.k_proj.weight"), nullptr);
  EXPECT_EQ(*(*files)->changes().replacement("model.norm.weight"),
            "base_model.model.model.norm.modules_to_save.weight");
  EXPECT_NE((*files)->changes().replacement("model.embed_tokens.weight"), nullptr);
  EXPECT_FALSE((*files)->changes().is_base_copy("model.embed_tokens.weight"));
  EXPECT_EQ((*files)->changes().replacement("lm_head.weight"), nullptr);
  EXPECT_TRUE((*files)->changes().changes_queries_or_keys());
}

TEST_F(AdapterFilesTest, BaseLayersAreCopiesUnlessTheModuleIsSaved) {
  files_.config["target_modules"] = {"q_proj", "embed_tokens"};
  files_.fill("model.embed_tokens.lora_embedding_A", {2, 12});
  files_.fill("model.embed_tokens.lora_embedding_B", {8, 2});
  files_.fill("model.embed_tokens.base_layer.weight", {12, 8});
  auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_TRUE((*files)->changes().is_base_copy("model.embed_tokens.weight"));
  files_.fill("model.embed_tokens.weight", {12, 8});
  files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_FALSE((*files)->changes().is_base_copy("model.embed_tokens.weight"));
  EXPECT_EQ(*(*files)->changes().replacement("model.embed_tokens.weight"),
            "base_model.model.model.embed_tokens.weight");
}

TEST_F(AdapterFilesTest, TheIdentityIsThatOfBothFiles) {
  const std::string first = *(*open())->identity();
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(*(*open())->identity(), first);
  files_.config["lora_alpha"] = 5;
  const std::string second = *(*open())->identity();
  files_.fill(std::string(kQuery) + ".lora_B.weight", {12, 2});
  files_.put(std::string(kQuery) + ".lora_A.weight", {2, 8}, std::vector<float>(16, 0.5f));
  const std::string third = *(*open())->identity();
  EXPECT_NE(first, second);
  EXPECT_NE(second, third);
}

TEST_F(AdapterFilesTest, ShapesNameTensorFoundAndExpected) {
  files_.fill(std::string(kQuery) + ".lora_A.weight", {3, 8});  // the configuration says rank 2
  expect_refused(Code::kBadFile, {"q_proj.lora_A.weight", "[3, 8]", "[2, 8]"});
  files_.fill(std::string(kQuery) + ".lora_A.weight", {2, 8});
  files_.fill(std::string(kQuery) + ".lora_B.weight", {8, 2});  // of a model with other heads
  expect_refused(Code::kBadFile, {"q_proj.lora_B.weight", "[8, 2]", "[12, 2]"});
}

TEST_F(AdapterFilesTest, ResizedEmbeddingsAreRefused) {
  files_.fill("model.embed_tokens.weight", {13, 8});
  expect_refused(Code::kBadFile, {"model.embed_tokens.weight", "[13, 8]", "[12, 8]"});
}

TEST_F(AdapterFilesTest, PairsMustBeWhole) {
  files_.drop(std::string(kQuery) + ".lora_B.weight");
  expect_refused(Code::kBadFile, {"q_proj.lora_A.weight", "without its B"});
  files_.drop(std::string(kQuery) + ".lora_A.weight");
  files_.fill(std::string(kQuery) + ".lora_B.weight", {12, 2});
  expect_refused(Code::kBadFile, {"q_proj.lora_B.weight", "without its A"});
}

// Projections change by lora_A, the embedding by lora_embedding_A, and a norm by neither.
TEST_F(AdapterFilesTest, ALowRankChangeHasTheFormOfItsModule) {
  files_.config["target_modules"] = {"q_proj", "embed_tokens", "norm"};
  for (const std::string tensor : {"model.embed_tokens.lora_A.weight",
                                   "model.layers.0.self_attn.q_proj.lora_embedding_A", "model.norm.lora_A.weight"}) {
    files_.fill(tensor, {2, 8});
    expect_refused(Code::kUnsupported, {"base_model.model." + tensor, "low-rank change", "in this form"});
    files_.drop(tensor);
  }
}

TEST_F(AdapterFilesTest, ModulesThatTheConfigurationNamesMustBeThere) {
  files_.config["target_modules"] = {"q_proj", "v_proj"};
  expect_refused(Code::kBadFile, {"missing", "self_attn.v_proj.lora_A.weight", "target_modules"});
  files_.config["layers_to_transform"] = {5, 0};
  expect_refused(Code::kBadFile, {"missing", "self_attn.v_proj.lora_A.weight"});
  files_.config["layers_to_transform"] = {5};
  expect_refused(Code::kBadFile, {"q_proj.lora_A.weight", "a layer that layers_to_transform does not name"});
  files_.config["layers_to_transform"] = {0};
  files_.config["target_modules"] = {"q_proj"};
  files_.config["modules_to_save"] = {"lm_head"};
  expect_refused(Code::kBadFile, {"missing", "lm_head.weight", "modules_to_save"});
}

TEST_F(AdapterFilesTest, OtherArchitecturesAreRefusedByName) {
  files_.config["target_modules"] = {"q_proj", "c_attn"};
  expect_refused(Code::kUnsupported, {"c_attn"});
  files_.config["target_modules"] = {"q_proj", "_proj"};  // a part of a name is no name
  expect_refused(Code::kUnsupported, {"target_modules names _proj"});
  files_.config["target_modules"] = {kQuery};
  EXPECT_TRUE(open().ok());
  files_.config["target_modules"] = {"q_proj"};
  files_.config["modules_to_save"] = {"score"};
  expect_refused(Code::kUnsupported, {"score"});
  files_.config.erase("modules_to_save");
  files_.fill("model.layers.1.self_attn.q_proj.lora_A.weight", {2, 8});  // one layer too many
  expect_refused(Code::kUnsupported, {"model.layers.1.self_attn.q_proj"});
}

TEST_F(AdapterFilesTest, TensorsThatNobodyNamedAreRefused) {
  files_.fill("model.layers.0.self_attn.v_proj.lora_A.weight", {2, 8});
  expect_refused(Code::kBadFile, {"v_proj", "target_modules"});
  files_.drop("model.layers.0.self_attn.v_proj.lora_A.weight");
  files_.fill("model.layers.0.self_attn.o_proj.weight", {8, 12});
  expect_refused(Code::kUnsupported, {"o_proj", "only embed_tokens"});
  files_.drop("model.layers.0.self_attn.o_proj.weight");
  files_.rename(std::string(kQuery) + ".lora_A.weight", "transformer.q.lora_A.weight");
  expect_refused(Code::kUnsupported, {"transformer.q.lora_A.weight", "base_model.model."});
}

TEST_F(AdapterFilesTest, DoraAndBiasesAreRefusedByTheirTensors) {
  files_.fill(std::string(kQuery) + ".lora_magnitude_vector", {12});
  expect_refused(Code::kUnsupported, {"q_proj.lora_magnitude_vector", "DoRA"});
  files_.drop(std::string(kQuery) + ".lora_magnitude_vector");
  files_.fill(std::string(kQuery) + ".lora_B.bias", {12});
  expect_refused(Code::kUnsupported, {"q_proj.lora_B.bias"});
  files_.drop(std::string(kQuery) + ".lora_B.bias");
  files_.fill(std::string(kQuery) + ".lora_C.weights", {12});
  expect_refused(Code::kUnsupported, {"lora_C"});
}

TEST_F(AdapterFilesTest, TheSameWeightTwiceIsRefused) {
  files_.fill("model.norm.weight", {8});
  files_.fill("model.norm.modules_to_save.weight", {8});
  expect_refused(Code::kBadFile, {"model.norm.weight", "model.norm.modules_to_save.weight"});
}

TEST_F(AdapterFilesTest, MissingAndDamagedFiles) {
  files_.write();
  const auto failure = [&] {
    return AdapterFiles::open(files_.path(), small_model(), TensorFiles::Access::kMap).status();
  };
  std::filesystem::resize_file(files_.file("adapter_model.safetensors"), 100);
  EXPECT_EQ(failure().code(), Code::kBadFile);
  std::filesystem::remove(files_.file("adapter_model.safetensors"));
  EXPECT_EQ(failure().code(), Code::kNotFound);
  EXPECT_THAT(failure().message(), HasSubstr("adapter_model.safetensors"));
  std::ofstream(files_.file("adapter_model.bin")) << "x";
  EXPECT_EQ(failure().code(), Code::kUnsupported);
  EXPECT_THAT(failure().message(), HasSubstr("adapter_model.bin"));
  std::ofstream(files_.file("adapter_config.json")) << "{";
  EXPECT_EQ(failure().code(), Code::kBadFile);
  std::filesystem::remove(files_.file("adapter_config.json"));
  EXPECT_EQ(failure().code(), Code::kNotFound);
  const auto open_at = [](const std::string& path) {
    return AdapterFiles::open(path, small_model(), TensorFiles::Access::kRead).status();
  };
  EXPECT_EQ(open_at("/no/such/adapter").code(), Code::kNotFound);
  EXPECT_EQ(open_at("/dev/null").code(), Code::kUnsupported);
}

TEST_F(AdapterFilesTest, NothingIsNoAdapter) {
  files_.drop(std::string(kQuery) + ".lora_A.weight");
  files_.drop(std::string(kQuery) + ".lora_B.weight");
  files_.config["target_modules"] = "all-linear";
  expect_refused(Code::kBadFile, {"no tensors"});
}

const TensorFiles kNoTensors(TensorFiles::Access::kRead);  // of a model

// The specification's example: r = 1, alpha = 2, W = I, A = [[1, 2]], B = [[3], [4]] gives [[7, 12], [8, 17]].
TEST(AdapterMerge, AddsScaleTimesBTimesA) {
  const ModelConfig model = *parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 5})");
  AdapterDirectory files;
  files.config["r"] = 1;
  files.config["lora_alpha"] = 2;
  files.put("model.layers.0.self_attn.q_proj.lora_A.weight", {1, 2}, {1, 2});
  files.put("model.layers.0.self_attn.q_proj.lora_B.weight", {2, 1}, {3, 4});
  files.write();
  AdapterMerge merge;
  ASSERT_TRUE(merge.open({{files.path(), 1}}, model, kNoTensors, TensorFiles::Access::kMap).ok());
  const std::string weight = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(merge.deltas(weight)->size(), 1u);
  EXPECT_TRUE(merge.deltas("model.layers.0.self_attn.k_proj.weight")->empty());
  std::vector<float> w{1, 0, 0, 1};
  AdapterMerge::add(*merge.deltas(weight), 0, 2, w.data());
  EXPECT_THAT(w, ElementsAre(7, 12, 8, 17));
  std::vector<float> second_row{0, 1};
  AdapterMerge::add(*merge.deltas(weight), 1, 1, second_row.data());
  EXPECT_THAT(second_row, ElementsAre(8, 17));
  AdapterMerge halved;
  ASSERT_TRUE(
      halved.open({{files.path(), 0.5}, {files.path(), -0.25}}, model, kNoTensors, TensorFiles::Access::kRead).ok());
  w = {1, 0, 0, 1};
  AdapterMerge::add(*halved.deltas(weight), 0, 2, w.data());
  EXPECT_THAT(w, ElementsAre(2.5, 3, 2, 5));
}

// PEFT names modules by their way through the network, in which a text model may be a part.
TEST(AdapterMerge, FindsTheTextModelInALargerOne) {
  const ModelConfig model = *parse_model_config(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 5})");
  for (const std::string before : {"model.language_model.", "language_model.model."}) {
    AdapterDirectory files;
    files.config["target_modules"] = ".*language_model.*q_proj";
    files.put(before + "layers.0.self_attn.q_proj.lora_A.weight", {1, 2}, {1, 2});
    files.put(before + "layers.0.self_attn.q_proj.lora_B.weight", {2, 1}, {3, 4});
    files.config["r"] = 1;
    files.write();
    AdapterMerge merge;
    const Status opened = merge.open({{files.path(), 1}}, model, kNoTensors, TensorFiles::Access::kMap);
    ASSERT_TRUE(opened.ok()) << opened.message();
    EXPECT_EQ(merge.deltas("model.layers.0.self_attn.q_proj.weight")->size(), 1u);
  }
}

TEST(AdapterMerge, OnlyOneMayReplaceATensor) {
  AdapterDirectory first, second;
  for (AdapterDirectory* files : {&first, &second}) {
    files->fill("model.norm.weight", {8});
    files->write();
  }
  AdapterMerge merge;
  const Status status =
      merge.open({{first.path(), 1}, {second.path(), 1}}, small_model(), kNoTensors, TensorFiles::Access::kRead);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("model.norm.weight"));
}

// PEFT saves the base embedding beside a change of it.
TEST(AdapterMerge, SeveralMayHoldACopyOfTheBase) {
  const std::string weight = "model.embed_tokens.weight";
  AdapterDirectory base, first, second;
  base.put(weight, {12, 8}, std::vector<float>(96, 1));
  base.rename(weight, weight);  // without PEFT's prefix
  base.write();
  const auto own =
      std::move(*open_safetensors_file(base.file("adapter_model.safetensors"), TensorFiles::Access::kRead));
  const auto open = [&](const TensorFiles& tensors, float first_copy, float second_copy, AdapterMerge& merge) {
    for (const auto& [files, copy] : {std::pair(&first, first_copy), std::pair(&second, second_copy)}) {
      files->config["target_modules"] = {"embed_tokens"};
      files->fill("model.embed_tokens.lora_embedding_A", {2, 12});
      files->fill("model.embed_tokens.lora_embedding_B", {8, 2});
      files->put("model.embed_tokens.base_layer.weight", {12, 8}, std::vector<float>(96, copy));
      files->write();
    }
    return merge.open({{first.path(), 1}, {second.path(), 1}}, small_model(), tensors, TensorFiles::Access::kRead);
  };
  AdapterMerge same, other, different;
  const Status opened = open(*own, 1, 1, same);
  ASSERT_TRUE(opened.ok()) << opened.message();
  EXPECT_EQ(same.replacement(weight), nullptr);
  EXPECT_EQ(same.deltas(weight)->size(), 2u);
  ASSERT_TRUE(open(*own, 2, 2, other).ok());  // of another base, or in another type
  EXPECT_NE(other.replacement(weight), nullptr);
  EXPECT_EQ(open(*own, 2, 3, different).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire
