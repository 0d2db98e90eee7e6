// Full records of chunks of which only narrow ones are left: ChunkStore's part of approximate edits with narrow old
// text.
//
// They have the numbers of the narrow records in the KV type, so they are not what was computed once: only a text that
// is approximate anyway reads them. Elsewhere a text is cut so that every query finds what it reads (holds_for).
#include <algorithm>
#include <utility>

#include "lib/kv/chunk_store.h"
#include "lib/support/element.h"
#include "lib/support/int4.h"

namespace quire {
namespace {

// The neutral form of a narrow record, in the type of `g`: of kInt4 (lib/support/int4.h), and of kInt8
// (kernels/cpu/kernels.h).
void widen_int4(const KvGeometry& g, std::span<const std::byte> narrow, std::span<std::byte> full) {
  const std::byte* from = narrow.data();
  std::byte* to = full.data();
  const auto widen = [&](auto place, size_t bytes) {
    for (int64_t j = 0; j < g.chunk; ++j) {
      for (int64_t i = 0; i < g.head_dim; ++i) {
        store_element(g.type, to, j * g.head_dim + i, load_int4(from, place(j, i, g.head_dim)));
      }
    }
    from += bytes;
    to += row_bytes(g.type, g.chunk * g.head_dim);
  };
  for (int head = 0; head < g.n_kv_heads; ++head) {
    widen(int4_key_place, int4_key_bytes(g.chunk, g.head_dim));
    widen(int4_value_place, int4_value_bytes(g.chunk, g.head_dim));
  }
}

void widen_int8(const KvGeometry& g, std::span<const std::byte> narrow, std::span<std::byte> full) {
  const int64_t n = g.chunk * g.head_dim;
  const std::byte* from = narrow.data();
  std::byte* to = full.data();
  const auto widen = [&](bool keys) {
    const std::byte* const scales = from + n;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t which = keys ? i % g.head_dim : i / g.head_dim;  // a key's channel, a value's token
      store_element(g.type, to, i,
                    load_element(ElementType::kInt8, from, i) * load_element(ElementType::kF32, scales, which));
    }
    from = scales + (keys ? int64_t{g.head_dim} : g.chunk) * static_cast<int64_t>(sizeof(float));
    to += row_bytes(g.type, n);
  };
  for (int head = 0; head < g.n_kv_heads; ++head) {
    widen(true);
    widen(false);
  }
}

}  // namespace

// Copies a narrow record to the host as a full one.
Status ChunkStore::read_widened(Queue& queue, Record& narrow, std::span<std::byte> full) {
  std::vector<std::byte> record(static_cast<size_t>(narrow_bytes_)), neutral(kv_neutral_bytes(narrow_geometry_)),
      wide(kv_neutral_bytes(geometry_));
  QUIRE_TRY(residency_->read(user_, queue, narrow, record));
  backend_.to_neutral(narrow_geometry_, record.data(), neutral.data());
  (options_.old.type == ElementType::kInt4 ? widen_int4 : widen_int8)(geometry_, neutral, wide);
  backend_.from_neutral(geometry_, wide.data(), full.data());
  return {};
}

// Full records of a chunk that has narrow ones. Errors, and exceptions: it has none.
Status ChunkStore::widen(Queue& queue, int64_t chunk) {
  struct Undo {
    ChunkStore& store;
    const int64_t chunk;
    bool done = false;
    ~Undo() {
      if (!done) store.drop(RecordKind::kText, chunk, chunk + 1);
    }
  } undo{*this, chunk};
  std::vector<std::byte> record(static_cast<size_t>(record_bytes_));
  table_.extend(RecordKind::kText, chunk, chunk + 1);
  QUIRE_TRY(make_records(RecordKind::kText, {&chunk, 1}));
  for (const int layer : table_.layers(RecordKind::kText)) {
    QUIRE_TRY(read_widened(queue, table_.record(layer, RecordKind::kNarrow, chunk), record));
    QUIRE_TRY(write_new(queue, table_.record(layer, RecordKind::kText, chunk), record));
  }
  full_from_ = std::min(full_from_, chunk);
  undo.done = true;
  return {};
}

// Moves brought chunks that are young for queries from `first` on and had narrow records alone. Where a text was cut,
// chunks that no query from there on sees may be so, too: they stay as they are, for their numbers are not what was
// computed once.
Status ChunkStore::widen_young(int64_t first) {
  std::unique_ptr<Queue> queue;
  const std::vector<KeyRange> seen = narrow_bytes_ > 0 ? seen_text(first) : std::vector<KeyRange>();
  for (int64_t chunk = options_.old.before(first, geometry_.chunk) / geometry_.chunk;
       narrow_bytes_ > 0 && chunk < first / geometry_.chunk; ++chunk) {
    if (table_.holds(RecordKind::kText, chunk) || !table_.holds(RecordKind::kNarrow, chunk)) continue;
    if (!has_key_in(seen, chunk)) continue;
    if (!queue) {
      QUIRE_ASSIGN(queue, backend_.create_queue());
    }
    QUIRE_TRY(widen(*queue, chunk));
  }
  return {};
}

// Makes narrow records of moved chunks that are old for `query`, without a step. `steps` gets what must live until the
// queue's work is done.
Status ChunkStore::narrow_moved(Queue& queue, int64_t query, const Rope* rope,
                                std::vector<std::unique_ptr<PreparedStep>>& steps) {
  find_to_narrow(query, 1);
  if (to_narrow_.empty()) return {};
  struct Release {
    ChunkStore& store;
    Queue& queue;
    ~Release() { store.release(queue); }
  } release{*this, queue};
  QUIRE_TRY(make_records(RecordKind::kNarrow, to_narrow_));
  const StepSequence sequence{
      .plan = std::make_shared<const Plan>(), .rope = rope, .old = options_.old, .geometry = geometry_};
  steps.emplace_back();
  QUIRE_ASSIGN(steps.back(), backend_.prepare_step({queue}, options_.n_query_heads, {&sequence, 1}));
  for (const int64_t chunk : to_narrow_) {
    for (const int layer : table_.layers(RecordKind::kNarrow)) {
      QUIRE_TRY(acquire(queue, layer, {&chunk, 1}, Access::kScan));
      QUIRE_TRY(acquire(queue, layer, {&chunk, 1}, Access::kWrite, KvKind::kNarrow));
      QUIRE_TRY(backend_.narrow_chunks({queue}, *steps.back(),
                                       {.first_chunk = chunk,
                                        .n_chunks = 1,
                                        .records = this->layer(layer),
                                        .out = this->layer(layer, KvKind::kNarrow)}));
    }
  }
  QUIRE_TRY(finish_queue(backend_, queue));
  narrowed();
  return {};
}

}  // namespace quire
