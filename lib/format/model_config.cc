#include "lib/format/model_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "lib/format/json.h"
#include "lib/format/rope_scaling.h"
#include "lib/support/os_file.h"

namespace quire {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxPositions = ModelLimits::kPositions;

Status unsupported(const JsonReader& reader, const std::string& what) {
  return Status(Code::kUnsupported, reader.what() + ": " + what);
}

// What the architectures differ in, and their defaults of absent keys, as in transformers.
struct Family {
  // On request: use_sliding_window. By pattern: every sliding_window_pattern-th layer is without.
  enum class Window { kNever, kAlways, kOnRequest, kByPattern };
  enum class Biases { kNever, kByConfig, kQkv };  // of attention

  std::string_view architecture;
  std::string_view model_type;
  int64_t max_positions;
  std::string_view larger = {};       // an architecture whose text_config is one of these,
  std::string_view larger_type = {};  // its model_type
  std::string_view prefix = {};       // and the beginning of the names of its tensors
  // 0: the file must say it.
  int64_t n_layers = 0;
  int64_t n_query_heads = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t n_kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;    // 0: the hidden size divided by the query heads
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
  Window window = Window::kNever;
  int64_t sliding_window = 0;
  Biases attention_biases = Biases::kNever;
  bool mlp_biases = false;
  bool tied = false;
  bool qk_norm = false;
  bool has_nope_layers = false;
  bool fused_projections = false;
  bool partial_rotary = false;  // partial_rotary_factor
  bool has_multipliers = false;
  bool is_gemma = false;
};

constexpr Family kFamilies[] = {{.architecture = "LlamaForCausalLM",
                                 .model_type = "llama",
                                 .max_positions = 2048,
                                 .attention_biases = Family::Biases::kByConfig,
                                 .mlp_biases = true},
                                {.architecture = "MistralForCausalLM",
                                 .model_type = "mistral",
                                 .max_positions = 131072,
                                 .larger = "Mistral3ForConditionalGeneration",
                                 .larger_type = "mistral3",
                                 .prefix = "language_model.",
                                 .n_kv_heads = 8,
                                 .window = Family::Window::kAlways,
                                 .sliding_window = 4096},
                                {.architecture = "Qwen2ForCausalLM",
                                 .model_type = "qwen2",
                                 .max_positions = 32768,
                                 .n_kv_heads = 32,
                                 .window = Family::Window::kOnRequest,
                                 .sliding_window = 4096,
                                 .attention_biases = Family::Biases::kQkv},
                                {.architecture = "Qwen3ForCausalLM",
                                 .model_type = "qwen3",
                                 .max_positions = 32768,
                                 .n_kv_heads = 32,
                                 .head_dim = 128,
                                 .window = Family::Window::kOnRequest,
                                 .sliding_window = 4096,
                                 .attention_biases = Family::Biases::kByConfig,
                                 .qk_norm = true},
                                {.architecture = "SmolLM3ForCausalLM",
                                 .model_type = "smollm3",
                                 .max_positions = 32768,
                                 .n_kv_heads = 4,
                                 .rope_theta = 2000000,
                                 .window = Family::Window::kOnRequest,
                                 .attention_biases = Family::Biases::kByConfig,
                                 .mlp_biases = true,
                                 .tied = true,
                                 .has_nope_layers = true},
                                {.architecture = "Phi3ForCausalLM",
                                 .model_type = "phi3",
                                 .max_positions = 4096,
                                 .rms_norm_eps = 1e-5,
                                 .window = Family::Window::kAlways,
                                 .fused_projections = true,
                                 .partial_rotary = true},
                                {.architecture = "GraniteForCausalLM",
                                 .model_type = "granite",
                                 .max_positions = 2048,
                                 .attention_biases = Family::Biases::kByConfig,
                                 .mlp_biases = true,
                                 .has_multipliers = true},
                                {.architecture = "Gemma3ForCausalLM",
                                 .model_type = "gemma3_text",
                                 .max_positions = 131072,
                                 .larger = "Gemma3ForConditionalGeneration",
                                 .larger_type = "gemma3",
                                 .prefix = "language_model.",
                                 .n_layers = 26,
                                 .n_query_heads = 8,
                                 .hidden_size = 2304,
                                 .intermediate_size = 9216,
                                 .vocab_size = 262208,
                                 .n_kv_heads = 4,
                                 .head_dim = 256,
                                 .rope_theta = 1000000,
                                 .window = Family::Window::kByPattern,
                                 .sliding_window = 4096,
                                 .attention_biases = Family::Biases::kByConfig,
                                 .tied = true,
                                 .qk_norm = true,
                                 .is_gemma = true}};

std::string family_names() {
  std::string names;
  const auto add = [&](std::string_view name) { names += (names.empty() ? "" : ", ") + std::string(name); };
  for (const Family& family : kFamilies) {
    add(family.architecture);
    if (!family.larger.empty()) add(family.larger);
  }
  return names;
}

struct FoundFamily {
  const Family* family = nullptr;
  bool is_larger = false;  // the file is of the architecture Family::larger
};

Result<FoundFamily> read_family(const JsonReader& reader) {
  const Json* names = reader.find("architectures");
  if (!names || !names->array() || names->array()->size() != 1 || !names->array()->front().string()) {
    return reader.bad("architectures", "a list of one of " + family_names());
  }
  const std::string& name = *names->array()->front().string();
  for (const Family& family : kFamilies) {
    const bool is_larger = !family.larger.empty() && name == family.larger;
    if (name != family.architecture && !is_larger) continue;
    const std::string expected(is_larger ? family.larger_type : family.model_type);
    QUIRE_ASSIGN(const std::string type, reader.string("model_type", expected));
    if (type == expected) return FoundFamily{&family, is_larger};
    return unsupported(reader, "model_type " + type + " of " + name + "; expected " + expected);
  }
  return unsupported(reader, "architecture " + name + "; supported are " + family_names());
}

Status refuse_quantization(const JsonReader& reader) {
  constexpr const char* kKey = "quantization_config";
  const Json* value = reader.find(kKey);
  return value ? unsupported(reader, std::string(kKey) + " " + json_excerpt(*value)) : Status();
}

// Settings under which the same tensors mean another computation. Absent, null and the value given here are fine.
Status refuse_other_computations(const JsonReader& reader, const Family& family) {
  QUIRE_TRY(refuse_quantization(reader));
  const auto is_false = [](const Json& value) { return value.boolean() == false; };
  const auto is_nothing = [](const Json&) { return false; };
  const std::pair<const char*, bool (*)(const Json&)> neutral[] = {
      {"attn_logit_softcapping", is_nothing},
      {"final_logit_softcapping", is_nothing},
      {"attention_chunk_size", is_nothing},
      {"num_local_experts", is_nothing},
      {"rope_interleaved", is_false},
      {"is_encoder_decoder", is_false},
      {"add_cross_attention", is_false},
      {"use_mrope", is_false},
      {"use_bidirectional_attention", is_false},
  };
  for (const auto& [key, is_neutral] : neutral) {
    const Json* value = reader.find(key);
    if (value && !is_neutral(*value)) return unsupported(reader, std::string(key) + " " + json_excerpt(*value));
  }
  const std::string known = family.is_gemma ? "gelu_pytorch_tanh" : "silu";
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    QUIRE_ASSIGN(const std::string activation, reader.string(key, known));
    if (activation != known) {
      return unsupported(reader, std::string(key) + " " + activation + "; only " + known + " is supported");
    }
  }
  return {};
}

