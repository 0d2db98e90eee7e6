// SPDX-License-Identifier: MIT
//
// What a stream is opened with, and how that is given to C.
#pragma once

#include <chrono>

#include "quire/session.hpp"

namespace quire {
inline namespace v0 {

using LogitBias = quire_logit_bias;

// One link of a sampling chain. What n, m, a, b and c mean depends on the kind: QUIRE_SAMPLER_* in
// quire.h.
struct Sampler {
  SamplerKind kind = SamplerKind::kTemperature;
  std::int32_t n = 0;
  std::int32_t m = 0;
  float a = 0;
  float b = 0;
  float c = 0;
};

// As quire_stream_options: 0, none and empty are each one's default.
struct StreamOptions {
  std::int64_t max_tokens = 0;  // 0: process what was fed and generate nothing
  float temperature = 0;        // 0: greedy
  std::int32_t top_k = 0;
  float top_p = 0;
  float min_p = 0;
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop_ids = {};
  std::vector<std::string> stop_strings = {};
  std::vector<Sampler> samplers = {};
  std::vector<LogitBias> logit_bias = {};
  std::optional<std::vector<std::string>> dry_breakers = {};  // none: the usual ones
  std::int64_t min_tokens = 0;
  std::chrono::milliseconds deadline = std::chrono::milliseconds(0);
  std::int32_t n_top_logprobs = 0;
  std::int32_t max_undelivered = 0;
  std::int64_t cite_end = 0;
  std::int32_t draft_tokens = 0;
  std::int32_t draft_match = 0;
  bool score = false;        // for Session::scores
  bool keep_logits = false;  // of all positions
  bool ignore_eos = false;
  bool constrain = false;    // each token waits for Stream::allow
  bool keep_hidden = false;  // for Session::hidden_states
  bool cite = false;         // for Session::passages and label_shares
};

namespace detail {

inline std::uint32_t flags(const StreamOptions& options) {
  return (options.score ? QUIRE_STREAM_SCORE : 0u) |
         (options.keep_logits ? QUIRE_STREAM_KEEP_LOGITS : 0u) |
         (options.ignore_eos ? QUIRE_STREAM_IGNORE_EOS : 0u) |
         (options.constrain ? QUIRE_STREAM_CONSTRAIN : 0u) |
         (options.keep_hidden ? QUIRE_STREAM_KEEP_HIDDEN : 0u) |
         (options.cite ? QUIRE_STREAM_CITE : 0u);
}

// quire_stream_options with what it points to. It must not outlive the options.
class CStreamOptions {
 public:
  explicit CStreamOptions(const StreamOptions& options)
      : stop_strings_(texts(options.stop_strings)) {
    c_ = initialised(quire_stream_options_init);
    c_.flags = flags(options);
    c_.max_tokens = options.max_tokens;
    put_sampling(options);
    c_.stop_ids = data_or_null(options.stop_ids);
    c_.n_stop_ids = options.stop_ids.size();
    c_.stop_strings = data_or_null(stop_strings_);
    c_.n_stop_strings = stop_strings_.size();
    c_.min_tokens = options.min_tokens;
    c_.deadline_ms = options.deadline.count();
    c_.n_top_logprobs = options.n_top_logprobs;
    c_.max_undelivered = options.max_undelivered;
    c_.cite_end = options.cite_end;
    c_.draft_tokens = options.draft_tokens;
    c_.draft_match = options.draft_match;
  }
  CStreamOptions(const CStreamOptions&) = delete;
  CStreamOptions& operator=(const CStreamOptions&) = delete;
  const quire_stream_options* get() const { return &c_; }

 private:
  void put_sampling(const StreamOptions& options) {
    c_.temperature = options.temperature;
    c_.top_k = options.top_k;
    c_.top_p = options.top_p;
    c_.min_p = options.min_p;
    c_.seed = options.seed;
    for (const Sampler& s : options.samplers) {
      samplers_.push_back({static_cast<std::int32_t>(s.kind), s.n, s.m, s.a, s.b, s.c});
    }
    c_.samplers = data_or_null(samplers_);
    c_.n_samplers = samplers_.size();
    c_.logit_bias = data_or_null(options.logit_bias);
    c_.n_logit_bias = options.logit_bias.size();
    if (options.dry_breakers) {
      dry_breakers_ = texts(*options.dry_breakers);
      c_.n_dry_breakers = dry_breakers_.size();
      dry_breakers_.push_back({"", 0});  // an address, even for none of them
      c_.dry_breakers = dry_breakers_.data();
    }
  }

  std::vector<quire_text> stop_strings_;
  std::vector<quire_text> dry_breakers_;
  std::vector<quire_sampler> samplers_;
  quire_stream_options c_;
};

}  // namespace detail
}  // namespace v0
}  // namespace quire
