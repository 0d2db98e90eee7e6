#include "generation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine.h"
#include "output.h"
#include "progress.h"

namespace cli {
namespace {

bool changes_logits(const SamplingArguments& s) {
  return s.repetition != 1 || s.frequency != 0 || s.presence != 0 || s.dry > 0 || s.typical > 0;
}

// Penalties first, then temperature, then the filters.
std::vector<quire_sampler> sampler_chain(const SamplingArguments& s) {
  std::vector<quire_sampler> chain;
  if (s.repetition != 1 || s.frequency != 0 || s.presence != 0) {
    chain.push_back({QUIRE_SAMPLER_PENALTIES, s.penalty_range, 0, s.repetition, s.frequency, s.presence});
  }
  if (s.dry > 0) chain.push_back({QUIRE_SAMPLER_DRY, 0, s.dry_length, s.dry, s.dry_base, 0});
  if (s.temperature == 0) {
    chain.push_back({QUIRE_SAMPLER_TOP_K, 1, 0, 0, 0, 0});
    return chain;
  }
  chain.push_back({QUIRE_SAMPLER_TEMPERATURE, 0, 0, s.temperature, 0, 0});
  if (s.top_k > 0) chain.push_back({QUIRE_SAMPLER_TOP_K, s.top_k, 0, 0, 0, 0});
  if (s.typical > 0) chain.push_back({QUIRE_SAMPLER_TYPICAL, 0, 0, s.typical, 0, 0});
  if (s.top_p > 0) chain.push_back({QUIRE_SAMPLER_TOP_P, 0, 0, s.top_p, 0, 0});
  if (s.min_p > 0) chain.push_back({QUIRE_SAMPLER_MIN_P, 0, 0, s.min_p, 0, 0});
  return chain;
}

std::vector<quire_text> views(const std::vector<std::string>& texts) {
  std::vector<quire_text> out;
  for (const std::string& text : texts) out.push_back({text.data(), text.size()});
  return out;
}

}  // namespace

std::vector<quire_logit_bias> logit_bias(const SamplingArguments& s) {
  std::vector<quire_logit_bias> biases;
  for (const std::string& text : s.logit_bias) {
    quire_logit_bias bias{};
    const size_t at = text.find('=');
    const std::string value = at == std::string::npos ? "" : text.substr(at + 1);
    char* end = nullptr;
    bias.bias = std::strtof(value.c_str(), &end);
    const auto id = std::from_chars(text.data(), text.data() + std::min(at, text.size()), bias.token);
    if (value.empty() || *end != '\0' || std::isnan(bias.bias) || id.ec != std::errc() || id.ptr != text.data() + at) {
      throw UsageError("--logit-bias " + text + ": expected ID=BIAS");
    }
    biases.push_back(bias);
  }
  return biases;
}

void check_tokens(const std::vector<quire_logit_bias>& biases, const quire_tokenizer* tokenizer) {
  const int32_t n = quire_tokenizer_get_vocab_size(tokenizer);
  for (const quire_logit_bias& bias : biases) {
    if (bias.token >= 0 && bias.token < n) continue;
    throw UsageError("--logit-bias " + std::to_string(bias.token) + "=...: the model has tokens 0 to " +
                     std::to_string(n - 1));
  }
}

Answer generate(quire_session* session, const GenerationOptions& wanted) {
  const SamplingArguments& sampling = wanted.sampling;
  const std::vector<quire_text> stop = views(sampling.stop);
  const std::vector<quire_text> breakers = views(sampling.dry_breakers);
  auto options = initialised(quire_stream_options_init);
  options.flags = sampling.ignore_eos ? QUIRE_STREAM_IGNORE_EOS : 0;
  if (wanted.cite) {
    options.flags |= QUIRE_STREAM_CITE;
    options.cite_end = wanted.cite_end;
  }
  options.max_tokens = wanted.max_tokens;
  const std::vector<quire_sampler> chain = sampler_chain(sampling);
  if (changes_logits(sampling)) {
    options.samplers = chain.data();
    options.n_samplers = chain.size();
  } else {
    options.temperature = sampling.temperature;
    options.top_k = sampling.top_k;
    options.top_p = sampling.top_p;
    options.min_p = sampling.min_p;
  }
  options.logit_bias = wanted.biases.data();
  options.n_logit_bias = wanted.biases.size();
  options.dry_breakers = breakers.empty() ? nullptr : breakers.data();
  options.n_dry_breakers = breakers.size();
  options.min_tokens = sampling.min_tokens;
  options.deadline_ms = static_cast<int64_t>(std::ceil(sampling.deadline * 1000));
  options.n_top_logprobs = sampling.n_top_logprobs;
  options.draft_tokens = sampling.draft_tokens;
  options.draft_match = sampling.draft_match;
  options.seed = sampling.seed;
  options.stop_strings = stop.data();
  options.n_stop_strings = stop.size();

  Answer answer;
  Progress progress("reading", "tokens");
  answer.finish_reason = run_stream(session, options, [&](const quire_event& event) {
    if (event.kind == QUIRE_EVENT_PREFILL) {
      progress.show(event.done, event.total - event.reused - event.moved);
      return true;
    }
    if (event.kind == QUIRE_EVENT_WARNING || event.kind == QUIRE_EVENT_NOTICE) {
      const char* word = event.kind == QUIRE_EVENT_WARNING ? "warning: " : "";
      if (!is_news({event.message, event.message_len})) return true;
      std::fprintf(stderr, "quire: %s%.*s\n", word, static_cast<int>(event.message_len), event.message);
    }
    if (event.kind != QUIRE_EVENT_TOKEN && event.kind != QUIRE_EVENT_END) return true;
    progress.clear();
    if (event.kind == QUIRE_EVENT_TOKEN) {
      answer.tokens.push_back(event.token);
      if (event.n_top_logprobs > 0) answer.top_logprobs.emplace_back();
      for (size_t i = 0; i < event.n_top_logprobs; ++i) {
        answer.top_logprobs.back().emplace_back(event.top_logprobs[i].token, event.top_logprobs[i].logprob);
      }
    }
    if (event.text_len > 0) answer.text.append(event.text, event.text_len);
    if (wanted.print && event.text_len > 0) {
      print_text({event.text, event.text_len});
      flush_output();
    }
    return true;
  });
  return answer;
}

}  // namespace cli
