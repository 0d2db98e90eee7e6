#include "lib/model/adapter_changes.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/safetensors.h"
#include "lib/model/weight_layout.h"

namespace quire {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kTextModel = "language_model.";  // what a larger model calls it

std::string module_of(const std::string& weight) { return weight.substr(0, weight.size() - kWeight.size()); }

// What PEFT puts behind a module's name, and what it says. Longer endings stand before those that they end with.
enum class Part { kA, kB, kEmbeddingA, kEmbeddingB, kDora, kLoraBias, kSaved, kBaseCopy, kWhole };
constexpr std::pair<std::string_view, Part> kEndings[] = {
    {".lora_A.weight", Part::kA},
    {".lora_B.weight", Part::kB},
    {".lora_embedding_A", Part::kEmbeddingA},
    {".lora_embedding_B", Part::kEmbeddingB},
    {".lora_magnitude_vector", Part::kDora},
    {".lora_magnitude_vector.weight", Part::kDora},
    {".lora_A.bias", Part::kLoraBias},
    {".lora_B.bias", Part::kLoraBias},
    {".modules_to_save.weight", Part::kSaved},
    {".base_layer.weight", Part::kBaseCopy},
    {".weight", Part::kWhole},
};

// The weights of a model that an adapter may speak of, by their names.
struct Weight {
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector
  bool low_rank = false;
  bool replaceable = false;
  int layer = -1;  // -1: of none
};
using Weights = std::map<std::string, Weight>;

Weights list_weights(const ModelConfig& model) {
  Weights weights;
  // `weight` without its size.
  const auto add = [&](const WeightParts& parts, Weight weight) {
    weight.columns = parts.k;
    for (const WeightPart& part : parts.parts) {
      weight.rows = part.rows;
      weights[part.name] = weight;
    }
  };
  for (int layer = 0; layer < model.n_layers; ++layer) {
    const LayerLayout l = layer_layout(model, layer);
    for (const WeightParts* matrix : {&l.qkv, &l.o, &l.gate_up, &l.down}) {
      add(*matrix, {.low_rank = true, .layer = layer});
    }
    for (const WeightParts* norm : l.norms()) add(*norm, {.replaceable = true, .layer = layer});
  }
  const WeightLayout layout = weight_layout(model);
  add(layout.embedding, {.low_rank = true, .replaceable = true});
  add(layout.final_norm, {.replaceable = true});
  // Tied ones too: see PEFT.
  weights[kHeadWeight] = {
      .rows = model.vocab_size, .columns = model.hidden_size, .low_rank = true, .replaceable = true};
  return weights;
}

}  // namespace

class AdapterChanges::Resolver {
 public:
  Resolver(const AdapterConfig& config, const TensorMap& tensors, const ModelConfig& model, const std::string& path)
      : config_(config), tensors_(tensors), path_(path), weights_(list_weights(model)) {}

  Result<AdapterChanges> resolve() {
    QUIRE_TRY(sort_tensors());
    QUIRE_TRY(check_pairs());
    QUIRE_TRY(check_complete());
    return std::move(found_);
  }

 private:
  Status sort_tensors();
  Status sort_tensor(const std::string& tensor);
  Status check_pairs();
  Status check_complete() const;
  Status check_shape(const std::string& tensor, std::span<const int64_t> shape) const;
  // -1: of no layer.
  bool is_layer_meant(int layer) const {
    const auto& layers = config_.layers_to_transform;
    return layer < 0 || layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end();
  }
  Status bad(const std::string& what) const { return Status(Code::kBadFile, path_ + ": " + what); }
  Status unsupported(const std::string& what) const { return Status(Code::kUnsupported, path_ + ": " + what); }

  const AdapterConfig& config_;
  const TensorMap& tensors_;
  const std::string& path_;
  const Weights weights_;
  AdapterChanges found_;
};

Status AdapterChanges::Resolver::sort_tensors() {
  for (const auto& [tensor, info] : tensors_) QUIRE_TRY(sort_tensor(tensor));
  // Beside a saved module the base weight says nothing.
  std::erase_if(found_.base_copies_, [&](const auto& copy) { return !found_.replacements_.insert(copy).second; });
  if (found_.low_rank_.empty() && found_.replacements_.empty()) return bad("there are no tensors");
  return {};
}

