#include "lib/session/repetitions.h"

#include <algorithm>
#include <cmath>

#include "lib/session/token_places.h"

namespace quire {
namespace {

class Finder {
 public:
  Finder(const SamplerStep& step, std::span<const int32_t> text, const std::vector<bool>& breakers)
      : text_(text), breakers_(breakers), least_(static_cast<size_t>(step.allowed_length)) {}

  Repetitions find() {
    if (text_.empty() || breaks(text_.back())) return {};
    if (!compare_all()) match_all();
    return std::move(longest_);
  }

 private:
  bool breaks(int32_t token) const {
    return static_cast<size_t>(token) < breakers_.size() && breakers_[static_cast<size_t>(token)];
  }
  int32_t from_end(size_t k) const { return text_[text_.size() - 1 - k]; }

  // The last `length` tokens stand before `end` too.
  void add(size_t end, size_t length) {
    if (length < least_ || breaks(text_[end])) return;
    size_t& known = longest_[text_[end]];
    known = std::max(known, length);
  }

  // Compares what stands before each earlier place of the last token with the end. False: that comes to more than the
  // text's length, as the text repeats itself, and was given up.
  bool compare_all() {
    size_t n_compared = 0;
    visit_places(text_, text_.size() - 1, text_.back(), [&](size_t last) {
      size_t length = 1;
      while (length <= last && text_[last - length] == from_end(length) && !breaks(from_end(length))) ++length;
      add(last + 1, length);
      n_compared += length;
      return n_compared <= text_.size();
    });
    return n_compared <= text_.size();
  }

  // The same in time that is linear in the text's length whatever the text. match[k]: how many tokens before position
  // k, counted back from the end of the text, equal those at the very end (the Z function of the reversed text).
  void match_all() {
    const size_t n = text_.size();
    size_t most = 0;  // a repetition begins after the last breaker
    while (most < n && !breaks(from_end(most))) ++most;
    std::vector<size_t> match(n, 0);
    for (size_t k = 1, left = 0, right = 0; k < n; ++k) {
      if (k < right) match[k] = std::min(right - k, match[k - left]);
      while (k + match[k] < n && from_end(match[k]) == from_end(k + match[k])) ++match[k];
      if (k + match[k] > right) left = k, right = k + match[k];
      add(n - k, std::min(match[k], most));
    }
  }

  const std::span<const int32_t> text_;
  const std::vector<bool>& breakers_;
  const size_t least_;
  Repetitions longest_;
};

}  // namespace

Repetitions find_repetitions(const SamplerStep& step, std::span<const int32_t> history,
                             const std::vector<bool>& breakers) {
  return Finder(step, last_tokens(history, step.n), breakers).find();
}

void penalise_repetition(const SamplerStep& step, const Repetitions& repetitions, Candidates& c) {
  for (Candidates::Item& item : c.items) {
    const auto found = repetitions.find(item.token);
    if (found == repetitions.end()) continue;
    const auto beyond = static_cast<double>(static_cast<int64_t>(found->second) - step.allowed_length);
    item.logit -= step.value * std::pow(step.base, beyond);
  }
}

}  // namespace quire
