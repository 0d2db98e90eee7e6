#include "lib/kv/chunk_store.h"

#include <algorithm>
#include <string>

namespace quire {
namespace {

constexpr int64_t kPageChunks = Representations::kPageChunks;

}  // namespace

ChunkStore::ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, const ChunkStoreOptions& options)
    : backend_(backend),
      geometry_(geometry),
      options_(options),
      n_layers_(n_layers),
      record_bytes_(static_cast<int64_t>(backend.kv_record_bytes(geometry))),
      memory_(backend, record_bytes_),
      records_(static_cast<size_t>(n_layers * kKvKinds)),
      entries_(static_cast<size_t>(n_layers * kKvKinds)),
      pages_(static_cast<size_t>(n_layers)) {
  if (options.n_query_heads > 0) {
    page_bytes_ = static_cast<int64_t>(backend.representation_page_bytes(options.n_query_heads, geometry.head_dim));
  }
}

Result<std::unique_ptr<ChunkStore>> ChunkStore::create(Backend& backend, const KvGeometry& geometry, int n_layers,
                                                       const ChunkStoreOptions& options) {
  std::unique_ptr<ChunkStore> store(new ChunkStore(backend, geometry, n_layers, options));
  if (!options.spill_directory.empty()) {
    QUIRE_ASSIGN(store->file_,
                 RecordFile::create(options.spill_directory, store->record_bytes_, options.spill_budget_bytes));
  }
  return store;
}

// ---- room

Status ChunkStore::reserve(int64_t first, int64_t n) {
  const std::vector<Place> missing = missing_records(KvKind::kText, first, n);
  QUIRE_TRY(reserve_queries(first, n, missing));
  QUIRE_TRY(reserve_pages(ceil_div(first + n, geometry_.chunk)));
  const Status status = make_records(missing);
  if (!status.ok()) return status.with_context("KV cache at token " + std::to_string(first));
  assign_queries(first, n);
  return {};
}

Status ChunkStore::reserve_condensed(int64_t first, int64_t n) {
  const int64_t before = condensed_chunks();
  const std::vector<Place> missing = missing_records(KvKind::kCondensed, first, n);
  // A step has all condensed entries of a layer at hand, and a record of text.
  Status status = check_budget(fixed_bytes(), condensed_chunks() + 1, missing, first + n);
  if (status.ok()) status = make_records(missing);
  if (status.ok()) return status;
  cut(KvKind::kCondensed, before);  // what is at hand is counted by the table's length
  return status.with_context("KV cache at condensed entry " + std::to_string(first));
}

// Makes the tables long enough, which no failure undoes, and lists what is not there.
std::vector<ChunkStore::Place> ChunkStore::missing_records(KvKind kind, int64_t first, int64_t n) {
  const auto end = static_cast<size_t>(ceil_div(first + n, geometry_.chunk));
  std::vector<Place> missing;
  for (int layer = 0; layer < n_layers_; ++layer) {
    const size_t t = track(layer, kind);
    if (records_[t].size() < end) records_[t].resize(end);
    if (entries_[t].size() < end) entries_[t].resize(end);
  }
  for (auto c = static_cast<size_t>(first / geometry_.chunk); c < end; ++c) {
    for (int layer = 0; layer < n_layers_; ++layer) {
      const size_t t = track(layer, kind);
      if (!entries_[t][c].held) missing.push_back({static_cast<int32_t>(t), static_cast<int32_t>(c)});
    }
  }
  return missing;
}

// All or none. In memory a chunk is there in all layers or in none, and its layers follow each other in `missing`.
Status ChunkStore::make_records(const std::vector<Place>& missing) {
  if (file_) return reserve_file(missing);
  const auto layers = static_cast<size_t>(n_layers_);
  for (size_t m = 0; m < missing.size(); m += layers) {
    auto page = memory_.add_page(n_layers_);
    if (!page.ok()) {
      for (size_t undo = 0; undo < m; ++undo) drop_record(missing[undo]);
      memory_.trim();
      return page.status();
    }
    for (const Place place : std::span(missing).subspan(m, layers)) {
      entry(place).held = true;
      ++n_held_;
      enter(place, memory_.take_from(*page));
    }
  }
  return {};
}

