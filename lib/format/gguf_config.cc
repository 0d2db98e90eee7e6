#include "lib/format/gguf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/gguf_metadata.h"
#include "lib/format/gguf_token_ids.h"
#include "lib/format/json.h"
#include "lib/format/rope_scaling.h"

namespace quire {
namespace {

using Limits = ModelLimits;

constexpr double kMaxFactor = 1e6;
constexpr double kMinTheta = 1.0 + 1e-6;  // frequencies must fall
constexpr double kMaxTheta = 1e15;

struct Architecture {
  std::string_view name;
  std::string_view hugging_face;
  bool has_window = false;
  bool needs_qk_norm = false;
  int nope_interval = 0;  // every so many-th layer is without RoPE; no key says so. 0: none is
  bool fused_projections = false;
  bool partial_rotary = false;   // rope.dimension_count may be less than a head's dimensions
  bool has_longrope = false;     // tensors of factors may be there
  bool has_multipliers = false;  // of embeddings, blocks, attention and logits
  bool is_gemma = false;
};

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .hugging_face = "LlamaForCausalLM", .has_window = true},
    {.name = "mistral", .hugging_face = "MistralForCausalLM", .has_window = true},
    {.name = "mistral3", .hugging_face = "MistralForCausalLM", .has_window = true},
    {.name = "qwen2", .hugging_face = "Qwen2ForCausalLM"},
    {.name = "qwen3", .hugging_face = "Qwen3ForCausalLM", .needs_qk_norm = true},
    {.name = "smollm3", .hugging_face = "SmolLM3ForCausalLM", .nope_interval = 4},
    {.name = "phi3",
     .hugging_face = "Phi3ForCausalLM",
     .has_window = true,
     .fused_projections = true,
     .partial_rotary = true,
     .has_longrope = true},
    {.name = "granite", .hugging_face = "GraniteForCausalLM", .has_multipliers = true},
    {.name = "gemma3", .hugging_face = "Gemma3ForCausalLM", .needs_qk_norm = true, .is_gemma = true}};

Status unsupported(const std::string& what) { return Status(Code::kUnsupported, what); }

class Reader {
 public:
  Reader(const GgufHeader& header, const GgufRopeTensors& rope_tensors, const Architecture& architecture)
      : header_(header), rope_tensors_(rope_tensors), architecture_(architecture), metadata_(header) {}

  Result<ModelConfig> read() {
    config_.architecture = architecture_.hugging_face;
    QUIRE_TRY(refuse_other_computations());
    QUIRE_TRY(read_shape());
    QUIRE_TRY(read_multipliers());
    if (architecture_.is_gemma) QUIRE_TRY(read_gemma());
    QUIRE_TRY(read_vocabulary());
    QUIRE_TRY(read_parts());
    QUIRE_TRY(read_window());
    QUIRE_TRY(read_rope());
    QUIRE_TRY(read_dual_chunk());
    QUIRE_TRY(read_gguf_token_ids(header_, config_));
    describe();
    return std::move(config_);
  }

 private:
  std::string key(std::string_view name) const { return std::string(architecture_.name) + "." + std::string(name); }
  bool has_tensor(const std::string& name) const { return header_.tensors.contains(name); }

  Status refuse_other_computations() const;
  Status read_shape();
  Result<int64_t> per_layer(const char* name, int64_t most, std::optional<int64_t> fallback = {}) const;
  Status read_head_dim();
  Status read_multipliers();
  Status read_vocabulary();
  Status read_parts();
  Result<bool> has_parts(std::initializer_list<const char*> names) const;
  Status read_window();
  Status read_window_layers();
  Status read_gemma();
  Status read_rope();
  Status read_yarn(double factor);
  Status read_longrope();
  Result<std::vector<double>> rope_factors(const char* tensor) const;
  Status read_dual_chunk();
  void describe();

  const GgufHeader& header_;
  const GgufRopeTensors& rope_tensors_;
  const Architecture& architecture_;
  const GgufMetadata metadata_;
  ModelConfig config_;
};

