#include "lib/format/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "lib/format/json.h"

namespace quire {
namespace {

constexpr int64_t kMaxRank = 1 << 20;
constexpr double kMaxAlpha = 1e9;
constexpr size_t kMaxNames = 10'000;  // each is compared with every module of the model

// Keys that say how the adapter was made, or are read below.
constexpr std::string_view kKnownKeys[] = {"peft_type",
                                           "r",
                                           "lora_alpha",
                                           "target_modules",
                                           "modules_to_save",
                                           "rank_pattern",
                                           "alpha_pattern",
                                           "layers_to_transform",
                                           "use_rslora",
                                           "base_model_name_or_path",
                                           "bias",
                                           "init_lora_weights",
                                           "task_type",
                                           "auto_mapping",
                                           "peft_version",
                                           "revision",
                                           "inference_mode",
                                           "lora_dropout",
                                           "loftq_config",
                                           "eva_config",
                                           "corda_config",
                                           "lora_ga_config",
                                           "runtime_config",
                                           "megatron_core",
                                           "layers_pattern",
                                           "exclude_modules",
                                           "merge_weights",
                                           "qalora_group_size"};

// Initialisations that leave the base model's weights as they are. The others put a part of them into the adapter,
// which then fits no checkpoint that is at hand.
constexpr std::string_view kPlainInit[] = {"gaussian", "eva", "orthogonal"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool ends_with_module(std::string_view module, std::string_view name) {
  if (!module.ends_with(name)) return false;
  return module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
}

Status unsupported(const JsonReader& reader, const std::string& what) {
  return Status(Code::kUnsupported, reader.what() + ": " + what);
}

// Absent as far as an option goes: null, false, 0, or empty.
bool is_unset(const Json& value) {
  return value.is_null() || value.boolean() == false || value.number() == 0.0 ||
         (value.string() && value.string()->empty()) || (value.array() && value.array()->empty()) ||
         (value.object() && value.object()->empty());
}

Status refuse_other_computations(const Json& config, const JsonReader& reader) {
  QUIRE_ASSIGN(const std::string type, reader.string("peft_type", "is missing"));
  if (type != "LORA") return unsupported(reader, "peft_type " + type + "; expected LORA");
  if (const Json* dora = reader.find("use_dora"); dora && dora->boolean() == true) {
    return unsupported(reader, "use_dora: DoRA (weight-decomposed) adapters are not supported");
  }
  QUIRE_ASSIGN(const std::string bias, reader.string("bias", "none"));
  if (bias != "none") return unsupported(reader, "bias \"" + bias + "\"; only adapters without biases are supported");
  if (const Json* init = reader.find("init_lora_weights")) {
    const bool plain = init->boolean() || (init->string() && contains(kPlainInit, *init->string()));
    if (!plain) {
      return unsupported(reader, "init_lora_weights " + json_excerpt(*init) +
                                     ": such an adapter goes with changed base weights; convert it to a plain LoRA");
    }
  }
  for (const auto& [key, value] : *config.object()) {
    if (!contains(kKnownKeys, key) && !is_unset(value)) {
      return unsupported(reader, key + " " + json_excerpt(value) + " is not supported");
    }
  }
  return {};
}

Status read_names(const JsonReader& reader, const char* key, std::vector<std::string>& names) {
  const Json* list = reader.find(key);
  if (!list) return {};
  const std::string expected = "a list of at most " + std::to_string(kMaxNames) + " module names";
  if (!list->array() || list->array()->size() > kMaxNames) return reader.bad(key, expected);
  for (const Json& name : *list->array()) {
    if (!name.string() || name.string()->empty()) return reader.bad(key, expected);
    names.push_back(*name.string());
  }
  return {};
}

Status read_layers(const JsonReader& reader, std::vector<int64_t>& layers) {
  constexpr const char* kKey = "layers_to_transform";
  const Json* value = reader.find(kKey);
  if (!value) return {};
  const auto list = value->as_list();
  const std::string expected = "at most " + std::to_string(kMaxNames) + " layer numbers";
  if (list.size() > kMaxNames) return reader.bad(kKey, expected);
  for (const Json& element : list) {
    const auto layer = element.integer(0, 1'000'000);
    if (!layer) return reader.bad(kKey, expected);
    layers.push_back(*layer);
  }
  return {};
}

// PEFT's patterns are regular expressions for the end of a module's name, from a dot on. Names are all that is taken.
Result<std::string> read_pattern(const JsonReader& reader, const char* key, const std::string& text) {
  const bool whole = text.starts_with('^');
  const std::string name = whole ? text.substr(1) : text;
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
  if (plain) return text;
  return unsupported(reader, std::string(key) + " with the regular expression \"" + text +
                                 "\"; supported are module names, and names after '^'");
}

bool pattern_matches(const std::string& pattern, std::string_view module) {
  return pattern.starts_with('^') ? module == std::string_view(pattern).substr(1) : ends_with_module(module, pattern);
}

template <typename T, typename Read>
Status read_patterns(const JsonReader& reader, const char* key, std::vector<std::pair<std::string, T>>& patterns,
                     const Read& read) {
  const Json* object = reader.find(key);
  if (!object) return {};
  if (!object->object() || object->object()->size() > kMaxNames) {
    return reader.bad(key, "an object of at most " + std::to_string(kMaxNames) + " of module name: number");
  }
  const JsonReader values(*object, reader.what() + ": " + key);
  for (const auto& [text, value] : *object->object()) {
    QUIRE_ASSIGN(std::string pattern, read_pattern(reader, key, text));
    QUIRE_ASSIGN(const T number, read(values, text.c_str()));
    patterns.emplace_back(std::move(pattern), number);
  }
  return {};
}

template <typename T>
Result<T> choose(const std::vector<std::pair<std::string, T>>& patterns, std::string_view module, T fallback) {
  const std::pair<std::string, T>* chosen = nullptr;
  for (const auto& entry : patterns) {
    if (!pattern_matches(entry.first, module)) continue;
    if (chosen && chosen->second != entry.second) {
      return Status(Code::kUnsupported, "the patterns \"" + chosen->first + "\" and \"" + entry.first +
                                            "\" both match " + std::string(module) + " and say different things");
    }
    chosen = &entry;
  }
  return chosen ? chosen->second : fallback;
}

}  // namespace

Result<int64_t> AdapterConfig::rank_of(std::string_view module) const { return choose(rank_pattern, module, rank); }

Result<double> AdapterConfig::scale_of(std::string_view module) const {
  QUIRE_ASSIGN(const int64_t own_rank, rank_of(module));
  QUIRE_ASSIGN(const double own_alpha, choose(alpha_pattern, module, alpha));
  const auto r = static_cast<double>(own_rank);
  return own_alpha / (use_rslora ? std::sqrt(r) : r);
}

bool AdapterConfig::targets(std::string_view module) const {
  return target_modules.empty() || std::any_of(target_modules.begin(), target_modules.end(),
                                               [&](const auto& name) { return ends_with_module(module, name); });
}

bool AdapterConfig::saves(std::string_view module) const {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const auto& name) { return module.ends_with(name); });
}

