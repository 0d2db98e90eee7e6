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
                                      .out = kv.representations(layer),
                                      .order = {config_.head_dim, config_.rotary_dim}});
  };
  const auto queries_of = [&](int64_t token) { return wide_.at(rows.row + token - first); };
  // Keeps the queries of tokens [from, to) of one chunk.
  const auto keep = [&](int64_t from, int64_t to) {
    if (!selection.keeps_queries()) return Status();
    return backend_.keep_queries(exec, step(layer),
                                 {.sequence = rows.index,
                                  .from = queries_of(from),
                                  .first_row = from - first,
                                  .n = to - from,
                                  .width = int64_t{config_.n_query_heads} * config_.head_dim,
                                  .chunk = l,
                                  .to = kv.queries_in_progress(layer, from / l)});
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
  if (!has_selection(plan_in(rows, layer))) return {};
  if (chooses_in(rows, layer)) QUIRE_TRY(choose(exec, rows, layer));
  if (!rows.sequence->selected.empty() && !chosen(rows)->keeps) counts_of(rows).add(chosen(rows)->picks());
  return {};
}

// For all layers that choose.
bool ForwardPass::chooses_once(const SequenceRows& rows) {
  return rows.plan->selection.sharing == ChunkSelection::Sharing::kFirstLayer;
}

bool ForwardPass::chooses_in(const SequenceRows& rows, int layer) const {
  return !chooses_once(rows) || methods_before(rows, layer) == 0;
}

// Of a layer's choices in the buffer.
int64_t ForwardPass::choices_offset(const SequenceRows& rows, int layer) const {
  const ChosenChunks* const own = chosen(rows);
  return own->keeps && chooses_in(rows, layer) ? methods_before(rows, layer) * own->n_picks : 0;
}

ChoiceCounts ForwardPass::counts_of(const SequenceRows& rows) const {
  const Sequence& sequence = *rows.sequence;
  return {rows.plan, rows.first_key, config_.n_query_heads, sequence.count_from, sequence.selected};
}

// Memory for what is chosen. Choices that are counted alone, and of few tokens, come to the host when the pass is done,
// so that no layer is waited for.
Status ForwardPass::prepare_choices() {
  constexpr int64_t kMostKeptPicks = int64_t{1} << 20;
  if (chosen_.size() < texts_.size()) chosen_.resize(texts_.size());
  for (const SequenceRows& rows : texts_) {
    ChosenChunks& own = chosen_[static_cast<size_t>(rows.index)];
    own.n_picks = rows.n * config_.n_query_heads * rows.plan->most_selected();
    own.keeps = false;
    if (own.n_picks == 0) continue;
    const int64_t all = chooses_once(rows) ? own.n_picks : methods_before(rows, config_.n_layers) * own.n_picks;
    const bool counts = !rows.sequence->selected.empty();
    own.keeps = counts && !rows.kv().moves() && all <= kMostKeptPicks;
    const auto bytes = static_cast<size_t>(own.keeps ? all : own.n_picks) * sizeof(int32_t);
    QUIRE_TRY(require(own.buffer, bytes));
    if (counts || rows.kv().moves()) QUIRE_TRY(require(own.on_host, bytes, MemoryKind::kStaging));
  }
  return {};
}

// Those that were kept.
Status ForwardPass::download_choices() {
  for (const SequenceRows& rows : texts_) {
    const ChosenChunks& own = chosen_[static_cast<size_t>(rows.index)];
    if (!own.keeps) continue;
    const int64_t n_layers = chooses_once(rows) ? 1 : methods_before(rows, config_.n_layers);
    QUIRE_TRY(backend_.download(*queue_, *own.buffer, 0, own.on_host->host(),
                                static_cast<size_t>(n_layers * own.n_picks) * sizeof(int32_t)));
  }
  return {};
}

Status ForwardPass::choose(Exec exec, const SequenceRows& rows, int layer) {
  const ChosenChunks& own = *chosen(rows);
  QUIRE_TRY(backend_.select_chunks(exec, step(layer),
                                   {.sequence = rows.index,
                                    .layer = layer,
                                    .queries = wide_.at(rows.row),
                                    .representations = rows.kv().representations(layer),
                                    .out = own.buffer.get(),
                                    .out_offset = choices_offset(rows, layer)}));
  if (own.keeps || (!rows.kv().moves() && rows.sequence->selected.empty())) return {};
  QUIRE_TRY(backend_.download(*queue_, *own.buffer, 0, own.on_host->host(),
                              static_cast<size_t>(own.n_picks) * sizeof(int32_t)));
  return finish_queue(backend_, *queue_);
}

}  // namespace quire