// Keys and tensors under which the same weights mean another computation.
Status Reader::refuse_other_computations() const {
  constexpr std::pair<const char*, double> kNeutral[] = {
      {"expert_count", 0},           {"nextn_predict_layers", 0},     {"attention.temperature_scale", 0},
      {"attention.clamp_kqv", 0},    {"attention.max_alibi_bias", 0}, {"attn_logit_softcapping", 0},
      {"final_logit_softcapping", 0}};
  for (const auto& [name, neutral] : kNeutral) {
    const GgufValue* value = metadata_.find(key(name));
    if (!value) continue;
    const auto number = GgufMetadata::as_number(*value);
    if (number != neutral && number != 0) return unsupported(key(name) + " " + printed(*value));
  }
  const GgufValue* causal = metadata_.find(key("attention.causal"));
  if (causal && (!causal->boolean() || !*causal->boolean())) {
    return unsupported(key("attention.causal") + " " + printed(*causal));
  }
  // A switch in files of granite; others say by it how they were trained.
  if (const GgufValue* rotates = metadata_.find(key("rope.scaling.finetuned"));
      architecture_.has_multipliers && rotates && rotates->boolean() && !*rotates->boolean()) {
    return unsupported(key("rope.scaling.finetuned") + " false, which means that no layer rotates");
  }
  if (metadata_.find(key("rope.dimension_sections"))) return unsupported(key("rope.dimension_sections"));
  const bool fused = architecture_.fused_projections, longrope = architecture_.has_longrope;
  const std::pair<const char*, bool> kTensors[] = {{"output.bias", false},
                                                   {"blk.0.attn_qkv.weight", fused},
                                                   {"blk.0.attn_qkv.bias", false},
                                                   {"blk.0.ffn_gate_inp.weight", false},
                                                   {kGgufRopeFactorsLong, longrope},
                                                   {kGgufRopeFactorsShort, longrope},
                                                   {"blk.0.attn_sinks.weight", false}};
  for (const auto& [name, is_known] : kTensors) {
    if (!is_known && has_tensor(name)) return unsupported("tensor " + std::string(name));
  }
  return {};
}

// A number of all layers; some files have one for each.
Result<int64_t> Reader::per_layer(const char* name, int64_t most, std::optional<int64_t> fallback) const {
  const GgufValue* value = metadata_.find(key(name));
  const GgufValue::Integers* list = value ? value->integers() : nullptr;
  if (!list) return metadata_.integer(key(name), 1, most, fallback);
  if (static_cast<int>(list->size()) != config_.n_layers) {
    return metadata_.bad(key(name), "one number, or " + std::to_string(config_.n_layers));
  }
  for (const int64_t number : *list) {
    if (number != list->front()) return unsupported(key(name) + " that differs between layers");
  }
  if (list->front() >= 1 && list->front() <= most) return list->front();
  return metadata_.bad(key(name), "integers from 1 to " + std::to_string(most));
}

Status Reader::read_shape() {
  QUIRE_ASSIGN(const int64_t layers, metadata_.integer(key("block_count"), 1, Limits::kLayers));
  config_.n_layers = static_cast<int>(layers);
  QUIRE_ASSIGN(const int64_t hidden, metadata_.integer(key("embedding_length"), 1, Limits::kWidth));
  config_.hidden_size = static_cast<int>(hidden);
  QUIRE_ASSIGN(const int64_t between, per_layer("feed_forward_length", Limits::kWidth));
  config_.intermediate_size = static_cast<int>(between);
  QUIRE_ASSIGN(const int64_t heads, per_layer("attention.head_count", Limits::kHeads));
  config_.n_query_heads = static_cast<int>(heads);
  QUIRE_ASSIGN(const int64_t kv_heads, per_layer("attention.head_count_kv", Limits::kHeads, heads));
  config_.n_kv_heads = static_cast<int>(kv_heads);
  if (heads % kv_heads != 0) {
    return metadata_.bad(key("attention.head_count_kv"), "a divisor of the head count " + std::to_string(heads));
  }
  QUIRE_TRY(read_head_dim());
  QUIRE_ASSIGN(const double epsilon, metadata_.number(key("attention.layer_norm_rms_epsilon"), 1e-12, 1));
  config_.rms_norm_eps = static_cast<float>(epsilon);
  QUIRE_ASSIGN(config_.max_position_embeddings, metadata_.integer(key("context_length"), 1, Limits::kPositions));
  return {};
}

