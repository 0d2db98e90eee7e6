// s2: shifted sparse attention (S2-Attn), half the heads in groups of tokens, half in groups that begin half a group
// later.
//
// Paper       Chen et al. 2023, "LongLoRA: Efficient Fine-tuning of Long-Context Large Language Models", section 3.2.
//             Made for training; LongLoRA's models run with full attention (`full + pi(...)`).
// Here        The causal form: tokens of the first half group stand alone, as in the authors' variable-length program.
//             (Their other one lets them see the end of the text.) The second half of the heads is shifted.
// Invariants  Distances below `group` <= L. Plain attention in a text of up to group / 2 tokens.
// Complexity  O(group) keys per token.
// Memory      Keys and values of at most 3/2 groups.
#include "lib/strategy/head_patterns.h"

namespace quire {
namespace {

Result<std::unique_ptr<Strategy>> make_s2(const Arguments& arguments, const MethodModel& model,
                                          CanonicalTerm& canonical) {
  constexpr int64_t kParts = 4;
  QUIRE_ASSIGN(const HeadPatternOptions options, read_chunk(arguments, "group", model.train_len, kParts, 1, canonical));
  if (model.n_query_heads % 2 != 0) {
    return arguments.unsupported("the model has " + std::to_string(model.n_query_heads) +
                                 " query heads; s2 needs an even number");
  }
  std::vector<HeadPattern> heads(static_cast<size_t>(model.n_query_heads));
  for (size_t h = heads.size() / 2; h < heads.size(); ++h) heads[h].shifted = true;
  return make_head_patterns(std::move(heads), options, model.train_len);
}

constexpr ArgumentDoc kArguments[] = {
    {"group", "keys of a group"},
    {"full_below", "queries with a lower index see every key"},
};

}  // namespace

const Method kS2{.name = "s2",
                 .text = "LongLoRA: groups of keys, shifted in half of the heads",
                 .arguments = kArguments,
                 .make = make_s2};

}  // namespace quire
