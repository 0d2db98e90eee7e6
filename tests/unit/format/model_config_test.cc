#include "lib/format/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace quire {
namespace {

using Json = nlohmann::json;

using testing::ElementsAre;
using testing::HasSubstr;

Json small() {
  return Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2})");
}

Result<ModelConfig> parse_with(const Json& patch) {
  Json config = small();
  for (const auto& [key, value] : patch.items()) config[key] = value;
  return parse_model_config(config.dump());
}

TEST(ModelConfig, DefaultsOfAbsentKeys) {
  Json json = small();
  json.erase("max_position_embeddings");
  json.erase("rms_norm_eps");
  json.erase("bos_token_id");
  json.erase("eos_token_id");
  const std::string text = json.dump();
  auto config = parse_model_config(text);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->n_layers, 2);
  EXPECT_EQ(config->n_query_heads, 4);
  EXPECT_EQ(config->n_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->max_position_embeddings, 2048);
  EXPECT_EQ(config->rms_norm_eps, 1e-6f);
  EXPECT_EQ(config->rope_theta, 10000);
  EXPECT_EQ(config->rope_type, "default");
  EXPECT_EQ(config->rope_scaling, "");
  EXPECT_FALSE(config->tie_word_embeddings || config->qkv_bias || config->o_bias || config->mlp_bias);
  EXPECT_FALSE(config->qk_norm || config->has_nope_layers() || config->is_nope_layer(1));
  EXPECT_TRUE(config->bos_token_ids.empty() && config->eos_token_ids.empty());
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->json, text);
}

TEST(ModelConfig, EveryKeyIsRead) {
  auto config = parse_with({{"num_key_value_heads", 2},
                            {"head_dim", 24},
                            {"tie_word_embeddings", true},
                            {"attention_bias", true},
                            {"mlp_bias", true},
                            {"rope_theta", 500000},
                            {"eos_token_id", {7, 8, 7}},
                            {"hidden_act", "silu"},
                            {"sliding_window", nullptr},
                            {"quantization_config", nullptr},
                            {"rope_scaling", nullptr},
                            {"pretraining_tp", 1}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->n_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 24);
  EXPECT_TRUE(config->tie_word_embeddings && config->qkv_bias && config->o_bias && config->mlp_bias);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_FLOAT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_EQ(config->max_position_embeddings, 512);
  EXPECT_THAT(config->bos_token_ids, ElementsAre(1));
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7, 8));
}

TEST(ModelConfig, OtherComputationsAreRefusedByName) {
  const Json cases = Json::parse(R"([
    {"architectures": ["MixtralForCausalLM"]}, {"model_type": "mistral"}, {"hidden_act": "gelu"},
    {"sliding_window": 4096}, {"quantization_config": {"bits": 4}}, {"num_local_experts": 8},
    {"partial_rotary_factor": 0.5}, {"layer_types": ["full_attention", "sliding_attention"]},
    {"attn_logit_softcapping": 50.0}, {"use_mrope": true}, {"beacon_pos": "interleave"}, {"head_dim": 15}, {"is_encoder_decoder": true}, {"layer_types": [1]}, {"rope_scaling": {"type": "proportional", "factor": 2}}])");
  const char* named[] = {"MixtralForCausalLM",
                         "mistral",
                         "gelu",
                         "sliding_window",
                         "quantization_config",
                         "num_local_experts",
                         "partial_rotary_factor",
                         "sliding_attention",
                         "softcapping",
                         "use_mrope",
                         "beacon_pos",
                         "head_dim 15",
                         "is_encoder_decoder",
                         "layer_types with 1",
                         "proportional"};
  ASSERT_EQ(cases.size(), std::size(named));
  for (size_t i = 0; i < cases.size(); ++i) {
    const Status status = parse_with(cases[i]).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << cases[i];
    EXPECT_THAT(status.message(), HasSubstr(named[i]));
  }
}