Status Reader::read_head_dim() {
  const std::string length = key("attention.key_length");
  if (!metadata_.find(length) && config_.hidden_size % config_.n_query_heads != 0) {
    return metadata_.bad(key("embedding_length"),
                         "a multiple of the head count " + std::to_string(config_.n_query_heads));
  }
  QUIRE_ASSIGN(const int64_t d,
               metadata_.integer(length, 1, Limits::kHeadDim, config_.hidden_size / config_.n_query_heads));
  if (d % 2 != 0 || d > Limits::kHeadDim) {
    return unsupported("heads of " + std::to_string(d) + " dimensions (" + length +
                       "); they must be even and at most " + std::to_string(Limits::kHeadDim));
  }
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    QUIRE_ASSIGN(const int64_t other, metadata_.integer(key(name), 1, Limits::kWidth, d));
    const bool rotates = name == std::string_view("rope.dimension_count");
    if (rotates) config_.rotary_dim = static_cast<int>(other);
    if (other == d || (rotates && architecture_.partial_rotary && other < d && other % 2 == 0)) continue;
    return unsupported(key(name) + " " + std::to_string(other) + "; expected " + std::to_string(d) +
                       ", all dimensions of a head");
  }
  config_.head_dim = static_cast<int>(d);
  return {};
}

// 0, as no key at all, stands for the usual value. Architectures that have no such factors may give that value, too.
Status Reader::read_multipliers() {
  const struct {
    const char* name;
    double* value;
    double usual;
  } multipliers[] = {{"embedding_scale", &config_.embedding_multiplier, 1},
                     {"residual_scale", &config_.residual_multiplier, 1},
                     {"attention.scale", &config_.attention_multiplier, config_.attention_scale()},
                     {"logit_scale", &config_.logits_scaling, 1}};
  for (const auto& [name, value, usual] : multipliers) {
    const GgufValue* given = metadata_.find(key(name));
    if (!given || GgufMetadata::as_number(*given) == 0.0) continue;
    QUIRE_ASSIGN(const double number, metadata_.number(key(name), Limits::kLeastMultiplier, Limits::kMostMultiplier));
    if (std::fabs(number / usual - 1) <= 1e-6) continue;
    if (!architecture_.has_multipliers) return unsupported(key(name) + " " + printed(*given));
    *value = number;
  }
  return {};
}

// As many words as the tokenizer has; a key that differs is a remainder of the checkpoint that was converted.
Status Reader::read_vocabulary() {
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  const GgufValue* tokens = metadata_.find(kTokens);
  if (tokens) {
    const bool fits =
        tokens->strings() && !tokens->strings()->empty() && tokens->strings()->size() <= size_t{Limits::kWidth};
    if (!fits) return metadata_.bad(kTokens, "a list of texts");
    config_.vocab_size = static_cast<int>(tokens->strings()->size());
    return {};
  }
  QUIRE_ASSIGN(const int64_t size, metadata_.integer(key("vocab_size"), 1, Limits::kWidth));
  config_.vocab_size = static_cast<int>(size);
  return {};
}

// Whether each layer has all of blk.LAYER.NAME; some of them: kBadFile.
Result<bool> Reader::has_parts(std::initializer_list<const char*> names) const {
  std::string there, missing;
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    for (const char* name : names) {
      const std::string tensor = "blk." + std::to_string(layer) + "." + name;
      (has_tensor(tensor) ? there : missing) = tensor;
      if (there.empty() || missing.empty()) continue;
      return Status(Code::kBadFile, "tensor " + missing + " is missing; " + there + " is there");
    }
  }
  return missing.empty();
}

Status Reader::read_parts() {
  QUIRE_ASSIGN(config_.qkv_bias, has_parts({"attn_q.bias", "attn_k.bias", "attn_v.bias"}));
  QUIRE_ASSIGN(config_.o_bias, has_parts({"attn_output.bias"}));
  QUIRE_ASSIGN(config_.mlp_bias, has_parts({"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"}));
  QUIRE_ASSIGN(config_.qk_norm, has_parts({"attn_q_norm.weight", "attn_k_norm.weight"}));
  if (architecture_.needs_qk_norm && !config_.qk_norm) {
    return Status(Code::kBadFile, "tensor blk.0.attn_q_norm.weight is missing");
  }
  config_.fused_projections = architecture_.fused_projections;
  config_.tie_word_embeddings = !has_tensor("output.weight");
  if (architecture_.nope_interval > 0) {
    for (int layer = 1; layer <= config_.n_layers; ++layer) {
      config_.nope_layers.push_back(layer % architecture_.nope_interval == 0);
    }
  }
  return {};
}

