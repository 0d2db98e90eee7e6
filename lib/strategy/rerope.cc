// rerope: distances clipped at a window, or growing slowly behind it.
//
// Idea        A model that never saw distance w + 1 sees w instead. Every key stays visible. Training-free.
// Source      Su 2023, "Rectified Rotary Position Embeddings" (the program bojone/rerope); compared with in An et al.
//             2024 (Dual Chunk Attention), Table 1.
// Here        Distance min(i - j, w); leaky=k > 0: w + (i - j - w) / k behind the window. log_n=1, as in the program:
//             logits of query i times max(1, ln(i + 1) / ln(L)).
// Invariants  1 <= w <= L - 1. Plain attention for texts of up to w + 1 tokens (with log_n that are not beyond L).
// Complexity  O(n) keys per token.
// Memory      Keys and values of all tokens, keys unrotated: nothing turns the many old ones, recent ones are turned
//             when they are read. With leaky > 0 all are.
#include <algorithm>
#include <cmath>

#include "lib/strategy/far_map.h"
#include "lib/strategy/methods.h"

namespace quire {
namespace {

Span far_span(int64_t window, int64_t leak) {
  Span far;
  far.key_div = leak;
  if (leak == 0) {
    far.q_cap = static_cast<double>(window);
    return far;
  }
  const auto w = static_cast<double>(window), k = static_cast<double>(leak);
  far.q_div = k;
  far.q_offset = w - w / k;
  far.q_floor = far.key_floor = false;
  return far;
}

class ReRope final : public FarMap {
 public:
  ReRope(int64_t window, int64_t leak, bool log_n, int64_t train_len)
      : FarMap(window, far_span(window, leak)), log_n_(log_n), train_len_(train_len) {
    if (leak > 0) reach_ = window + 1 + (train_len - 1 - window) * leak;
  }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    FarMap::plan(first_query, n_queries, plan);
    if (!log_n_) return;
    const double trained = std::log(static_cast<double>(train_len_));
    for (int64_t i = first_query; i < first_query + n_queries; ++i) {
      plan.query_scale.push_back(static_cast<float>(std::max(1.0, std::log(static_cast<double>(i) + 1) / trained)));
    }
  }

 private:
  bool log_n_;
  int64_t train_len_;
};

Result<std::unique_ptr<Strategy>> make_rerope(const Arguments& arguments, const MethodModel& model,
                                              CanonicalTerm& canonical) {
  constexpr int64_t kDefaultWindow = 512, kMostLeak = 65536;
  if (model.train_len < 2) return arguments.refuse("train_len", "train_len is 1; expected at least 2");
  QUIRE_ASSIGN(const int64_t window,
               arguments.integer("window", 1, model.train_len - 1, std::min(kDefaultWindow, model.train_len / 2)));
  QUIRE_ASSIGN(const int64_t leak, arguments.integer("leaky", 0, kMostLeak, 0));
  QUIRE_ASSIGN(const int64_t log_n, arguments.integer("log_n", 0, 1, 1));
  canonical.add_integer("window", window).add_integer("leaky", leak).add_integer("log_n", log_n);
  return std::unique_ptr<Strategy>(std::make_unique<ReRope>(window, leak, log_n == 1, model.train_len));
}

constexpr ArgumentDoc kArguments[] = {
    {"window", "distances are true up to here"},
    {"leaky", "behind the window they grow a k-th as fast; 0: not at all"},
    {"log_n", "1: logits grow with the logarithm of the position"},
};

}  // namespace

const Method kReRope{.name = "rerope",
                     .text = "every earlier token, distances clipped at a window",
                     .arguments = kArguments,
                     .make = make_rerope,
                     .needs_far_keys = true};

}  // namespace quire
