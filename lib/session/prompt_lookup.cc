#include "lib/session/prompt_lookup.h"

#include <algorithm>

#include "lib/session/token_places.h"

namespace quire {

std::vector<int32_t> find_draft(std::span<const int32_t> text, int64_t most, int64_t least) {
  const auto n = static_cast<int64_t>(text.size());
  if (n == 0 || most <= 0) return {};
  const int64_t enough = std::max(most, least);  // a longer match makes no longer draft
  const int32_t* tokens = text.data();
  int64_t best = least - 1, place = 0;
  const auto compare = [&](size_t last) {  // the match would end with this place
    const auto end = static_cast<int64_t>(last) + 1;
    if (end <= best) return false;
    int64_t match = 1;
    while (match < enough && match < end && tokens[end - 1 - match] == tokens[n - 1 - match]) ++match;
    if (match > best) {
      best = match;
      place = end;
    }
    return best < enough;
  };
  visit_places(text, text.size() - 1, tokens[n - 1], compare);
  if (place == 0) return {};
  std::vector<int32_t> draft(static_cast<size_t>(std::min(most, best)));
  for (size_t i = 0; i < draft.size(); ++i) {
    const size_t from = static_cast<size_t>(place) + i;
    draft[i] = from < text.size() ? text[from] : draft[from - text.size()];
  }
  return draft;
}

}  // namespace quire
