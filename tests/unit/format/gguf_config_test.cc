#include "lib/format/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lib/format/gguf_token_ids.h"
#include "lib/format/json.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A header with the keys that every file has; those of the model come without their architecture.
class Header {
 public:
  explicit Header(std::string architecture = "llama") : architecture_(std::move(architecture)) {
    put("general.architecture", architecture_);
    set("block_count", 2).set("context_length", 512).set("embedding_length", 64).set("feed_forward_length", 128);
    set("attention.head_count", 4).set("attention.head_count_kv", 2).set("vocab_size", 100);
    set("attention.layer_norm_rms_epsilon", 0.25);
    const bool is_gemma = architecture_ == "gemma3";
    if (architecture_ == "qwen3" || is_gemma) layers({"attn_q_norm.weight", "attn_k_norm.weight"});
    if (is_gemma) layers({"post_attention_norm.weight", "post_ffw_norm.weight"});
  }
  template <typename T>
  Header& put(const std::string& key, T value) {
    if constexpr (std::is_same_v<T, int>) {
      header_.metadata.insert_or_assign(key, GgufValue(static_cast<int64_t>(value)));
    } else if constexpr (std::is_convertible_v<T, std::string>) {
      header_.metadata.insert_or_assign(key, GgufValue(std::string(value)));
    } else {
      header_.metadata.insert_or_assign(key, GgufValue(std::move(value)));
    }
    return *this;
  }
  template <typename T>
  Header& set(const std::string& key, T value) {
    return put(architecture_ + "." + key, std::move(value));
  }
  Header& drop(const std::string& key) {
    header_.metadata.erase(architecture_ + "." + key);
    return *this;
  }
  Header& tensor(const std::string& name) {
    header_.tensors.emplace(name, GgufTensor());
    return *this;
  }
  Header& layers(std::initializer_list<const char*> names) {
    for (const char* layer : {"blk.0.", "blk.1."}) {
      for (const char* name : names) tensor(std::string(layer) + name);
    }
    return *this;
  }
  Header& tokens(GgufValue::Strings texts) { return put("tokenizer.ggml.tokens", std::move(texts)); }

  Result<ModelConfig> read(std::vector<float> rope_freqs = {}) const {
    GgufRopeTensors tensors = rope_tensors_;
    if (!rope_freqs.empty()) tensors[kGgufRopeFreqs] = std::move(rope_freqs);
    return gguf_model_config(header_, tensors);
  }
  Header& rope(const char* tensor, std::vector<float> values) {
    rope_tensors_[tensor] = std::move(values);
    return *this;
  }
  std::string message(std::vector<float> rope_freqs = {}) const {
    const auto config = read(std::move(rope_freqs));
    EXPECT_FALSE(config.ok());
    return config.status().message();
  }

 private:
  std::string architecture_;
  GgufHeader header_;
  GgufRopeTensors rope_tensors_;
};

ModelConfig take(Result<ModelConfig> config) {
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? std::move(*config) : ModelConfig();
}

