#include "lib/format/gguf_export.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/gguf_config.h"

namespace quire {
namespace {

constexpr struct {
  const char* hugging_face;
  const char* gguf;
} kArchitectures[] = {{"LlamaForCausalLM", "llama"},     {"MistralForCausalLM", "llama"},
                      {"Qwen2ForCausalLM", "qwen2"},     {"Qwen3ForCausalLM", "qwen3"},
                      {"SmolLM3ForCausalLM", "smollm3"}, {"Phi3ForCausalLM", "phi3"},
                      {"GraniteForCausalLM", "granite"}, {"Gemma3ForCausalLM", "gemma3"}};

// An argument of config.rope_scaling, such as 4 of "yarn(factor=4, original=4096)"; absent: `otherwise`.
double scaling_argument(const ModelConfig& config, const std::string& name, double otherwise) {
  for (const char* before : {"(", ", "}) {
    const size_t at = config.rope_scaling.find(before + name + "=");
    if (at == std::string::npos) continue;
    const char* const begin = &config.rope_scaling[at + std::string_view(before).size() + name.size() + 1];
    double value = 0;  // strtod would expect the decimal separator of the host's locale
    std::from_chars(begin, config.rope_scaling.data() + config.rope_scaling.size(), value);
    return value;
  }
  return otherwise;
}

Status add_rope_scaling(const ModelConfig& config, const std::string& prefix, GgufWriter& writer) {
  if (config.rope_type == "default" || config.rope_type == "llama3") return {};  // llama3: kGgufRopeFreqs
  if (config.rope_type == "longrope" && gguf_architecture(config) == "phi3") {   // the rest is in two tensors
    writer.add(prefix + "rope.scaling.original_context_length", static_cast<uint32_t>(config.longrope.original));
    writer.add(prefix + "rope.scaling.attn_factor", static_cast<float>(config.longrope.attention_factor));
    return {};
  }
  const bool is_yarn = config.rope_type == "yarn";
  if (!is_yarn && config.rope_type != "linear") {
    return Status(Code::kUnsupported,
                  "GGUF has no keys for the RoPE scaling \"" + config.rope_type +
                      "\" of this architecture; it has some for linear, yarn and llama3, and for longrope of phi3");
  }
  const auto add = [&](const std::string& key, double value) {
    writer.add(prefix + "rope.scaling." + key, static_cast<float>(value));
  };
  const double factor = scaling_argument(config, "factor", 1);
  writer.add(prefix + "rope.scaling.type", std::string_view(config.rope_type));
  add("factor", factor);
  if (!is_yarn) return {};
  if (scaling_argument(config, "truncate", 1) == 0) {
    return Status(Code::kUnsupported, "GGUF has no key for yarn without truncate");
  }
  const double original = scaling_argument(config, "original", static_cast<double>(config.rope_original));
  writer.add(prefix + "rope.scaling.original_context_length", static_cast<uint32_t>(original));
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    if (const double turns = scaling_argument(config, beta, 0); turns > 0) add(std::string("yarn_") + beta, turns);
  }
  // GGUF's number is a factor on the paper's.
  if (const double attention = scaling_argument(config, "attention_factor", 0); attention > 0) {
    add("attn_factor", attention / (0.1 * std::log(factor) + 1));
  }
  return {};
}

void add_multipliers(const ModelConfig& config, const std::string& prefix, GgufWriter& writer) {
  if (gguf_architecture(config) != "granite") return;
  const auto add = [&](const char* key, double value) { writer.add(prefix + key, static_cast<float>(value)); };
  add("embedding_scale", config.embedding_multiplier);
  add("residual_scale", config.residual_multiplier);
  add("attention.scale", config.attention_scale());
  add("logit_scale", config.logits_scaling);
}

// llama.cpp rotates all layers of this architecture but every fourth.
Status check_nope_layers(const ModelConfig& config) {
  const bool is_smollm3 = gguf_architecture(config) == "smollm3";
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (config.is_nope_layer(layer) == (is_smollm3 && (layer + 1) % 4 == 0)) continue;
    return Status(Code::kUnsupported,
                  "GGUF has no key for which layers rotate: expected every fourth not to, but layer " +
                      std::to_string(layer) + (config.is_nope_layer(layer) ? " does not" : " does"));
  }
  return {};
}

