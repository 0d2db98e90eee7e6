#include "lib/model/llama_model.h"

#include <cmath>

#include "lib/support/content_hash.h"

namespace quire {

std::string LlamaModel::identity() const {
  ContentHash hash;
  hash.add_text(config_.json);
  for (const ElementType type : weights_.matrix_types) hash.add_text(element_name(type));
  for (const auto& [name, content] : weights_.tensor_hashes) hash.add_text(name).add_text(content);
  for (const MergedAdapter& m : weights_.merged) hash.add_text(m.identity).add_real(m.scale);
  return hash.hex();
}

KvGeometry LlamaModel::kv_geometry(const Strategy& strategy, ElementType type) const {
  return {config_.n_kv_heads, config_.head_dim, strategy.kv_chunk(), type};
}

float LlamaModel::logit_scale(const Strategy& strategy) const {
  const double factor = strategy.rope().attention_factor;
  return static_cast<float>(factor * factor / std::sqrt(static_cast<double>(config_.head_dim)));
}

}  // namespace quire