// The metadata of SmolLM2-135M-Instruct.
TEST(GgufConfig, ReadsWhatConvertersWrite) {
  Header header;
  header.set("block_count", 30).set("context_length", 8192).set("embedding_length", 576);
  header.set("feed_forward_length", 1536).set("attention.head_count", 9).set("attention.head_count_kv", 3);
  header.set("rope.freq_base", 100000.0).set("attention.layer_norm_rms_epsilon", 9.999999747378752e-06);
  header.set("vocab_size", 49152).set("rope.dimension_count", 64).put("general.file_type", 3);
  header.put("tokenizer.ggml.model", "gpt2").put("tokenizer.ggml.bos_token_id", 1);
  header.put("tokenizer.ggml.eos_token_id", 2).put("tokenizer.ggml.padding_token_id", 2);
  const ModelConfig config = take(header.read());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.n_layers, 30);
  EXPECT_EQ(config.max_position_embeddings, 8192);
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.intermediate_size, 1536);
  EXPECT_EQ(config.n_query_heads, 9);
  EXPECT_EQ(config.n_kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.rope_theta, 100000);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.rope_type, "default");
  EXPECT_EQ(config.rope_scaling, "");
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.qk_norm || config.has_nope_layers());
  EXPECT_THAT(config.bos_token_ids, ElementsAre(1));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(GgufConfig, TensorsSayWhatLayersHave) {
  const ModelConfig qwen2 =
      take(Header("qwen2").layers({"attn_q.bias", "attn_k.bias", "attn_v.bias"}).tensor("output.weight").read());
  EXPECT_EQ(qwen2.architecture, "Qwen2ForCausalLM");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.mlp_bias || qwen2.qk_norm || qwen2.tie_word_embeddings);
  const ModelConfig qwen3 = take(Header("qwen3").set("attention.key_length", 24).read());
  EXPECT_EQ(qwen3.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(qwen3.head_dim, 24);
  EXPECT_TRUE(qwen3.qk_norm && qwen3.tie_word_embeddings);
  const ModelConfig llama =
      take(Header().layers({"attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"}).read());
  EXPECT_TRUE(llama.o_bias && llama.mlp_bias);
  EXPECT_FALSE(llama.qkv_bias);
  const ModelConfig smollm3 = take(Header("smollm3").set("block_count", 9).read());
  EXPECT_EQ(smollm3.architecture, "SmolLM3ForCausalLM");
  for (int layer = 0; layer < 9; ++layer) EXPECT_EQ(smollm3.is_nope_layer(layer), layer == 3 || layer == 7) << layer;
  for (const char* mistral : {"mistral", "mistral3"}) {
    EXPECT_EQ(take(Header(mistral).read()).architecture, "MistralForCausalLM");
  }
}

TEST(GgufConfig, PartsThatOnlySomeLayersHaveAreRefused) {
  EXPECT_EQ(Header().layers({"attn_q.bias", "attn_k.bias"}).message(),
            "tensor blk.0.attn_v.bias is missing; blk.0.attn_k.bias is there");
  EXPECT_EQ(Header().tensor("blk.0.attn_output.bias").message(),
            "tensor blk.1.attn_output.bias is missing; blk.0.attn_output.bias is there");
  EXPECT_EQ(Header().tensor("blk.1.attn_output.bias").message(),
            "tensor blk.0.attn_output.bias is missing; blk.1.attn_output.bias is there");
  EXPECT_THAT(Header().tensor("blk.0.attn_q_norm.weight").message(), HasSubstr("attn_k_norm.weight is missing"));
  Header without("qwen3");
  without = Header("qwen2");
  without.put("general.architecture", "qwen3");
  EXPECT_FALSE(without.read().ok());
}

TEST(GgufConfig, DefaultsOfAbsentKeys) {
  const ModelConfig config = take(Header().drop("attention.head_count_kv").read());
  EXPECT_EQ(config.n_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_TRUE(config.eos_token_ids.empty() && config.bos_token_ids.empty());
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "vocab_size", "attention.layer_norm_rms_epsilon"}) {
    const auto config = Header().drop(key).read();
    EXPECT_EQ(config.status().code(), Code::kBadFile) << key;
    EXPECT_THAT(config.status().message(), HasSubstr("llama." + std::string(key) + " is missing; expected")) << key;
  }
}

TEST(GgufConfig, AListForTheLayersMustBeOneNumber) {
  Header header;
  header.set("attention.head_count", GgufValue::Integers{8, 8}).set("feed_forward_length", GgufValue::Integers{96, 96});
  const ModelConfig config = take(header.read());
  EXPECT_EQ(config.n_query_heads, 8);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(header.set("attention.head_count_kv", GgufValue::Integers{2, 4}).message(),
            "llama.attention.head_count_kv that differs between layers");
  EXPECT_THAT(header.set("attention.head_count_kv", GgufValue::Integers{2}).message(),
              HasSubstr("llama.attention.head_count_kv is an array; expected one number, or 2"));
  EXPECT_THAT(header.set("attention.head_count_kv", GgufValue::Integers{0, 0}).message(), HasSubstr("from 1 to 4096"));
}