// fallback 0: there must be a value.
Status read_int(const JsonReader& reader, const char* key, int64_t most, int& out, int64_t fallback) {
  QUIRE_ASSIGN(const int64_t value,
               reader.integer(key, 1, most, fallback > 0 ? std::optional(fallback) : std::nullopt));
  out = static_cast<int>(value);
  return {};
}

Status read_shape(const JsonReader& reader, const Family& family, ModelConfig& config) {
  using Limits = ModelLimits;
  QUIRE_TRY(read_int(reader, "num_hidden_layers", Limits::kLayers, config.n_layers, family.n_layers));
  QUIRE_TRY(read_int(reader, "num_attention_heads", Limits::kHeads, config.n_query_heads, family.n_query_heads));
  QUIRE_TRY(read_int(reader, "num_key_value_heads", Limits::kHeads, config.n_kv_heads,
                     family.n_kv_heads > 0 ? family.n_kv_heads : config.n_query_heads));
  QUIRE_TRY(read_int(reader, "hidden_size", Limits::kWidth, config.hidden_size, family.hidden_size));
  QUIRE_TRY(read_int(reader, "intermediate_size", Limits::kWidth, config.intermediate_size, family.intermediate_size));
  QUIRE_TRY(read_int(reader, "vocab_size", Limits::kWidth, config.vocab_size, family.vocab_size));
  if (config.n_query_heads % config.n_kv_heads != 0) {
    return reader.bad("num_key_value_heads",
                      "a divisor of num_attention_heads (" + std::to_string(config.n_query_heads) + ")");
  }
  const int64_t head_dim = family.head_dim > 0 ? family.head_dim : config.hidden_size / config.n_query_heads;
  if (!reader.find("head_dim") && family.head_dim == 0 && config.hidden_size % config.n_query_heads != 0) {
    return reader.bad("hidden_size",
                      "a multiple of num_attention_heads (" + std::to_string(config.n_query_heads) + ")");
  }
  QUIRE_TRY(read_int(reader, "head_dim", Limits::kHeadDim, config.head_dim, head_dim));
  if (config.head_dim % 2 != 0 || config.head_dim > Limits::kHeadDim) {
    return unsupported(reader, "head_dim " + std::to_string(config.head_dim) + "; it must be even and at most " +
                                   std::to_string(Limits::kHeadDim));
  }
  QUIRE_ASSIGN(config.rotary_dim, read_rotary_dim(reader, config.head_dim, family.partial_rotary));
  return {};
}

