#include "lib/model/hidden_states.h"

#include <algorithm>

#include "lib/model/selection_layer.h"

namespace quire {

void ChoiceCounts::add(const int32_t* picks) const {
  // Forced chunks say nothing of what the model looks for.
  int64_t query = -1;
  ChunkSelection::Range free;
  std::vector<int64_t>* own = nullptr;
  for_selected(*plan, first_query, n_heads, picks, [&](int64_t i, int32_t chunk) {
    if (i < count_from) return;
    if (i != query) {
      query = i;
      free = plan->selection.free_chunks(i);
      own = &counts[counts.size() > 1 ? static_cast<size_t>(i - first_query) : 0];
      if (std::ssize(*own) < free.end) own->resize(static_cast<size_t>(free.end));
    }
    if (chunk >= free.begin && chunk < free.end) ++(*own)[static_cast<size_t>(chunk)];
  });
}

Status HiddenStates::wait() {
  if (const auto fence = std::exchange(fence_, nullptr)) QUIRE_TRY(fence->wait());
  for (const LaterChoices& later : std::exchange(choices_, {})) {
    for (int layer = 0; layer < later.n_layers; ++layer) later.counts.add(later.picks + layer * later.stride);
  }
  const LaterLogits logits = std::exchange(logits_, {});
  const float* from = logits.on_host;
  for (size_t row = 0; row < logits.rows.size(); ++row) {
    const LogitsWanted& wanted = logits.rows[row];
    if (wanted.on_host) {
      std::copy_n(from, logits.width, wanted.on_host);
      from += logits.width;
    }
    if (wanted.ranked) *wanted.ranked = logits.layout.row(logits.said, static_cast<int64_t>(row), logits.width);
  }
  return {};
}

HiddenStates::AdapterRun HiddenStates::adapters_from(int64_t row) const {
  return *std::find_if(adapters_.begin(), adapters_.end(), [&](const AdapterRun& run) { return row < run.first; });
}

}  // namespace quire
