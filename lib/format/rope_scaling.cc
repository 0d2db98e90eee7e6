#include "lib/format/rope_scaling.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

namespace quire {
namespace {

constexpr double kMaxFactor = 1e6;
constexpr int64_t kMaxPositions = int64_t{1} << 40;
constexpr double kMinTheta = 1.0 + 1e-6;  // frequencies must fall
constexpr double kMaxTheta = 1e15;
constexpr double kAbsent = 0;

// The shortest text that reads back as the same double; never with an exponent, whose sign could be taken for the "+"
// between the terms of a strategy expression.
std::string number_text(double value) {
  char buffer[512];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  return std::string(buffer, end);
}

// Writes "name(key=value, ...)".
class Term {
 public:
  explicit Term(std::string name) : text_(std::move(name)) {}
  Term& add(const char* key, double value) {
    text_ += (empty_ ? "(" : ", ") + std::string(key) + "=" + number_text(value);
    empty_ = false;
    return *this;
  }
  std::string text() const { return text_ + (empty_ ? "" : ")"); }

 private:
  std::string text_;
  bool empty_ = true;
};

Status refuse_unknown_keys(const Json& settings, const JsonReader& reader, const std::string& type,
                           std::vector<std::string_view> known) {
  // Keys any type may carry: `finetuned` is a remark some YaRN checkpoints make, the original length is merely not
  // needed by the simpler types.
  for (const char* key : {"rope_type", "type", "rope_theta", "factor", "finetuned", "partial_rotary_factor",
                          "original_max_position_embeddings"}) {
    known.push_back(key);
  }
  for (const auto& [key, value] : *settings.object()) {
    if (value.is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    return Status(Code::kUnsupported, reader.what() + ": unknown setting " + key + " of RoPE type " + type);
  }
  return {};
}

Result<int64_t> original_length(const JsonReader& reader, const JsonReader& config, int64_t fallback) {
  constexpr const char* kKey = "original_max_position_embeddings";
  // Where both levels of the file name it, the outer one counts, as in transformers.
  return (config.find(kKey) ? config : reader).integer(kKey, 1, kMaxPositions, fallback);
}

Result<std::string> yarn_term(const JsonReader& reader, const JsonReader& config, int64_t max_positions) {
  QUIRE_ASSIGN(const int64_t original, original_length(reader, config, max_positions));
  const double ratio = std::max(1.0, static_cast<double>(max_positions) / static_cast<double>(original));
  QUIRE_ASSIGN(const double factor, reader.number("factor", 1, kMaxFactor, std::min(ratio, kMaxFactor)));
  Term term("yarn");
  term.add("factor", factor).add("original", static_cast<double>(original));
  for (const char* key : {"beta_fast", "beta_slow"}) {
    if (!reader.find(key)) continue;
    QUIRE_ASSIGN(const double beta, reader.number(key, 1e-3, 1e6));
    term.add(key, beta);
  }
  // attn_factor is a factor on the paper's attention factor, as in the paper's own program and vLLM. transformers does
  // not know it; DeepSeek-R1-0528-Qwen3-8B, whose factor makes the whole 1, was published with it.
  QUIRE_ASSIGN(const double attn_factor, reader.number("attn_factor", 1e-6, 1e6, 1));
  if (reader.find("attention_factor")) {  // the whole
    QUIRE_ASSIGN(const double attention_factor, reader.number("attention_factor", 1e-6, 1e6));
    term.add("attention_factor", attention_factor);
  } else {
    // A pair that stands for an attention factor; either one alone, or zero, means nothing.
    QUIRE_ASSIGN(const double mscale, reader.number("mscale", 0, 1e3, 0));
    QUIRE_ASSIGN(const double mscale_all, reader.number("mscale_all_dim", 0, 1e3, 0));
    const auto scale = [&](double m) { return 0.1 * m * std::log(factor) + 1; };
    const bool is_pair = mscale > 0 && mscale_all > 0;
    const double usual = is_pair ? scale(mscale) / scale(mscale_all) : scale(1);
    if (is_pair || attn_factor != 1) term.add("attention_factor", usual * attn_factor);
  }
  if (reader.find("truncate")) {
    QUIRE_ASSIGN(const bool truncate, reader.boolean("truncate", true));
    term.add("truncate", truncate ? 1 : 0);
  }
  return term.text();
}

Result<std::string> llama3_term(const JsonReader& reader, const JsonReader& config, int64_t max_positions) {
  QUIRE_ASSIGN(const double factor, reader.number("factor", 1, kMaxFactor));
  QUIRE_ASSIGN(const double low, reader.number("low_freq_factor", 1e-6, 1e6));
  QUIRE_ASSIGN(const double high, reader.number("high_freq_factor", 1e-6, 1e6));
  if (!(low < high)) return reader.bad("high_freq_factor", "more than low_freq_factor");
  QUIRE_ASSIGN(const int64_t original, original_length(reader, config, max_positions));
  Term term("llama3");
  term.add("factor", factor).add("low", low).add("high", high).add("original", static_cast<double>(original));
  return term.text();
}

Result<std::vector<double>> factor_list(const JsonReader& reader, const char* key, int rotary_dim) {
  constexpr double kMinFactor = 1e-6;
  const auto n = static_cast<size_t>(rotary_dim / 2);
  const Json* value = reader.find(key);
  const Json::Array* list = value ? value->array() : nullptr;
  std::vector<double> factors;
  for (size_t i = 0; list && list->size() == n && i < n; ++i) {
    const auto factor = (*list)[i].number();
    if (factor && *factor >= kMinFactor && *factor <= kMaxFactor) factors.push_back(*factor);
  }
  if (factors.size() == n) return factors;
  return reader.bad(
      key, std::to_string(n) + " numbers from 0.000001 to 1000000, one per pair of a head's dimensions that turn");
}

double attention_factor_of(double factor, double original) {
  return factor > 1 && original > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
}

Result<LongRopeSettings> longrope_settings(const JsonReader& reader, const JsonReader& config, int64_t max_positions,
                                           int rotary_dim) {
  LongRopeSettings longrope;
  QUIRE_ASSIGN(longrope.short_factors, factor_list(reader, "short_factor", rotary_dim));
  QUIRE_ASSIGN(longrope.long_factors, factor_list(reader, "long_factor", rotary_dim));
  QUIRE_ASSIGN(longrope.original, original_length(reader, config, max_positions));
  const double original = static_cast<double>(longrope.original);
  const double ratio = std::min(static_cast<double>(max_positions) / original, kMaxFactor);
  QUIRE_ASSIGN(const double factor, reader.number("factor", 1e-6, kMaxFactor, ratio));
  const double usual = attention_factor_of(factor, original);
  QUIRE_ASSIGN(longrope.attention_factor, reader.number("attention_factor", 1e-6, 1e6, usual));
  return longrope;
}

struct Source {
  const JsonReader& reader;  // of the RoPE settings
  const JsonReader& config;  // of the whole file
  int64_t max_positions;
  int rotary_dim;
};

Result<std::string> scaling_term(const std::string& type, const Json& settings, const Source& source,
                                 LongRopeSettings& longrope) {
  const auto& [reader, config, max_positions, rotary_dim] = source;
  if (type == "default") {
    QUIRE_TRY(refuse_unknown_keys(settings, reader, type, {}));
    return std::string();
  }
  if (type == "linear" || type == "vanilla_ntk") {
    QUIRE_TRY(refuse_unknown_keys(settings, reader, type, {}));
    QUIRE_ASSIGN(const double factor, reader.number("factor", 1, kMaxFactor));
    return Term(type == "linear" ? "pi" : "ntk").add("factor", factor).text();
  }
  if (type == "yarn") {
    QUIRE_TRY(refuse_unknown_keys(
        settings, reader, type,
        {"beta_fast", "beta_slow", "attention_factor", "attn_factor", "mscale", "mscale_all_dim", "truncate"}));
    return yarn_term(reader, config, max_positions);
  }
  if (type == "llama3") {
    QUIRE_TRY(refuse_unknown_keys(settings, reader, type, {"low_freq_factor", "high_freq_factor"}));
    return llama3_term(reader, config, max_positions);
  }
  if (type == "dynamic") {
    QUIRE_TRY(refuse_unknown_keys(settings, reader, type, {}));
    QUIRE_ASSIGN(const double factor, reader.number("factor", 1, kMaxFactor));
    return Term("dynamic_ntk").add("factor", factor).text();
  }
  if (type == "longrope") {
    QUIRE_TRY(refuse_unknown_keys(settings, reader, type, {"short_factor", "long_factor", "attention_factor"}));
    QUIRE_ASSIGN(longrope, longrope_settings(reader, config, max_positions, rotary_dim));
    return longrope_term(longrope);
  }
  return Status(Code::kUnsupported, reader.what() + ": RoPE type " + type +
                                        " is not supported; supported are default, linear, vanilla_ntk, dynamic, yarn, "
                                        "longrope, llama3");
}

// One of the two objects; absent: the defaults.
Result<RopeSettings> read_settings(const JsonReader& config, const char* key, int64_t max_positions, int rotary_dim) {
  RopeSettings rope;
  rope.theta = kAbsent;
  const Json* settings = config.find(key);
  if (!settings) return rope;
  if (!settings->object()) return config.bad(key, "an object or null");
  const JsonReader reader(*settings, config.what() + ": " + key);
  for (const auto& [name, value] : *settings->object()) {
    if (value.object()) {
      return Status(Code::kUnsupported, reader.what() + ": settings that differ between layers (" + name + ")");
    }
  }
  QUIRE_ASSIGN(const std::string older, reader.string("type", "default"));
  QUIRE_ASSIGN(rope.type, reader.string("rope_type", older));
  if (rope.type == "su") rope.type = "longrope";
  if (reader.find("rope_type") && reader.find("type") && older != rope.type) {
    return reader.bad("type", "the same as rope_type (" + rope.type + ")");
  }
  QUIRE_ASSIGN(rope.term,
               scaling_term(rope.type, *settings, {reader, config, max_positions, rotary_dim}, rope.longrope));
  QUIRE_ASSIGN(rope.theta, reader.number("rope_theta", kMinTheta, kMaxTheta, kAbsent));
  QUIRE_ASSIGN(rope.original, original_length(reader, config, 0));
  return rope;
}

// rope_scaling beside rope_parameters, of which `rope` was read, must say the same.
Status check_older_form(const JsonReader& config, const RopeSettings& older, const RopeSettings& rope) {
  constexpr const char* kKey = "rope_scaling";
  if (!config.find(kKey) || (older.term == rope.term && older.longrope == rope.longrope)) return {};
  return config.bad(kKey, "what rope_parameters says: " + rope.type);
}

}  // namespace

std::string rope_term(std::string name, std::span<const std::pair<const char*, double>> arguments) {
  Term term(std::move(name));
  for (const auto& [key, value] : arguments) term.add(key, value);
  return term.text();
}

double longrope_attention_factor(int64_t max_positions, int64_t original) {
  return attention_factor_of(static_cast<double>(max_positions) / static_cast<double>(original),
                             static_cast<double>(original));
}

std::string longrope_term(const LongRopeSettings& longrope) {
  return Term("longrope")
      .add("original", static_cast<double>(longrope.original))
      .add("attention_factor", longrope.attention_factor)
      .text();
}

Result<int> read_rotary_dim(const JsonReader& config, int head_dim, bool partial) {
  constexpr const char* kKey = "partial_rotary_factor";
  double factor = kAbsent;
  std::string where = config.what();
  for (const char* outer : {"", "rope_scaling", "rope_parameters"}) {
    const Json* settings = *outer ? config.find(outer) : nullptr;
    if (*outer && (!settings || !settings->object())) continue;
    const JsonReader reader = *outer ? JsonReader(*settings, config.what() + ": " + outer) : config;
    if (!reader.find(kKey)) continue;
    QUIRE_ASSIGN(const double here, reader.number(kKey, 1e-6, 1));
    if (factor != kAbsent && here != factor) return reader.bad(kKey, "one value throughout the file");
    factor = here;
    where = reader.what();
  }
  if (factor == kAbsent || factor == 1) return head_dim;
  if (!partial) return Status(Code::kUnsupported, where + ": " + kKey + " " + number_text(factor));
  const int rotary_dim = static_cast<int>(factor * head_dim);  // as transformers
  if (rotary_dim >= 2 && rotary_dim % 2 == 0) return rotary_dim;
  return Status(Code::kBadFile, where + ": " + kKey + " " + number_text(factor) + " of heads of " +
                                    std::to_string(head_dim) + " dimensions is " + std::to_string(rotary_dim) +
                                    "; expected an even number of at least 2");
}

Result<RopeSettings> read_rope_settings(const JsonReader& config, int64_t max_position_embeddings, int rotary_dim,
                                        double default_theta) {
  QUIRE_ASSIGN(const RopeSettings older, read_settings(config, "rope_scaling", max_position_embeddings, rotary_dim));
  QUIRE_ASSIGN(RopeSettings rope, read_settings(config, "rope_parameters", max_position_embeddings, rotary_dim));
  if (!config.find("rope_parameters")) {
    rope = older;
  } else {
    QUIRE_TRY(check_older_form(config, older, rope));
  }
  QUIRE_ASSIGN(const double outer_theta, config.number("rope_theta", kMinTheta, kMaxTheta, kAbsent));
  for (const double theta : {outer_theta, older.theta}) {
    if (rope.theta == kAbsent) rope.theta = theta;
    if (theta != kAbsent && theta != rope.theta) return config.bad("rope_theta", "one value throughout the file");
  }
  if (rope.theta == kAbsent) rope.theta = default_theta;
  return rope;
}

Result<LayerRopeSettings> read_layer_rope_settings(const JsonReader& config, int64_t max_position_embeddings,
                                                   int rotary_dim, double default_theta, double default_window_theta) {
  constexpr const char *kParameters = "rope_parameters", *kFull = "full_attention", *kWindow = "sliding_attention";
  LayerRopeSettings rope;
  const Json* parameters = config.find(kParameters);
  const bool by_kind = parameters && parameters->object() && (parameters->find(kFull) || parameters->find(kWindow));
  QUIRE_ASSIGN(rope.window_theta, config.number("rope_local_base_freq", kMinTheta, kMaxTheta, default_window_theta));
  if (!by_kind) {
    QUIRE_ASSIGN(rope.full, read_rope_settings(config, max_position_embeddings, rotary_dim, default_theta));
    return rope;
  }
  const JsonReader reader(*parameters, config.what() + ": " + kParameters);
  for (const auto& [name, value] : *parameters->object()) {
    if (name == kFull || name == kWindow) continue;
    return Status(Code::kUnsupported, reader.what() + ": " + name + " beside the settings of kinds of layers");
  }
  QUIRE_ASSIGN(rope.full, read_settings(reader, kFull, max_position_embeddings, rotary_dim));
  QUIRE_ASSIGN(const RopeSettings older, read_settings(config, "rope_scaling", max_position_embeddings, rotary_dim));
  QUIRE_TRY(check_older_form(config, older, rope.full));
  if (rope.full.theta == kAbsent) {
    QUIRE_ASSIGN(rope.full.theta, config.number("rope_theta", kMinTheta, kMaxTheta, default_theta));
  }
  QUIRE_ASSIGN(const RopeSettings window, read_settings(reader, kWindow, max_position_embeddings, rotary_dim));
  if (window.type != "default") {
    return Status(Code::kUnsupported, reader.what() + ": RoPE type " + window.type + " of " + kWindow);
  }
  if (window.theta != kAbsent) rope.window_theta = window.theta;
  return rope;
}

}  // namespace quire