// An id, a list of ids, or nothing; appended without repetition.
Status read_token_ids(const JsonReader& reader, const char* key, int vocab_size, std::vector<int32_t>& ids) {
  const Json* value = reader.find(key);
  if (!value) return {};
  const auto list = value->as_list();
  if (list.size() > ModelLimits::kTokenIds)
    return reader.bad(key, "at most " + std::to_string(ModelLimits::kTokenIds) + " ids");
  for (const Json& element : list) {
    const auto id = element.integer(0, vocab_size - 1);
    if (!id) {
      return reader.bad(key, "token ids below vocab_size (" + std::to_string(vocab_size) + ")");
    }
    const auto number = static_cast<int32_t>(*id);
    if (std::find(ids.begin(), ids.end(), number) == ids.end()) ids.push_back(number);
  }
  return {};
}

Status read_flags(const JsonReader& reader, const Family& family, ModelConfig& config) {
  QUIRE_ASSIGN(const double epsilon, reader.number("rms_norm_eps", 1e-12, 1, family.rms_norm_eps));
  config.rms_norm_eps = static_cast<float>(epsilon);
  QUIRE_ASSIGN(config.tie_word_embeddings, reader.boolean("tie_word_embeddings", family.tied));
  QUIRE_ASSIGN(config.mlp_bias, reader.boolean("mlp_bias", false));
  QUIRE_ASSIGN(config.o_bias, reader.boolean("attention_bias", false));
  config.qkv_bias = config.o_bias;
  config.qk_norm = family.qk_norm;
  config.fused_projections = family.fused_projections;
  if (family.attention_biases == Family::Biases::kQkv) {
    // The key is none of this architecture's: q, k and v have biases, o has none.
    config.qkv_bias = true;
    config.o_bias = false;
  }
  const bool biases = config.o_bias && family.attention_biases == Family::Biases::kNever;
  if (biases || (config.mlp_bias && !family.mlp_biases)) {
    return unsupported(
        reader, std::string(family.architecture) + " with " + (biases ? "biases of attention" : "biases of the MLP"));
  }
  return {};
}

