#include "lib/model/weight_layout.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace quire {
namespace {

// What rows are rounded to for weights of this type, `coarsest` at most.
ElementType activations_for(ElementType weights, ElementType coarsest) {
  if (is_quantized(weights) && coarsest == ElementType::kInt8) return ElementType::kInt8;
  if (weights == ElementType::kBF16 && coarsest != ElementType::kF32) return ElementType::kBF16;
  return ElementType::kF32;
}

}  // namespace

int64_t WeightParts::rows() const {
  int64_t n = 0;
  for (const WeightPart& part : parts) n += part.rows;
  return n;
}

void WeightParts::finish(std::span<float> values, bool has_offset) const {
  const float added = has_offset ? 0 : offset;
  if (added == 0 && scale == 1) return;
  for (float& value : values) value = (value + added) * scale;
}

std::vector<const WeightParts*> LayerLayout::vectors() const {
  std::vector<const WeightParts*> all;
  std::ranges::copy(norms(), std::back_inserter(all));
  std::ranges::copy(biases(), std::back_inserter(all));
  return all;
}

LayerLayout layer_layout(const ModelConfig& config, int layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int64_t hidden = config.hidden_size;
  const int64_t q = int64_t{config.n_query_heads} * config.head_dim;
  const int64_t kv = int64_t{config.n_kv_heads} * config.head_dim;
  const int64_t ffn = config.intermediate_size;
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const auto weight = [](const std::string& name) { return name + "_proj.weight"; };
  const auto bias = [](const std::string& name) { return name + "_proj.bias"; };

  LayerLayout layout;
  const auto norm = [&](const std::string& name, int64_t width) {
    return WeightParts{.parts = {{prefix + name + ".weight", width}}, .offset = config.norm_offset};
  };
  layout.attention_norm = norm("input_layernorm", hidden);
  const auto order = [head = HeadOrder{config.head_dim, config.rotary_dim}](int64_t rows) {
    return head.moves() ? RowOrder{rows, head} : RowOrder();
  };
  if (config.fused_projections) {
    layout.qkv = {{{weight(attention + "qkv"), q + 2 * kv, order(q + kv)}}, hidden};
  } else {
    layout.qkv = {{{weight(attention + "q"), q, order(q)},
                   {weight(attention + "k"), kv, order(kv)},
                   {weight(attention + "v"), kv}},
                  hidden};
  }
  layout.o = {{{weight(attention + "o"), hidden}}, q};
  if (config.sandwich_norms) {
    layout.attention_output_norm = norm("post_attention_layernorm", hidden);
    layout.mlp_norm = norm("pre_feedforward_layernorm", hidden);
    layout.mlp_output_norm = norm("post_feedforward_layernorm", hidden);
  } else {
    layout.mlp_norm = norm("post_attention_layernorm", hidden);
  }
  layout.gate_up = config.fused_projections
                       ? WeightParts{{{weight(mlp + "gate_up"), 2 * ffn}}, hidden}
                       : WeightParts{{{weight(mlp + "gate"), ffn}, {weight(mlp + "up"), ffn}}, hidden};
  layout.down = {{{weight(mlp + "down"), hidden}}, ffn};
  if (config.qk_norm) {
    layout.q_norm = norm("self_attn.q_norm", config.head_dim);
    layout.k_norm = norm("self_attn.k_norm", config.head_dim);
  }
  if (config.qkv_bias) {
    layout.qkv_bias = {{{bias(attention + "q"), q}, {bias(attention + "k"), kv}, {bias(attention + "v"), kv}}};
  }
  if (config.o_bias) layout.o_bias = {{{bias(attention + "o"), hidden}}};
  if (config.mlp_bias) {
    layout.gate_up_bias = {{{bias(mlp + "gate"), ffn}, {bias(mlp + "up"), ffn}}};
    layout.down_bias = {{{bias(mlp + "down"), hidden}}};
  }
  return layout;
}

LayerLayout beacon_layer_layout(const ModelConfig& config, int layer) {
  const BeaconSettings& beacon = config.beacon;
  const LayerLayout plain = layer_layout(config, layer);
  // The parts at which `own` is set, under their other name; nothing if that is none of them.
  const auto renamed = [](WeightParts parts, std::initializer_list<bool> own) {
    if (std::none_of(own.begin(), own.end(), [](bool o) { return o; })) return WeightParts();
    for (size_t p = 0; p < parts.parts.size(); ++p) {
      std::string& name = parts.parts[p].name;
      if (own.begin()[p]) name.insert(name.rfind('.', name.rfind('.') - 1) + 1, "beacon_");
    }
    return parts;
  };
  LayerLayout layout;
  layout.qkv = renamed(plain.qkv, {beacon.q, beacon.k, beacon.v});
  layout.qkv_bias = renamed(plain.qkv_bias, {beacon.q, beacon.k, beacon.v});
  layout.o = renamed(plain.o, {beacon.o});
  layout.o_bias = renamed(plain.o_bias, {beacon.o});
  layout.gate_up = renamed(plain.gate_up, {false, beacon.mlp});
  layout.gate_up_bias = renamed(plain.gate_up_bias, {false, beacon.mlp});
  layout.down = renamed(plain.down, {beacon.mlp});
  layout.down_bias = renamed(plain.down_bias, {beacon.mlp});
  return layout;
}

WeightParts beacon_embedding_layout(const ModelConfig& config) {
  return {{{"model.beacon_embed_tokens.weight", 1}}, config.hidden_size};
}

bool is_beacon_tensor(std::string_view name) { return name.find(".beacon_") != std::string_view::npos; }

Status check_beacons(const ModelConfig& config) {
  if (config.beacon.window == 0) return {};
  if (config.fused_projections || config.sandwich_norms) {
    return Status(Code::kUnsupported, std::string("beacons beside the ") +
                                          (config.fused_projections ? "fused projections" : "norms behind the blocks") +
                                          " of " + config.architecture);
  }
  if (config.beacon.window <= config.max_position_embeddings) return {};
  return Status(Code::kBadFile, "beacon_window is " + std::to_string(config.beacon.window) + "; the model has " +
                                    std::to_string(config.max_position_embeddings) + " positions");
}

// Logits are divided by logits_scaling: the norm in front of the head does it.
WeightLayout weight_layout(const ModelConfig& config) {
  const std::string embedding = "model.embed_tokens.weight";
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  return {{{{embedding, vocab}}, hidden},
          {.parts = {{"model.norm.weight", hidden}},
           .offset = config.norm_offset,
           .scale = static_cast<float>(1 / config.logits_scaling)},
          {{{config.tie_word_embeddings ? embedding : "lm_head.weight", vocab}}, hidden}};
}

Result<std::vector<MatrixPart>> matrix_parts(const CheckpointFiles& files, const WeightParts& matrix, int32_t wanted,
                                             ElementType coarsest_activations) {
  std::vector<MatrixPart> parts;
  for (const WeightPart& part : matrix.parts) {
    QUIRE_ASSIGN(const auto view, files.of(part.name)->view(part.name, std::array{part.rows, matrix.k}));
    const ElementType type = wanted != 0 ? static_cast<ElementType>(wanted) : view.type;
    if (const int64_t block = block_format(type).elements; matrix.k % block != 0) {
      return Status(Code::kUnsupported, "tensor " + part.name + " has rows of " + std::to_string(matrix.k) +
                                            " elements; " + element_name(type) + " has blocks of " +
                                            std::to_string(block));
    }
    parts.push_back({part.rows, type, activations_for(type, coarsest_activations)});
  }
  return parts;
}

}  // namespace quire
