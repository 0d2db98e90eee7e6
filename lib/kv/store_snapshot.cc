// How a chunk store is saved and restored: ChunkStore's part of snapshots.
#include "lib/kv/store_snapshot.h"

#include <algorithm>
#include <string>

#include "lib/kv/chunk_store.h"

namespace quire {
namespace {

Status does_not_fit(const std::string& what) {
  return Status(Code::kBadFile, "the snapshot's KV cache does not fit the session: " + what);
}

// Zeros for tokens [n, chunk) of a record's neutral form.
void clear_behind(const KvGeometry& g, int64_t n, std::span<std::byte> neutral) {
  const size_t row = row_bytes(g.type, g.head_dim);
  const size_t part = static_cast<size_t>(g.chunk) * row;  // keys or values of a head
  for (size_t at = 0; at < neutral.size(); at += part) {
    std::ranges::fill(neutral.subspan(at + static_cast<size_t>(n) * row, part - static_cast<size_t>(n) * row),
                      std::byte{0});
  }
}

}  // namespace

// ---- saving

int64_t ChunkStore::saved_keys(RecordKind kind, int64_t n_tokens, int64_t n_entries) const {
  switch (kind) {
    case RecordKind::kText:
      return n_tokens;
    case RecordKind::kCondensed:
      return n_entries;
    case RecordKind::kNarrow:
      return options_.old.narrows() ? n_tokens / geometry_.chunk * geometry_.chunk : 0;
    case RecordKind::kWindow:
      break;
  }
  return options_.windowed.any() ? n_tokens : 0;
}

std::vector<ChunkRange> ChunkStore::held_chunks(RecordKind kind, int64_t n_keys) const {
  std::vector<ChunkRange> held;
  for (int64_t chunk = 0; chunk < ceil_div(n_keys, geometry_.chunk); ++chunk) {
    if (!table_.holds(kind, chunk)) continue;
    if (held.empty() || held.back().end != chunk) held.push_back({chunk, chunk});
    ++held.back().end;
  }
  return held;
}

int64_t ChunkStore::saved_bytes(int64_t n_tokens, int64_t n_entries,
                                const std::function<bool(RecordKind kind, int64_t chunk)>& which) const {
  int64_t bytes = 0;
  for (const RecordKind kind : kAllRecordKinds) {
    const int64_t of_chunk = n_records(kind) * static_cast<int64_t>(kv_neutral_bytes(geometry(kind)));
    for (const ChunkRange& range : held_chunks(kind, saved_keys(kind, n_tokens, n_entries))) {
      for (int64_t chunk = range.begin; chunk < range.end; ++chunk) bytes += which(kind, chunk) ? of_chunk : 0;
    }
  }
  return bytes;
}

StoreSnapshotSize ChunkStore::snapshot_size(int64_t n_tokens, int64_t n_entries) const {
  StoreSnapshotSize size;
  const auto add = [&](int64_t n, size_t bytes) {
    size.n_blocks += n;
    size.bytes += n * static_cast<int64_t>(bytes);
  };
  for (const RecordKind kind : kAllRecordKinds) {
    for (const ChunkRange& range : held_chunks(kind, saved_keys(kind, n_tokens, n_entries))) {
      add((range.end - range.begin) * n_records(kind), kv_neutral_bytes(geometry(kind)));
    }
  }
  if (const int64_t pages = selection_.complete_pages(n_tokens); pages > 0) {
    add(pages * n_records(RecordKind::kText), selection_.representations(0).pages[0]->size());
  }
  const int64_t in_progress = n_tokens % selection_.chunk();
  const Rows queries = selection_.queries_in_progress(0, n_tokens / selection_.chunk());
  if (queries.buffer && in_progress > 0) {
    add(n_records(RecordKind::kText), static_cast<size_t>(in_progress * queries.stride) * sizeof(float));
  }
  return size;
}

Result<StoreSnapshot> ChunkStore::save(int64_t n_tokens, int64_t n_entries, BlockSink& sink) {
  struct Counted : BlockSink {  // the first block's number
    explicit Counted(BlockSink& to) : sink(to) {}
    Result<int64_t> add(std::span<const std::byte> block) override {
      QUIRE_ASSIGN(const int64_t number, sink.add(block));
      return note(number);
    }
    Result<int64_t> add_known(RecordKind kind, int64_t chunk, int64_t index) override {
      QUIRE_ASSIGN(const int64_t number, sink.add_known(kind, chunk, index));
      return note(number);
    }
    int64_t note(int64_t number) {
      if (first < 0) first = number;
      return number;
    }
    BlockSink& sink;
    int64_t first = -1;
  } counted(sink);
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  StoreSnapshot snapshot;
  for (const RecordKind kind : kAllRecordKinds) {
    const auto k = static_cast<size_t>(kind);
    snapshot.n_keys[k] = saved_keys(kind, n_tokens, n_entries);
    snapshot.held[k] = held_chunks(kind, snapshot.n_keys[k]);
    QUIRE_TRY(save_records(*queue, kind, snapshot.n_keys[k], counted));
  }
  snapshot.has_queries =
      n_tokens % selection_.chunk() > 0 && selection_.queries_in_progress(0, n_tokens / selection_.chunk()).buffer;
  QUIRE_TRY(save_selection(*queue, n_tokens, counted));
  snapshot.first_block = std::max<int64_t>(counted.first, 0);
  return snapshot;
}

Status ChunkStore::save_records(Queue& queue, RecordKind kind, int64_t n_keys, BlockSink& sink) {
  std::vector<std::byte> record(static_cast<size_t>(bytes_of(kind))), neutral(kv_neutral_bytes(geometry(kind)));
  for (const ChunkRange& range : held_chunks(kind, n_keys)) {
    for (int64_t chunk = range.begin; chunk < range.end; ++chunk) {
      const int64_t n = std::min(geometry_.chunk, n_keys - chunk * geometry_.chunk);
      ChunkRecords& records = table_.chunk(kind, chunk);
      for (int64_t i = 0; i < records.n(); ++i) {
        QUIRE_ASSIGN(const int64_t known, sink.add_known(kind, chunk, i));
        if (known >= 0) continue;
        QUIRE_TRY(residency_->read(user_, queue, records.records[static_cast<size_t>(i)], record));
        backend_.to_neutral(geometry(kind), record.data(), neutral.data());
        if (n < geometry_.chunk) clear_behind(geometry(kind), n, neutral);
        QUIRE_TRY(sink.add(neutral).status());
      }
    }
  }
  return {};
}

Status ChunkStore::save_selection(Queue& queue, int64_t n_tokens, BlockSink& sink) {
  const ChunkSelection& s = options_.selection;
  const int64_t n_complete = n_tokens / selection_.chunk(), pages = selection_.complete_pages(n_tokens);
  const int n_vectors = pages == 0 ? 0 : s.n_vectors(options_.n_query_heads, geometry_.n_kv_heads);
  const ElementType type = s.vector_type(geometry_.type);
  const size_t row = row_bytes(type, geometry_.head_dim);
  std::vector<std::byte> page, neutral;
  for (const int layer : table_.layers(RecordKind::kText)) {
    for (int64_t p = 0; p < pages; ++p) {
      const Buffer& buffer = *representations(layer).pages[static_cast<size_t>(p)];
      page.resize(buffer.size()), neutral.resize(buffer.size());
      QUIRE_TRY(backend_.download(queue, buffer, 0, page.data(), page.size()));
      QUIRE_TRY(finish_queue(backend_, queue));
      backend_.page_to_neutral(n_vectors, geometry_.head_dim, type, page.data(), neutral.data());
      const auto n =
          static_cast<size_t>(std::min(Representations::kPageChunks, n_complete - p * Representations::kPageChunks));
      const size_t vectors = static_cast<size_t>(Representations::kPageChunks) * row;  // of one kind, of all chunks
      for (size_t at = 0; at < neutral.size(); at += vectors) {
        std::ranges::fill(std::span(neutral).subspan(at + n * row, vectors - n * row), std::byte{0});
      }
      QUIRE_TRY(sink.add(neutral).status());
    }
  }
  const int64_t in_progress = n_tokens % selection_.chunk();
  for (const int layer : table_.layers(RecordKind::kText)) {
    const Rows rows = queries_in_progress(layer, n_complete);
    if (in_progress == 0 || !rows.buffer) break;
    neutral.resize(static_cast<size_t>(in_progress * rows.stride) * sizeof(float));
    QUIRE_TRY(backend_.download(queue, *rows.buffer, static_cast<size_t>(rows.offset) * sizeof(float), neutral.data(),
                                neutral.size()));
    QUIRE_TRY(finish_queue(backend_, queue));
    QUIRE_TRY(sink.add(neutral).status());
  }
  return {};
}

// ---- restoring

Status ChunkStore::restore(const StoreSnapshot& snapshot, const ChunkIds& ids_of) {
  QUIRE_ASSIGN(const int64_t n_shared, restore_shared(snapshot, ids_of));
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  int64_t block = snapshot.first_block;
  for (const RecordKind kind : kAllRecordKinds) {
    QUIRE_TRY(restore_records(*queue, kind, snapshot, &block));
  }
  QUIRE_TRY(restore_selection(*queue, snapshot, n_shared, block));
  next_query_ = snapshot.n_keys[static_cast<size_t>(RecordKind::kText)];
  enter_held(0, n_shared);  // not before: the page of the last one was still being written
  rest();                   // no stream was opened yet
  return {};
}

// Takes over the first chunks as far as other stores hold them, up to the one that the next token is stored in. Returns
// how many these are.
Result<int64_t> ChunkStore::restore_shared(const StoreSnapshot& snapshot, const ChunkIds& ids_of) {
  const auto k = static_cast<size_t>(RecordKind::kText);
  if (!shares_prefixes()) return 0;
  const int64_t last = (snapshot.n_keys[k] - 1) / geometry_.chunk;
  const auto has = [&](int64_t chunk) {
    return snapshot.has(RecordKind::kText, chunk) || snapshot.has(RecordKind::kNarrow, chunk);
  };
  int64_t end = 0;
  while (end < last && (has_gaps() || has(end))) ++end;
  while (end > 0 && (!has(end - 1) || ids_of(end - 1).empty())) --end;  // from some chunk on they may take no part
  return adopt_restored(snapshot, end, ids_of);
}

// The table refers to the snapshot's records; those that are written next, and condensed entries, which every step
// needs, become the store's own.
Status ChunkStore::restore_records(Queue& queue, RecordKind kind, const StoreSnapshot& snapshot, int64_t* block) {
  const auto k = static_cast<size_t>(kind);
  const int64_t n_keys = snapshot.n_keys[k], n_chunks = ceil_div(n_keys, geometry_.chunk);
  if (kind == RecordKind::kNarrow && n_chunks > 0 && !options_.old.narrows()) return does_not_fit("narrow records");
  if (kind == RecordKind::kWindow && n_chunks > 0 && !options_.windowed.any()) {
    return does_not_fit("records of layers with a window");
  }
  int64_t end = 0;
  for (const ChunkRange& range : snapshot.held[k]) {
    if (range.begin < end || range.end <= range.begin || range.end > n_chunks) {
      return does_not_fit("chunks " + std::to_string(range.begin) + " to " + std::to_string(range.end) + " of " +
                          std::to_string(n_chunks));
    }
    end = range.end;
  }
  const int64_t first_own = kind == RecordKind::kCondensed ? 0
                            : kind == RecordKind::kNarrow  ? n_chunks
                                                           : (n_keys - 1) / geometry_.chunk;
  const std::shared_ptr<Tier>& tier =
      tiers_.all[tiers_.n_full + tiers_.n_narrow + (kind == RecordKind::kNarrow ? 1 : 0)];
  const auto neutral_bytes = static_cast<int64_t>(kv_neutral_bytes(geometry(kind)));
  const std::span<const int> layers = table_.layers(kind);
  table_.extend(kind, 0, n_chunks);
  for (const ChunkRange& range : snapshot.held[k]) {
    for (int64_t chunk = range.begin; chunk < range.end; ++chunk, *block += std::ssize(layers)) {
      if (table_.holds(kind, chunk)) continue;  // it is shared
      if (chunk >= first_own) {
        QUIRE_TRY(restore_own(queue, kind, chunk, *block));
        continue;
      }
      auto records = std::make_unique<ChunkRecords>(layers, bytes_of(kind));
      records->holders.reserve(1);
      records->tier = tier;
      int64_t next = *block;
      for (Record& record : records->records) {
        const int64_t bytes = options_.snapshot->block_bytes(next);
        if (bytes != neutral_bytes) {
          return does_not_fit("block " + std::to_string(next) + " has " + std::to_string(bytes) +
                              " bytes; a record has " + std::to_string(neutral_bytes));
        }
        record.tier = tier.get();
        record.slot = next++;
        record.saved = true;
      }
      hold(kind, chunk, std::move(records));
    }
  }
  return {};
}

Status ChunkStore::restore_own(Queue& queue, RecordKind kind, int64_t chunk, int64_t block) {
  QUIRE_TRY(check_budget(selection_.bytes(), (1 + condensed_chunks()) * record_bytes_, chunk_bytes(kind),
                         std::min((chunk + 1) * geometry_.chunk, kNoLimit)));
  QUIRE_TRY(make_records(kind, {&chunk, 1}));
  std::vector<std::byte> neutral(kv_neutral_bytes(geometry_)), record(static_cast<size_t>(record_bytes_));
  for (const int layer : table_.layers(kind)) {
    QUIRE_TRY(options_.snapshot->read(block++, neutral));
    backend_.from_neutral(geometry_, neutral.data(), record.data());
    QUIRE_TRY(write_new(queue, table_.record(layer, kind, chunk), record));
  }
  return {};
}

// Pages that are shared have what the snapshot has.
Status ChunkStore::restore_selection(Queue& queue, const StoreSnapshot& snapshot, int64_t n_shared, int64_t block) {
  const ChunkSelection& s = options_.selection;
  const int64_t n_tokens = snapshot.n_keys[static_cast<size_t>(RecordKind::kText)];
  const int64_t bytes = selection_.bytes_for(n_tokens);
  QUIRE_TRY(check_budget(bytes, (1 + condensed_chunks()) * record_bytes_, 0, n_tokens));
  const int64_t first = n_shared * geometry_.chunk;
  QUIRE_TRY(make_room(selection_.bytes_to_add(first, n_tokens)));
  QUIRE_TRY(selection_.reserve(first, n_tokens));
  const int64_t first_page = first / selection_.chunk() / Representations::kPageChunks;
  const int64_t pages = selection_.complete_pages(n_tokens);
  const int n_vectors = pages == 0 ? 0 : s.n_vectors(options_.n_query_heads, geometry_.n_kv_heads);
  const ElementType type = s.vector_type(geometry_.type);
  std::vector<std::byte> page, neutral;
  for (const int layer : table_.layers(RecordKind::kText)) {
    block += first_page;
    for (int64_t p = first_page; p < pages; ++p) {
      Buffer& buffer = *representations(layer).pages[static_cast<size_t>(p)];
      page.resize(buffer.size()), neutral.resize(buffer.size());
      QUIRE_TRY(options_.snapshot->read(block++, neutral));
      backend_.page_from_neutral(n_vectors, geometry_.head_dim, type, neutral.data(), page.data());
      QUIRE_TRY(backend_.upload(queue, page.data(), buffer, 0, page.size()));
      QUIRE_TRY(finish_queue(backend_, queue));
    }
  }
  const int64_t in_progress = n_tokens % selection_.chunk(), chunk = n_tokens / selection_.chunk();
  if (!snapshot.has_queries || in_progress == 0) return {};
  selection_.extend(chunk * selection_.chunk(), in_progress);
  for (const int layer : table_.layers(RecordKind::kText)) {
    const Rows rows = queries_in_progress(layer, chunk);
    if (!rows.buffer) return does_not_fit("it has queries, which this strategy does not keep");
    neutral.resize(static_cast<size_t>(in_progress * rows.stride) * sizeof(float));
    QUIRE_TRY(options_.snapshot->read(block++, neutral));
    QUIRE_TRY(backend_.upload(queue, neutral.data(), *rows.buffer, static_cast<size_t>(rows.offset) * sizeof(float),
                              neutral.size()));
    QUIRE_TRY(finish_queue(backend_, queue));
  }
  return {};
}

}  // namespace quire