Result<AdapterConfig> parse_adapter_config(const std::string& json, const std::string& what) {
  QUIRE_ASSIGN(const Json document, parse_json_object(json, what));
  const JsonReader reader(document, what);
  QUIRE_TRY(refuse_other_computations(document, reader));
  AdapterConfig config;
  QUIRE_ASSIGN(config.rank, reader.integer("r", 1, kMaxRank, 8));
  QUIRE_ASSIGN(config.alpha, reader.number("lora_alpha", 0, kMaxAlpha, 8));
  QUIRE_ASSIGN(config.use_rslora, reader.boolean("use_rslora", false));
  QUIRE_ASSIGN(config.base_model, reader.string("base_model_name_or_path", ""));
  const Json* targets = reader.find("target_modules");
  if (!targets || !targets->string()) QUIRE_TRY(read_names(reader, "target_modules", config.target_modules));
  QUIRE_TRY(read_names(reader, "modules_to_save", config.modules_to_save));
  QUIRE_TRY(read_layers(reader, config.layers_to_transform));
  QUIRE_TRY(read_patterns(reader, "rank_pattern", config.rank_pattern,
                          [](const JsonReader& r, const char* key) { return r.integer(key, 1, kMaxRank); }));
  QUIRE_TRY(read_patterns(reader, "alpha_pattern", config.alpha_pattern,
                          [](const JsonReader& r, const char* key) { return r.number(key, 0, kMaxAlpha); }));
  // With these the names alone do not say which modules were meant.
  if (const Json* excluded = reader.find("exclude_modules"); excluded && !is_unset(*excluded)) {
    config.target_modules.clear();
  }
  return config;
}

}  // namespace quire