TEST(ModelConfig, TheUsualComputationMayBeNamed) {
  const Status status = parse_with({{"partial_rotary_factor", 1},
                                    {"rope_interleaved", false},
                                    {"quantization_config", nullptr},
                                    {"layer_types", {"full_attention", "full_attention"}},
                                    {"hidden_act", "silu"}})
                            .status();
  EXPECT_TRUE(status.ok()) << status.message();
}

// As the file of Phi-4-mini, with small numbers.
nlohmann::json phi3() {
  return {{"architectures", {"Phi3ForCausalLM"}},
          {"model_type", "phi3"},
          {"head_dim", nullptr},
          {"partial_rotary_factor", 0.75},
          {"attention_bias", false},
          {"sliding_window", 262144},
          {"original_max_position_embeddings", 64},
          {"max_position_embeddings", 256},
          {"rope_scaling",
           {{"type", "longrope"}, {"short_factor", {1, 1, 1, 1, 1, 2}}, {"long_factor", {1, 2, 3, 4, 5, 6}}}}};
}

TEST(ModelConfig, OfPhi3TurnsAPartOfEachHead) {
  auto config = parse_with(phi3());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->fused_projections);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->rotary_dim, 12);
  EXPECT_EQ(config->sliding_window, 262144);
  EXPECT_EQ(config->longrope.original, 64);
  EXPECT_THAT(config->longrope.long_factors, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_NEAR(config->longrope.attention_factor, std::sqrt(1 + std::log(4.0) / std::log(64.0)), 1e-12);
  auto change = phi3();
  change["sliding_window"] = nullptr;
  change["rms_norm_eps"] = nullptr;
  change["partial_rotary_factor"] = nullptr;
  change["rope_scaling"] = nullptr;
  auto plain = parse_with(change);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->sliding_window, 0);
  EXPECT_EQ(plain->rotary_dim, 16);
}

TEST(ModelConfig, OfGraniteHasFactors) {
  const nlohmann::json granite = {{"architectures", {"GraniteForCausalLM"}}, {"model_type", "granite"}};
  auto plain = parse_with(granite);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->attention_scale(), 1);  // as in transformers, whatever the size of a head
  EXPECT_EQ(plain->hidden_embedding_scale(), 1);
  EXPECT_EQ(plain->hidden_norm_eps(), plain->rms_norm_eps);
  auto settings = granite;
  settings.update({{"embedding_multiplier", 12},
                   {"residual_multiplier", 0.25},
                   {"attention_multiplier", 0.0078125},
                   {"logits_scaling", 16}});
  auto config = parse_with(settings);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->hidden_embedding_scale(), 48);
  EXPECT_EQ(config->hidden_norm_eps(), 16 * config->rms_norm_eps);
  EXPECT_EQ(config->attention_scale(), 0.0078125);
  EXPECT_EQ(config->logits_scaling, 16);
  for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"}) {
    for (const nlohmann::json& bad :
         {nlohmann::json(0), nlohmann::json(-1), nlohmann::json("1"), nlohmann::json(1e9)}) {
      auto changed = settings;
      changed[key] = bad;
      const Status status = parse_with(changed).status();
      EXPECT_EQ(status.code(), Code::kBadFile) << key;
      EXPECT_THAT(status.message(), HasSubstr(key));
    }
  }
}

