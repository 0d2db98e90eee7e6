#include "lib/model/adapter_files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "lib/model/weight_layout.h"
#include "lib/support/os_file.h"

namespace quire {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kPieceBytes = 1 << 20;  // read at once to be hashed
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kWeight = ".weight";

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

Status explain_missing(const std::string& directory) {
  QUIRE_ASSIGN(const std::vector<std::string> names, list_directory(directory));
  if (std::find(names.begin(), names.end(), "adapter_model.bin") != names.end()) {
    return Status(Code::kUnsupported, directory +
                                          " has its weights in adapter_model.bin; only .safetensors files are "
                                          "supported: load and save the adapter once with peft to convert it");
  }
  return Status(Code::kNotFound, "no adapter_model.safetensors in " + directory);
}

}  // namespace

Status AdapterFiles::bad(const std::string& what) const { return Status(Code::kBadModel, path_ + ": " + what); }
Status AdapterFiles::unsupported(const std::string& what) const {
  return Status(Code::kUnsupported, path_ + ": " + what);
}

Result<std::shared_ptr<const AdapterFiles>> AdapterFiles::open(const std::string& directory, const ModelConfig& model,
                                                               TensorFiles::Access access) {
  if (!path_is_directory(directory)) {
    return Status(path_exists(directory) ? Code::kUnsupported : Code::kNotFound,
                  path_exists(directory) ? directory + " is not a directory: a PEFT adapter directory is expected"
                                         : "no such adapter directory: " + directory);
  }
  auto files = std::make_shared<AdapterFiles>();
  const std::string config_path = directory + "/adapter_config.json";
  if (!path_exists(config_path)) return Status(Code::kNotFound, "no adapter_config.json in " + directory);
  QUIRE_ASSIGN(files->config_text_, read_text_file(config_path, kMaxConfigBytes));
  QUIRE_ASSIGN(files->config_, parse_adapter_config(files->config_text_, config_path));
  files->path_ = directory + "/adapter_model.safetensors";
  if (!path_exists(files->path_)) return explain_missing(directory);
  QUIRE_ASSIGN(auto tensors, TensorFiles::open_file(files->path_, access));
  files->tensors_ = std::move(tensors);
  const Weights weights = list_weights(model);
  QUIRE_TRY(files->sort_tensors(weights));
  QUIRE_TRY(files->check_pairs(weights));
  QUIRE_TRY(files->check_complete(weights));
  return std::shared_ptr<const AdapterFiles>(std::move(files));
}

// The model's weights that an adapter may speak of, by their names.
AdapterFiles::Weights AdapterFiles::list_weights(const ModelConfig& model) {
  Weights weights;
  const auto add = [&](const WeightParts& parts, bool low_rank, bool replaceable, int layer) {
    for (const WeightPart& part : parts.parts) weights[part.name] = {part.rows, parts.k, low_rank, replaceable, layer};
  };
  for (int layer = 0; layer < model.n_layers; ++layer) {
    const LayerLayout l = layer_layout(model, layer);
    for (const WeightParts* matrix : {&l.qkv, &l.o, &l.gate_up, &l.down}) add(*matrix, true, false, layer);
    for (const WeightParts* norm : {&l.attention_norm, &l.mlp_norm}) add(*norm, false, true, layer);
  }
  const WeightLayout layout = weight_layout(model);
  add(layout.embedding, true, true, -1);
  add(layout.final_norm, false, true, -1);
  weights[kHeadWeight] = {model.vocab_size, model.hidden_size, true, true, -1};  // tied ones too: see PEFT
  return weights;
}

Status AdapterFiles::sort_tensors(const Weights& weights) {
  for (const std::string& tensor : tensors_->names()) QUIRE_TRY(sort_tensor(weights, tensor));
  // Beside a saved module the base weight says nothing.
  std::erase_if(base_copies_, [&](const auto& copy) { return !replacements_.insert(copy).second; });
  if (low_rank_.empty() && replacements_.empty()) return bad("there are no tensors");
  return {};
}

Status AdapterFiles::sort_tensor(const Weights& weights, const std::string& tensor) {
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
  const std::string weight = module + std::string(kWeight);
  const auto known = weights.find(weight);
  if (known == weights.end()) {
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
    (part == Part::kA || part == Part::kEmbeddingA ? low_rank_[weight].a : low_rank_[weight].b) = tensor;
    return {};
  }
  if (!known->second.replaceable) {
    return unsupported("tensor " + tensor + " replaces " + module +
                       "; only embed_tokens, lm_head and norms can be replaced");
  }
  if (part == Part::kBaseCopy) {
    base_copies_[weight] = tensor;
    return {};
  }
  if (!replacements_.emplace(weight, tensor).second) {
    return bad("tensors " + replacements_[weight] + " and " + tensor + " are the same weight");
  }
  return {};
}

Status AdapterFiles::check_shape(const std::string& tensor, std::span<const int64_t> shape) const {
  return tensors_->view(tensor, shape).status();
}

