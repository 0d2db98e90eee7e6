// One sequence's attention in one layer: keys into the store, chunk representations, selection, and the executor, over
// as many chunks at a time as memory holds.
#include <algorithm>
#include <cmath>

#include "lib/model/llama_model.h"

namespace quire {

std::vector<int64_t> consecutive(int64_t begin, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t c = begin; c < end; ++c) all.push_back(c);
  return all;
}

namespace {

// Calls use(query, chunk) for every chunk that was selected for queries of selected blocks.
template <typename Use>
void for_selected(const Plan& plan, int64_t first_query, int n_heads, const std::vector<int32_t>& picks,
                  const Use& use) {
  const int64_t width = plan.selection.count;
  for (const QueryBlock& block : plan.blocks) {
    if (!block.selected) continue;
    for (int64_t i = block.first_query; i < block.first_query + block.n_queries; ++i) {
      const auto* of_query = &picks[static_cast<size_t>((i - first_query) * n_heads * width)];
      for (int64_t p = 0; p < n_heads * width; ++p) {
        if (of_query[p] >= 0) use(i, of_query[p]);
      }
    }
  }
}

bool has_selection(const Plan& plan) {
  return std::any_of(plan.blocks.begin(), plan.blocks.end(), [](const QueryBlock& b) { return b.selected; });
}

}  // namespace

float LlamaModel::logit_scale(const Strategy& strategy) const {
  const double factor = strategy.rope().attention_factor;
  return static_cast<float>(factor * factor / std::sqrt(static_cast<double>(config_.head_dim)));
}

Status LlamaModel::require(Backend& backend, std::unique_ptr<Buffer>& buffer, size_t bytes) {
  if (buffer && buffer->size() >= bytes) return {};
  QUIRE_ASSIGN(buffer, backend.allocate(bytes, MemoryKind::kDevice));
  return {};
}

Status LlamaModel::attend(Exec exec, const Sequence& sequence, const Plan& plan, ChosenChunks& chosen, int64_t row,
                          int layer) {
  const auto n = static_cast<int64_t>(sequence.tokens.size());
  const int64_t d = config_.head_dim;
  ChunkStore& kv = *sequence.kv;
  const int64_t chunk = kv.geometry().chunk;
  const auto own = consecutive(sequence.first_position / chunk, ceil_div(sequence.first_position + n, chunk));
  QUIRE_TRY(kv.acquire(layer, own, true));

  StoreKvArgs store;
  store.keys = wide_.at(row).column(config_.n_query_heads * d);
  store.values = wide_.at(row).column((config_.n_query_heads + config_.n_kv_heads) * d);
  store.first_key = sequence.first_position;
  store.n = n;
  store.rope = sequence.strategy->stores_raw_keys() ? nullptr : sequence.rope;
  store.geometry = kv.geometry();
  store.records = kv.layer(layer);
  QUIRE_TRY(backend_.store_kv(exec, store));
  if (sequence.strategy->selects_chunks()) {
    QUIRE_TRY(represent_chunks(exec, sequence, row, layer));
    QUIRE_TRY(select(exec, sequence, plan, chosen, row, layer));
  }

  return attend_rows(exec, sequence, plan, &chosen, row, n, layer);
}

// The plan's n queries stand in rows from `row` on.
Status LlamaModel::attend_rows(Exec exec, const Sequence& sequence, const Plan& plan, const ChosenChunks* chosen,
                               int64_t row, int64_t n, int layer) {
  ChunkStore& kv = *sequence.kv;
  AttentionArgs attention;
  attention.queries = wide_.at(row);
  attention.out = normed_.at(row);
  attention.plan = &plan;
  attention.n_queries = n;
  attention.n_query_heads = config_.n_query_heads;
  attention.scale = logit_scale(*sequence.strategy);
  attention.rope = sequence.rope;
  attention.geometry = kv.geometry();
  if (chosen) attention.selection = chosen->buffer.get();
  for (const KvKind kind : {KvKind::kText, KvKind::kCondensed}) {
    attention.records[static_cast<int>(kind)] = kv.layer(layer, kind);
  }
  return kv.spills() ? attend_by_windows(exec, sequence, chosen, attention, layer)
                     : backend_.attention(exec, attention);
}

// Keeps the queries of chunks in progress, and represents the chunks that these tokens complete.
Status LlamaModel::represent_chunks(Exec exec, const Sequence& sequence, int64_t row, int layer) {
  ChunkStore& kv = *sequence.kv;
  const int64_t l = kv.geometry().chunk;
  const int64_t first = sequence.first_position;
  const int64_t end = first + static_cast<int64_t>(sequence.tokens.size());
  RepresentArgs args;
  args.n_query_heads = config_.n_query_heads;
  args.scale = logit_scale(*sequence.strategy);
  args.rope = sequence.rope;
  args.geometry = kv.geometry();
  args.records = kv.layer(layer);
  args.out = kv.representations(layer);
  for (int64_t chunk = first / l; chunk * l < end; ++chunk) {
    const int64_t from = std::max(first, chunk * l), to = std::min(end, (chunk + 1) * l);
    args.queries = wide_.at(row + from - first);
    if (to - from < l) {
      const Rows kept = kv.queries_in_progress(layer, chunk);
      QUIRE_TRY(backend_.copy_rows(exec, args.queries, to - from, int64_t{config_.n_query_heads} * config_.head_dim,
                                   kept.at(from - chunk * l)));
      args.queries = kept;
    }
    if (to < (chunk + 1) * l) break;
    args.chunk = chunk;
    QUIRE_TRY(backend_.represent_chunk(exec, args));
  }
  return {};
}

