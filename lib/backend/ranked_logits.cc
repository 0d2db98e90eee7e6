#include "lib/backend/ranked_logits.h"

#include <algorithm>
#include <cstring>

namespace quire {

RankedLogits RankedRows::row(const std::byte* memory, int64_t index, int64_t width) const {
  const auto element = [memory](size_t begin, int64_t i, auto& out) {
    std::memcpy(&out, memory + begin + static_cast<size_t>(i) * sizeof out, sizeof out);
  };
  RankedLogits row;
  row.width = width;
  int32_t all_finite = 0;
  element(sums(), index, row.sum);
  element(finite(), index, all_finite);
  row.finite = all_finite != 0;
  row.best.resize(static_cast<size_t>(std::min(k, width)));
  for (size_t i = 0; i < row.best.size(); ++i) {
    const int64_t at = index * k + static_cast<int64_t>(i);
    element(tokens(), at, row.best[i].token);
    element(values(), at, row.best[i].logit);
  }
  return row;
}

}  // namespace quire
