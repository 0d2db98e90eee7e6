// The files of a PEFT LoRA directory, resolved against the model they are for: which tensors change which weight.
//
// Hu et al. 2021, "LoRA", arXiv:2106.09685, eq. 3: W' = W + scale * B A, with A [rank][in] and B [out][rank].
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/adapter_config.h"
#include "lib/format/model_config.h"
#include "lib/format/safetensors.h"
#include "lib/support/content_hash.h"

namespace quire {

// Weights that are the same tensor in a tied checkpoint, and two to an adapter.
inline const std::string kEmbeddingWeight = "model.embed_tokens.weight";
inline const std::string kHeadWeight = "lm_head.weight";

// A low-rank change of one weight [out][in]. Of the embedding, whose files have A [rank][vocabulary] and
// B [hidden][rank], in and out are those of the transposed weight.
struct LowRankTensors {
  std::string a, b;
  int64_t rank = 0;
  int64_t in = 0, out = 0;
  double scale = 0;  // alpha / rank, or alpha / sqrt(rank)
};

// Names what an adapter's two files hold: 128 bits over their bytes, which are read a piece at a time, as they may be
// many.
class AdapterIdentity {
 public:
  AdapterIdentity(std::string_view config_text, std::unique_ptr<ReadFile> tensors);

  int64_t bytes() const { return file_->size(); }
  bool complete() const { return at_ == file_->size(); }
  // Reads at most so many bytes more, and says how many.
  Result<int64_t> read(int64_t bytes);
  // 32 hexadecimal digits.
  std::string hex() const { return hash_.hex(); }

 private:
  ContentHash hash_;
  std::unique_ptr<ReadFile> file_;
  int64_t at_ = 0;
  std::vector<std::byte> piece_;
};

// Immutable; any thread.
class AdapterFiles {
 public:
  // Reads DIR/adapter_config.json and the header of DIR/adapter_model.safetensors and checks them against `model`.
  // Errors: kNotFound, kIo, kBadModel (damaged; shapes, ranks or pairs that do not fit: the tensor, found and
  // expected), kUnsupported (another method or architecture, .bin files).
  static Result<std::shared_ptr<const AdapterFiles>> open(const std::string& directory, const ModelConfig& model,
                                                          TensorFiles::Access access);

  const AdapterConfig& config() const { return config_; }
  const TensorFiles& tensors() const { return *tensors_; }
  std::shared_ptr<const TensorFiles> shared_tensors() const { return tensors_; }

  // By the name of the checkpoint's tensor, such as "model.layers.0.self_attn.q_proj.weight"; nullptr: not changed.
  const LowRankTensors* low_rank(const std::string& weight) const;
  // The tensor of this adapter that stands in the weight's place; nullptr: none.
  const std::string* replacement(const std::string& weight) const;
  const std::map<std::string, std::string>& replacements() const { return replacements_; }
  // True if that is a copy of the base weight that PEFT saves beside a change of it, and so may be the same.
  bool is_base_copy(const std::string& weight) const { return base_copies_.contains(weight); }
  // A low-rank change of the queries' or keys' projections, in some layer.
  bool changes_queries_or_keys() const;

  // Values of a tensor of any accepted type, widened.
  Result<std::vector<float>> read(const std::string& tensor, std::span<const int64_t> shape) const;
  // Nothing of the tensor file is read yet. Errors: kNotFound, kIo.
  Result<AdapterIdentity> start_identity() const;
  // All of it. Errors: those.
  Result<std::string> identity() const;

 private:
  struct Weight {
    int64_t rows = 0;
    int64_t columns = 0;  // 0: a vector
    bool low_rank = false;
    bool replaceable = false;
    int layer = -1;
  };
  using Weights = std::map<std::string, Weight>;

  static Weights list_weights(const ModelConfig& model);
  Status sort_tensors(const Weights& weights);
  Status sort_tensor(const Weights& weights, const std::string& tensor);
  Status check_pairs(const Weights& weights);
  Status check_complete(const Weights& weights) const;
  Status check_shape(const std::string& tensor, std::span<const int64_t> shape) const;
  Status bad(const std::string& what) const;
  Status unsupported(const std::string& what) const;

  std::string path_;  // of the tensor file
  std::string config_text_;
  AdapterConfig config_;
  std::shared_ptr<const TensorFiles> tensors_;
  std::map<std::string, LowRankTensors> low_rank_;
  std::map<std::string, std::string> replacements_;
  std::map<std::string, std::string> base_copies_;
};

}  // namespace quire