Status Reader::read_window() {
  const std::string window = key("attention.sliding_window");
  QUIRE_ASSIGN(config_.sliding_window, metadata_.integer(window, 0, Limits::kPositions, 0));
  if (architecture_.is_gemma) return read_window_layers();
  if (const GgufValue* pattern = metadata_.find(key("attention.sliding_window_pattern"));
      pattern && GgufMetadata::as_number(*pattern) != 0.0) {
    return unsupported(key("attention.sliding_window_pattern") + " " + printed(*pattern));
  }
  if (architecture_.has_window || config_.sliding_window == 0) return {};
  // Which layers have it, files of these architectures do not say.
  return unsupported(window + " " + std::to_string(config_.sliding_window));
}

// The file may give the interval of layers without one, or say it of each layer.
Status Reader::read_window_layers() {
  if (config_.sliding_window == 0) return {};
  const std::string pattern = key("attention.sliding_window_pattern");
  const auto n = static_cast<size_t>(config_.n_layers);
  std::vector<bool> slides(n);
  const GgufValue* value = metadata_.find(pattern);
  if (const GgufValue::Integers* list = value ? value->integers() : nullptr) {
    if (list->size() != n) return metadata_.bad(pattern, "one number, or " + std::to_string(n));
    for (size_t i = 0; i < n; ++i) slides[i] = (*list)[i] != 0;
  } else {
    QUIRE_ASSIGN(const int64_t interval, metadata_.integer(pattern, 1, Limits::kPositions, GgufGemma3::kInterval));
    for (size_t i = 0; i < n; ++i) slides[i] = static_cast<int64_t>(i + 1) % interval != 0;
  }
  const auto n_sliding = static_cast<size_t>(std::count(slides.begin(), slides.end(), true));
  if (n_sliding == 0) config_.sliding_window = 0;
  QUIRE_ASSIGN(const double theta,
               metadata_.number(key("rope.freq_base_swa"), kMinTheta, kMaxTheta, GgufGemma3::kWindowTheta));
  if (n_sliding > 0) config_.window_rope_theta = theta;
  if (n_sliding > 0 && n_sliding < n) config_.window_layers = slides;
  return {};
}

// Gemma's factors follow from its shape.
Status Reader::read_gemma() {
  config_.activation = Activation::kGelu;
  config_.sandwich_norms = true;
  config_.norm_offset = 1;
  config_.norm_offset_is_stored = true;
  config_.embedding_multiplier = std::sqrt(static_cast<double>(config_.hidden_size));
  config_.attention_multiplier = GgufGemma3::attention_scale(config_);
  QUIRE_ASSIGN(const bool there, has_parts({"post_attention_norm.weight", "post_ffw_norm.weight"}));
  if (there) return {};
  return Status(Code::kBadFile, "tensors blk.LAYER.post_attention_norm.weight and post_ffw_norm.weight are missing");
}

Status Reader::read_rope() {
  QUIRE_ASSIGN(config_.rope_theta, metadata_.number(key("rope.freq_base"), kMinTheta, kMaxTheta, 10000));
  const std::string original = key("rope.scaling.original_context_length");
  QUIRE_ASSIGN(config_.rope_original, metadata_.integer(original, 1, Limits::kPositions, 0));
  std::string factor_key = key("rope.scaling.factor");
  if (!metadata_.find(factor_key)) factor_key = key("rope.scale_linear");  // of older files
  const GgufValue* given = metadata_.find(factor_key);
  double factor = 1;
  if (given && GgufMetadata::as_number(*given) != 0.0) {  // 0: none
    QUIRE_ASSIGN(factor, metadata_.number(factor_key, 1, kMaxFactor));
  }
  const std::string type_key = key("rope.scaling.type");
  QUIRE_ASSIGN(const std::string type, metadata_.string(type_key, "linear"));
  if (type == "yarn") {
    QUIRE_TRY(read_yarn(factor));
  } else if (type == "linear") {
    if (factor != 1) {
      config_.rope_type = type;
      config_.rope_scaling = rope_term("pi", std::array{std::pair{"factor", factor}});
    }
  } else if (type != "none") {
    return unsupported(type_key + " " + json_excerpt(type) + "; supported are none, linear, yarn");
  }
  QUIRE_TRY(read_longrope());
  if (config_.window_rope_theta > 0 && config_.window_layers.empty()) {  // all layers have the window
    config_.rope_theta = std::exchange(config_.window_rope_theta, 0);
    config_.rope_type = "default";
    config_.rope_scaling.clear();
  }
  if (!rope_tensors_.contains(kGgufRopeFreqs)) return {};
  if (!config_.rope_scaling.empty()) {
    return unsupported(std::string("tensor ") + kGgufRopeFreqs + " beside " + type_key + " " + config_.rope_type);
  }
  QUIRE_ASSIGN(config_.freq_factors, rope_factors(kGgufRopeFreqs));
  config_.rope_type = config_.rope_scaling = "freq_factors";
  return {};
}

