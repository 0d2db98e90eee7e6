#include "lib/tokenizer/pre_tokenizer.h"

#include <optional>

#include "lib/tokenizer/unicode.h"

namespace quire {
namespace {

struct Piece {
  size_t begin, end;
  bool match;
};

// Joins and drops the pieces of a text, which come in order and leave no gap, as the behaviour says.
template <typename Emit>
class Joiner {
 public:
  Joiner(CutBehavior behavior, Emit emit) : behavior_(behavior), emit_(std::move(emit)) {}

  Status add(const Piece& piece) {
    if (behavior_ == CutBehavior::kIsolated) return emit_(piece.begin, piece.end);
    if (behavior_ == CutBehavior::kRemoved) return piece.match ? Status() : emit_(piece.begin, piece.end);
    if (held_) {
      const bool joins = behavior_ == CutBehavior::kMergedWithPrevious ? piece.match && !held_->match
                         : behavior_ == CutBehavior::kMergedWithNext   ? held_->match && !piece.match
                                                                       : held_->match == piece.match;
      if (joins) {
        held_->end = piece.end;
        held_->match = piece.match;
        return {};
      }
      QUIRE_TRY(emit_(held_->begin, held_->end));
    }
    held_ = piece;
    return {};
  }

  Status finish() { return held_ ? emit_(held_->begin, held_->end) : Status(); }

 private:
  const CutBehavior behavior_;
  Emit emit_;
  std::optional<Piece> held_;  // not emitted, because the next piece may belong to it
};

}  // namespace

Result<PreTokenizer> PreTokenizer::make(const std::vector<Cut>& cuts) {
  PreTokenizer made;
  made.steps_.reserve(cuts.size());
  for (const Cut& cut : cuts) {
    auto regex = Regex::compile(cut.expression);
    if (!regex.ok()) return regex.status().with_context("the regular expression " + cut.expression);
    made.steps_.push_back({std::move(*regex), cut.behavior, cut.invert});
  }
  return made;
}

PreTokenizer::Cutter::Cutter(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {
  for (const Step& step : pre_tokenizer.steps_) searches_.push_back(std::make_unique<Regex::Search>(step.regex));
}

Status PreTokenizer::Cutter::cut(std::string_view text, const Visit& visit) {
  work_ = Regex::work_for(text.size() * std::max<size_t>(1, searches_.size()));
  if (searches_.empty()) return text.empty() ? Status() : visit(text);
  const std::string replaced = with_stand_ins(text);
  return cut_from(0, text, replaced.empty() ? text : std::string_view(replaced), visit);
}

// `seen`: the part as the regular expressions see it.
Status PreTokenizer::Cutter::cut_from(size_t step, std::string_view part, std::string_view seen, const Visit& visit) {
  if (step == searches_.size()) return visit(part);
  const auto& [regex, behavior, invert] = pre_tokenizer_.steps_[step];
  Regex::Search& search = *searches_[step];
  search.start(seen, &work_);
  Joiner joiner(behavior, [&](size_t begin, size_t end) {
    return cut_from(step + 1, part.substr(begin, end - begin), seen.substr(begin, end - begin), visit);
  });
  size_t at = 0, begin = 0, end = 0;
  for (;;) {
    QUIRE_ASSIGN(const bool found, search.next(&begin, &end));
    if (!found) break;
    if (at < begin) QUIRE_TRY(joiner.add({at, begin, invert}));
    if (begin < end) QUIRE_TRY(joiner.add({begin, end, !invert}));
    at = end;
  }
  if (at < part.size()) QUIRE_TRY(joiner.add({at, part.size(), invert}));
  return joiner.finish();
}

}  // namespace quire