// For everything, or with a file for the `in_step` records that one step must have in memory.
Status ChunkStore::check_budget(int64_t fixed, int64_t in_step, const std::vector<Place>& missing, int64_t n_tokens) {
  const int64_t records = file_ ? in_step : static_cast<int64_t>(lru_.size() + missing.size());
  const int64_t needed = fixed + records * record_bytes_;
  if (options_.budget_bytes == 0 || needed <= options_.budget_bytes) return {};
  return Status(Code::kBudget, "the KV cache needs " + std::to_string(needed) + " bytes of memory for " +
                                   std::to_string(n_tokens) + " tokens; the budget is " +
                                   std::to_string(options_.budget_bytes));
}

// Checks the budget, and makes the buffer for queries of chunks in progress.
Status ChunkStore::reserve_queries(int64_t first, int64_t n, const std::vector<Place>& missing) {
  const int64_t end = ceil_div(first + n, geometry_.chunk);
  int64_t queries_bytes = 0, fixed = 0;
  if (page_bytes_ > 0) {
    const int64_t rows = n_layers_ * 2 * geometry_.chunk;
    queries_bytes = rows * options_.n_query_heads * geometry_.head_dim * static_cast<int64_t>(sizeof(float));
    fixed = ceil_div(end, kPageChunks) * static_cast<int64_t>(pages_.size()) * page_bytes_ + queries_bytes;
  }
  QUIRE_TRY(check_budget(fixed, end - first / geometry_.chunk + condensed_chunks(), missing, first + n));
  if (queries_bytes == 0 || queries_) return {};
  QUIRE_ASSIGN(queries_, backend_.allocate(static_cast<size_t>(queries_bytes), MemoryKind::kDevice));
  queries_bytes_ = queries_bytes;
  return {};
}

Status ChunkStore::reserve_pages(int64_t end_chunk) {
  if (page_bytes_ == 0) return {};
  const auto n = static_cast<size_t>(ceil_div(end_chunk, kPageChunks));
  for (auto& pages : pages_) {
    while (pages.size() < n) {
      // Room is made for them all, and records that are in the way go.
      if (file_) QUIRE_TRY(shrink_to_add(page_bytes_));
      QUIRE_ASSIGN(auto page, backend_.allocate(static_cast<size_t>(page_bytes_), MemoryKind::kDevice));
      pages.push_back(std::move(page));
      ++n_pages_;
    }
  }
  peak_bytes_ = std::max(peak_bytes_, bytes());
  return {};
}

Status ChunkStore::reserve_file(const std::vector<Place>& missing) {
  QUIRE_TRY(file_->reserve(static_cast<int64_t>(missing.size())));
  for (const Place place : missing) {
    Entry& e = entry(place);
    e.slot = file_->take_slot();
    e.held = true;
    e.in_file = false;
    ++n_held_;
  }
  return {};
}

// The queries of the chunk where the text ends stay; those of the chunk where it will end get the other place. A chunk
// that these tokens hold whole is represented from them: its queries are not kept.
void ChunkStore::assign_queries(int64_t first, int64_t n) {
  if (!queries_) return;
  const int64_t now = first / geometry_.chunk, then = (first + n) / geometry_.chunk;
  const int kept = queries_chunk_[1] == now ? 1 : 0;
  queries_chunk_[kept] = first % geometry_.chunk == 0 && n >= geometry_.chunk ? -1 : now;
  queries_chunk_[1 - kept] = then == now ? -1 : then;
}

