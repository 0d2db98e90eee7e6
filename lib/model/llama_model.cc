#include "lib/model/llama_model.h"

#include "lib/support/content_hash.h"

namespace quire {

std::string LlamaModel::identity() const {
  ContentHash hash;
  hash.add_text(config_.json);
  for (const MatrixPart& part : weights_.matrix_parts) {
    hash.add_text(element_name(part.type));
    if (part.activations != ElementType::kF32) hash.add_text(element_name(part.activations));
  }
  for (const auto& [name, content] : weights_.tensor_hashes) hash.add_text(name).add_text(content);
  for (const MergedAdapter& m : weights_.merged) hash.add_text(m.identity).add_real(m.scale);
  return hash.hex();
}

int64_t Ropes::bytes() const {
  size_t bytes = strategy->bytes;
  if (window && window != strategy) bytes += window->bytes;
  if (nope) bytes += nope->bytes;
  return static_cast<int64_t>(bytes);
}

Result<Ropes> LlamaModel::create_ropes(const Strategy& strategy) const {
  Ropes ropes;
  QUIRE_ASSIGN(ropes.strategy, backend_.create_rope(strategy.rope(), strategy.kv_chunk()));
  if (const Strategy* const windowed = strategy.window_layers()) {
    QUIRE_ASSIGN(ropes.window, backend_.create_rope(windowed->rope(), strategy.kv_chunk()));
  }
  if (config_.has_nope_layers()) {
    QUIRE_ASSIGN(ropes.nope, backend_.create_rope(no_rotation(config_.head_dim), strategy.kv_chunk()));
  }
  return ropes;
}

KvGeometry LlamaModel::kv_geometry(const Strategy& strategy, ElementType type) const {
  return {config_.n_kv_heads, config_.head_dim, strategy.kv_chunk(), type};
}

float LlamaModel::logit_scale(double attention_factor) const {
  return static_cast<float>(attention_factor * attention_factor * config_.attention_scale());
}

}  // namespace quire
