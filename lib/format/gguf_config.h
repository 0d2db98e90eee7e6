// What the metadata of a GGUF file says of its model.
#pragma once

#include "lib/format/gguf.h"
#include "lib/format/model_config.h"
#include "lib/support/status.h"

namespace quire {

// Of files of the architectures llama (Llama, Mistral, SmolLM2), mistral and mistral3, qwen2, qwen3, smollm3,
// phi3, granite and gemma3; anything else is refused by name, and so is what would be another computation.
// `rope_tensors`: the file's. Biases, norms of queries and keys and a head of its own are there if their tensors are,
// the same in each layer. For the ids that begin and end a text: gguf_token_ids.h. ModelConfig::json is the metadata of
// the architecture (numbers and truth values) and rope_tensors as a JSON object. Errors: kBadFile, kUnsupported;
// messages name the key or the tensor.
Result<ModelConfig> gguf_model_config(const GgufHeader& header, const GgufRopeTensors& rope_tensors);

// Keys of ours, which other programs pass over: GGUF has none for dual_chunk_attention_config.
struct GgufDualChunk {
  static constexpr const char* kChunkSize = "quire.dual_chunk_attention.chunk_size";
  static constexpr const char* kLocalSize = "quire.dual_chunk_attention.local_size";
  static constexpr const char* kOriginal = "quire.dual_chunk_attention.original_max_position_embeddings";
};

// What files of gemma3 need not say, and llama.cpp takes for granted.
struct GgufGemma3 {
  static constexpr int64_t kInterval = 6;        // every so many-th layer is without a window
  static constexpr double kWindowTheta = 10000;  // RoPE's base in those that have one
  static double attention_scale(const ModelConfig& config);
};

}  // namespace quire
