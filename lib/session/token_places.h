// The places of a token in a text, from the end backwards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

// Calls visit(i) for each place i < end where the token stands, the last one first, as long as it returns true. As a
// rule a token stands in few blocks of a text; whether it stands in one is found with vector instructions.
template <typename Visit>
void visit_places(std::span<const int32_t> text, size_t end, int32_t token, const Visit& visit) {
  constexpr size_t kBlock = 64;
  const int32_t* tokens = text.data();
  while (end > 0) {
    const size_t begin = end - std::min(end, kBlock);
    int32_t stands = 0;
    for (size_t i = begin; i < end; ++i) stands |= tokens[i] == token ? 1 : 0;
    for (size_t i = end; stands != 0 && i-- > begin;) {
      if (tokens[i] == token && !visit(i)) return;
    }
    end = begin;
  }
}

}  // namespace quire
