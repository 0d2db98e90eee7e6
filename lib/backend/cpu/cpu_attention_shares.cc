// Where rows look: the shares of their attention that fall on cells of keys (AttentionShares).
//
// A piece leaves the sums of its cells relative to its own maximum; when it is merged they join those of the row, like
// its output. All that is done to a row's cells is done in the order of its pieces: windows change no bit.
#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_sequence_attention.h"

namespace quire::cpu {

int64_t SequenceRun::first_asked(const Tile& tile) const {
  if (!args_.shares.out) return tile.rows();
  return ceil_div(std::max<int64_t>(0, args_.shares.first_row - tile.in_plan), tile.stride) * tile.heads;
}

float* SequenceRun::first_shares(const Tile& tile) const {
  const int64_t row = first_asked(tile);
  if (row >= tile.rows()) return nullptr;
  const int64_t place = tile.place(row);
  return static_cast<float*>(args_.shares.out->host()) +
         ((place - args_.shares.first_row) * n_heads_ + tile.first_head) * n_cells_;
}

int64_t SequenceRun::most_cells() const {
  if (!args_.shares.out) return 0;
  return args_.shares.n_entries > 0 ? l_ : l_ / AttentionShares::kCell;
}

void SequenceRun::start_shares(const Work& work, RowRange rows) const {
  for (int64_t row = std::max(work.first_asked, rows.begin); row < rows.end; ++row) {
    std::fill_n(shares_of(work, row), n_cells_, 0.0f);
  }
}

// Of a row that sees no key all shares are 0.
void SequenceRun::finish_shares(const Work& work, RowRange rows, const Partial& state) const {
  for (int64_t row = std::max(work.first_asked, rows.begin); row < rows.end; ++row) {
    if (state.sum[row] > 0) scale_blocks(1 / state.sum[row], shares_of(work, row), n_cells_);
  }
}

}  // namespace quire::cpu
