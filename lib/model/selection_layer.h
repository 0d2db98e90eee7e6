// Walking through the chunks that queries selected.
#pragma once

#include <cstdint>

#include "lib/plan/plan.h"

namespace quire {

inline bool has_selection(const Plan& plan) { return plan.most_selected() > 0; }

// Calls use(query, chunk) for every chunk, of ChunkSelection::chunk keys, that was selected for queries of selected
// blocks. picks: as select_chunks leaves them.
template <typename Use>
void for_selected(const Plan& plan, int64_t first_query, int n_heads, const int32_t* picks, const Use& use) {
  const int64_t width = plan.most_selected();
  for (const QueryBlock& block : plan.blocks) {
    if (!block.selected) continue;
    for (int64_t i = block.first_query; i < block.first_query + block.n_queries; ++i) {
      const int32_t* const of_query = picks + (i - first_query) * n_heads * width;
      for (int64_t p = 0; p < n_heads * width; ++p) {
        if (of_query[p] >= 0) use(i, of_query[p]);
      }
    }
  }
}

}  // namespace quire