Status LlamaModel::select(Exec exec, const Sequence& sequence, const Plan& plan, ChosenChunks& chosen, int64_t row,
                          int layer) {
  if (!has_selection(plan)) return {};
  if (layer == 0 || plan.selection.sharing != ChunkSelection::Sharing::kFirstLayer) {
    QUIRE_TRY(choose(exec, sequence, plan, chosen, row, layer));
  }
  if (!sequence.selected) return {};
  const ChunkSelection& s = plan.selection;
  for_selected(plan, sequence.first_position, config_.n_query_heads, chosen.on_host, [&](int64_t i, int32_t chunk) {
    // Forced chunks say nothing of what the model looks for.
    if (i < sequence.count_from || !s.is_free(i, chunk)) return;
    if (sequence.selected->size() <= static_cast<size_t>(chunk))
      sequence.selected->resize(static_cast<size_t>(chunk) + 1);
    ++(*sequence.selected)[static_cast<size_t>(chunk)];
  });
  return {};
}

Status LlamaModel::choose(Exec exec, const Sequence& sequence, const Plan& plan, ChosenChunks& chosen, int64_t row,
                          int layer) {
  SelectArgs args;
  args.layer = layer;
  args.queries = wide_.at(row);
  args.plan = &plan;
  args.first_query = sequence.first_position;
  args.n_queries = static_cast<int64_t>(sequence.tokens.size());
  args.n_query_heads = config_.n_query_heads;
  args.n_kv_heads = config_.n_kv_heads;
  args.head_dim = config_.head_dim;
  args.representations = sequence.kv->representations(layer);
  const int64_t picks = args.n_queries * config_.n_query_heads * plan.selection.count;
  QUIRE_TRY(require(backend_, chosen.buffer, static_cast<size_t>(picks) * sizeof(int32_t)));
  args.out = chosen.buffer.get();
  QUIRE_TRY(backend_.select_chunks(exec, args));
  if (!sequence.kv->spills() && !sequence.selected) return {};
  chosen.on_host.resize(static_cast<size_t>(picks));
  QUIRE_TRY(
      backend_.download(*queue_, *chosen.buffer, 0, chosen.on_host.data(), chosen.on_host.size() * sizeof(int32_t)));
  return backend_.synchronize(*queue_);
}

// All chunks that some query sees, ascending.
std::vector<int64_t> LlamaModel::seen_chunks(const Sequence& sequence, const Plan& plan,
                                             const ChosenChunks* chosen) const {
  const int64_t chunk = sequence.kv->geometry().chunk;
  auto chunks = touched_chunks(plan, chunk, config_.n_query_heads);
  if (!has_selection(plan)) return chunks;
  const int64_t end = sequence.first_position + static_cast<int64_t>(sequence.tokens.size());
  std::vector<bool> seen(static_cast<size_t>(ceil_div(end, chunk)));
  for (const int64_t c : chunks) seen[static_cast<size_t>(c)] = true;
  for_selected(plan, sequence.first_position, config_.n_query_heads, chosen->on_host,
               [&](int64_t, int32_t c) { seen[static_cast<size_t>(c)] = true; });
  chunks.clear();
  for (size_t c = 0; c < seen.size(); ++c) {
    if (seen[c]) chunks.push_back(static_cast<int64_t>(c));
  }
  return chunks;
}

Status LlamaModel::attend_by_windows(Exec exec, const Sequence& sequence, const ChosenChunks* chosen,
                                     AttentionArgs args, int layer) {
  ChunkStore& kv = *sequence.kv;
  const std::vector<int64_t> needed = seen_chunks(sequence, *args.plan, chosen);
  const auto n = static_cast<int64_t>(needed.size());
  const int64_t most = kv.max_resident();
  if (n > most) {
    QUIRE_TRY(require(backend_, state_, static_cast<size_t>(args.state_floats()) * sizeof(float)));
    args.state = state_.get();
  }
  int64_t begin = 0, end = 0;
  do {  // once at least: queries that see nothing have an output too
    end = n - begin <= most ? n : begin + most;
    QUIRE_TRY(kv.acquire(layer, std::span(needed).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                         false));
    // The last window has the condensed entries too.
    if (end == n) QUIRE_TRY(kv.acquire(layer, consecutive(0, kv.condensed_chunks()), false, KvKind::kCondensed));
    for (const KvKind kind : {KvKind::kText, KvKind::kCondensed}) {
      args.records[static_cast<int>(kind)] = kv.layer(layer, kind);
    }
    args.window = {n == 0 ? 0 : needed[static_cast<size_t>(begin)],
                   end == n ? kNoLimit : needed[static_cast<size_t>(end)], begin == 0, end == n};
    QUIRE_TRY(backend_.attention(exec, args));
    begin = end;
  } while (end < n);
  return {};
}

}  // namespace quire