// The values of a tensor as divisors of the frequencies.
Result<std::vector<double>> Reader::rope_factors(const char* tensor) const {
  const std::vector<float>& values = rope_tensors_.find(tensor)->second;
  const auto valid = [](float f) { return f >= 1 / kMaxFactor && f <= kMaxFactor; };
  if (static_cast<int>(values.size()) == config_.rotary_dim / 2 && std::all_of(values.begin(), values.end(), valid)) {
    return std::vector<double>(values.begin(), values.end());
  }
  return Status(Code::kBadFile, "tensor " + std::string(tensor) + ": expected " +
                                    std::to_string(config_.rotary_dim / 2) +
                                    " numbers from 0.000001 to 1000000, one per pair of a head's dimensions that turn");
}

// Two tensors of factors, and keys; where those do not say otherwise, the attention factor is the paper's.
Status Reader::read_longrope() {
  const bool there = rope_tensors_.contains(kGgufRopeFactorsLong);
  if (there != rope_tensors_.contains(kGgufRopeFactorsShort)) {
    return Status(Code::kBadFile, std::string("tensor ") + (there ? kGgufRopeFactorsShort : kGgufRopeFactorsLong) +
                                      " is missing; " + (there ? kGgufRopeFactorsLong : kGgufRopeFactorsShort) +
                                      " is there");
  }
  if (!there) return {};
  if (!config_.rope_scaling.empty()) {
    return unsupported(std::string("tensor ") + kGgufRopeFactorsLong + " beside rope.scaling.type " +
                       config_.rope_type);
  }
  LongRopeSettings& longrope = config_.longrope;
  QUIRE_ASSIGN(longrope.long_factors, rope_factors(kGgufRopeFactorsLong));
  QUIRE_ASSIGN(longrope.short_factors, rope_factors(kGgufRopeFactorsShort));
  longrope.original = config_.rope_original > 0 ? config_.rope_original : config_.max_position_embeddings;
  QUIRE_ASSIGN(longrope.attention_factor,
               metadata_.number(key("rope.scaling.attn_factor"), 1e-6, 1e6,
                                longrope_attention_factor(config_.max_position_embeddings, longrope.original)));
  config_.rope_type = "longrope";
  config_.rope_scaling = longrope_term(longrope);
  return {};
}