// Four norms a layer, all of 1 + w; every sixth layer sees all keys, with another base than the others.
TEST(ModelConfig, OfGemma3HasWindowsWithABaseOfTheirOwn) {
  const nlohmann::json gemma = {
      {"architectures", {"Gemma3ForCausalLM"}}, {"model_type", "gemma3_text"}, {"num_hidden_layers", 8}};
  auto plain = parse_with(gemma);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->head_dim, 256);  // as in transformers, whatever the hidden size
  EXPECT_TRUE(plain->qk_norm && plain->sandwich_norms && plain->tie_word_embeddings && !plain->norm_offset_is_stored);
  EXPECT_EQ(plain->norm_offset, 1);
  EXPECT_EQ(plain->activation, Activation::kGelu);
  EXPECT_EQ(plain->hidden_embedding_scale(), std::sqrt(static_cast<float>(plain->hidden_size)));
  EXPECT_EQ(plain->attention_scale(), 1 / 16.0);
  EXPECT_EQ(plain->sliding_window, 4096);
  EXPECT_EQ(plain->rope_theta, 1e6);
  EXPECT_EQ(plain->window_rope_theta, 1e4);
  for (int layer = 0; layer < 8; ++layer) EXPECT_EQ(plain->is_window_layer(layer), layer != 5) << layer;

  const auto with = [&](const nlohmann::json& patch) {
    auto settings = gemma;
    settings.update(patch);
    return parse_with(settings);
  };
  const nlohmann::json full = {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}},
                       window = {{"rope_type", "default"}, {"rope_theta", 2e4}};
  for (const nlohmann::json& patch :
       {nlohmann::json{{"rope_theta", 5e5},
                       {"rope_local_base_freq", 2e4},
                       {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}},
        nlohmann::json{{"rope_parameters", {{"full_attention", full}, {"sliding_attention", window}}}},
        nlohmann::json{{"rope_parameters", {{"full_attention", full}, {"sliding_attention", window}}},
                       {"rope_scaling", {{"type", "linear"}, {"factor", 8.0}}}}}) {
    auto config = with(patch);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope_theta, 5e5);
    EXPECT_EQ(config->rope_scaling, "pi(factor=8)");
    EXPECT_EQ(config->window_rope_theta, 2e4);
  }
  // Where all layers have the window, its base is that of all, and where none has, nobody has it.
  auto all = with({{"num_hidden_layers", 5}, {"query_pre_attn_scalar", 100}});
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_EQ(all->sliding_window, 4096);
  EXPECT_TRUE(all->window_layers.empty());
  EXPECT_EQ(all->rope_theta, 1e4);
  EXPECT_EQ(all->window_rope_theta, 0);
  EXPECT_EQ(all->attention_scale(), 0.1);
  auto none = with({{"sliding_window_pattern", 1}});
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->sliding_window, 0);
  EXPECT_EQ(none->rope_theta, 1e6);
  EXPECT_EQ(none->window_rope_theta, 0);

  const std::pair<nlohmann::json, const char*> bad[] = {
      {{{"hidden_activation", "silu"}}, "hidden_activation silu; only gelu_pytorch_tanh is supported"},
      {{{"use_bidirectional_attention", true}}, "use_bidirectional_attention true"},
      {{{"final_logit_softcapping", 30.0}}, "final_logit_softcapping 30"},
      {{{"query_pre_attn_scalar", 0}}, "query_pre_attn_scalar is 0"},
      {{{"sliding_window_pattern", 0}}, "sliding_window_pattern is 0"},
      {{{"rope_local_base_freq", 1}}, "rope_local_base_freq is 1"},
      {{{"rope_parameters", {{"full_attention", full}, {"sliding_attention", full}}}},
       "RoPE type linear of sliding_attention"},
      {{{"rope_parameters", {{"full_attention", window}, {"sliding_attention", window}}},
        {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}},
       "expected what rope_parameters says: default"},
      {{{"rope_parameters", {{"full_attention", full}, {"rope_theta", 1e4}}}},
       "rope_theta beside the settings of kinds of layers"}};
  for (const auto& [patch, message] : bad) EXPECT_THAT(with(patch).status().message(), HasSubstr(message));
}

