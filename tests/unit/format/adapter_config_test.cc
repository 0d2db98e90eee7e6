#include "lib/format/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace quire {
namespace {

using Json = nlohmann::json;

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kQuery = "model.layers.1.self_attn.q_proj";

Result<AdapterConfig> parse_with(const Json& patch) {
  Json config = {
      {"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 6}, {"target_modules", {"q_proj", "self_attn.o_proj"}}};
  for (const auto& [key, value] : patch.items()) config[key] = value;
  return parse_adapter_config(config.dump(), "adapter_config.json");
}

void expect_refused(const Json& patch, Code code, const std::string& part) {
  const auto config = parse_with(patch);
  EXPECT_EQ(config.status().code(), code) << patch.dump() << config.status().message();
  EXPECT_THAT(config.status().message(), HasSubstr(part));
  EXPECT_THAT(config.status().message(), HasSubstr("adapter_config.json"));
}

TEST(AdapterConfig, ScaleIsAlphaOverRank) {
  auto config = parse_with({{"base_model_name_or_path", "some/model"}, {"modules_to_save", {"embed_tokens"}}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rank_of(kQuery).value(), 4);
  EXPECT_EQ(config->scale_of(kQuery).value(), 1.5);
  EXPECT_EQ(config->base_model, "some/model");
  EXPECT_THAT(config->target_modules, ElementsAre("q_proj", "self_attn.o_proj"));
  config = parse_with({{"use_rslora", true}});
  EXPECT_EQ(config->scale_of(kQuery).value(), 3.0);
  config = parse_with({{"r", nullptr}, {"lora_alpha", nullptr}});
  EXPECT_EQ(config->scale_of(kQuery).value(), 1.0);
}

TEST(AdapterConfig, NamesMatchEnds) {
  auto config = parse_with({{"modules_to_save", {"norm", "lm_head"}}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->targets(kQuery));
  EXPECT_TRUE(config->targets("model.layers.0.self_attn.o_proj"));
  EXPECT_FALSE(config->targets("model.layers.0.mlp.o_proj"));
  EXPECT_FALSE(config->targets("model.layers.0.self_attn.seq_proj"));
  EXPECT_TRUE(config->saves("lm_head"));
  EXPECT_TRUE(config->saves("model.norm"));
  EXPECT_TRUE(config->saves("model.layers.0.input_layernorm"));  // as PEFT does
  EXPECT_FALSE(config->saves("model.embed_tokens"));
}

TEST(AdapterConfig, TensorsDecideWhereNamesDoNot) {
  EXPECT_TRUE(parse_with({{"target_modules", "all-linear"}})->targets("anything"));
  EXPECT_TRUE(parse_with({{"target_modules", ".*_proj"}})->targets("anything"));
  EXPECT_TRUE(parse_with({{"target_modules", nullptr}})->targets("anything"));
  EXPECT_TRUE(parse_with({{"exclude_modules", {"layers.0.self_attn.q_proj"}}})->targets("anything"));
  EXPECT_THAT(parse_with({{"layers_to_transform", 3}})->layers_to_transform, ElementsAre(3));
  EXPECT_THAT(parse_with({{"layers_to_transform", {1, 2}}})->layers_to_transform, ElementsAre(1, 2));
}

TEST(AdapterConfig, PatternsMatchEndsOfNames) {
  auto config = parse_with({{"rank_pattern", {{"q_proj", 9}, {"^model.layers.0.self_attn.o_proj", 2}}},
                            {"alpha_pattern", {{"layers.1.self_attn.q_proj", 4.5}}}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rank_of(kQuery).value(), 9);
  EXPECT_EQ(config->scale_of(kQuery).value(), 0.5);
  EXPECT_DOUBLE_EQ(config->scale_of("model.layers.0.self_attn.q_proj").value(), 6.0 / 9);
  EXPECT_EQ(config->rank_of("model.layers.0.self_attn.o_proj").value(), 2);
  EXPECT_EQ(config->rank_of("model.layers.1.self_attn.o_proj").value(), 4);
  EXPECT_EQ(config->rank_of("model.layers.0.self_attn.seq_proj").value(), 4);
}

TEST(AdapterConfig, PatternsThatDisagreeAreRefused) {
  auto config = parse_with({{"rank_pattern", {{"q_proj", 9}, {"self_attn.q_proj", 8}}}});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->rank_of(kQuery).status().code(), Code::kUnsupported);
  EXPECT_EQ(config->scale_of(kQuery).status().code(), Code::kUnsupported);
  EXPECT_THAT(config->rank_of(kQuery).status().message(), HasSubstr("self_attn.q_proj"));
  expect_refused({{"rank_pattern", {{".*q_proj", 9}}}}, Code::kUnsupported, ".*q_proj");
  expect_refused({{"alpha_pattern", {{"^", 9}}}}, Code::kUnsupported, "alpha_pattern");
}

TEST(AdapterConfig, OtherComputationsAreRefusedByName) {
  expect_refused({{"use_dora", true}}, Code::kUnsupported, "DoRA");
  expect_refused({{"peft_type", "IA3"}}, Code::kUnsupported, "IA3");
  expect_refused({{"peft_type", nullptr}}, Code::kUnsupported, "peft_type");
  expect_refused({{"bias", "lora_only"}}, Code::kUnsupported, "lora_only");
  expect_refused({{"fan_in_fan_out", true}}, Code::kUnsupported, "fan_in_fan_out");
  expect_refused({{"lora_bias", true}}, Code::kUnsupported, "lora_bias");
  expect_refused({{"use_qalora", true}}, Code::kUnsupported, "use_qalora");
  expect_refused({{"layer_replication", {{0, 2}, {1, 3}}}}, Code::kUnsupported, "layer_replication");
  expect_refused({{"trainable_token_indices", {3}}}, Code::kUnsupported, "trainable_token_indices");
  expect_refused({{"target_parameters", {"x"}}}, Code::kUnsupported, "target_parameters");
  expect_refused({{"some_new_method", {1}}}, Code::kUnsupported, "some_new_method [1]");
  expect_refused({{"some_new_method", {{"a", 1}}}}, Code::kUnsupported, "some_new_method");
  expect_refused({{"init_lora_weights", 1}}, Code::kUnsupported, "init_lora_weights 1");
  expect_refused({{"init_lora_weights", "pissa_niter_4"}}, Code::kUnsupported, "pissa_niter_4");
  expect_refused({{"some_new_method", 0.5}}, Code::kUnsupported, "some_new_method");
  for (const Json& harmless :
       {Json{{"use_dora", false}}, Json{{"some_new_method", nullptr}}, Json{{"lora_dropout", 0.1}},
        Json{{"init_lora_weights", "gaussian"}}, Json{{"loftq_config", Json::object()}},
        Json{{"some_new_method", Json::object()}}, Json{{"some_new_method", Json::array()}},
        Json{{"some_new_method", ""}}, Json{{"some_new_method", 0.0}}, Json{{"init_lora_weights", true}}}) {
    EXPECT_TRUE(parse_with(harmless).ok()) << harmless.dump();
  }
}

TEST(AdapterConfig, PatternsThatContradictEachOther) {
  auto config =
      parse_with({{"rank_pattern", {{"q_proj", 2}, {"self_attn.q_proj", 4}, {"^layers.0.self_attn.v_proj", 8}}}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  const Status both = config->rank_of("layers.0.self_attn.q_proj").status();
  EXPECT_EQ(both.code(), Code::kUnsupported);
  EXPECT_THAT(both.message(), HasSubstr("both match layers.0.self_attn.q_proj"));
  EXPECT_EQ(config->rank_of("layers.0.self_attn.v_proj").value(), 8);
  EXPECT_EQ(config->rank_of("layers.0.mlp.q_proj").value(), 2);
}

TEST(AdapterConfig, WrongValuesAreRefusedByKey) {
  expect_refused({{"r", 0}}, Code::kBadFile, "r is 0");
  expect_refused({{"r", 1.5}}, Code::kBadFile, "r is 1.5");
  expect_refused({{"lora_alpha", -1}}, Code::kBadFile, "lora_alpha");
  expect_refused({{"lora_alpha", "x"}}, Code::kBadFile, "lora_alpha");
  expect_refused({{"target_modules", {1}}}, Code::kBadFile, "target_modules");
  expect_refused({{"target_modules", {""}}}, Code::kBadFile, "target_modules");
  expect_refused({{"modules_to_save", "embed_tokens"}}, Code::kBadFile, "modules_to_save");
  expect_refused({{"layers_to_transform", {-1}}}, Code::kBadFile, "layers_to_transform");
  expect_refused({{"rank_pattern", {{"q_proj", 0}}}}, Code::kBadFile, "rank_pattern");
  expect_refused({{"alpha_pattern", 3}}, Code::kBadFile, "alpha_pattern");
  expect_refused({{"use_rslora", 1}}, Code::kBadFile, "use_rslora");
  // Each name is compared with every module of the model.
  const Json names = std::vector<std::string>(10001, "q_proj");
  expect_refused({{"target_modules", names}}, Code::kBadFile, "an array of 10001; expected a list of at most 10000");
  expect_refused({{"modules_to_save", names}}, Code::kBadFile, "at most 10000 module names");
  expect_refused({{"layers_to_transform", std::vector<int>(10001, 1)}}, Code::kBadFile, "at most 10000 layer numbers");
  Json patterns = Json::object();
  for (int i = 0; i < 10001; ++i) patterns["layers." + std::to_string(i) + ".q_proj"] = 4;
  expect_refused({{"rank_pattern", patterns}}, Code::kBadFile, "at most 10000 of module name: number");
  expect_refused({{"alpha_pattern", patterns}}, Code::kBadFile, "at most 10000 of module name: number");
  EXPECT_EQ(parse_adapter_config("{", "x").status().code(), Code::kBadFile);
  EXPECT_EQ(parse_adapter_config("[]", "x").status().code(), Code::kBadFile);
}

}  // namespace
}  // namespace quire
