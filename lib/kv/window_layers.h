// Layers of a model whose queries see the last keys of the text alone, while those of the others see more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace quire {

// In these layers query i sees text key j only if i - j is less than `tokens`.
struct WindowLayers {
  std::vector<bool> layers{};  // of each layer of the model, whether it is one; empty: none is
  int64_t tokens = 0;
  bool keeps_all = false;  // what lies before the window is kept as long as the other layers keep it

  bool any() const { return !layers.empty(); }
  int64_t n() const { return std::ranges::count(layers, true); }
  bool drops() const { return any() && !keeps_all; }
  // The first key that queries from `next_query` on may see.
  int64_t first_seen(int64_t next_query) const { return std::max<int64_t>(0, next_query - tokens + 1); }
};

}  // namespace quire
