// Attention of one layer over the chunk store, over as many chunks at a time as memory holds.
#include <algorithm>

#include "lib/model/forward_pass.h"
#include "lib/model/selection_layer.h"

namespace quire {
namespace {

// Of these chunks, those that a step reads in both types, each for other queries.
int64_t n_both(const ChunkStore::Versions& versions, std::span<const int64_t> chunks, int64_t chunk) {
  return std::ranges::count_if(
      chunks, [&](int64_t c) { return c * chunk >= versions.full_from && c * chunk < versions.narrow_before; });
}

}  // namespace

AttentionArgs ForwardPass::attention_args(const SequenceRows& rows, int layer) const {
  AttentionArgs args;
  args.sequence = rows.index;
  args.queries = wide_.at(rows.row);
  args.out = normed_.at(rows.row);
  for (const KvKind kind : kAllKvKinds) {
    args.records[static_cast<size_t>(kind)] = rows.kv().layer(layer, kind);
  }
  if (const ChosenChunks* own = chosen(rows)) {
    args.selection = own->buffer.get();
    args.selection_offset = choices_offset(rows, layer);
  }
  if (has_method(rows, layer)) args.shares = shares_of(rows);
  return args;
}

// Narrow records of the chunks that became old, before anybody reads them: one at a time where full ones may have left
// memory, else those together that stand together.
Status ForwardPass::narrow_chunks(Exec exec, const SequenceRows& rows, int layer) {
  ChunkStore& kv = rows.kv();
  const std::span<const int64_t> chunks = kv.to_narrow(layer);
  int64_t n = 1;
  for (size_t i = 0; i < chunks.size(); i += static_cast<size_t>(n), n = 1) {
    if (kv.moves()) {
      QUIRE_TRY(kv.acquire(exec.queue, layer, chunks.subspan(i, 1), reading(rows, layer)));
      QUIRE_TRY(kv.acquire(exec.queue, layer, chunks.subspan(i, 1), Access::kWrite, KvKind::kNarrow));
    } else {
      while (i + static_cast<size_t>(n) < chunks.size() && chunks[i + static_cast<size_t>(n)] == chunks[i] + n) ++n;
    }
    QUIRE_TRY(backend_.narrow_chunks(exec, step(layer),
                                     {.sequence = rows.index,
                                      .first_chunk = chunks[i],
                                      .n_chunks = n,
                                      .records = kv.layer(layer),
                                      .out = kv.layer(layer, KvKind::kNarrow)}));
  }
  return {};
}

// Sequences whose keys are in memory together go together; the others by windows of chunks.
Status ForwardPass::attend(Exec exec, std::span<const SequenceRows> all, int layer) {
  std::vector<AttentionArgs> together;
  for (const SequenceRows& rows : all) {
    ChunkStore& kv = rows.kv();
    if (kv.moves()) {
      const std::vector<int64_t> needed = seen_chunks(rows, layer);
      const auto n = static_cast<int64_t>(needed.size());
      Status status(Code::kBudget, "windows");
      const int64_t n_records = n + n_both(versions(rows, layer), needed, kv.geometry().chunk);
      const bool fits = kv.window(n_records, reading(rows, layer)) == n_records;
      if (fits) status = acquire_window(exec, rows, layer, needed, true);
      if (status.code() == Code::kBudget && n > 1) {  // not, or other sessions took the room meanwhile
        QUIRE_TRY(attend_by_windows(exec, rows, layer, needed));
        continue;
      }
      QUIRE_TRY(status);
      prefetch_layer(rows, needed, layer + 1);
    }
    together.push_back(attention_args(rows, layer));
  }
  return together.empty() ? Status() : backend_.attention(exec, step(layer), together);
}

// Beacon tokens read what the last token of their window reads. Layers with a window have full records alone.
OldText ForwardPass::old_text(const SequenceRows& rows, bool windowed) {
  if (windowed && rows.window_plan) return {};
  OldText old = rows.kv().old_text();
  if (rows.kind == KvKind::kCondensed) old.query = rows.sequence->first_position + rows.sequence->n() - 1;
  return old;
}

ChunkStore::Versions ForwardPass::versions(const SequenceRows& rows, int layer) const {
  const OldText old = old_text(rows, kind_of(layer).windowed);
  const int64_t chunk = rows.kv().geometry().chunk;
  return {.narrow_before = old.before(rows.first_key + rows.n - 1, chunk),
          .full_from = old.before(rows.first_key, chunk)};
}

// Without a selection each step reads all layers in turn, and in each all chunks.
Access ForwardPass::reading(const SequenceRows& rows, int layer) const {
  return has_selection(plan_in(rows, layer)) ? Access::kRead : Access::kScan;
}

// The last window has the condensed entries too.
Status ForwardPass::acquire_window(Exec exec, const SequenceRows& rows, int layer, std::span<const int64_t> chunks,
                                   bool last) const {
  ChunkStore& kv = rows.kv();
  QUIRE_TRY(kv.acquire(exec.queue, layer, chunks, reading(rows, layer), versions(rows, layer)));
  if (!last) return {};
  return kv.acquire(exec.queue, layer, consecutive(0, kv.condensed_chunks()), Access::kRead, KvKind::kCondensed);
}

// All chunks that some query sees, ascending. Where they are chosen, the store learns which ones the last query chose.
std::vector<int64_t> ForwardPass::seen_chunks(const SequenceRows& rows, int layer) const {
  const int64_t chunk = rows.kv().geometry().chunk;
  const Plan& plan = plan_in(rows, layer);
  auto chunks = touched_chunks(plan, chunk, config_.n_query_heads);
  if (!has_selection(plan)) return chunks;
  std::vector<bool> seen(static_cast<size_t>(ceil_div(rows.first_key + rows.n, chunk)));
  for (const int64_t c : chunks) seen[static_cast<size_t>(c)] = true;
  const int64_t parts = chunk / plan.selection.chunk;  // of a chunk: what is selected
  const int64_t last = rows.first_key + rows.n - 1;
  std::vector<int64_t> of_last;
  for_selected(plan, rows.first_key, config_.n_query_heads, chosen(rows)->picks(), [&](int64_t i, int32_t c) {
    seen[static_cast<size_t>(c / parts)] = true;
    if (i == last) of_last.push_back(c / parts);
  });
  std::ranges::sort(of_last);
  of_last.erase(std::unique(of_last.begin(), of_last.end()), of_last.end());
  rows.kv().set_last_chosen(layer, std::move(of_last));
  chunks.clear();
  for (size_t c = 0; c < seen.size(); ++c) {
    if (seen[c]) chunks.push_back(static_cast<int64_t>(c));
  }
  return chunks;
}

// Asks for the first records that the text's attention in a layer will need. `first`: the first window of the layer
// before, which is this one's too unless that has another plan, or chunks are chosen: then many of those that the
// text's last query chose in this layer, before this step, are likely chosen again.
void ForwardPass::prefetch_layer(const SequenceRows& rows, std::span<const int64_t> first, int layer) const {
  if (layer >= config_.n_layers || rows.kind != KvKind::kText) return;
  rows.kv().prefetch(layer, own_chunks(rows), Access::kRead, {});
  rows.kv().prefetch(layer, rows.kv().to_narrow(layer), Access::kRead, {});
  const Plan& plan = plan_in(rows, layer);
  if (has_selection(plan)) {
    rows.kv().prefetch(layer, rows.kv().last_chosen(layer), Access::kLikely, versions(rows, layer));
  } else if (&plan == &plan_in(rows, layer - 1)) {
    rows.kv().prefetch(layer, first, Access::kScan, versions(rows, layer));
  } else {
    rows.kv().prefetch(layer, touched_chunks(plan, rows.kv().geometry().chunk, config_.n_query_heads), Access::kScan,
                       versions(rows, layer));
  }
}

Status ForwardPass::attend_by_windows(Exec exec, const SequenceRows& rows, int layer, std::span<const int64_t> needed) {
  ChunkStore& kv = rows.kv();
  const auto n = static_cast<int64_t>(needed.size());
  int64_t most = kv.window(n, reading(rows, layer));
  const auto window = [&](int64_t begin) {
    return needed.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(most, n - begin)));
  };
  const int64_t floats = attention_state_floats(rows.n, config_.n_query_heads, config_.head_dim);
  QUIRE_TRY(require(state_, static_cast<size_t>(floats) * sizeof(float)));
  int64_t begin = 0, end = 0;
  while (end < n) {
    end = std::min(n, begin + most);
    const Status status = acquire_window(exec, rows, layer, window(begin), end == n);
    if (status.code() == Code::kBudget && most > 1) {  // other sessions took room meanwhile
      most = std::min(most, end - begin) / 2;
      end = begin;
      continue;
    }
    QUIRE_TRY(status);
    // What is needed next comes while this window is computed.
    if (end < n) {
      kv.prefetch(layer, window(end), reading(rows, layer), versions(rows, layer));
    } else {
      prefetch_layer(rows, window(0), layer + 1);
    }
    AttentionArgs args = attention_args(rows, layer);
    args.state = state_.get();
    args.window = {needed[static_cast<size_t>(begin)], end == n ? kNoLimit : needed[static_cast<size_t>(end)],
                   begin == 0, end == n};
    QUIRE_TRY(backend_.attention(exec, step(layer), {&args, 1}));
    begin = end;
  }
  return {};
}

}  // namespace quire