Status read_multipliers(const JsonReader& reader, ModelConfig& config) {
  const std::pair<const char*, double*> multipliers[] = {{"embedding_multiplier", &config.embedding_multiplier},
                                                         {"residual_multiplier", &config.residual_multiplier},
                                                         {"attention_multiplier", &config.attention_multiplier},
                                                         {"logits_scaling", &config.logits_scaling}};
  for (const auto& [key, value] : multipliers) {
    QUIRE_ASSIGN(*value, reader.number(key, ModelLimits::kLeastMultiplier, ModelLimits::kMostMultiplier, 1));
  }
  return {};
}

// Norms are of 1 + w, in front of and behind attention and the MLP; embeddings are multiplied by the root of their
// width.
Status read_gemma(const JsonReader& reader, ModelConfig& config) {
  config.activation = Activation::kGelu;
  config.sandwich_norms = true;
  config.norm_offset = 1;
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  QUIRE_ASSIGN(const double scalar, reader.number("query_pre_attn_scalar", ModelLimits::kLeastMultiplier,
                                                  ModelLimits::kMostMultiplier, 256));
  config.attention_multiplier = 1 / std::sqrt(scalar);
  return {};
}

// no_rope_layers has a number for each layer, 0 where queries and keys are not rotated; without it every
// no_rope_layer_interval-th layer is such a one.
Status read_nope_layers(const JsonReader& reader, ModelConfig& config) {
  const auto n = static_cast<size_t>(config.n_layers);
  config.nope_layers.resize(n);
  if (const Json* given = reader.find("no_rope_layers")) {
    const Json::Array* layers = given->array();
    bool valid = layers && layers->size() >= n;
    for (size_t i = 0; valid && i < n; ++i) {
      const auto rotates = (*layers)[i].integer(0, 1);
      valid = rotates.has_value();
      config.nope_layers[i] = rotates == 0;
    }
    return valid ? Status() : reader.bad("no_rope_layers", "0 or 1 for each of " + std::to_string(n) + " layers");
  }
  QUIRE_ASSIGN(const int64_t interval, reader.integer("no_rope_layer_interval", 1, kMaxPositions, 4));
  for (size_t i = 0; i < n; ++i) config.nope_layers[i] = static_cast<int64_t>(i + 1) % interval == 0;
  return {};
}

// Of each layer, whether it has the sliding window of `size` that the file speaks of.
Result<std::vector<bool>> read_window_layers(const JsonReader& reader, const Family& family, const ModelConfig& config,
                                             int64_t size) {
  const auto n = static_cast<size_t>(config.n_layers);
  std::vector<bool> slides(n);
  if (const Json* types = reader.find("layer_types")) {
    if (!types->array()) return reader.bad("layer_types", "an array");
    for (size_t i = 0; i < types->array()->size(); ++i) {
      const Json& type = (*types->array())[i];
      const bool sliding = type.string() && *type.string() == "sliding_attention" && size > 0;
      if (!sliding && !(type.string() && *type.string() == "full_attention")) {
        return unsupported(reader, "layer_types with " + json_excerpt(type));
      }
      if (i < n) slides[i] = sliding;
    }
    if (types->array()->size() == n) return slides;
    return reader.bad("layer_types", "one for each of " + std::to_string(n) + " layers");
  }
  if (size == 0) return slides;
  if (!config.nope_layers.empty()) return config.nope_layers;
  if (family.window == Family::Window::kByPattern) {
    QUIRE_ASSIGN(const int64_t interval, reader.integer("sliding_window_pattern", 1, kMaxPositions, 6));
    for (size_t i = 0; i < n; ++i) slides[i] = static_cast<int64_t>(i + 1) % interval != 0;
    return slides;
  }
  QUIRE_ASSIGN(const int64_t first, reader.integer("max_window_layers", 0, kMaxPositions, 28));
  for (size_t i = 0; i < n; ++i) slides[i] = static_cast<int64_t>(i) >= first;
  return slides;
}