TEST(GgufConfig, BadValuesAreRefusedByKey) {
  const double nan = std::nan("");
  const std::pair<const char*, GgufValue> cases[] = {
      {"block_count", GgufValue(int64_t{0})},
      {"block_count", GgufValue(int64_t{4097})},
      {"block_count", GgufValue(2.0)},
      {"block_count", GgufValue(std::string("2"))},
      {"embedding_length", GgufValue(int64_t{-64})},
      {"embedding_length", GgufValue(int64_t{66})},
      {"embedding_length", GgufValue(int64_t{1} << 40)},
      {"feed_forward_length", GgufValue(true)},
      {"context_length", GgufValue(int64_t{0})},
      {"attention.head_count", GgufValue(int64_t{0})},
      {"attention.head_count_kv", GgufValue(int64_t{3})},
      {"attention.key_length", GgufValue(int64_t{0})},
      {"attention.layer_norm_rms_epsilon", GgufValue(0.0)},
      {"attention.layer_norm_rms_epsilon", GgufValue(nan)},
      {"attention.sliding_window", GgufValue(int64_t{-1})},
      {"attention.scale", GgufValue(nan)},
      {"rope.freq_base", GgufValue(1.0)},
      {"rope.freq_base", GgufValue(std::numeric_limits<double>::infinity())},
      {"rope.scaling.type", GgufValue(int64_t{1})},
      {"rope.scaling.factor", GgufValue(0.5)},
      {"rope.scaling.factor", GgufValue(nan)},
      {"rope.scaling.original_context_length", GgufValue(int64_t{0})},
      {"vocab_size", GgufValue(int64_t{0})}};
  for (const auto& [key, value] : cases) {
    const auto config = Header().set(key, value).read();
    EXPECT_EQ(config.status().code(), Code::kBadFile) << key;
    EXPECT_THAT(config.status().message(), HasSubstr("llama." + std::string(key) + " is ")) << key;
  }
  EXPECT_THAT(Header().put("general.architecture", 5).message(), HasSubstr("general.architecture is 5; expected"));
  EXPECT_THAT(Header().put("tokenizer.ggml.tokens", 5).message(), HasSubstr("tokenizer.ggml.tokens is 5"));
  EXPECT_THAT(Header().tokens({}).message(), HasSubstr("tokenizer.ggml.tokens is an array; expected a list of texts"));
  for (const char* id : {"bos", "eos", "eot", "eom", "fim_pad"}) {
    const std::string key = "tokenizer.ggml." + std::string(id) + "_token_id";
    EXPECT_EQ(Header().put(key, 100).message(), key + " is 100; expected the id of one of 100 tokens");
    EXPECT_EQ(Header().put(key, "2").message(), key + " is \"2\"; expected the id of one of 100 tokens");
  }
}

TEST(GgufConfig, OtherComputationsAreRefusedByName) {
  const std::pair<const char*, GgufValue> cases[] = {
      {"expert_count", GgufValue(int64_t{8})},
      {"nextn_predict_layers", GgufValue(int64_t{1})},
      {"attention.causal", GgufValue(false)},
      {"attention.scale", GgufValue(0.125)},
      {"attention.temperature_scale", GgufValue(0.1)},
      {"attention.sliding_window_pattern", GgufValue(GgufValue::Integers{1, 0})},
      {"attention.value_length", GgufValue(int64_t{8})},
      {"attention.key_length", GgufValue(int64_t{15})},
      {"rope.dimension_count", GgufValue(int64_t{8})},
      {"rope.dimension_sections", GgufValue(GgufValue::Integers{1, 1, 1, 0})},
      {"rope.scaling.type", GgufValue(std::string("longrope"))},
      {"logit_scale", GgufValue(8.0)},
      {"embedding_scale", GgufValue(12.0)},
      {"residual_scale", GgufValue(0.22)},
      {"final_logit_softcapping", GgufValue(30.0)}};
  for (const auto& [key, value] : cases) {
    const auto config = Header().set(key, value).read();
    EXPECT_EQ(config.status().code(), Code::kUnsupported) << key;
    EXPECT_THAT(config.status().message(), HasSubstr("llama." + std::string(key))) << key;
  }
  for (const char* tensor : {"output.bias", "blk.0.attn_qkv.weight", "rope_factors_long.weight"}) {
    const auto config = Header().tensor(tensor).read();
    EXPECT_EQ(config.status().code(), Code::kUnsupported) << tensor;
    EXPECT_THAT(config.status().message(), HasSubstr(tensor));
  }
  const auto other = Header("gemma2").read();
  EXPECT_EQ(other.status().code(), Code::kUnsupported);
  EXPECT_EQ(other.status().message(),
            "general.architecture \"gemma2\"; supported are llama, mistral, mistral3, qwen2, qwen3, smollm3, phi3, "
            "granite, gemma3");
}

