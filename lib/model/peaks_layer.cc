// Where tokens look: of each cell of keys the greatest share that a head of any layer gives it (PeaksWanted). Layers
// with the model's sliding window, where others have none, are left out: they cannot but look at what is near.
#include <algorithm>

#include "lib/model/forward_pass.h"

namespace quire {

// What is asked of a layer's attention; nothing (out is null) for most.
AttentionShares ForwardPass::shares_of(const SequenceRows& rows) const {
  const PeaksWanted& wanted = rows.sequence->look;
  const int64_t end = rows.first_key + rows.n;
  if (!wanted.peaks || rows.kind != KvKind::kText || end <= wanted.from) return {};
  return {.out = peaks_[static_cast<size_t>(rows.index)].shares.get(),
          .first_row = std::max<int64_t>(0, wanted.from - rows.first_key),
          .first_key = wanted.first_key,
          .end_key = wanted.end_key,
          .n_entries = rows.sequence->strategy->condensed_entries(rows.first_key)};
}

Status ForwardPass::prepare_peaks() {
  if (peaks_.size() < texts_.size()) peaks_.resize(texts_.size());
  for (const SequenceRows& rows : texts_) {
    const PeaksWanted& wanted = rows.sequence->look;
    if (!wanted.peaks) continue;
    const AttentionShares shares = shares_of(rows);
    const int64_t n = std::min(rows.n, rows.first_key + rows.n - wanted.from);
    *wanted.n_entries = shares.n_entries;
    wanted.peaks->assign(static_cast<size_t>(std::max<int64_t>(0, n) * shares.n_cells()), 0.0f);
    const size_t bytes = wanted.peaks->size() * sizeof(float);
    if (bytes == 0) continue;
    Peaks& own = peaks_[static_cast<size_t>(rows.index)];
    QUIRE_TRY(require(own.shares, bytes * static_cast<size_t>(config_.n_query_heads)));
    QUIRE_TRY(require(own.peaks, bytes));
  }
  return {};
}

Status ForwardPass::keep_peaks(Exec exec, int layer) {
  for (const SequenceRows& rows : texts_) {
    const AttentionShares shares = shares_of(rows);
    if (!shares.out || shares.n_cells() == 0 || !has_method(rows, layer)) continue;
    QUIRE_TRY(backend_.keep_peaks(exec, *shares.out, rows.n - shares.first_row, config_.n_query_heads, shares.n_cells(),
                                  methods_before(rows, layer) == 0, *peaks_[static_cast<size_t>(rows.index)].peaks));
  }
  return {};
}

Status ForwardPass::download_peaks() {
  for (const SequenceRows& rows : texts_) {
    std::vector<float>* peaks = rows.sequence->look.peaks;
    if (!peaks || peaks->empty()) continue;
    QUIRE_TRY(backend_.download(*queue_, *peaks_[static_cast<size_t>(rows.index)].peaks, 0, peaks->data(),
                                peaks->size() * sizeof(float)));
  }
  return {};
}

}  // namespace quire
