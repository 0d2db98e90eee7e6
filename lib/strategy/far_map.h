// True distances in a window, and another map of distances behind it: what rerope and self_extend have in common.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/strategy/strategy.h"

namespace quire {

class FarMap : public Strategy {
 public:
  // far: query and key positions of keys `window` or more back; its run and lags are filled in.
  FarMap(int64_t window, const Span& far);

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override;
  std::vector<KeyRange> retained(int64_t) const override { return {{0, kNoLimit}}; }

 protected:
  int64_t window_;

 private:
  Span far_;
};

}  // namespace quire