TEST(GgufConfig, TheUsualComputationMayBeNamed) {
  Header header;
  header.set("expert_count", 0).set("attention.causal", true).set("attention.scale", 0.25).set("logit_scale", 1.0);
  header.set("attention.key_length", 16).set("attention.value_length", 16).set("rope.dimension_count", 16);
  header.set("attention.sliding_window", 0).set("rope.scaling.type", "none").set("rope.scaling.factor", 4.0);
  const ModelConfig config = take(header.read());
  EXPECT_EQ(config.rope_scaling, "");
}

TEST(GgufConfig, MayAskForDualChunkAttention) {
  const std::string prefix = "quire.dual_chunk_attention.";
  EXPECT_EQ(take(Header("qwen2").read()).dual_chunk.chunk_size, 0);
  Header header("qwen2");
  header.put(prefix + "chunk_size", 9).put(prefix + "local_size", 4);
  const DualChunkSettings short_form = take(header.read()).dual_chunk;
  EXPECT_EQ(short_form.chunk_size, 9);
  EXPECT_EQ(short_form.local_size, 4);
  EXPECT_EQ(short_form.original, 0);
  EXPECT_EQ(take(Header(header).put(prefix + "original_max_position_embeddings", 7).read()).dual_chunk.original, 7);
  EXPECT_THAT(Header(header).put(prefix + "local_size", 5).message(),
              HasSubstr("local_size is 5; expected less than half of the chunk size (9)"));
  EXPECT_THAT(Header(header).put(prefix + "chunk_size", 0).message(), HasSubstr("chunk_size is 0"));
}

TEST(GgufConfig, OfGraniteHasFactors) {
  const ModelConfig plain = take(Header("granite").read());
  EXPECT_EQ(plain.architecture, "GraniteForCausalLM");
  EXPECT_EQ(plain.embedding_multiplier, 1);
  EXPECT_EQ(plain.residual_multiplier, 1);
  EXPECT_EQ(plain.attention_scale(), 0.25);
  EXPECT_EQ(plain.logits_scaling, 1);
  Header header("granite");
  header.set("embedding_scale", 12.0).set("residual_scale", 0.25).set("attention.scale", 0.125).set("logit_scale", 8);
  const ModelConfig config = take(header.read());
  EXPECT_EQ(config.embedding_multiplier, 12);
  EXPECT_EQ(config.residual_multiplier, 0.25);
  EXPECT_EQ(config.attention_scale(), 0.125);
  EXPECT_EQ(config.logits_scaling, 8);
  EXPECT_EQ(config.hidden_embedding_scale(), 48);
  EXPECT_EQ(config.hidden_norm_eps(), 16 * config.rms_norm_eps);
  // As other programs read it: a factor of 0 is none at all.
  const ModelConfig zeros =
      take(Header("granite").set("embedding_scale", 0).set("residual_scale", 0).set("attention.scale", 0.0).read());
  EXPECT_EQ(zeros.embedding_multiplier, 1);
  EXPECT_EQ(zeros.residual_multiplier, 1);
  EXPECT_EQ(zeros.attention_scale(), 0.25);
  EXPECT_THAT(Header(header).set("residual_scale", -1.0).message(), HasSubstr("granite.residual_scale is -1"));
  EXPECT_EQ(Header(header).set("rope.scaling.finetuned", false).message(),
            "granite.rope.scaling.finetuned false, which means that no layer rotates");
  EXPECT_TRUE(Header(header).set("rope.scaling.finetuned", true).read().ok());
}

