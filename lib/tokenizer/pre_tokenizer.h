// Cuts a text into the parts in which BPE merges, one after the other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/status.h"
#include "lib/tokenizer/regex.h"

namespace quire {

// What becomes of the matches of a cut (the names are those of tokenizer.json): parts of their own; dropped; joined to
// the part before or behind them; parts of their own where several in a row are one.
enum class CutBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct Cut {
  std::string expression;  // in PCRE2's syntax
  CutBehavior behavior = CutBehavior::kIsolated;
  bool invert = false;  // what is between the matches counts as match, and the other way round
};

// Immutable after creation: any thread.
class PreTokenizer {
 public:
  using Visit = std::function<Status(std::string_view)>;

  // Each cut cuts the parts of the one before. Errors: those of Regex::compile.
  static Result<PreTokenizer> make(const std::vector<Cut>& cuts);

  // The state of a thread that cuts.
  class Cutter {
   public:
    explicit Cutter(const PreTokenizer& pre_tokenizer);
    // Calls visit with each part, none of them empty, in order. Ends with its first error. Other errors: kUnsupported
    // (an expression takes too much work).
    Status cut(std::string_view text, const Visit& visit);

   private:
    Status cut_from(size_t step, std::string_view part, std::string_view seen, const Visit& visit);

    const PreTokenizer& pre_tokenizer_;
    std::vector<std::unique_ptr<Regex::Search>> searches_;  // of each step
    size_t work_ = 0;
  };

 private:
  struct Step {
    Regex regex;
    CutBehavior behavior;
    bool invert;
  };
  std::vector<Step> steps_;
};

}  // namespace quire
