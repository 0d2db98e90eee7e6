// Which tensors of a LoRA adapter change which weights of a model: names, shapes, pairs and completeness.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "lib/format/adapter_config.h"
#include "lib/format/model_config.h"
#include "lib/format/tensor_files.h"

namespace quire {

// Weights that are the same tensor in a tied checkpoint, and two to an adapter.
inline constexpr char kEmbeddingWeight[] = "model.embed_tokens.weight";
inline constexpr char kHeadWeight[] = "lm_head.weight";

// A low-rank change of one weight [out][in]. Of the embedding, whose files have A [rank][vocabulary] and
// B [hidden][rank], in and out are those of the transposed weight.
struct LowRankTensors {
  std::string a, b;
  int64_t rank = 0;
  int64_t in = 0, out = 0;
  double scale = 0;  // alpha / rank, or alpha / sqrt(rank)
};

// Immutable; any thread. Weights go by the name of the checkpoint's tensor, such as
// "model.layers.0.self_attn.q_proj.weight".
class AdapterChanges {
 public:
  // Checks what an adapter's configuration says and its tensor file's header has against `model`; `path` names the
  // tensor file in messages. Errors: kBadFile (shapes, ranks or pairs that do not fit: the tensor, found and
  // expected), kUnsupported (another method or architecture).
  static Result<AdapterChanges> resolve(const AdapterConfig& config, const TensorMap& tensors, const ModelConfig& model,
                                        const std::string& path);

  const std::map<std::string, LowRankTensors>& low_rank() const { return low_rank_; }
  const LowRankTensors* low_rank(const std::string& weight) const;  // nullptr: not changed
  // The tensor of this adapter that stands in the weight's place; nullptr: none.
  const std::string* replacement(const std::string& weight) const;
  const std::map<std::string, std::string>& replacements() const { return replacements_; }
  // True if that is a copy of the base weight that PEFT saves beside a change of it, and so may be the same.
  bool is_base_copy(const std::string& weight) const { return base_copies_.contains(weight); }
  // A low-rank change of the queries' or keys' projections, in some layer.
  bool changes_queries_or_keys() const;

 private:
  class Resolver;

  std::map<std::string, LowRankTensors> low_rank_;
  std::map<std::string, std::string> replacements_;
  std::map<std::string, std::string> base_copies_;
};

}  // namespace quire
