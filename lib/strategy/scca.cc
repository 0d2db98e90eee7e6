// scca_fixed, scca_flow: Shifted Cross Chunk Attention, keys and values rolled along the text in some heads.
//
// Idea        Queries attend in chunks of w keys, and heads differ in which chunk: the layer sees across chunks at the
//             cost of one. Made for fine-tuning (with position interpolation and LoRA).
// Paper       Li et al. 2023, "SCCA: Shifted Cross Chunk Attention for Long Contextual Semantic Expansion", section 3.1
//             (fixed, Eq. 2-6) and 3.2 (flow, Eq. 7-9). No program was published and the text contradicts itself.
// Here        fixed: in the first half of the heads keys are rolled right by w / 2: [c w - w / 2, c w + w / 2) for
//             queries of chunk c. flow: with m = `chunks`, head h has shift e = h div (H / m) and sees chunk c - e
//             (roll=right, the pseudocode; roll=left, Eq. 8-9: shift (m - e) mod m). What would be later keys or the
//             wrapped end of the text is not seen; wrap=local shows a head with nothing to see its own chunk. Every
//             query sees itself (mask=absolute); mask=slot is the triangle of an unchanged program after rolling.
// Invariants  True distances, below 3/2 w (fixed) or m w (flow), within L. Not plain attention at any length.
// Complexity  O(w) keys per token and head.
// Memory      Keys and values of the last 3/2 w or m w tokens.
#include "lib/strategy/head_patterns.h"

namespace quire {
namespace {

constexpr int64_t kDefaultParts = 4;
constexpr std::string_view kRolls[] = {"right", "left"};
constexpr std::string_view kWraps[] = {"self", "local"};

Result<std::unique_ptr<Strategy>> make_scca_fixed(const Arguments& arguments, const MethodModel& model,
                                                  CanonicalTerm& canonical) {
  QUIRE_ASSIGN(HeadPatternOptions options,
               read_chunk(arguments, "chunk", model.train_len, kDefaultParts, 1.5, canonical));
  QUIRE_TRY(read_mask(arguments, &options, canonical));
  if (model.n_query_heads % 2 != 0) {
    return arguments.unsupported("the model has " + std::to_string(model.n_query_heads) +
                                 " query heads; scca_fixed needs an even number");
  }
  std::vector<HeadPattern> heads(static_cast<size_t>(model.n_query_heads));
  for (size_t h = 0; h < heads.size() / 2; ++h) heads[h].kind = HeadPattern::Kind::kRolled;
  return make_head_patterns(std::move(heads), options, model.train_len);
}

Result<std::unique_ptr<Strategy>> make_scca_flow(const Arguments& arguments, const MethodModel& model,
                                                 CanonicalTerm& canonical) {
  const int64_t n_heads = model.n_query_heads;
  if (n_heads < 2) return arguments.unsupported("the model has 1 query head; scca_flow needs at least 2");
  QUIRE_ASSIGN(const int64_t m, arguments.integer("chunks", 2, n_heads, std::min(kDefaultParts, n_heads)));
  if (n_heads % m != 0) {
    return arguments.refuse("chunks", "chunks is " + std::to_string(m) + "; expected a divisor of the model's " +
                                          std::to_string(n_heads) + " query heads");
  }
  canonical.add_integer("chunks", m);
  QUIRE_ASSIGN(HeadPatternOptions options,
               read_chunk(arguments, "chunk", model.train_len, m, static_cast<double>(m), canonical));
  QUIRE_ASSIGN(const size_t roll, arguments.choice("roll", kRolls));
  QUIRE_ASSIGN(const size_t wrap, arguments.choice("wrap", kWraps));
  canonical.add("roll", kRolls[roll]).add("wrap", kWraps[wrap]);
  QUIRE_TRY(read_mask(arguments, &options, canonical));
  std::vector<HeadPattern> heads(static_cast<size_t>(n_heads));
  for (int64_t h = 0; h < n_heads; ++h) {
    const int64_t e = h / (n_heads / m);
    HeadPattern& head = heads[static_cast<size_t>(h)];
    head.shift = roll == 0 ? e : (m - e) % m;
    head.wraps_local = wrap == 1;
    if (head.shift > 0) head.kind = HeadPattern::Kind::kEarlier;
  }
  return make_head_patterns(std::move(heads), options, model.train_len);
}

constexpr ArgumentDoc kSccaFixedArguments[] = {
    {"chunk", "keys of a chunk"},
    {"full_below", "queries with a lower index see every key"},
    {"mask", "whether slots or indexes of rolled keys are masked"},
};
constexpr ArgumentDoc kSccaFlowArguments[] = {
    {"chunks", "chunks that the heads share out"},
    {"chunk", "keys of a chunk"},
    {"full_below", "queries with a lower index see every key"},
    {"roll", "which way the heads look"},
    {"wrap", "what is seen before there is an earlier chunk"},
    {"mask", "whether slots or indexes of rolled keys are masked"},
};

}  // namespace

const Method kSccaFixed{.name = "scca_fixed",
                        .text = "chunks of keys, rolled by half in half of the heads",
                        .arguments = kSccaFixedArguments,
                        .make = make_scca_fixed};
const Method kSccaFlow{.name = "scca_flow",
                       .text = "each head sees one of the last few chunks",
                       .arguments = kSccaFlowArguments,
                       .make = make_scca_flow,
                       .needs_far_keys = true};

}  // namespace quire