Status read_window(const Json& document, const JsonReader& reader, const Family& family, ModelConfig& config) {
  constexpr const char* kKey = "sliding_window";
  const Json* value = document.find(kKey);
  const bool given = value && !value->is_null();
  if (given && family.window == Family::Window::kNever) {
    return unsupported(reader, std::string(kKey) + " " + json_excerpt(*value));
  }
  bool wanted = family.window == Family::Window::kAlways || family.window == Family::Window::kByPattern;
  if (family.window == Family::Window::kOnRequest) {
    QUIRE_ASSIGN(wanted, reader.boolean("use_sliding_window", false));
  }
  int64_t size = wanted && !value ? family.sliding_window : 0;
  if (wanted && given) {
    QUIRE_ASSIGN(size, reader.integer(kKey, 1, kMaxPositions));
  }
  const bool by_layer = family.window == Family::Window::kOnRequest || family.window == Family::Window::kByPattern;
  QUIRE_ASSIGN(const std::vector<bool> slides, read_window_layers(reader, family, config, by_layer ? size : 0));
  const auto n_sliding = std::count(slides.begin(), slides.end(), true);
  if (n_sliding > 0 && n_sliding < config.n_layers) config.window_layers = slides;
  config.sliding_window = by_layer && n_sliding == 0 ? 0 : size;
  return {};
}

// Needs to know which layers have a window.
Status read_rope(const JsonReader& reader, const Family& family, ModelConfig& config) {
  RopeSettings rope;
  if (family.is_gemma) {
    constexpr double kWindowTheta = 10000;
    QUIRE_ASSIGN(LayerRopeSettings by_layer,
                 read_layer_rope_settings(reader, config.max_position_embeddings, config.rotary_dim, family.rope_theta,
                                          kWindowTheta));
    rope = std::move(by_layer.full);
    if (!config.window_layers.empty()) config.window_rope_theta = by_layer.window_theta;
    if (config.window_layers.empty() && config.sliding_window > 0) {  // all have it
      rope = RopeSettings();
      rope.theta = by_layer.window_theta;
    }
  } else {
    QUIRE_ASSIGN(rope,
                 read_rope_settings(reader, config.max_position_embeddings, config.rotary_dim, family.rope_theta));
  }
  config.rope_theta = rope.theta;
  config.rope_type = rope.type;
  config.rope_scaling = rope.term;
  config.longrope = std::move(rope.longrope);
  config.rope_original = rope.original;
  return {};
}

// Some checkpoints with interpolated positions (Vicuna 1.5 16k) give the length before that as max_position_embeddings,
// and the one they were tuned for besides.
Status read_interpolated_length(const JsonReader& reader, ModelConfig& config) {
  if (config.rope_type != "linear") return {};
  int64_t& length = config.max_position_embeddings;
  QUIRE_ASSIGN(const int64_t tuned, reader.integer("max_sequence_length", 1, kMaxPositions, length));
  if (tuned <= length) return {};
  if (config.rope_original == 0) config.rope_original = length;
  length = tuned;
  return {};
}

Status read_dual_chunk(const JsonReader& reader, DualChunkSettings& dual_chunk) {
  constexpr const char* kKey = "dual_chunk_attention_config";
  const Json* settings = reader.find(kKey);
  if (!settings) return {};
  if (!settings->object()) return reader.bad(kKey, "an object or null");
  const JsonReader inner(*settings, reader.what() + ": " + kKey);
  QUIRE_ASSIGN(dual_chunk.chunk_size, inner.integer("chunk_size", 1, kMaxPositions));
  QUIRE_ASSIGN(dual_chunk.local_size, inner.integer("local_size", 0, kMaxPositions));
  QUIRE_ASSIGN(dual_chunk.original, inner.integer("original_max_position_embeddings", 0, kMaxPositions, 0));
  if (dual_chunk.keeps_distances()) return {};
  return inner.bad("local_size", "less than half of chunk_size (" + std::to_string(dual_chunk.chunk_size) + ")");
}

