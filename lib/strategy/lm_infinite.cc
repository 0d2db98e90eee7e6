// lm_infinite: a mask in the shape of a lambda, and a ceiling for distances.
//
// Idea        The first tokens keep the model's attention in order, the last ones carry the text; no distance leaves
//             the trained range. Training-free.
// Paper       Han et al. 2023, "LM-Infinite: Zero-Shot Extreme Length Generalization for Large Language Models",
//             section 4; compared with in Lu et al. 2024 (LongHeads).
// Here        Query i sees the keys less than `recent` back at true distances, and of the first `sinks` keys those that
//             are further away at distance `recent`. The paper's optional middle tokens are not offered.
// Invariants  At most sinks + recent keys; no distance above recent <= L (the authors' default is L, which was never
//             trained; here it is L - 1). Plain attention for texts of up to `recent` tokens.
// Complexity  O(sinks + recent) keys per token, for texts of any length; what lies between them is forgotten.
// Memory      Keys and values of sinks + recent tokens, 2 * n_layers * n_kv_heads * head_dim elements each.
#include <algorithm>

#include "lib/strategy/methods.h"

namespace quire {
namespace {

class LmInfinite final : public Strategy {
 public:
  LmInfinite(int64_t sinks, int64_t recent) : sinks_(sinks), recent_(recent) {}

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    if (n_queries == 0) return;
    const int64_t end = first_query + n_queries;
    std::vector<Span> spans;
    if (sinks_ > 0 && end > recent_) {
      Span sinks;
      sinks.count = std::min(sinks_, end - recent_);
      sinks.min_lag = recent_;
      sinks.q_cap = static_cast<double>(recent_);
      sinks.key_div = 0;
      spans.push_back(sinks);
    }
    Span recent;
    recent.first_key = std::max<int64_t>(0, first_query - recent_ + 1);
    recent.count = end - recent.first_key;
    recent.max_lag = recent_ - 1;
    spans.push_back(recent);
    plan.add_block(first_query, n_queries, spans);
  }

  std::vector<KeyRange> retained(int64_t next_query) const override {
    return sinks_and_window(sinks_, next_query - recent_ + 1);
  }

 private:
  int64_t sinks_;
  int64_t recent_;
};

Result<std::unique_ptr<Strategy>> make_lm_infinite(const Arguments& arguments, const MethodModel& model,
                                                   CanonicalTerm& canonical) {
  constexpr int64_t kDefaultSinks = 10;
  QUIRE_ASSIGN(const int64_t sinks,
               arguments.integer("sinks", 0, model.train_len, std::min(kDefaultSinks, model.train_len)));
  QUIRE_ASSIGN(const int64_t recent,
               arguments.integer("recent", 1, model.train_len, std::max<int64_t>(1, model.train_len - 1)));
  canonical.add_integer("sinks", sinks).add_integer("recent", recent);
  return std::unique_ptr<Strategy>(std::make_unique<LmInfinite>(sinks, recent));
}

constexpr ArgumentDoc kArguments[] = {
    {"sinks", "first tokens that stay visible"},
    {"recent", "tokens back that are visible, and the distance of the first ones"},
};

}  // namespace

const Method kLmInfinite{.name = "lm_infinite",
                         .text = "the first few tokens and the most recent ones, with a ceiling for distances",
                         .arguments = kArguments,
                         .make = make_lm_infinite};

}  // namespace quire
