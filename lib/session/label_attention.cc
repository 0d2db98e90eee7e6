#include "lib/session/label_attention.h"

#include <algorithm>
#include <numeric>

namespace quire {

void share_choices(std::span<const int64_t> choices, int64_t chunk, std::span<LabelAttention> labels) {
  std::vector<int64_t> before(choices.size() + 1);  // choices of the chunks before each
  std::partial_sum(choices.begin(), choices.end(), before.begin() + 1);
  const int64_t all = before.back();
  if (all == 0) return;
  const int64_t text_end = static_cast<int64_t>(choices.size()) * chunk;
  // Choices before a token, those of its chunk spread evenly over it.
  const auto before_token = [&](int64_t token) {
    const auto c = static_cast<size_t>(token / chunk);
    const double part = static_cast<double>(token % chunk) / static_cast<double>(chunk);
    return static_cast<double>(before[c]) + (part > 0 ? part * static_cast<double>(choices[c]) : 0);
  };
  for (LabelAttention& label : labels) {
    const int64_t begin = std::min(label.first_token, text_end);
    const int64_t end = std::min(label.first_token + label.n_tokens, text_end);
    label.share = (before_token(end) - before_token(begin)) / static_cast<double>(all);
  }
}

}  // namespace quire