// As google/gemma-3-4b-it says it: what is as usual is left out.
TEST(ModelConfig, OfALargerModelTheTextModelIsRead) {
  const Json gemma = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                      {"model_type", "gemma3"},
                      {"eos_token_id", {1, 106}},
                      {"text_config",
                       {{"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"model_type", "gemma3_text"},
                        {"num_hidden_layers", 34},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                        {"sliding_window", 1024}}},
                      {"vision_config", {{"hidden_size", 1152}, {"hidden_act", "gelu_pytorch_tanh"}}}};
  auto config = parse_model_config(gemma.dump());
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(config->tensor_prefix, "language_model.");
  EXPECT_EQ(config->json, gemma.dump());
  EXPECT_EQ(config->n_layers, 34);
  EXPECT_EQ(config->hidden_size, 2560);
  EXPECT_EQ(config->n_query_heads, 8);
  EXPECT_EQ(config->n_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_EQ(config->sliding_window, 1024);
  EXPECT_EQ(config->rope_scaling, "pi(factor=8)");
  EXPECT_THAT(config->eos_token_ids, testing::ElementsAre(1, 106));
  const auto with = [&](const char* key, const Json& value) {
    Json other = gemma;
    other[key] = value;
    return parse_model_config(other.dump()).status().message();
  };
  EXPECT_THAT(with("text_config", 5), HasSubstr("text_config is 5; expected an object"));
  EXPECT_THAT(with("text_config", {{"model_type", "gemma2"}}),
              HasSubstr("config.json: text_config: model_type gemma2"));
  EXPECT_THAT(with("text_config", {{"hidden_size", 0}}), HasSubstr("config.json: text_config: hidden_size is 0"));
  EXPECT_THAT(with("quantization_config", {{"bits", 4}}), HasSubstr("quantization_config"));
  EXPECT_THAT(with("model_type", "gemma3_text"), HasSubstr("expected gemma3"));
}

TEST(ModelConfig, AnArchitectureHasAName) {
  Json nameless = {{"architectures", {""}}, {"model_type", ""}};
  nameless["text_config"] = small();
  const Status status = parse_model_config(nameless.dump()).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("architecture ; supported are LlamaForCausalLM"));
}

TEST(ModelConfig, OfALargerModelTheHeadIsTiedAsThatOneSays) {
  Json mistral = {{"architectures", {"Mistral3ForConditionalGeneration"}}, {"model_type", "mistral3"}};
  mistral["text_config"] = small();
  mistral["text_config"]["model_type"] = "mistral";
  mistral["text_config"]["num_key_value_heads"] = 2;
  mistral["text_config"].erase("architectures");
  const auto parse = [&] { return parse_model_config(mistral.dump()); };
  ASSERT_TRUE(parse().ok()) << parse().status().message();
  EXPECT_EQ(parse()->architecture, "MistralForCausalLM");
  EXPECT_FALSE(parse()->tie_word_embeddings);
  mistral["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse()->tie_word_embeddings);
  mistral["tie_word_embeddings"] = false;
  mistral["text_config"]["tie_word_embeddings"] = true;
  EXPECT_FALSE(parse()->tie_word_embeddings);
}

TEST(ModelConfig, APartOfAHeadIsWholePairsAndOneForAll) {
  // The file's other settings, and what the message names.
  const std::pair<nlohmann::json, const char*> cases[] = {
      {{{"partial_rotary_factor", 0.3125}}, "is 5; expected an even number"},
      {{{"partial_rotary_factor", 0.05}}, "is 0; expected an even number"},
      {{{"partial_rotary_factor", 1.5}}, "partial_rotary_factor is 1.5"},
      {{{"partial_rotary_factor", 0.5}}, "4 numbers"},  // longrope's lists have 6
      {{{"rope_scaling", {{"type", "default"}, {"partial_rotary_factor", 0.5}}}}, "one value throughout the file"}};
  for (const auto& [changes, named] : cases) {
    auto settings = phi3();
    settings.update(changes);
    const Status status = parse_with(settings).status();
    EXPECT_EQ(status.code(), Code::kBadFile) << changes;
    EXPECT_THAT(status.message(), HasSubstr(named)) << changes;
  }
  const Status elsewhere =
      parse_with({{"rope_scaling", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}).status();
  EXPECT_EQ(elsewhere.code(), Code::kUnsupported);
  EXPECT_THAT(elsewhere.message(), HasSubstr("rope_scaling: partial_rotary_factor 0.5"));
}

TEST(ModelConfig, BadNumbersAreRefusedByKey) {
  const Json cases = Json::parse(R"([
    {"hidden_size": 0}, {"hidden_size": -64}, {"hidden_size": 64.0}, {"hidden_size": "64"}, {"hidden_size": null},
    {"hidden_size": 1e30}, {"hidden_size": 18446744073709551615}, {"hidden_size": 4294967360}, {"hidden_size": 66},
    {"num_hidden_layers": 0}, {"num_hidden_layers": 2147483648}, {"num_attention_heads": 0}, {"num_key_value_heads": 3},
    {"num_key_value_heads": 8}, {"num_key_value_heads": 0}, {"head_dim": 0}, {"vocab_size": 0}, {"vocab_size": true},
    {"intermediate_size": []}, {"max_position_embeddings": 0}, {"max_position_embeddings": 4611686018427387904},
    {"rms_norm_eps": 0}, {"rms_norm_eps": -1}, {"rms_norm_eps": "1e-5"}, {"rope_theta": 0}, {"rope_theta": -1},
    {"rope_theta": 1}, {"tie_word_embeddings": 1}, {"attention_bias": "yes"}, {"bos_token_id": 100},
    {"bos_token_id": -1}, {"bos_token_id": [1, 2]}, {"eos_token_id": [2, 100]}, {"eos_token_id": 2.0},
    {"eos_token_id": "2"}, {"rope_scaling": 4}, {"architectures": []}, {"architectures": "LlamaForCausalLM"},
    {"architectures": [1]}, {"architectures": null}, {"layer_types": "full_attention"}, {"layer_types": ["full_attention"]}])");
  for (const Json& patch : cases) {
    const Status status = parse_with(patch).status();
    EXPECT_EQ(status.code(), Code::kBadFile) << patch << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr(patch.begin().key())) << patch;
  }
}

