// long_mixed: dilated heads and chunked heads in one layer, by an explicit table.
//
// Paper       Li et al. 2023, "SCCA: Shifted Cross Chunk Attention for Long Contextual Semantic Expansion", section 4
//             (LongMixed): of 32 heads 8 with dilation 2, 16 with dilation 4 and 8 with SCCA_fixed. Their order is not
//             given.
// Here        heads= is the table, runs of equal heads joined by points: sda2x8.sda4x16.rolledx4.localx4 is the
// paper's.
//             sdaD: as sda(dilation=D), residue h mod D of the head's index h in the layer; rolled and local: the two
//             kinds of scca_fixed; shiftE: scca_flow's shift E; full: plain attention.
// Invariants  Those of sda, scca_fixed and scca_flow: true distances, so the text ends at L where a head is dilated or
//             full.
#include <algorithm>
#include <charconv>

#include "lib/strategy/head_patterns.h"

namespace quire {
namespace {

constexpr std::string_view kReadings[] = {"residue", "kv"};
constexpr int64_t kMostNumber = 1024;  // of a dilation, shift or count

// Takes the number at the front of `text`.
bool take_number(std::string_view& text, int64_t min, int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  if (error != std::errc() || *number < min || *number > kMostNumber) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes a kind's name.
bool take_kind(std::string_view& text, HeadPattern* head) {
  using Kind = HeadPattern::Kind;
  if (take(text, "local")) return true;
  if (take(text, "rolled")) {
    head->kind = Kind::kRolled;
    return true;
  }
  if (take(text, "shift")) {
    head->kind = Kind::kEarlier;
    return take_number(text, 1, &head->shift);
  }
  head->kind = Kind::kDilated;
  return take(text, "full") || (take(text, "sda") && take_number(text, 2, &head->dilation));
}

// One of the table's runs, "KINDxN" or "KIND".
bool read_run(std::string_view run, std::vector<HeadPattern>& heads) {
  HeadPattern head;
  int64_t count = 1;
  if (!take_kind(run, &head)) return false;
  if (take(run, "x") && !take_number(run, 1, &count)) return false;
  if (!run.empty()) return false;
  for (int64_t n = 0; n < count; ++n) {
    head.residue = static_cast<int64_t>(heads.size()) % head.dilation;
    heads.push_back(head);
  }
  return true;
}

// The paper's proportions; an odd chunked head is rolled.
std::string usual_table(int n_heads) {
  const int two = n_heads / 4, four = n_heads / 2, rest = n_heads - two - four;
  std::string table;
  const auto add = [&](const char* kind, int n) {
    if (n > 0) table += (table.empty() ? "" : ".") + std::string(kind) + "x" + std::to_string(n);
  };
  add("sda2", two);
  add("sda4", four);
  add("rolled", rest - rest / 2);
  add("local", rest / 2);
  return table;
}

Result<std::unique_ptr<Strategy>> make_long_mixed(const Arguments& arguments, const MethodModel& model,
                                                  CanonicalTerm& canonical) {
  QUIRE_ASSIGN(const std::string table, arguments.word("heads", usual_table(model.n_query_heads)));
  std::vector<HeadPattern> heads;
  double span = 1.5;  // in chunks, of a rolled head
  for (size_t begin = 0; begin <= table.size();) {
    const size_t end = std::min(table.find('.', begin), table.size());
    if (!read_run(std::string_view(table).substr(begin, end - begin), heads)) {
      return arguments.refuse("heads", in_quotes(table.substr(begin, end - begin)) +
                                           "; expected sdaD, rolled, local, shiftE or full, then xN for N such heads");
    }
    if (heads.back().kind == HeadPattern::Kind::kEarlier) {
      span = std::max(span, static_cast<double>(heads.back().shift) + 1);
    }
    begin = end + 1;
  }
  if (heads.size() != static_cast<size_t>(model.n_query_heads)) {
    return arguments.refuse("heads", "the table has " + std::to_string(heads.size()) + " heads; the model has " +
                                         std::to_string(model.n_query_heads));
  }
  canonical.add("heads", table);
  constexpr int64_t kParts = 4;
  QUIRE_ASSIGN(HeadPatternOptions options, read_chunk(arguments, "chunk", model.train_len, kParts, span, canonical));
  QUIRE_TRY(read_mask(arguments, &options, canonical));
  QUIRE_ASSIGN(const size_t reading, arguments.choice("reading", kReadings));
  canonical.add("reading", kReadings[reading]);
  for (HeadPattern& head : heads) head.computes_all = reading == 1;
  return make_head_patterns(std::move(heads), options, model.train_len);
}

constexpr ArgumentDoc kArguments[] = {
    {"heads", "table of the heads, such as sda2x8.rolledx4"},
    {"chunk", "keys of a chunk"},
    {"full_below", "queries with a lower index see every key"},
    {"mask", "whether slots or indexes of rolled keys are masked"},
    {"reading", "what queries of another residue see: nothing, or those keys and themselves"},
};

}  // namespace

const Method kLongMixed{.name = "long_mixed",
                        .text = "a table of patterns, head by head",
                        .arguments = kArguments,
                        .make = make_long_mixed,
                        .needs_far_keys = true};

}  // namespace quire