// What files leave out, llama.cpp takes for granted: every sixth layer without a window, a base of 10000 in the others.
TEST(GgufConfig, OfGemma3HasWindowsWithABaseOfTheirOwn) {
  const auto slides = [](const ModelConfig& config) {
    std::string out;
    for (const bool window : config.window_layers) out += window ? 'w' : '-';
    return out;
  };
  Header header("gemma3");
  header.set("attention.sliding_window", 64).set("rope.freq_base", 1e6);
  const ModelConfig all = take(header.read());  // of two layers
  EXPECT_EQ(all.architecture, "Gemma3ForCausalLM");
  EXPECT_TRUE(all.qk_norm && all.sandwich_norms && all.tie_word_embeddings && all.norm_offset_is_stored);
  EXPECT_EQ(all.norm_offset, 1);
  EXPECT_EQ(all.activation, Activation::kGelu);
  EXPECT_EQ(all.hidden_embedding_scale(), 8);
  EXPECT_EQ(all.attention_scale(), 0.25);
  EXPECT_EQ(all.sliding_window, 64);
  EXPECT_EQ(all.rope_theta, 1e4);
  EXPECT_EQ(all.window_rope_theta, 0);
  EXPECT_EQ(slides(all), "");

  header.set("rope.scaling.type", "linear").set("rope.scaling.factor", 8.0).set("attention.sliding_window_pattern", 2);
  const ModelConfig some = take(header.read());
  EXPECT_EQ(slides(some), "w-");
  EXPECT_EQ(some.rope_theta, 1e6);
  EXPECT_EQ(some.rope_scaling, "pi(factor=8)");
  EXPECT_EQ(some.window_rope_theta, 1e4);
  const ModelConfig listed = take(Header(header)
                                      .set("attention.sliding_window_pattern", GgufValue(GgufValue::Integers{0, 1}))
                                      .set("rope.freq_base_swa", 5e4)
                                      .read());
  EXPECT_EQ(slides(listed), "-w");
  EXPECT_EQ(listed.window_rope_theta, 5e4);
  const ModelConfig none = take(Header(header).drop("attention.sliding_window").read());
  EXPECT_EQ(none.sliding_window, 0);
  EXPECT_EQ(none.rope_theta, 1e6);
  EXPECT_EQ(none.window_rope_theta, 0);

  EXPECT_THAT(Header(header).set("attention.sliding_window_pattern", 0).message(),
              HasSubstr("gemma3.attention.sliding_window_pattern is 0"));
  EXPECT_THAT(Header(header).set("attention.sliding_window_pattern", GgufValue(GgufValue::Integers{1, 0, 1})).message(),
              HasSubstr("expected one number, or 2"));
  EXPECT_THAT(Header("qwen3").set("attention.sliding_window_pattern", 2).set("attention.sliding_window", 8).message(),
              HasSubstr("qwen3.attention.sliding_window_pattern 2"));
}

// The largest one's heads are smaller than a share of its width: attention is scaled by that.
TEST(GgufConfig, OfTheLargestGemma3ScalesAttentionByItsWidth) {
  Header header("gemma3");
  header.set("block_count", 62).set("attention.key_length", 8).set("attention.value_length", 8);
  for (int layer = 2; layer < 62; ++layer) {
    for (const char* name : {"attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"}) {
      header.tensor("blk." + std::to_string(layer) + "." + name + ".weight");
    }
  }
  const ModelConfig config = take(header.read());
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.attention_scale(), 0.25);
}

TEST(GgufConfig, AWindowIsThatOfAllLayers) {
  EXPECT_EQ(take(Header().set("attention.sliding_window", 64).read()).sliding_window, 64);
  EXPECT_EQ(take(Header("mistral3").set("attention.sliding_window", 64).read()).sliding_window, 64);
  EXPECT_EQ(Header("qwen2").set("attention.sliding_window", 64).message(), "qwen2.attention.sliding_window 64");
}