Rows ChunkStore::queries_in_progress(int layer, int64_t chunk) const {
  const int64_t width = int64_t{options_.n_query_heads} * geometry_.head_dim;
  for (int place = 0; place < 2; ++place) {
    if (queries_chunk_[place] != chunk) continue;
    return {queries_.get(), (layer * 2 + place) * geometry_.chunk * width, width};
  }
  return {};
}

// ---- residency

int64_t ChunkStore::max_resident() const {
  if (!file_ || options_.budget_bytes == 0) return kNoLimit;
  return std::max<int64_t>(1, (options_.budget_bytes - fixed_bytes()) / record_bytes_ - condensed_chunks());
}

Status ChunkStore::acquire(int layer, std::span<const int64_t> chunks, bool to_write, KvKind kind) {
  if (!file_) return {};
  const auto place = [&](int64_t chunk) {
    return Place{static_cast<int32_t>(track(layer, kind)), static_cast<int32_t>(chunk)};
  };
  // First the ones that are here, so that making room for the others does not push them out.
  for (const int64_t chunk : chunks) {
    if (record(place(chunk))) lru_.splice(lru_.end(), lru_, entry(place(chunk)).use);
  }
  for (const int64_t chunk : chunks) {
    if (!record(place(chunk))) QUIRE_TRY(make_resident(place(chunk)));
    if (to_write) entry(place(chunk)).in_file = false;
  }
  return {};
}

Status ChunkStore::make_resident(Place place) {
  QUIRE_ASSIGN(const RecordMemory::Slot memory, take_memory());
  const Entry& e = entry(place);
  const KvRecord target = memory_.record(memory);
  const Status read =
      e.in_file ? file_->read(e.slot, static_cast<std::byte*>(target.page->host()) + target.offset) : Status();
  if (read.ok()) {
    enter(place, memory);
  } else {
    memory_.give_back(memory);
  }
  return read;
}

// Memory for one record beside a file: a free record, a new page as large as the budget allows, or the place of the
// least recently used record.
Result<RecordMemory::Slot> ChunkStore::take_memory() {
  if (!memory_.has_free()) {
    int64_t room = n_layers_;
    if (options_.budget_bytes > 0) room = std::min(room, (options_.budget_bytes - bytes()) / record_bytes_);
    if (room > 0) {
      QUIRE_TRY(memory_.add_page(room).status());
      peak_bytes_ = std::max(peak_bytes_, bytes());
    } else {
      QUIRE_TRY(push_out(lru_.front()));
    }
  }
  return memory_.take();
}

void ChunkStore::enter(Place place, RecordMemory::Slot memory) {
  Entry& e = entry(place);
  e.memory = memory;
  e.use = lru_.insert(lru_.end(), place);
  record(place) = memory_.record(memory);
  peak_bytes_ = std::max(peak_bytes_, bytes());
}

void ChunkStore::leave(Place place) {
  Entry& e = entry(place);
  memory_.give_back(e.memory);
  e.memory = {};
  lru_.erase(e.use);
  record(place) = {};
}

// A record leaves memory for the file.
Status ChunkStore::push_out(Place place) {
  Entry& e = entry(place);
  if (!e.in_file) {
    const KvRecord source = record(place);
    QUIRE_TRY(file_->write(e.slot, static_cast<const std::byte*>(source.page->host()) + source.offset));
    e.in_file = true;
  }
  leave(place);
  return {};
}

// Beside a file: makes room in the budget for so many bytes of another kind, by releasing pages of records.
Status ChunkStore::shrink_to_add(int64_t added) {
  while (options_.budget_bytes > 0 && bytes() + added > options_.budget_bytes && memory_.bytes() > 0) {
    const int32_t page = memory_.emptiest_page();
    for (auto next = lru_.begin(); next != lru_.end();) {
      const Place place = *next++;
      if (entry(place).memory.page == page) QUIRE_TRY(push_out(place));
    }
    memory_.trim();
  }
  return {};
}