Status read_text_model(const Json& document, const JsonReader& reader, const Family& family, ModelConfig& config) {
  config.architecture = family.architecture;
  QUIRE_TRY(refuse_other_computations(reader, family));
  QUIRE_TRY(read_shape(reader, family, config));
  QUIRE_TRY(read_flags(reader, family, config));
  if (family.has_multipliers) QUIRE_TRY(read_multipliers(reader, config));
  if (family.is_gemma) QUIRE_TRY(read_gemma(reader, config));
  if (family.has_nope_layers) QUIRE_TRY(read_nope_layers(reader, config));
  QUIRE_TRY(read_window(document, reader, family, config));
  QUIRE_TRY(read_dual_chunk(reader, config.dual_chunk));
  QUIRE_ASSIGN(config.beacon, read_beacon_settings(document, reader));
  QUIRE_ASSIGN(config.max_position_embeddings,
               reader.integer("max_position_embeddings", 1, kMaxPositions, family.max_positions));
  QUIRE_TRY(read_rope(reader, family, config));
  QUIRE_TRY(read_interpolated_length(reader, config));
  QUIRE_TRY(read_token_ids(reader, "bos_token_id", config.vocab_size, config.bos_token_ids));
  if (config.bos_token_ids.size() > 1) return reader.bad("bos_token_id", "at most one id");
  return read_token_ids(reader, "eos_token_id", config.vocab_size, config.eos_token_ids);
}

// A text model that is part of a larger one: what the file says of it is an object of its own.
Status read_part(const JsonReader& reader, const Family& family, ModelConfig& config) {
  constexpr const char* kText = "text_config";
  const Json* const text = reader.find(kText);
  if (!text || !text->object()) return reader.bad(kText, "an object");
  QUIRE_TRY(refuse_quantization(reader));
  const JsonReader inner(*text, reader.what() + ": " + kText);
  QUIRE_ASSIGN(const std::string type, inner.string("model_type", std::string(family.model_type)));
  if (type != family.model_type) {
    return unsupported(inner, "model_type " + type + "; expected " + std::string(family.model_type));
  }
  config.tensor_prefix = family.prefix;
  QUIRE_TRY(read_text_model(*text, inner, family, config));
  QUIRE_ASSIGN(config.tie_word_embeddings, reader.boolean("tie_word_embeddings", config.tie_word_embeddings));
  return read_token_ids(reader, "eos_token_id", config.vocab_size, config.eos_token_ids);
}

Result<ModelConfig> parse_named_config(const std::string& json, const std::string& name) {
  QUIRE_ASSIGN(const Json document, parse_json_object(json, name));
  const JsonReader reader(document, name);
  ModelConfig config;
  QUIRE_ASSIGN(const FoundFamily found, read_family(reader));
  QUIRE_TRY(found.is_larger ? read_part(reader, *found.family, config)
                            : read_text_model(document, reader, *found.family, config));
  config.json = json;
  return config;
}

}  // namespace

Result<ModelConfig> parse_model_config(const std::string& json) { return parse_named_config(json, "config.json"); }

Result<ModelConfig> load_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  QUIRE_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
  QUIRE_ASSIGN(ModelConfig config, parse_named_config(text, path));
  const std::string generation_path = directory + "/generation_config.json";
  QUIRE_ASSIGN(const bool has_generation, path_exists(generation_path));
  if (has_generation) {
    QUIRE_ASSIGN(const std::string generation_text, read_text_file(generation_path, kMaxConfigBytes));
    QUIRE_ASSIGN(const Json generation, parse_json_object(generation_text, generation_path));
    QUIRE_TRY(read_token_ids(JsonReader(generation, generation_path), "eos_token_id", config.vocab_size,
                             config.eos_token_ids));
  }
  return config;
}

}  // namespace quire
