// Chunk representations and the selection of chunks in one layer (ChunkSelection).
#include "lib/model/selection_layer.h"

#include <algorithm>

#include "lib/model/forward_pass.h"

namespace quire {

const ForwardPass::ChosenChunks* ForwardPass::chosen(const SequenceRows& rows) const {
  if (rows.kind != KvKind::kText || !rows.sequence->strategy->selects_chunks()) return nullptr;
  return &chosen_[static_cast<size_t>(rows.index)];
}

// Keeps the queries of chunks in progress, and represents the chunks that these tokens complete.
Status ForwardPass::represent_chunks(Exec exec, const SequenceRows& rows, int layer) {
  ChunkStore& kv = rows.kv();
  const int64_t l = kv.geometry().chunk;
  const int64_t first = rows.first_key;
  const int64_t end = first + rows.n;
  RepresentArgs args;
  args.sequence = rows.index;
  args.records = kv.layer(layer);
  args.out = kv.representations(layer);
  args.selection = rows.plan->selection;
  const bool keeps_queries = args.selection.keeps_queries();
  for (int64_t chunk = first / l; chunk * l < end; ++chunk) {
    const int64_t from = std::max(first, chunk * l), to = std::min(end, (chunk + 1) * l);
    args.queries = wide_.at(rows.row + from - first);
    if (keeps_queries && to - from < l) {
      const Rows kept = kv.queries_in_progress(layer, chunk);
      QUIRE_TRY(backend_.copy_rows(exec, args.queries, to - from, int64_t{config_.n_query_heads} * config_.head_dim,
                                   kept.at(from - chunk * l)));
      args.queries = kept;
    }
    if (to < (chunk + 1) * l) break;
    args.chunk = chunk;
    QUIRE_TRY(backend_.represent_chunk(exec, step(layer), args));
  }
  return {};
}

Status ForwardPass::select(Exec exec, const SequenceRows& rows, int layer) {
  const Plan& plan = *rows.plan;
  if (!has_selection(plan)) return {};
  if (layer == 0 || plan.selection.sharing != ChunkSelection::Sharing::kFirstLayer) {
    QUIRE_TRY(choose(exec, rows, layer));
  }
  const Sequence& sequence = *rows.sequence;
  if (!sequence.selected) return {};
  const ChunkSelection& s = plan.selection;
  for_selected(plan, rows.first_key, config_.n_query_heads, chosen(rows)->on_host, [&](int64_t i, int32_t chunk) {
    // Forced chunks say nothing of what the model looks for.
    if (i < sequence.count_from || !s.is_free(i, chunk)) return;
    if (sequence.selected->size() <= static_cast<size_t>(chunk))
      sequence.selected->resize(static_cast<size_t>(chunk) + 1);
    ++(*sequence.selected)[static_cast<size_t>(chunk)];
  });
  return {};
}

Status ForwardPass::choose(Exec exec, const SequenceRows& rows, int layer) {
  ChosenChunks& own = chosen_[static_cast<size_t>(rows.index)];
  const int64_t picks = rows.n * config_.n_query_heads * rows.plan->most_selected();
  QUIRE_TRY(require(own.buffer, static_cast<size_t>(picks) * sizeof(int32_t)));
  QUIRE_TRY(backend_.select_chunks(exec, step(layer),
                                   {.sequence = rows.index,
                                    .layer = layer,
                                    .queries = wide_.at(rows.row),
                                    .representations = rows.kv().representations(layer),
                                    .out = own.buffer.get()}));
  if (!rows.kv().spills() && !rows.sequence->selected) return {};
  own.on_host.resize(static_cast<size_t>(picks));
  QUIRE_TRY(backend_.download(*queue_, *own.buffer, 0, own.on_host.data(), own.on_host.size() * sizeof(int32_t)));
  return finish_queue(backend_, *queue_);
}

}  // namespace quire
