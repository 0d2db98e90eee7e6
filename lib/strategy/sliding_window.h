// A model's own sliding window over a strategy: what both let a query see.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/strategy/strategy.h"

namespace quire {

// `inner`, cut to keys fewer than `window` (at least 1) tokens back; distances stay `inner`'s. With a window inside
// `train_len`, distances never leave the trained range, so there is no end to what the result can serve.
std::unique_ptr<Strategy> make_windowed(std::unique_ptr<Strategy> inner, int64_t window, int64_t train_len);

}  // namespace quire