// What readers take for granted is left out, as in llama.cpp's own files.
Status add_window_layers(const ModelConfig& config, const std::string& prefix, GgufWriter& writer) {
  if (gguf_architecture(config) != "gemma3") return {};
  const std::vector<bool>& slides = config.window_layers;
  const double usual = GgufGemma3::attention_scale(config);
  if (std::fabs(config.attention_scale() / usual - 1) > 1e-6) {
    return Status(Code::kUnsupported, "GGUF has no key for the scale of attention of a gemma3 model; expected " +
                                          std::to_string(usual) + " but it is " +
                                          std::to_string(config.attention_scale()));
  }
  if (slides.empty()) {
    if (config.sliding_window == 0) return {};
    return Status(Code::kUnsupported, "GGUF has no key for a window of all layers of a gemma3 model");
  }
  const auto interval = std::find(slides.begin(), slides.end(), false) - slides.begin() + 1;
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (config.is_window_layer(layer) == ((layer + 1) % interval != 0)) continue;
    return Status(Code::kUnsupported, "GGUF has no key for which layers have a window: expected every " +
                                          std::to_string(interval) + "th not to, but layer " + std::to_string(layer) +
                                          (config.is_window_layer(layer) ? " has one" : " has none"));
  }
  if (interval != GgufGemma3::kInterval)
    writer.add(prefix + "attention.sliding_window_pattern", static_cast<uint32_t>(interval));
  if (config.window_rope_theta != GgufGemma3::kWindowTheta) {
    writer.add(prefix + "rope.freq_base_swa", static_cast<float>(config.window_rope_theta));
  }
  return {};
}

// Files of the other architectures cannot say which layers have a window: they are refused when they are loaded.
Status check_window(const ModelConfig& config) {
  const std::string architecture = gguf_architecture(config);
  if (config.sliding_window == 0 || architecture == "llama" || architecture == "phi3" || architecture == "gemma3") {
    return {};
  }
  return Status(Code::kUnsupported, "GGUF has no key for which layers of a " + architecture +
                                        " model have a sliding window; this one's is of " +
                                        std::to_string(config.sliding_window) + " tokens");
}

void add_dual_chunk(const DualChunkSettings& dual_chunk, GgufWriter& writer) {
  if (dual_chunk.chunk_size == 0) return;
  writer.add(GgufDualChunk::kChunkSize, static_cast<uint32_t>(dual_chunk.chunk_size));
  writer.add(GgufDualChunk::kLocalSize, static_cast<uint32_t>(dual_chunk.local_size));
  writer.add(GgufDualChunk::kOriginal, static_cast<uint32_t>(dual_chunk.original));
}

}  // namespace

std::string gguf_architecture(const ModelConfig& config) {
  for (const auto& [hugging_face, gguf] : kArchitectures) {
    if (config.architecture == hugging_face) return gguf;
  }
  return {};
}

Status add_gguf_config(const ModelConfig& config, GgufWriter& writer) {
  const std::string architecture = gguf_architecture(config);
  if (architecture.empty()) {
    return Status(Code::kUnsupported, "GGUF has no name for the architecture " + config.architecture);
  }
  QUIRE_TRY(check_nope_layers(config));
  QUIRE_TRY(check_window(config));
  const std::string prefix = architecture + ".";
  const auto add = [&](const char* key, int64_t value) { writer.add(prefix + key, static_cast<uint32_t>(value)); };
  writer.add("general.architecture", std::string_view(architecture));
  add("block_count", config.n_layers);
  add("context_length", config.max_position_embeddings);
  add("embedding_length", config.hidden_size);
  add("feed_forward_length", config.intermediate_size);
  add("attention.head_count", config.n_query_heads);
  add("attention.head_count_kv", config.n_kv_heads);
  add("attention.key_length", config.head_dim);
  add("attention.value_length", config.head_dim);
  add("rope.dimension_count", config.rotary_dim);
  add("vocab_size", config.vocab_size);
  if (config.sliding_window > 0) add("attention.sliding_window", config.sliding_window);
  writer.add(prefix + "attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  add_multipliers(config, prefix, writer);
  QUIRE_TRY(add_window_layers(config, prefix, writer));
  add_dual_chunk(config.dual_chunk, writer);
  writer.add(prefix + "rope.freq_base", static_cast<float>(config.rope_theta));
  return add_rope_scaling(config, prefix, writer);
}

GgufRopeTensors gguf_rope_tensors(const ModelConfig& config) {
  if (const LongRopeSettings& longrope = config.longrope; !longrope.long_factors.empty()) {
    return {{kGgufRopeFactorsLong, {longrope.long_factors.begin(), longrope.long_factors.end()}},
            {kGgufRopeFactorsShort, {longrope.short_factors.begin(), longrope.short_factors.end()}}};
  }
  if (config.rope_type != "llama3") return {};
  const double factor = scaling_argument(config, "factor", 1);
  const double low = scaling_argument(config, "low", 1);
  const double high = scaling_argument(config, "high", 4);
  const double original = scaling_argument(config, "original", static_cast<double>(config.rope_original));
  // Long waves are stretched by the factor, short ones kept, those between in between.
  std::vector<float> factors;
  for (int i = 0; i < config.rotary_dim / 2; ++i) {
    const double frequency = std::pow(config.rope_theta, -2.0 * i / config.rotary_dim);
    const double waves = original * frequency / (2 * std::numbers::pi);  // in the original length
    double divisor = 1;
    if (waves < low) {
      divisor = factor;
    } else if (waves <= high) {
      const double smooth = (waves - low) / (high - low);
      divisor = 1 / ((1 - smooth) / factor + smooth);
    }
    factors.push_back(static_cast<float>(divisor));
  }
  return {{kGgufRopeFreqs, std::move(factors)}};
}

}  // namespace quire
