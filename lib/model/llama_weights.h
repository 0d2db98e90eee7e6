// The weights of a Llama-family decoder on a backend. Immutable once loaded: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/model/adapter_merge.h"

namespace quire {

struct LayerWeights {
  std::unique_ptr<Buffer> attention_norm;  // f32 [hidden]
  std::unique_ptr<Matrix> qkv;             // [(H + 2 Hkv) * d, hidden]
  std::unique_ptr<Buffer> qkv_bias;        // f32, or null
  std::unique_ptr<Buffer> q_norm;          // f32 [d], or null
  std::unique_ptr<Buffer> k_norm;
  std::unique_ptr<Matrix> o;  // [hidden, H * d]
  std::unique_ptr<Buffer> o_bias;
  std::unique_ptr<Buffer> attention_output_norm;  // or null
  std::unique_ptr<Buffer> mlp_norm;
  std::unique_ptr<Matrix> gate_up;  // [2 * intermediate, hidden]
  std::unique_ptr<Buffer> gate_up_bias;
  std::unique_ptr<Matrix> down;  // [hidden, intermediate]
  std::unique_ptr<Buffer> down_bias;
  std::unique_ptr<Buffer> mlp_output_norm;  // or null
};

// What beacon tokens (Activation Beacon) have of their own; null where they share the layer's.
struct BeaconLayerWeights {
  std::unique_ptr<Matrix> qkv, o, gate_up, down;
  std::unique_ptr<Buffer> qkv_bias, o_bias, gate_up_bias, down_bias;
};

struct BeaconWeights {
  std::unique_ptr<Table> embedding;  // one row
  std::vector<BeaconLayerWeights> layers;
};

struct LlamaWeights {
  std::unique_ptr<Table> embedding;
  std::vector<LayerWeights> layers;
  std::unique_ptr<Buffer> final_norm;
  std::unique_ptr<Matrix> lm_head;
  ElementType type = ElementType::kF32;  // of most of the layers' matrices' elements
  std::vector<MatrixPart> matrix_parts;  // of all matrices, in the order of loading
  int64_t n_parameters = 0;
  int64_t bytes = 0;
  std::map<std::string, std::string> tensor_hashes;  // of the checkpoint's tensors that were read (TensorFiles)
  std::vector<MergedAdapter> merged;
  std::unique_ptr<BeaconWeights> beacon;  // null: none
};

}  // namespace quire