// Each end-of-text id is compared with every token that is generated.
TEST(ModelConfig, EndOfTextIdsAreFew) {
  std::vector<int> ids(1024);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i);
  auto config = parse_with({{"vocab_size", 2000}, {"eos_token_id", ids}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->eos_token_ids.size(), 1024u);
  ids.push_back(1500);
  const Status status = parse_with({{"vocab_size", 2000}, {"eos_token_id", ids}}).status();
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_THAT(status.message(), HasSubstr("eos_token_id is an array of 1025; expected at most 1024 ids"));
}

Result<ModelConfig> parse_mistral(const Json& patch) {
  Json config = small();
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["num_attention_heads"] = 8;
  for (const auto& [key, value] : patch.items()) config[key] = value;
  return parse_model_config(config.dump());
}

TEST(ModelConfig, MistralHasAWindowUnlessItSaysNull) {
  EXPECT_EQ(parse_mistral({{"sliding_window", 32}})->sliding_window, 32);
  EXPECT_EQ(parse_mistral({{"sliding_window", nullptr}})->sliding_window, 0);
  // Absent keys, as in transformers; use_sliding_window is a word of other architectures.
  EXPECT_EQ(parse_mistral({{"use_sliding_window", false}})->sliding_window, 4096);
  EXPECT_EQ(parse_mistral({{"max_position_embeddings", nullptr}})->max_position_embeddings, 131072);
  EXPECT_EQ(parse_mistral({{"num_attention_heads", 16}, {"hidden_size", 128}})->n_kv_heads, 8);
  EXPECT_EQ(parse_mistral({})->architecture, "MistralForCausalLM");
  EXPECT_EQ(parse_with({})->sliding_window, 0);
}

TEST(ModelConfig, MistralRefusesWhatIsNotItsOwn) {
  for (const Json& window : {Json(0), Json(-1), Json(false), Json("64"), Json(64.5)}) {
    const Status status = parse_mistral({{"sliding_window", window}}).status();
    EXPECT_EQ(status.code(), Code::kBadFile) << window;
    EXPECT_THAT(status.message(), HasSubstr("sliding_window"));
  }
  EXPECT_EQ(parse_mistral({{"model_type", "llama"}}).status().code(), Code::kUnsupported);
  for (const char* biases : {"attention_bias", "mlp_bias"}) {
    EXPECT_THAT(parse_mistral({{biases, true}}).status().message(), HasSubstr("MistralForCausalLM with biases"));
  }
}