Status AdapterChanges::Resolver::sort_tensor(const std::string& tensor) {
  if (!tensor.starts_with(kPrefix)) {
    return unsupported("tensor " + tensor + " is none of a LoRA adapter; expected names after " + std::string(kPrefix));
  }
  const std::string name = tensor.substr(kPrefix.size());
  const auto* ending =
      std::find_if(std::begin(kEndings), std::end(kEndings), [&](const auto& e) { return name.ends_with(e.first); });
  if (ending == std::end(kEndings)) return unsupported("tensor " + tensor + " is none that a LoRA adapter has");
  const Part part = ending->second;
  if (part == Part::kDora) return unsupported("tensor " + tensor + ": DoRA is not supported");
  if (part == Part::kLoraBias) return unsupported("tensor " + tensor + ": biases of adapters are not supported");
  const std::string module = name.substr(0, name.size() - ending->first.size());
  const std::string weight = without_model_prefix(module, kTextModel) + std::string(kWeight);
  const auto known = weights_.find(weight);
  if (known == weights_.end()) {
    return unsupported("tensor " + tensor + " changes " + module + ", which this model does not have");
  }
  const bool low_rank = part == Part::kA || part == Part::kB;
  const bool embedding = part == Part::kEmbeddingA || part == Part::kEmbeddingB;
  if (low_rank || embedding) {
    if (!known->second.low_rank || embedding != (weight == kEmbeddingWeight)) {
      return unsupported("tensor " + tensor + ": a low-rank change of " + module + " in this form is not supported");
    }
    if (!config_.targets(module))
      return bad("tensor " + tensor + " changes a module that target_modules does not name");
    if (!is_layer_meant(known->second.layer)) {
      return bad("tensor " + tensor + " changes a layer that layers_to_transform does not name");
    }
    (part == Part::kA || part == Part::kEmbeddingA ? found_.low_rank_[weight].a : found_.low_rank_[weight].b) = tensor;
    return {};
  }
  if (!known->second.replaceable) {
    return unsupported("tensor " + tensor + " replaces " + module +
                       "; only embed_tokens, lm_head and norms can be replaced");
  }
  if (part == Part::kBaseCopy) {
    found_.base_copies_[weight] = tensor;
    return {};
  }
  if (!found_.replacements_.emplace(weight, tensor).second) {
    return bad("tensors " + found_.replacements_[weight] + " and " + tensor + " are the same weight");
  }
  return {};
}

Status AdapterChanges::Resolver::check_shape(const std::string& tensor, std::span<const int64_t> shape) const {
  return check_tensor(path_, tensor, tensors_.at(tensor), shape).status();
}

Status AdapterChanges::Resolver::check_pairs() {
  for (auto& [weight, change] : found_.low_rank_) {
    if (change.a.empty() || change.b.empty()) {
      return bad("tensor " + (change.a.empty() ? change.b : change.a) + " is there without its " +
                 (change.a.empty() ? "A" : "B"));
    }
    const Weight& base = weights_.at(weight);
    const bool embedding = weight == kEmbeddingWeight;
    change.in = embedding ? base.rows : base.columns;
    change.out = embedding ? base.columns : base.rows;
    const std::string module = module_of(weight);
    QUIRE_ASSIGN(change.rank, config_.rank_of(module));
    QUIRE_ASSIGN(change.scale, config_.scale_of(module));
    QUIRE_TRY(check_shape(change.a, std::array{change.rank, change.in}));
    QUIRE_TRY(check_shape(change.b, std::array{change.out, change.rank}));
  }
  for (const auto& [weight, tensor] : found_.replacements_) {
    const Weight& base = weights_.at(weight);
    QUIRE_TRY(check_shape(tensor, base.columns > 0 ? std::vector{base.rows, base.columns} : std::vector{base.rows}));
  }
  return {};
}

// Every module that the configuration names must be in the file: a part of an adapter would be another adapter.
Status AdapterChanges::Resolver::check_complete() const {
  for (const auto& [weight, base] : weights_) {
    const std::string module = module_of(weight);
    if (base.low_rank && is_layer_meant(base.layer) && !config_.target_modules.empty() && config_.targets(module) &&
        !found_.low_rank_.contains(weight)) {
      return bad("missing tensor " + std::string(kPrefix) + module + ".lora_A.weight: target_modules names the module");
    }
    if (base.replaceable && config_.saves(module) && !found_.replacements_.contains(weight)) {
      return bad("missing tensor " + std::string(kPrefix) + weight + ": modules_to_save names the module");
    }
  }
  enum class End { kWholeNames, kAny };  // which ends of a module's name a name may be
  const auto of_no_module = [&](const std::vector<std::string>& names, End end) -> const std::string* {
    for (const std::string& name : names) {
      const bool found = std::any_of(weights_.begin(), weights_.end(), [&](const auto& entry) {
        const auto module = std::string_view(entry.first).substr(0, entry.first.size() - kWeight.size());
        if (!module.ends_with(name)) return false;
        return end == End::kAny || module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
      });
      if (!found) return &name;
    }
    return nullptr;
  };
  if (const std::string* name = of_no_module(config_.target_modules, End::kWholeNames)) {
    return unsupported("target_modules names " + *name + ", which this model does not have");
  }
  if (const std::string* name = of_no_module(config_.modules_to_save, End::kAny)) {
    return unsupported("modules_to_save names " + *name + ", which this model does not have");
  }
  return {};
}

Result<AdapterChanges> AdapterChanges::resolve(const AdapterConfig& config, const TensorMap& tensors,
                                               const ModelConfig& model, const std::string& path) {
  return Resolver(config, tensors, model, path).resolve();
}

const LowRankTensors* AdapterChanges::low_rank(const std::string& weight) const {
  const auto at = low_rank_.find(weight);
  return at == low_rank_.end() ? nullptr : &at->second;
}

const std::string* AdapterChanges::replacement(const std::string& weight) const {
  const auto at = replacements_.find(weight);
  return at == replacements_.end() ? nullptr : &at->second;
}

bool AdapterChanges::changes_queries_or_keys() const {
  return std::any_of(low_rank_.begin(), low_rank_.end(), [](const auto& entry) {
    const std::string& name = entry.first;
    return name.ends_with(".q_proj.weight") || name.ends_with(".k_proj.weight") || name.ends_with(".qkv_proj.weight");
  });
}

}  // namespace quire