TEST(GgufConfig, OfPhi3HasFusedProjectionsAndLongRope) {
  Header header("phi3");
  header.layers({"attn_qkv.weight", "ffn_up.weight"}).set("rope.dimension_count", 12);
  header.set("attention.sliding_window", 64);
  const ModelConfig plain = take(header.read());
  EXPECT_TRUE(plain.fused_projections && plain.tie_word_embeddings && !plain.qkv_bias);
  EXPECT_EQ(plain.architecture, "Phi3ForCausalLM");
  EXPECT_EQ(plain.rotary_dim, 12);
  EXPECT_EQ(plain.head_dim, 16);
  EXPECT_EQ(plain.sliding_window, 64);
  EXPECT_EQ(plain.rope_scaling, "");
  EXPECT_EQ(take(Header("phi3").read()).rotary_dim, 16);

  header.set("rope.scaling.original_context_length", 128);
  header.rope(kGgufRopeFactorsLong, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(header.message(), "tensor rope_factors_short.weight is missing; rope_factors_long.weight is there");
  header.rope(kGgufRopeFactorsShort, {1, 1, 1, 1, 1, 2});
  const ModelConfig config = take(header.read());
  EXPECT_THAT(config.longrope.long_factors, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(config.longrope.short_factors, ElementsAre(1, 1, 1, 1, 1, 2));
  EXPECT_EQ(config.longrope.original, 128);
  const double usual = std::sqrt(1 + std::log(4.0) / std::log(128.0));  // of 512 positions
  EXPECT_NEAR(config.longrope.attention_factor, usual, 1e-12);
  EXPECT_EQ(config.rope_type, "longrope");
  EXPECT_THAT(config.rope_scaling, testing::StartsWith("longrope(original=128, attention_factor=1.1"));
  EXPECT_EQ(take(Header(header).set("rope.scaling.attn_factor", 1.5).read()).longrope.attention_factor, 1.5);
  EXPECT_NE(config.json, take(Header(header).rope(kGgufRopeFactorsLong, {1, 2, 3, 4, 5, 7}).read()).json);

  EXPECT_THAT(Header(header).rope(kGgufRopeFactorsLong, {1, 2, 3}).message(),
              HasSubstr("rope_factors_long.weight: expected 6 numbers"));
  EXPECT_THAT(Header(header).rope(kGgufRopeFactorsShort, {1, 2, 3, 4, 5, 0}).message(),
              HasSubstr("rope_factors_short.weight: expected 6 numbers from 0.000001"));
  EXPECT_THAT(Header(header).set("rope.scaling.type", "yarn").set("rope.scaling.factor", 2.0).message(),
              HasSubstr("rope_factors_long.weight beside rope.scaling.type yarn"));
  EXPECT_THAT(Header(header).set("rope.dimension_count", 11).message(), HasSubstr("phi3.rope.dimension_count 11"));
  EXPECT_EQ(Header("phi3").tensor("blk.0.attn_qkv.bias").message(), "tensor blk.0.attn_qkv.bias");
}

std::string scaling(Header header) { return take(header.read()).rope_scaling; }

TEST(GgufConfig, ScalingsAreTermsOfAStrategy) {
  EXPECT_EQ(scaling(Header().set("rope.scaling.type", "linear").set("rope.scaling.factor", 2.5)), "pi(factor=2.5)");
  EXPECT_EQ(scaling(Header().set("rope.scaling.factor", 4.0)), "pi(factor=4)");  // llama.cpp's default type
  EXPECT_EQ(scaling(Header().set("rope.scale_linear", 4.0)), "pi(factor=4)");
  EXPECT_EQ(scaling(Header().set("rope.scale_linear", 4.0).set("rope.scaling.factor", 2.0)), "pi(factor=2)");
  EXPECT_EQ(scaling(Header().set("rope.scaling.factor", 0.0)), "");
  EXPECT_EQ(scaling(Header().set("rope.scaling.factor", 1.0)), "");
  Header yarn;
  yarn.set("rope.scaling.type", "yarn").set("rope.scaling.factor", 4.0);
  EXPECT_EQ(scaling(yarn), "yarn(factor=4, original=512)");
  yarn.set("rope.scaling.original_context_length", 128);
  EXPECT_EQ(scaling(yarn), "yarn(factor=4, original=128)");
  EXPECT_EQ(take(yarn.read()).rope_type, "yarn");
  EXPECT_EQ(take(yarn.read()).rope_original, 128);
  EXPECT_EQ(scaling(Header(yarn).set("rope.scaling.yarn_beta_fast", 24.0).set("rope.scaling.yarn_beta_slow", 2.0)),
            "yarn(factor=4, original=128, beta_fast=24, beta_slow=2)");
  // DeepSeek-R1-0528-Qwen3-8B's: one over the paper's, so that nothing is scaled.
  EXPECT_EQ(scaling(Header(yarn).set("rope.scaling.yarn_attn_factor", 0.8782488562869419)),
            "yarn(factor=4, original=128, attention_factor=1)");
  EXPECT_EQ(scaling(Header(yarn).set("rope.scaling.yarn_attn_factor", 1.25).set("rope.scaling.attn_factor", 2.0)),
            "yarn(factor=4, original=128, attention_factor=2.8465735902799727)");
  EXPECT_EQ(scaling(Header(yarn).set("rope.scaling.yarn_attn_factor", 1.13862944)), scaling(yarn));  // the paper's
  EXPECT_EQ(scaling(Header(yarn).set("rope.scaling.yarn_log_multiplier", 1.0)),
            "yarn(factor=4, original=128, attention_factor=1)");
  EXPECT_EQ(scaling(Header(yarn).set("rope.scaling.yarn_ext_factor", 1.0)), scaling(yarn));
  EXPECT_EQ(Header(yarn).set("rope.scaling.yarn_ext_factor", 0.5).message(),
            "llama.rope.scaling.yarn_ext_factor 0.5; only 1 is supported");
  for (const char* key : {"yarn_beta_fast", "yarn_attn_factor", "attn_factor", "yarn_log_multiplier"}) {
    const std::string name = "rope.scaling." + std::string(key);
    EXPECT_THAT(Header(yarn).set(name, -1.0).message(), HasSubstr("llama." + name + " is -1.0; expected")) << key;
  }
}

TEST(GgufConfig, RopeFreqsAreDivisorsOfTheFrequencies) {
  const std::vector<float> factors = {1, 1, 1, 1.5f, 2, 4, 8, 8};
  const ModelConfig config = take(Header().read(factors));
  EXPECT_EQ(config.rope_scaling, "freq_factors");
  EXPECT_EQ(config.rope_type, "freq_factors");
  EXPECT_THAT(config.freq_factors, ElementsAre(1, 1, 1, 1.5, 2, 4, 8, 8));
  for (std::vector<float> bad : {std::vector<float>(7, 1), std::vector<float>(9, 1), std::vector<float>(8, 0),
                                 std::vector<float>(8, -1), std::vector<float>(8, NAN)}) {
    const auto refused = Header().read(bad);
    EXPECT_EQ(refused.status().code(), Code::kBadFile);
    EXPECT_THAT(refused.status().message(), HasSubstr("tensor rope_freqs.weight: expected 8 numbers"));
  }
  EXPECT_THAT(Header().set("rope.scaling.factor", 4.0).message(factors), HasSubstr("rope_freqs.weight beside"));
}

TEST(GgufConfig, AVocabularyIsAsLongAsItsList) {
  EXPECT_EQ(take(Header().tokens({"a", "b", "c"}).read()).vocab_size, 3);
  EXPECT_EQ(take(Header().drop("vocab_size").tokens({"a", "b"}).read()).vocab_size, 2);
}

TEST(GgufConfig, EndsAreThoseOfKeysAndThoseThatTextsName) {
  const auto ends = [](Header header) { return take(header.read()).eos_token_ids; };
  Header qwen("qwen2");
  qwen.tokens(
      {"a", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "b"});
  qwen.put("tokenizer.ggml.eos_token_id", 3);
  EXPECT_THAT(ends(qwen), ElementsAre(3, 1, 4, 5, 6));
  // A key names what an infilling token would be found by its text otherwise.
  EXPECT_THAT(ends(Header(qwen).put("tokenizer.ggml.fim_pad_token_id", 7)), ElementsAre(3, 7, 1, 5, 6));
  EXPECT_THAT(ends(Header(qwen).put("tokenizer.ggml.eot_token_id", 0).put("tokenizer.ggml.eom_token_id", 2)),
              ElementsAre(3, 0, 2, 1, 4, 5, 6));
  Header llama;
  llama.tokens({"<unk>", "<s>", "</s>", "<|eot_id|>", "<|eot_id|>"}).put("tokenizer.ggml.model", "llama");
  EXPECT_THAT(ends(llama), ElementsAre(2, 3));
  for (const int64_t type : {1, 4}) {  // "</s>" is an ordinary token, or one that is found before a text is cut: HTML
    llama.put("tokenizer.ggml.token_type", GgufValue::Integers{2, 3, type, 3, 3});
    EXPECT_THAT(ends(Header(llama).put("tokenizer.ggml.model", "gpt2")), ElementsAre(3));
  }
  llama.put("tokenizer.ggml.token_type", GgufValue::Integers{2, 3, 3, 3, 3});
  EXPECT_THAT(ends(Header(llama).put("tokenizer.ggml.model", "gpt2")), ElementsAre(3, 2));
  EXPECT_THAT(take(llama.read()).bos_token_ids, ElementsAre(1));
  EXPECT_THAT(ends(Header(llama).put("tokenizer.ggml.eos_token_id", 0)), ElementsAre(0, 3, 2));
  EXPECT_THAT(ends(Header().tokens({"a", "b", "c", "d"}).put("tokenizer.ggml.model", "llama")), ElementsAre(2));
}

TEST(GgufConfig, AKeyOfQuireHasFurtherEnds) {
  Header header;
  header.tokens({"a", "b", "c", "<|im_end|>"}).put("tokenizer.ggml.eos_token_id", 1);
  const auto read = [&](auto ids) { return Header(header).put(kGgufEosTokenIds, ids).read(); };
  EXPECT_THAT(take(read(GgufValue::Integers{0, 1, 2})).eos_token_ids, ElementsAre(1, 0, 2, 3));
  for (const auto& ids : {GgufValue::Integers{4}, GgufValue::Integers{-1}, GgufValue::Integers(1025)}) {
    EXPECT_EQ(read(ids).status().code(), Code::kBadFile);
    EXPECT_THAT(read(ids).status().message(), HasSubstr("quire.eos_token_ids"));
  }
  EXPECT_EQ(read(1).status().code(), Code::kBadFile);
}

// The identity of a model hangs on it.
TEST(GgufConfig, JsonTellsModelsApart) {
  const auto json = [](Header header, std::vector<float> factors = {}) { return take(header.read(factors)).json; };
  const std::string plain = json(Header());
  EXPECT_EQ(plain, json(Header().put("general.name", "another name")));
  auto parsed = parse_json_object(plain, "json");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(*parsed->find("general.architecture")->string(), "llama");
  EXPECT_EQ(parsed->find("llama.attention.layer_norm_rms_epsilon")->number(), 0.25);
  EXPECT_EQ(parsed->find("llama.block_count")->integer(), 2);
  Header linear, yarn;
  linear.set("rope.scaling.factor", 4.0);
  yarn.set("rope.scaling.factor", 4.0).set("rope.scaling.type", "yarn");
  const std::string others[] = {json(Header().set("rope.freq_base", 500000.0)),
                                json(Header("mistral")),
                                json(linear),
                                json(yarn),
                                json(Header(), std::vector<float>(8, 2)),
                                json(Header(), std::vector<float>(8, 3)),
                                json(Header().set("attention.head_count_kv", 4)),
                                json(Header().set("attention.head_count_kv", GgufValue::Integers{4, 4}))};
  for (size_t i = 0; i < std::size(others); ++i) {
    EXPECT_NE(others[i], plain) << i;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(others[i], others[j]) << i << " " << j;
  }
  EXPECT_TRUE(parse_json_object(json(Header().set("odd", std::nan(""))), "json").ok());
}

}  // namespace
}  // namespace quire