// Keys that are not there say the usual: those of the paper.
Status Reader::read_yarn(double factor) {
  const std::string extrapolation = key("rope.scaling.yarn_ext_factor");
  if (const GgufValue* value = metadata_.find(extrapolation); value && GgufMetadata::as_number(*value) != 1.0) {
    return unsupported(extrapolation + " " + printed(*value) + "; only 1 is supported");
  }
  const int64_t original = config_.rope_original > 0 ? config_.rope_original : config_.max_position_embeddings;
  std::vector<std::pair<const char*, double>> arguments = {{"factor", factor},
                                                           {"original", static_cast<double>(original)}};
  for (const char* beta : {"beta_fast", "beta_slow"}) {
    const std::string name = key("rope.scaling.yarn_" + std::string(beta));
    if (!metadata_.find(name)) continue;
    QUIRE_ASSIGN(const double turns, metadata_.number(name, 1e-3, 1e6));
    arguments.emplace_back(beta, turns);
  }
  // The attention factor is the paper's, divided by that of another multiplier, and times two factors. Converters write
  // either of config.json's attn_factor, which is such a factor, and attention_factor, the whole, under
  // yarn_attn_factor: the number that is the paper's own is the whole.
  const auto scale = [&](double m) { return 0.1 * m * std::log(factor) + 1; };
  QUIRE_ASSIGN(const double multiplier, metadata_.number(key("rope.scaling.yarn_log_multiplier"), 0, 1e3, 0));
  QUIRE_ASSIGN(double yarn, metadata_.number(key("rope.scaling.yarn_attn_factor"), 1e-6, 1e6, 1));
  QUIRE_ASSIGN(const double more, metadata_.number(key("rope.scaling.attn_factor"), 1e-6, 1e6, 1));
  if (std::abs(yarn - scale(1)) <= 1e-6 * scale(1)) yarn = 1;
  const double attention = (multiplier > 0 ? scale(1) / scale(multiplier) : scale(1)) * yarn * more;
  if (attention != scale(1)) arguments.emplace_back("attention_factor", attention);
  config_.rope_type = "yarn";
  config_.rope_scaling = rope_term("yarn", arguments);
  return {};
}

Status Reader::read_dual_chunk() {
  using Keys = GgufDualChunk;
  if (!metadata_.find(Keys::kChunkSize)) return {};
  DualChunkSettings& dual_chunk = config_.dual_chunk;
  QUIRE_ASSIGN(dual_chunk.chunk_size, metadata_.integer(Keys::kChunkSize, 1, Limits::kPositions));
  QUIRE_ASSIGN(dual_chunk.local_size, metadata_.integer(Keys::kLocalSize, 0, Limits::kPositions));
  QUIRE_ASSIGN(dual_chunk.original, metadata_.integer(Keys::kOriginal, 0, Limits::kPositions, 0));
  if (dual_chunk.keeps_distances()) return {};
  return metadata_.bad(Keys::kLocalSize,
                       "less than half of the chunk size (" + std::to_string(dual_chunk.chunk_size) + ")");
}

void Reader::describe() {
  Json::Object object;
  object.emplace("general.architecture", Json(std::string(architecture_.name)));
  const std::string prefix = key("");
  for (auto at = header_.metadata.lower_bound(prefix); at != header_.metadata.end() && at->first.starts_with(prefix);
       ++at) {
    const auto& [name, value] = *at;
    if (value.boolean()) object.emplace(name, Json(*value.boolean()));
    if (value.integer()) object.emplace(name, Json(*value.integer()));
    if (value.number() && std::isfinite(*value.number())) object.emplace(name, Json(*value.number()));
    if (const auto* list = value.integers(); list && static_cast<int>(list->size()) == config_.n_layers) {
      Json::Array numbers;
      for (const int64_t number : *list) numbers.emplace_back(number);
      object.emplace(name, Json(std::move(numbers)));
    }
  }
  if (config_.rope_type == "yarn") object.emplace(key("rope.scaling.type"), Json(config_.rope_type));
  for (const auto& [name, values] : rope_tensors_) {
    Json::Array factors;
    for (const float factor : values) factors.emplace_back(static_cast<double>(factor));
    object.emplace(name, Json(std::move(factors)));
  }
  Json(std::move(object)).print(config_.json, SIZE_MAX);
}

}  // namespace

// Of the largest model, whose heads are smaller than its width says, the width counts.
double GgufGemma3::attention_scale(const ModelConfig& config) {
  constexpr int kLayersOf27B = 62;
  const int dimensions = config.n_layers == kLayersOf27B ? config.hidden_size / config.n_query_heads : config.head_dim;
  return 1 / std::sqrt(static_cast<double>(dimensions));
}

Result<ModelConfig> gguf_model_config(const GgufHeader& header, const GgufRopeTensors& rope_tensors) {
  constexpr const char* kKey = "general.architecture";
  const GgufMetadata metadata(header);
  const GgufValue* name = metadata.find(kKey);
  if (!name || !name->string()) return metadata.bad(kKey, "a text");
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (*name->string() == architecture.name) return Reader(header, rope_tensors, architecture).read();
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return unsupported(std::string(kKey) + " " + json_excerpt(*name->string()) + "; supported are " + names);
}

}  // namespace quire
