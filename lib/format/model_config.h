// config.json (and generation_config.json) of a Hugging Face directory, checked; what a model is, whatever said it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/format/beacon_settings.h"
#include "lib/format/rope_scaling.h"
#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

// dual_chunk_attention_config: how the checkpoint's makers run it beyond its trained length.
struct DualChunkSettings {
  int64_t chunk_size = 0;  // 0: none
  int64_t local_size = 0;
  int64_t original = 0;  // original_max_position_embeddings; 0: not given

  // Distances may never exceed the true ones: chunk_size <= 2 (chunk_size - local_size) - 1.
  bool keeps_distances() const { return local_size <= (chunk_size - 1) / 2; }
};

// What a configuration may say at most, whatever kind of file it is in.
struct ModelLimits {
  static constexpr int64_t kLayers = 4096;
  static constexpr int64_t kHeads = 4096;
  static constexpr int64_t kHeadDim = 4096;
  static constexpr int64_t kWidth = 1 << 24;
  static constexpr int64_t kPositions = int64_t{1} << 40;
  static constexpr double kLeastMultiplier = 1e-6, kMostMultiplier = 1e6;
  static constexpr size_t kTokenIds = 1024;  // each is compared with every token that is generated
};

struct ModelConfig {
  int n_layers = 0;
  int n_query_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int rotary_dim = 0;  // of a head's dimensions, the first so many are rotated, a with a + rotary_dim / 2
  int hidden_size = 0;
  int intermediate_size = 0;
  int vocab_size = 0;
  float rms_norm_eps = 1e-6f;
  // Factors that Granite and Gemma give: of the embeddings, of what a block adds to the hidden states, of the attention
  // logits (0: 1 / sqrt(head_dim)), and that which divides the logits of the vocabulary.
  double embedding_multiplier = 1;
  double residual_multiplier = 1;
  double attention_multiplier = 0;
  double logits_scaling = 1;
  Activation activation = Activation::kSilu;  // of the MLP's gate
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  // One tensor has the projections of q, k and v (qkv_proj), another those of gate and up (gate_up_proj).
  bool fused_projections = false;
  bool qk_norm = false;  // each head's query and key are normalised (RMS) before they are rotated
  // What attention and the MLP give is normalised too, before it is added to the hidden states.
  bool sandwich_norms = false;
  // Norms multiply by this and the weight (Gemma: 1 + w). In the model's own files it may be added already (GGUF).
  float norm_offset = 0;
  bool norm_offset_is_stored = false;
  // Of each layer: queries and keys are not rotated, so that distances mean nothing there (NoPE); empty: of none.
  std::vector<bool> nope_layers;
  int64_t max_position_embeddings = 2048;
  double rope_theta = 10000;
  // The checkpoint's RoPE scaling as a scaling term of a strategy expression, such as
  // "yarn(factor=4, original=4096)"; empty if none.
  std::string rope_scaling;
  std::string rope_type = "default";
  LongRopeSettings longrope;
  std::vector<double> freq_factors;  // divisors of RoPE's frequencies, for the scaling `freq_factors`; mostly empty
  int64_t rope_original = 0;         // positions trained for before any extension; 0: not given
  DualChunkSettings dual_chunk;
  BeaconSettings beacon;
  int64_t sliding_window = 0;       // query i sees key j only if i - j is less; 0: no window
  std::vector<bool> window_layers;  // where only some layers have it: of each, whether it has
  // RoPE's base in these layers, which then have no scaling; 0: they are rotated as the others are.
  double window_rope_theta = 0;
  std::string architecture;
  std::string tensor_prefix;  // of the names of its tensors in a directory, where they are part of a larger model
  std::vector<int32_t> bos_token_ids;  // at most one
  std::vector<int32_t> eos_token_ids;
  std::string json;  // the file's text

  // The scale of q k^T before any factor of RoPE.
  double attention_scale() const {
    return attention_multiplier > 0 ? attention_multiplier : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  // Hidden states are computed divided by residual_multiplier, so that what a block gives is added as it is: they are
  // only read through RMS norms, to which such a factor is one of epsilon's root.
  float hidden_embedding_scale() const { return static_cast<float>(embedding_multiplier / residual_multiplier); }
  float hidden_norm_eps() const {
    return static_cast<float>(rms_norm_eps / (residual_multiplier * residual_multiplier));
  }
  bool has_nope_layers() const { return std::find(nope_layers.begin(), nope_layers.end(), true) != nope_layers.end(); }
  bool is_window_layer(int layer) const { return !window_layers.empty() && window_layers[static_cast<size_t>(layer)]; }
  bool is_nope_layer(int layer) const { return !nope_layers.empty() && nope_layers[static_cast<size_t>(layer)]; }
};

// Parses and checks the text of a config.json. Anything but these architectures is refused by name: LlamaForCausalLM;
// MistralForCausalLM, with a sliding window unless the file says null; Qwen2ForCausalLM, with biases of q, k and v;
// Qwen3ForCausalLM, with norms of queries and keys; SmolLM3ForCausalLM, with layers that do not rotate;
// Phi3ForCausalLM, with fused projections, a sliding window where the file gives one, and heads of which a part may be
// rotated; GraniteForCausalLM, with factors of embeddings, blocks, attention and logits; Gemma3ForCausalLM, with norms
// in front of and behind each block, GELU, and layers of which most have a sliding window and a RoPE base of their own;
// Gemma3ForConditionalGeneration and Mistral3ForConditionalGeneration, of which the text model is read, and nothing of
// images. Every number is checked for
// type and range (integers; finite; positive where it must be), head_dim must be even, and n_query_heads a multiple of
// n_kv_heads. Errors: kBadFile, kUnsupported; messages name the key.
Result<ModelConfig> parse_model_config(const std::string& json);

// Reads DIR/config.json and, if there, DIR/generation_config.json (its eos ids are added).
Result<ModelConfig> load_model_config(const std::string& directory);

}  // namespace quire