Result<ModelConfig> parse_as(const std::string& architecture, const std::string& type, const Json& patch) {
  Json config = small();
  config["architectures"] = {architecture + "ForCausalLM"};
  config["model_type"] = type;
  config["num_key_value_heads"] = 2;
  for (const auto& [key, value] : patch.items()) config[key] = value;
  return parse_model_config(config.dump());
}

TEST(ModelConfig, Qwen2HasBiasesOfQueriesKeysAndValuesAlone) {
  for (const Json& patch : {Json::object(), Json{{"attention_bias", false}}, Json{{"attention_bias", true}}}) {
    auto config = parse_as("Qwen2", "qwen2", patch);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_TRUE(config->qkv_bias);
    EXPECT_FALSE(config->o_bias || config->mlp_bias || config->qk_norm);
    EXPECT_EQ(config->head_dim, 16);
    EXPECT_EQ(config->architecture, "Qwen2ForCausalLM");
  }
  EXPECT_EQ(parse_as("Qwen2", "qwen2", {{"max_position_embeddings", nullptr}})->max_position_embeddings, 32768);
  EXPECT_THAT(parse_as("Qwen2", "qwen2", {{"mlp_bias", true}}).status().message(), HasSubstr("biases of the MLP"));
  EXPECT_THAT(parse_as("Qwen2", "qwen3", {}).status().message(), HasSubstr("model_type qwen3 of Qwen2ForCausalLM"));
}

TEST(ModelConfig, Qwen3HasNormsOfQueriesAndKeys) {
  auto config = parse_as("Qwen3", "qwen3", {});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias || config->o_bias);
  EXPECT_EQ(config->head_dim, 128);  // not what the hidden size comes to
  config = parse_as("Qwen3", "qwen3", {{"attention_bias", true}, {"head_dim", 24}, {"hidden_size", 66}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->qkv_bias && config->o_bias);
  EXPECT_EQ(config->head_dim, 24);
}

// What Qwen's model cards say to add for long texts; transformers 5 has the new keys.
TEST(ModelConfig, QwensYarnIsReadInBothForms) {
  const Json yarn = {{"factor", 4.0}, {"original_max_position_embeddings", 512}};
  Json older = yarn, newer = yarn;
  older["type"] = newer["rope_type"] = "yarn";
  newer["rope_theta"] = 1e6;
  for (const Json& patch :
       {Json{{"rope_scaling", older}, {"rope_theta", 1e6}}, Json{{"rope_parameters", newer}, {"dtype", "bfloat16"}}}) {
    auto config = parse_as("Qwen2", "qwen2", patch);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope_scaling, "yarn(factor=4, original=512)");
    EXPECT_EQ(config->rope_theta, 1e6);
    EXPECT_EQ(config->max_position_embeddings, 512);
  }
}

