// Which tensors of a checkpoint make which weights: the loader reads by it, the memory planner counts by it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/backend/operations.h"
#include "lib/format/model_config.h"
#include "lib/format/tensor_files.h"
#include "lib/plan/head_order.h"

namespace quire {

// How the rows of a projection are put in order while they are loaded.
struct RowOrder {
  int64_t rows = 0;  // the first so many are heads in this order; 0: all rows stay where they are
  HeadOrder head = {};

  // Where in the checkpoint the row lies that becomes row `row`.
  int64_t source(int64_t row) const {
    if (row >= rows) return row;
    const int64_t in_head = row % head.head_dim;
    return row - in_head + head.source(in_head);
  }
};

struct WeightPart {
  std::string name;
  int64_t rows;
  RowOrder order = {};
};

// Rows of several tensors one below the other: the projections of q, k and v are one product, and may be one tensor.
// k 0: a vector, of whose values (w + offset) * scale is what is computed with.
struct WeightParts {
  std::vector<WeightPart> parts;
  int64_t k = 0;
  float offset = 0;
  float scale = 1;

  // Of values as a file has them: with the offset already (ModelConfig::norm_offset_is_stored) or without.
  void finish(std::span<float> values, bool has_offset) const;

  int64_t rows() const;
};

// Of a layer; those of queries and keys are of each head, those of outputs are of what attention and the MLP give.
enum class LayerNorm { kAttention, kQuery, kKey, kAttentionOutput, kMlp, kMlpOutput };
constexpr int kLayerNorms = 6;

struct LayerLayout {
  WeightParts attention_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, attention_output_norm;
  WeightParts mlp_norm, gate_up, gate_up_bias, down, down_bias, mlp_output_norm;

  std::array<const WeightParts*, 4> matrices() const { return {&qkv, &o, &gate_up, &down}; }
  std::array<const WeightParts*, kLayerNorms> norms() const {  // in the order of LayerNorm
    return {&attention_norm, &q_norm, &k_norm, &attention_output_norm, &mlp_norm, &mlp_output_norm};
  }
  std::array<const WeightParts*, 4> biases() const { return {&qkv_bias, &o_bias, &gate_up_bias, &down_bias}; }
  std::vector<const WeightParts*> vectors() const;
};

struct WeightLayout {
  WeightParts embedding, final_norm, lm_head;
};

// Of beacon tokens: qkv, o, gate_up, down and their biases where any part of them is their own; else empty. The gate is
// never. Parts that are not their own are the layer's.
LayerLayout beacon_layer_layout(const ModelConfig& config, int layer);
WeightParts beacon_embedding_layout(const ModelConfig& config);
bool is_beacon_tensor(std::string_view name);
// kBadFile: a window of beacons is longer than the model's positions. kUnsupported: the model has fused projections, of
// which beacons would have a part, or norms behind blocks.
Status check_beacons(const ModelConfig& config);

LayerLayout layer_layout(const ModelConfig& config, int layer);  // what the config does not have is empty
WeightLayout weight_layout(const ModelConfig& config);

// Where the tensors of a checkpoint are; those of beacons may be in another folder.
struct CheckpointFiles {
  std::shared_ptr<TensorFiles> own;
  std::shared_ptr<TensorFiles> beacon;

  const std::shared_ptr<TensorFiles>& of(std::string_view tensor) const {
    return is_beacon_tensor(tensor) ? beacon : own;
  }
};

// What a matrix's parts are kept in: the type `wanted`, or (0) that in which each is stored. Checks their shapes. Rows
// are rounded at most to coarsest_activations (kF32, kBF16, kInt8) before they are multiplied, and no further than the
// weights are. Errors: those of TensorFiles::view; kUnsupported: rows are not whole blocks of the type wanted.
Result<std::vector<MatrixPart>> matrix_parts(const CheckpointFiles& files, const WeightParts& matrix, int32_t wanted,
                                             ElementType coarsest_activations);

}  // namespace quire
