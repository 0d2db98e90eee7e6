// What Backend::rank_logits says of a row, by sorting it whole and by a sum in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "lib/backend/ranked_logits.h"

namespace quire::test {

inline RankedLogits rank_on_host(std::span<const float> logits, size_t k) {
  RankedLogits row;
  row.width = static_cast<int64_t>(logits.size());
  row.finite = std::ranges::all_of(logits, [](float x) { return std::isfinite(x); });
  if (!row.finite) return row;
  for (size_t t = 0; t < logits.size(); ++t) row.best.push_back({static_cast<int32_t>(t), logits[t]});
  const double most = *std::ranges::max_element(logits);
  for (const float x : logits) row.sum += std::exp(x - most);
  std::ranges::stable_sort(row.best, [](const auto& a, const auto& b) { return a.logit > b.logit; });
  row.best.resize(std::min(k, row.best.size()));
  return row;
}

// As a device leaves it, among others in memory of this layout.
inline void write_ranked(const RankedLogits& row, const RankedRows& layout, int64_t index, std::byte* memory) {
  const auto put = [memory](size_t begin, int64_t i, const auto& value) {
    std::memcpy(memory + begin + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
  };
  put(layout.sums(), index, row.sum);
  put(layout.finite(), index, static_cast<int32_t>(row.finite ? 1 : 0));
  for (int64_t i = 0; i < std::ssize(row.best); ++i) {
    put(layout.tokens(), index * layout.k + i, row.best[static_cast<size_t>(i)].token);
    put(layout.values(), index * layout.k + i, row.best[static_cast<size_t>(i)].logit);
  }
}

}  // namespace quire::test