TEST(ModelConfig, AWindowOnRequestIsInAllLayersOrSome) {
  const auto window = [](const Json& patch) {
    auto config = parse_as("Qwen2", "qwen2", patch);
    if (!config.ok()) return config.status().message();
    std::string out = std::to_string(config->sliding_window);
    for (const bool slides : config->window_layers) out += slides ? " slides" : " full";
    return out;
  };
  EXPECT_EQ(window({{"sliding_window", 64}}), "0");
  EXPECT_EQ(window({{"sliding_window", 64}, {"use_sliding_window", false}, {"max_window_layers", 0}}), "0");
  EXPECT_EQ(window({{"sliding_window", 64}, {"use_sliding_window", true}, {"max_window_layers", 0}}), "64");
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 0}}), "4096");
  EXPECT_EQ(window({{"sliding_window", nullptr}, {"use_sliding_window", true}, {"max_window_layers", 0}}), "0");
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 2}}), "0");
  EXPECT_EQ(window({{"use_sliding_window", true}}), "0");  // 28 layers without
  EXPECT_EQ(window({{"sliding_window", 64},
                    {"use_sliding_window", true},
                    {"layer_types", {"sliding_attention", "sliding_attention"}}}),
            "64");
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 1}}), "4096 full slides");
  EXPECT_EQ(window({{"sliding_window", 64},
                    {"use_sliding_window", true},
                    {"layer_types", {"sliding_attention", "full_attention"}}}),
            "64 slides full");
  EXPECT_THAT(window({{"layer_types", {"sliding_attention", "sliding_attention"}}}),
              HasSubstr("layer_types with \"sliding_attention\""));
  EXPECT_THAT(window({{"use_sliding_window", 1}}), HasSubstr("use_sliding_window is 1"));
  EXPECT_THAT(window({{"use_sliding_window", true}, {"max_window_layers", -1}}), HasSubstr("max_window_layers is -1"));
}

TEST(ModelConfig, SmolLM3LeavesLayersUnrotated) {
  const auto layers = [](Json patch) {
    patch["num_hidden_layers"] = 6;
    auto config = parse_as("SmolLM3", "smollm3", patch);
    if (!config.ok()) return config.status().message();
    std::string out;
    for (int layer = 0; layer < 6; ++layer) out += config->is_nope_layer(layer) ? 'n' : 'r';
    return out;
  };
  EXPECT_EQ(layers(Json::object()), "rrrnrr");
  EXPECT_EQ(layers({{"no_rope_layer_interval", 2}}), "rnrnrn");
  EXPECT_EQ(layers({{"no_rope_layers", {1, 0, 0, 1, 1, 1, 0}}, {"no_rope_layer_interval", 2}}), "rnnrrr");
  EXPECT_EQ(layers({{"no_rope_layers", {1, 1, 1, 1, 1, 1}}}), "rrrrrr");
  for (const Json& bad : {Json({1, 1, 1, 1, 1}), Json({1, 1, 1, 1, 1, 2}), Json({1, 1, 1, 1, 1, true}), Json(1)}) {
    EXPECT_THAT(layers({{"no_rope_layers", bad}}), HasSubstr("no_rope_layers is")) << bad;
  }
  EXPECT_THAT(layers({{"no_rope_layer_interval", 0}}), HasSubstr("no_rope_layer_interval is 0"));
  auto windowed =
      parse_as("SmolLM3", "smollm3", {{"num_hidden_layers", 6}, {"use_sliding_window", true}, {"sliding_window", 64}});
  ASSERT_TRUE(windowed.ok()) << windowed.status().message();
  for (int layer = 0; layer < 6; ++layer) {  // those that do not rotate
    EXPECT_EQ(windowed->is_window_layer(layer), windowed->is_nope_layer(layer)) << layer;
  }
  auto config = parse_as("SmolLM3", "smollm3", {{"attention_bias", true}, {"mlp_bias", true}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->tie_word_embeddings && config->qkv_bias && config->o_bias && config->mlp_bias);
  EXPECT_FALSE(config->has_nope_layers());  // the first one would be the fourth
  EXPECT_EQ(config->rope_theta, 2e6);
}

// As lmsys/vicuna-7b-v1.5-16k says it: max_position_embeddings is the length before the interpolation.
TEST(ModelConfig, OfInterpolatedPositionsTheLongerLengthCounts) {
  const Json linear = {{"type", "linear"}, {"factor", 4.0}};
  auto config = parse_with({{"max_sequence_length", 2048}, {"rope_scaling", linear}});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->max_position_embeddings, 2048);
  EXPECT_EQ(config->rope_original, 512);
  EXPECT_EQ(config->rope_scaling, "pi(factor=4)");
  EXPECT_EQ(parse_with({{"max_sequence_length", 256}, {"rope_scaling", linear}})->max_position_embeddings, 512);
  EXPECT_EQ(parse_with({{"max_sequence_length", 2048}})->max_position_embeddings, 512);
  EXPECT_THAT(parse_with({{"max_sequence_length", "long"}, {"rope_scaling", linear}}).status().message(),
              HasSubstr("max_sequence_length is \"long\""));
}