Status AdapterFiles::check_pairs(const Weights& weights) {
  for (auto& [weight, change] : low_rank_) {
    if (change.a.empty() || change.b.empty()) {
      return bad("tensor " + (change.a.empty() ? change.b : change.a) + " is there without its " +
                 (change.a.empty() ? "A" : "B"));
    }
    const Weight& base = weights.at(weight);
    const bool embedding = weight == kEmbeddingWeight;
    change.in = embedding ? base.rows : base.columns;
    change.out = embedding ? base.columns : base.rows;
    const std::string module = module_of(weight);
    QUIRE_ASSIGN(change.rank, config_.rank_of(module));
    QUIRE_ASSIGN(change.scale, config_.scale_of(module));
    QUIRE_TRY(check_shape(change.a, std::array{change.rank, change.in}));
    QUIRE_TRY(check_shape(change.b, std::array{change.out, change.rank}));
  }
  for (const auto& [weight, tensor] : replacements_) {
    const Weight& base = weights.at(weight);
    QUIRE_TRY(check_shape(tensor, base.columns > 0 ? std::vector{base.rows, base.columns} : std::vector{base.rows}));
  }
  return {};
}

// Every module that the configuration names must be in the file: a part of an adapter would be another adapter.
Status AdapterFiles::check_complete(const Weights& weights) const {
  const auto& layers = config_.layers_to_transform;
  for (const auto& [weight, base] : weights) {
    const std::string module = module_of(weight);
    const bool layer_meant =
        base.layer < 0 || layers.empty() || std::find(layers.begin(), layers.end(), base.layer) != layers.end();
    if (base.low_rank && layer_meant && !config_.target_modules.empty() && config_.targets(module) &&
        !low_rank_.contains(weight)) {
      return bad("missing tensor " + std::string(kPrefix) + module + ".lora_A.weight: target_modules names the module");
    }
    if (base.replaceable && config_.saves(module) && !replacements_.contains(weight)) {
      return bad("missing tensor " + std::string(kPrefix) + weight + ": modules_to_save names the module");
    }
  }
  const auto of_no_module = [&](const std::vector<std::string>& names, bool dotted) -> const std::string* {
    for (const std::string& name : names) {
      const bool found = std::any_of(weights.begin(), weights.end(), [&](const auto& entry) {
        const std::string module = (dotted ? "." : "") + module_of(entry.first);
        return module.ends_with((dotted ? "." : "") + name);
      });
      if (!found) return &name;
    }
    return nullptr;
  };
  if (const std::string* name = of_no_module(config_.target_modules, true)) {
    return unsupported("target_modules names " + *name + ", which this model does not have");
  }
  if (const std::string* name = of_no_module(config_.modules_to_save, false)) {
    return unsupported("modules_to_save names " + *name + ", which this model does not have");
  }
  return {};
}

const LowRankTensors* AdapterFiles::low_rank(const std::string& weight) const {
  const auto at = low_rank_.find(weight);
  return at == low_rank_.end() ? nullptr : &at->second;
}

const std::string* AdapterFiles::replacement(const std::string& weight) const {
  const auto at = replacements_.find(weight);
  return at == replacements_.end() ? nullptr : &at->second;
}

bool AdapterFiles::changes_queries_or_keys() const {
  return std::any_of(low_rank_.begin(), low_rank_.end(), [](const auto& entry) {
    return entry.first.ends_with(".q_proj.weight") || entry.first.ends_with(".k_proj.weight");
  });
}

Result<std::vector<float>> AdapterFiles::read(const std::string& tensor, std::span<const int64_t> shape) const {
  QUIRE_ASSIGN(const auto view, tensors_->view(tensor, shape));
  std::vector<std::byte> raw(static_cast<size_t>(view.bytes));
  QUIRE_TRY(tensors_->read(tensor, 0, raw));
  std::vector<float> values(raw.size() / element_bytes(view.type));
  for (size_t i = 0; i < values.size(); ++i) values[i] = widen(view.type, raw.data(), static_cast<int64_t>(i));
  return values;
}

AdapterIdentity::AdapterIdentity(std::string_view config_text, std::unique_ptr<ReadFile> tensors)
    : file_(std::move(tensors)) {
  hash_.add_text(config_text);
}

Result<int64_t> AdapterIdentity::read(int64_t bytes) {
  piece_.resize(static_cast<size_t>(std::min(bytes, kPieceBytes)));
  const int64_t end = at_ + std::min(bytes, file_->size() - at_), begin = at_;
  while (at_ < end) {
    const auto n = std::min(piece_.size(), static_cast<size_t>(end - at_));
    QUIRE_TRY(file_->read_at(at_, std::span(piece_).first(n)));
    hash_.add(std::span<const std::byte>(piece_).first(n));
    at_ += static_cast<int64_t>(n);
  }
  return end - begin;
}

Result<AdapterIdentity> AdapterFiles::start_identity() const {
  QUIRE_ASSIGN(auto file, ReadFile::open(path_));
  return AdapterIdentity(config_text_, std::move(file));
}

Result<std::string> AdapterFiles::identity() const {
  QUIRE_ASSIGN(AdapterIdentity identity, start_identity());
  QUIRE_TRY(identity.read(identity.bytes()).status());
  return identity.hex();
}

}  // namespace quire
