// full: plain causal attention.
//
// Idea        Every query sees every earlier key and itself at the true distance i - j: what the model was trained
//             with. With a RoPE scaling it is also how PI, NTK and YaRN models, PoSE models and models with another
//             base are run (their methods change frequencies only).
// Paper       Vaswani et al. 2017; RoPE: Su et al. 2021.
// Invariants  One span; distances never exceed i. Beyond train_len they leave the trained range, so that is the reach.
// Complexity  O(n) keys per token.
// Memory      Keys and values of all tokens: per token 2 * n_layers * n_kv_heads * head_dim elements.
#include "lib/strategy/methods.h"

namespace quire {
namespace {

class Full final : public Strategy {
 public:
  explicit Full(int64_t train_len) {
    reach_ = train_len;
    takes_positions_ = true;
  }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    if (n_queries == 0) return;
    Span span;
    span.count = first_query + n_queries;
    plan.add_block(first_query, n_queries, {span});
  }

  std::vector<KeyRange> retained(int64_t) const override { return {{0, kNoLimit}}; }
};

Result<std::unique_ptr<Strategy>> make_full(const Arguments&, const MethodModel& model, CanonicalTerm&) {
  return std::unique_ptr<Strategy>(std::make_unique<Full>(model.train_len));
}

}  // namespace

const Method kFull{
    .name = "full", .text = "every earlier token at its true distance", .arguments = {}, .make = make_full};

}  // namespace quire