TEST(ModelConfig, DualChunkRequestIsRead) {
  const auto request = [](const char* text) {
    return parse_with({{"dual_chunk_attention_config", Json::parse(text)}});
  };
  auto config = request(R"({"chunk_size": 262144, "local_size": 8192,
                                  "original_max_position_embeddings": 262144, "sparse_attention_enabled": true})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->dual_chunk.chunk_size, 262144);
  EXPECT_EQ(config->dual_chunk.local_size, 8192);
  EXPECT_EQ(config->dual_chunk.original, 262144);
  EXPECT_EQ(parse_with({})->dual_chunk.chunk_size, 0);
  EXPECT_TRUE(request(R"({"chunk_size": 9, "local_size": 4})").ok());
  for (const char* bad : {"4", R"({"chunk_size": 0, "local_size": 0})", R"({"local_size": 1})",
                          R"({"chunk_size": 8, "local_size": 4})", R"({"chunk_size": 8, "local_size": -1})"}) {
    EXPECT_EQ(request(bad).status().code(), Code::kBadFile) << bad;
    EXPECT_THAT(request(bad).status().message(), HasSubstr("dual_chunk_attention_config")) << bad;
  }
}

TEST(ModelConfig, NaNIsRefused) {
  std::string text = small().dump();
  text.replace(text.find("1e-05"), 5, "NaN");
  EXPECT_EQ(parse_model_config(text).status().code(), Code::kBadFile);
}

class ModelConfigFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/model_config_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const std::string& name, const std::string& text) { std::ofstream(directory_ + "/" + name) << text; }
  std::string directory_;
};

TEST_F(ModelConfigFiles, GenerationConfigAddsEndOfTextIds) {
  write("config.json", small().dump());
  write("generation_config.json", R"({"eos_token_id": [2, 9], "temperature": 0.6})");
  auto config = load_model_config(directory_);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 9));
  write("generation_config.json", R"({"eos_token_id": [2, 100]})");
  const Status status = load_model_config(directory_).status();
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_THAT(status.message(), HasSubstr("generation_config.json: eos_token_id"));
}

TEST_F(ModelConfigFiles, MissingAndDamagedFilesAreNamed) {
  const Status missing = load_model_config(directory_).status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("config.json"));
  write("config.json", "{\"hidden_size\":");
  const Status damaged = load_model_config(directory_).status();
  EXPECT_EQ(damaged.code(), Code::kBadFile);
  EXPECT_THAT(damaged.message(), HasSubstr(directory_ + "/config.json"));
}

// Refused by its size: nothing of it is read.
TEST_F(ModelConfigFiles, HugeFilesAreRefused) {
  constexpr int64_t kMost = 4 << 20;
  const auto grow = [&](const char* name, int64_t bytes) {
    std::filesystem::resize_file(directory_ + "/" + name, static_cast<uintmax_t>(bytes));
    return load_model_config(directory_).status();
  };
  const std::string text = small().dump();
  write("config.json", text + std::string(static_cast<size_t>(kMost) - text.size(), ' '));
  EXPECT_TRUE(load_model_config(directory_).ok());
  EXPECT_THAT(grow("config.json", kMost + 1).message(), HasSubstr("has 4194305 bytes; at most 4194304 are expected"));
  EXPECT_THAT(grow("config.json", int64_t{1} << 40).message(), HasSubstr("at most 4194304 are expected"));
  write("config.json", text);
  write("generation_config.json", "{}");
  const Status status = grow("generation_config.json", int64_t{1} << 40);
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_THAT(status.message(), HasSubstr("generation_config.json has 1099511627776 bytes"));
}

}  // namespace
}  // namespace quire