// ---- forgetting

void ChunkStore::drop_record(Place place) {
  Entry& e = entry(place);
  if (!e.held) return;
  if (e.memory) leave(place);
  if (e.slot >= 0) file_->free_slot(e.slot);
  e = Entry();
  --n_held_;
}

int64_t ChunkStore::drop(KvKind kind, int64_t first_chunk, int64_t end_chunk) {
  const int64_t before = n_held_;
  for (int layer = 0; layer < n_layers_; ++layer) {
    const size_t t = track(layer, kind);
    const int64_t end = std::min(end_chunk, static_cast<int64_t>(entries_[t].size()));
    for (int64_t c = first_chunk; c < end; ++c) drop_record({static_cast<int32_t>(t), static_cast<int32_t>(c)});
  }
  memory_.trim();
  return before - n_held_;
}

// Forgets the chunks from n_chunks on.
void ChunkStore::cut(KvKind kind, int64_t n_chunks) {
  drop(kind, n_chunks, kNoLimit);
  const auto keep = static_cast<size_t>(n_chunks);
  for (int layer = 0; layer < n_layers_; ++layer) {
    const size_t t = track(layer, kind);
    if (entries_[t].size() <= keep) continue;
    entries_[t].resize(keep);
    records_[t].resize(keep);
  }
}

void ChunkStore::truncate(int64_t n_tokens, int64_t n_entries) {
  const int64_t keep = ceil_div(n_tokens, geometry_.chunk);
  cut(KvKind::kText, keep);
  cut(KvKind::kCondensed, ceil_div(n_entries, geometry_.chunk));
  const auto n_pages = static_cast<size_t>(ceil_div(keep, kPageChunks));
  for (auto& pages : pages_) {
    while (pages.size() > n_pages) {
      pages.pop_back();
      --n_pages_;
    }
  }
  // Queries of a later chunk, or of a chunk that the text has not begun, mean nothing now.
  for (int64_t& chunk : queries_chunk_) {
    if (chunk != n_tokens / geometry_.chunk || n_tokens % geometry_.chunk == 0) chunk = -1;
  }
  evicted_until_ = std::min(evicted_until_, keep);
}

void ChunkStore::evict(int64_t begin, int64_t end) {
  const int64_t first = std::max(ceil_div(begin, geometry_.chunk), evicted_until_);
  const int64_t last = end / geometry_.chunk;
  if (first >= last) return;
  n_evicted_ += drop(KvKind::kText, first, last);
  evicted_until_ = last;
}

bool ChunkStore::holds(int64_t begin, int64_t end) const {
  for (int layer = 0; layer < n_layers_; ++layer) {
    const auto& entries = entries_[track(layer, KvKind::kText)];
    for (int64_t c = begin / geometry_.chunk; c < ceil_div(end, geometry_.chunk); ++c) {
      if (c >= static_cast<int64_t>(entries.size()) || !entries[static_cast<size_t>(c)].held) return false;
    }
  }
  return true;
}

int64_t ChunkStore::exact_boundary(int64_t n_tokens) const {
  const int64_t chunk = n_tokens / geometry_.chunk;
  const bool known = page_bytes_ == 0 || queries_chunk_[0] == chunk || queries_chunk_[1] == chunk;
  return known ? n_tokens : chunk * geometry_.chunk;
}

ChunkStoreStats ChunkStore::stats() const {
  ChunkStoreStats stats;
  stats.bytes = bytes();
  stats.bytes_peak = peak_bytes_;
  stats.representation_bytes = page_bytes_ * n_pages_;
  stats.n_records = n_held_;
  stats.n_resident = static_cast<int64_t>(lru_.size());
  stats.n_evicted = n_evicted_;
  if (file_) {
    stats.file_bytes = file_->bytes();
    stats.n_read = file_->n_read();
    stats.n_written = file_->n_written();
  }
  return stats;
}

}  // namespace quire
