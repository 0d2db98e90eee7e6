// sda: dilated attention, each head on one residue class of positions.
//
// Paper       Li et al. 2023, "SCCA: Shifted Cross Chunk Attention for Long Contextual Semantic Expansion", section 4
//             (Shifted Dilated Attention); made for fine-tuning.
// Here        Head h has residue h mod D. reading=residue, the text read literally: only queries of that class are
//             computed in the head, over keys of the class; for others the head gives 0. reading=kv: every query sees
//             keys of the class, and itself.
// Invariants  True distances: the text ends at L. D divides the number of heads.
// Complexity  n / D keys per token and head; in prefill, of n / D tokens per head (reading=residue).
// Memory      Keys and values of all tokens: together the heads see them all.
#include "lib/strategy/head_patterns.h"

namespace quire {
namespace {

constexpr std::string_view kReadings[] = {"residue", "kv"};

Result<std::unique_ptr<Strategy>> make_sda(const Arguments& arguments, const MethodModel& model,
                                           CanonicalTerm& canonical) {
  constexpr int64_t kMostDilation = 64;
  const int64_t n_heads = model.n_query_heads;
  QUIRE_ASSIGN(const int64_t dilation, arguments.integer("dilation", 1, kMostDilation, 2));
  if (n_heads % dilation != 0) {
    return arguments.refuse("dilation", "dilation is " + std::to_string(dilation) +
                                            "; expected a divisor of the model's " + std::to_string(n_heads) +
                                            " query heads");
  }
  QUIRE_ASSIGN(const size_t reading, arguments.choice("reading", kReadings));
  HeadPatternOptions options;
  QUIRE_ASSIGN(options.full_below, arguments.integer("full_below", 0, model.train_len, 0));
  canonical.add_integer("dilation", dilation)
      .add("reading", kReadings[reading])
      .add_integer("full_below", options.full_below);
  HeadPattern head;
  head.kind = HeadPattern::Kind::kDilated;
  head.dilation = dilation;
  head.computes_all = reading == 1;
  std::vector<HeadPattern> heads;
  for (int64_t h = 0; h < n_heads; ++h) {
    head.residue = h % dilation;
    heads.push_back(head);
  }
  return make_head_patterns(std::move(heads), options, model.train_len);
}

constexpr ArgumentDoc kArguments[] = {
    {"dilation", "residue classes that heads take in turn"},
    {"reading", "what queries of another residue see: nothing, or those keys and themselves"},
    {"full_below", "queries with a lower index see every key"},
};

}  // namespace

const Method kSda{.name = "sda",
                  .text = "each head sees the positions of one residue class",
                  .arguments = kArguments,
                  .make = make_sda,
                  .needs_far_keys = true};

}  // namespace quire
