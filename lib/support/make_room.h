// Growing a vector ahead of time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace quire {

// Room for n more, so that appending them cannot fail; grows as push_back does.
template <typename T>
void make_room(std::vector<T>& values, size_t n) {
  const size_t needed = values.size() + n;
  if (needed > values.capacity()) values.reserve(std::max(needed, 2 * values.capacity()));
}

}  // namespace quire
