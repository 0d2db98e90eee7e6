// Chunk representations and the selection of chunks in one layer. Chunks are here those of ChunkSelection::chunk keys.
#include "lib/model/selection_layer.h"

#include <algorithm>

#include "lib/model/forward_pass.h"

namespace quire {

const ForwardPass::ChosenChunks* ForwardPass::chosen(const SequenceRows& rows) const {
  if (rows.kind != KvKind::kText || !rows.sequence->strategy->selects_chunks()) return nullptr;
  return &chosen_[static_cast<size_t>(rows.index)];
}

// Keeps the queries of chunks in progress, and represents the chunks that these tokens complete.
Status ForwardPass::represent_complete_chunks(Exec exec, const SequenceRows& rows, int layer) {
  ChunkStore& kv = rows.kv();
  const ChunkSelection& selection = rows.plan->selection;
  const int64_t l = selection.chunk, first = rows.first_key, end = first + rows.n;
  const auto represent = [&](int64_t chunk, int64_t n, const Rows& queries) {
    return backend_.represent_chunks(exec, step(layer),
                                     {.sequence = rows.index,
                                      .selection = selection,
                                      .queries = queries,
                                      .first_chunk = chunk,
                                      .n_chunks = n,
                                      .records = kv.layer(layer),
                                      .out = kv.representations(layer)});
  };
  const auto queries_of = [&](int64_t token) { return wide_.at(rows.row + token - first); };
  // Keeps the queries of tokens [from, to) of one chunk.
  const auto keep = [&](int64_t from, int64_t to) {
    if (!selection.keeps_queries()) return Status();
    return backend_.copy_rows(exec, queries_of(from), to - from, int64_t{config_.n_query_heads} * config_.head_dim,
                              kv.queries_in_progress(layer, from / l).at(from % l));
  };
  const int64_t whole = ceil_div(first, l), complete = end / l;  // chunks [whole, complete) have these tokens only
  if (first % l != 0) {
    QUIRE_TRY(keep(first, std::min(end, whole * l)));
    if (complete >= whole) QUIRE_TRY(represent(whole - 1, 1, kv.queries_in_progress(layer, whole - 1)));
  }
  if (complete > whole) QUIRE_TRY(represent(whole, complete - whole, queries_of(whole * l)));
  return complete >= whole && end % l != 0 ? keep(complete * l, end) : Status();
}

Status ForwardPass::select(Exec exec, const SequenceRows& rows, int layer) {
  const Plan& plan = *rows.plan;
  if (!has_selection(plan)) return {};
  if (layer == 0 || plan.selection.sharing != ChunkSelection::Sharing::kFirstLayer) {
    QUIRE_TRY(choose(exec, rows, layer));
  }
  const Sequence& sequence = *rows.sequence;
  if (sequence.selected.empty()) return {};
  const ChunkSelection& s = plan.selection;
  for_selected(plan, rows.first_key, config_.n_query_heads, chosen(rows)->on_host, [&](int64_t i, int32_t chunk) {
    // Forced chunks say nothing of what the model looks for.
    if (i < sequence.count_from || !s.is_free(i, chunk)) return;
    auto& counts = sequence.selected[sequence.selected.size() > 1 ? static_cast<size_t>(i - rows.first_key) : 0];
    if (counts.size() <= static_cast<size_t>(chunk)) counts.resize(static_cast<size_t>(chunk) + 1);
    ++counts[static_cast<size_t>(chunk)];
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
  if (!rows.kv().spills() && rows.sequence->selected.empty()) return {};
  own.on_host.resize(static_cast<size_t>(picks));
  QUIRE_TRY(backend_.download(*queue_, *own.buffer, 0, own.on_host.data(), own.on_host.size() * sizeof(int32_t)));
  return finish_queue(backend_, *queue_);
}

}  // namespace quire
