// streaming_llm: a few first tokens ("sinks") and a window of recent ones.
//
// Idea        Softmax leans on the first tokens of a text; keeping them lets a window slide for ever.
// Paper       Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", section 3.2. Positions are
//             indexes in the cache of S sinks, R recent tokens and the query itself.
// Here        Query i sees sink j at distance min(i, S + R) - j and the R tokens before it at their true distances.
//             Prefill follows the same rule per query, so it equals decoding token by token (the paper's demo runs its
//             prompt densely).
// Invariants  At most S + R + 1 keys and no distance above S + R < train_len; texts of up to S + R + 1 tokens see
//             plain attention.
// Complexity  O(S + R) keys per token, for texts of any length; what lies between sinks and window is forgotten.
// Memory      Keys and values of S + R tokens, 2 * n_layers * n_kv_heads * head_dim elements each.
#include <algorithm>

#include "lib/strategy/methods.h"

namespace quire {
namespace {

class StreamingLlm final : public Strategy {
 public:
  StreamingLlm(int64_t sinks, int64_t recent) : sinks_(sinks), recent_(recent) { reach_ = kNoLimit; }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    if (n_queries == 0) return;
    const int64_t end = first_query + n_queries;
    std::vector<Span> spans;
    if (sinks_ > 0) {
      Span sinks;
      sinks.count = std::min(sinks_, end);
      sinks.q_cap = static_cast<double>(sinks_ + recent_);
      spans.push_back(sinks);
    }
    if (end > sinks_) {
      Span recent;
      recent.first_key = std::max(sinks_, first_query - recent_);
      recent.count = end - recent.first_key;
      recent.max_lag = recent_;
      spans.push_back(recent);
    }
    plan.add_block(first_query, n_queries, spans);
  }

  std::vector<KeyRange> retained(int64_t next_query) const override {
    return sinks_and_window(sinks_, next_query - recent_);
  }

 private:
  int64_t sinks_;
  int64_t recent_;
};

Result<std::unique_ptr<Strategy>> make_streaming_llm(const Arguments& arguments, const MethodModel& model,
                                                     CanonicalTerm& canonical) {
  constexpr int64_t kDefaultSinks = 4, kDefaultRecent = 512;
  // Sinks, at least one recent token and the query itself must fit the trained length.
  const int64_t most_sinks = model.train_len - 2;
  if (most_sinks < 0) return arguments.refuse("train_len", "train_len is 1; expected at least 2");
  QUIRE_ASSIGN(const int64_t sinks, arguments.integer("sinks", 0, most_sinks, std::min(kDefaultSinks, most_sinks)));
  const int64_t most_recent = model.train_len - 1 - sinks;
  QUIRE_ASSIGN(const int64_t recent,
               arguments.integer("recent", 1, most_recent, std::min(kDefaultRecent, most_recent)));
  canonical.add_integer("sinks", sinks).add_integer("recent", recent);
  return std::unique_ptr<Strategy>(std::make_unique<StreamingLlm>(sinks, recent));
}

constexpr ArgumentDoc kArguments[] = {
    {"sinks", "first tokens that stay visible"},
    {"recent", "tokens back that are visible"},
};

}  // namespace

const Method kStreamingLlm{.name = "streaming_llm",
                           .text = "the first few tokens and the most recent ones; what lies between is forgotten",
                           .arguments = kArguments,
                           .make = make_streaming_llm};

}  // namespace quire
