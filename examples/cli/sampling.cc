#include "sampling.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace cli {
namespace {

std::vector<quire_text> views(const std::vector<std::string>& texts) {
  std::vector<quire_text> out;
  for (const std::string& text : texts) out.push_back({text.data(), text.size()});
  return out;
}

}  // namespace

std::optional<quire_logit_bias> parse_logit_bias(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == text.size()) return std::nullopt;
  char* end = nullptr;
  errno = 0;
  const long token = std::strtol(text.c_str(), &end, 10);
  if (end != text.c_str() + equals || errno != 0 || token < std::numeric_limits<int32_t>::min() ||
      token > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  const float bias = std::strtof(text.c_str() + equals + 1, &end);
  if (end != text.c_str() + text.size() || std::isnan(bias)) return std::nullopt;
  return quire_logit_bias{static_cast<int32_t>(token), bias};
}

Sampling::Sampling(const SamplingArguments& arguments)
    : arguments_(arguments), stop_(views(arguments.stop)), dry_breakers_(views(arguments.dry_breakers)) {
  for (const std::string& text : arguments.logit_bias) logit_bias_.push_back(parse_logit_bias(text).value());
  make_chain();
}

// Penalties first, on the model's own logits; then temperature and the filters, or the most probable token.
void Sampling::make_chain() {
  const SamplingArguments& a = arguments_;
  const bool penalties = a.repeat_penalty != 1 || a.frequency_penalty != 0 || a.presence_penalty != 0;
  const bool drawn = a.temperature > 0;
  if (!penalties && a.dry_multiplier == 0 && (a.typical == 0 || !drawn)) return;
  const auto add = [this](int32_t kind, int32_t n, int32_t m, float first, float second, float third) {
    chain_.push_back({kind, n, m, first, second, third});
  };
  if (penalties) {
    add(QUIRE_SAMPLER_PENALTIES, a.penalty_last_n, 0, a.repeat_penalty, a.frequency_penalty, a.presence_penalty);
  }
  if (a.dry_multiplier > 0) {
    add(QUIRE_SAMPLER_DRY, a.dry_last_n, a.dry_allowed_length, a.dry_multiplier, a.dry_base, 0);
  }
  if (!drawn) {
    add(QUIRE_SAMPLER_TOP_K, 1, 0, 0, 0, 0);
    return;
  }
  add(QUIRE_SAMPLER_TEMPERATURE, 0, 0, a.temperature, 0, 0);
  if (a.top_k > 0) add(QUIRE_SAMPLER_TOP_K, a.top_k, 0, 0, 0, 0);
  if (a.typical > 0) add(QUIRE_SAMPLER_TYPICAL, 0, 0, a.typical, 0, 0);
  if (a.top_p > 0) add(QUIRE_SAMPLER_TOP_P, 0, 0, a.top_p, 0, 0);
  if (a.min_p > 0) add(QUIRE_SAMPLER_MIN_P, 0, 0, a.min_p, 0, 0);
}

void Sampling::apply(quire_stream_options& options) const {
  const SamplingArguments& a = arguments_;
  if (a.ignore_eos) options.flags |= QUIRE_STREAM_IGNORE_EOS;
  if (chain_.empty()) {
    options.temperature = a.temperature;
    options.top_k = a.top_k;
    options.top_p = a.top_p;
    options.min_p = a.min_p;
  } else {
    options.samplers = chain_.data();
    options.n_samplers = chain_.size();
    options.sampler_stride = sizeof(quire_sampler);
  }
  options.seed = a.seed;
  options.stop_strings = stop_.data();
  options.n_stop_strings = stop_.size();
  options.logit_bias = logit_bias_.data();
  options.n_logit_bias = logit_bias_.size();
  if (!dry_breakers_.empty()) {
    options.dry_breakers = dry_breakers_.data();
    options.n_dry_breakers = dry_breakers_.size();
  }
  options.min_tokens = a.min_tokens;
  options.deadline_ms = static_cast<int64_t>(std::ceil(a.deadline_seconds * 1000));
  options.n_top_logprobs = a.n_top_logprobs;
}

}  // namespace cli
