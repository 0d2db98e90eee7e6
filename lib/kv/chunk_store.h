// The chunk store of one session: keys and values of its tokens in records of `chunk` tokens per layer, and what a
// strategy that selects chunks needs of them (representations, the queries of the chunk in progress). The entries of a
// condensed text are a second kind of keys, in records of the same form under the same budget.
//
// Without a spill directory all records are in memory, and the byte budget bounds them. With one, a record is in memory
// while it is used, and the least recently used ones go to a file when the budget is reached; what is read back is what
// was written, byte for byte. Memory never exceeds the budget. One thread at a time.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/record_file.h"
#include "lib/kv/record_memory.h"
#include "lib/support/status.h"

namespace quire {

struct ChunkStoreOptions {
  int64_t budget_bytes = 0;        // of memory; 0: no limit
  std::string spill_directory{};   // empty: records stay in memory
  int64_t spill_budget_bytes = 0;  // of the file; 0: no limit
  bool raw_keys = false;           // text keys are stored unrotated
  int n_query_heads = 0;           // > 0: keep a representation of each complete chunk for so many heads
};

struct ChunkStoreStats {
  int64_t bytes = 0, bytes_peak = 0;  // of memory: records, representations, queries in progress
  int64_t representation_bytes = 0;   // of those
  int64_t n_records = 0;              // held, in memory or in the file
  int64_t n_resident = 0;             // of those in memory
  int64_t n_evicted = 0;              // dropped by the strategy
  int64_t file_bytes = 0;             // reserved in the file
  int64_t n_read = 0, n_written = 0;  // records, from and to the file
};

class ChunkStore {
 public:
  // The backend must outlive the store. Errors: those of making the file.
  static Result<std::unique_ptr<ChunkStore>> create(Backend& backend, const KvGeometry& geometry, int n_layers,
                                                    const ChunkStoreOptions& options);

  const KvGeometry& geometry() const { return geometry_; }
  bool spills() const { return file_ != nullptr; }

  // Makes room for text keys [first, first + n) in all layers: in memory, or with a file on the disk. `first` is where
  // the text ends now. kBudget, kOutOfMemory, kIo: nothing was changed.
  Status reserve(int64_t first, int64_t n);
  // The same for n more condensed entries.
  Status reserve_condensed(int64_t first, int64_t n);
  // Forgets the text keys from n_tokens on, and the condensed entries from n_entries on.
  void truncate(int64_t n_tokens, int64_t n_entries = 0);
  // Drops the records whose text keys all lie in [begin, end). Calls come with ascending ranges.
  void evict(int64_t begin, int64_t end);
  // Whether no record with a text key in [begin, end) was dropped.
  bool holds(int64_t begin, int64_t end) const;
  // The most tokens, at most n_tokens, to which the text can be cut so that the following tokens come out as if no
  // other had ever followed: where the queries of the chunk in progress are known.
  int64_t exact_boundary(int64_t n_tokens) const;

  // Brings records of a layer into memory, at most max_resident() of them; others may leave it. to_write: they will be
  // changed. A failure loses nothing.
  Status acquire(int layer, std::span<const int64_t> chunks, bool to_write, KvKind kind = KvKind::kText);
  // Records of a layer's text that can be in memory together, beside all records of its condensed entries.
  int64_t max_resident() const;
  int64_t condensed_chunks() const { return static_cast<int64_t>(entries_[static_cast<size_t>(n_layers_)].size()); }
  KvRecords layer(int layer, KvKind kind = KvKind::kText) const {
    return {records_[track(layer, kind)], options_.raw_keys && kind == KvKind::kText};
  }

  Representations representations(int layer) const { return {pages_[static_cast<size_t>(layer)]}; }
  // Rows for the raw queries of the chunk in progress before or after the reserved tokens; no buffer if `chunk` is
  // neither.
  Rows queries_in_progress(int layer, int64_t chunk) const;

  ChunkStoreStats stats() const;
  int64_t record_bytes() const { return record_bytes_; }

 private:
  // Records are found by track (a layer of a kind: those of the text first) and chunk.
  struct Place {
    int32_t track;
    int32_t chunk;
  };
  struct Entry {
    bool held = false;               // a record exists, in memory or in the file
    bool in_file = false;            // the file holds its present bytes
    int64_t slot = -1;               // of the file
    RecordMemory::Slot memory;       // none: not in memory
    std::list<Place>::iterator use;  // in lru_, while in memory
  };

  ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, const ChunkStoreOptions& options);
  size_t track(int layer, KvKind kind) const {
    return static_cast<size_t>(layer + (kind == KvKind::kCondensed ? n_layers_ : 0));
  }
  std::vector<Place> missing_records(KvKind kind, int64_t first, int64_t n);
  Status make_records(const std::vector<Place>& missing);
  Status check_budget(int64_t fixed, int64_t in_step, const std::vector<Place>& missing, int64_t n_tokens);
  Status reserve_queries(int64_t first, int64_t n, const std::vector<Place>& missing);
  Status reserve_file(const std::vector<Place>& missing);
  Status reserve_pages(int64_t end_chunk);
  Status make_resident(Place place);
  Result<RecordMemory::Slot> take_memory();
  void enter(Place place, RecordMemory::Slot memory);
  void leave(Place place);
  Status push_out(Place place);
  Status shrink_to_add(int64_t bytes);
  void drop_record(Place place);
  int64_t drop(KvKind kind, int64_t first_chunk, int64_t end_chunk);
  void cut(KvKind kind, int64_t n_chunks);
  void assign_queries(int64_t first, int64_t n);
  int64_t fixed_bytes() const { return page_bytes_ * n_pages_ + queries_bytes_; }
  int64_t bytes() const { return memory_.bytes() + fixed_bytes(); }
  Entry& entry(Place p) { return entries_[static_cast<size_t>(p.track)][static_cast<size_t>(p.chunk)]; }
  KvRecord& record(Place p) { return records_[static_cast<size_t>(p.track)][static_cast<size_t>(p.chunk)]; }

  Backend& backend_;
  KvGeometry geometry_;
  ChunkStoreOptions options_;
  int n_layers_;
  int64_t record_bytes_;
  std::unique_ptr<RecordFile> file_;
  // Without a file a page holds one chunk's records of all layers; with one, any records.
  RecordMemory memory_;
  std::vector<std::vector<KvRecord>> records_;  // [track][chunk]
  std::vector<std::vector<Entry>> entries_;     // [track][chunk]
  std::list<Place> lru_;                        // records in memory, least recently used first

  int64_t page_bytes_ = 0;
  int64_t n_pages_ = 0;
  std::vector<std::vector<std::unique_ptr<Buffer>>> pages_;  // [layer][page]
  // Queries of a chunk in progress, two per layer: of the chunk where the text ends, and of the one where it will end.
  std::unique_ptr<Buffer> queries_;  // f32 [layer][2][chunk][n_query_heads * head_dim]
  int64_t queries_bytes_ = 0;
  int64_t queries_chunk_[2] = {-1, -1};

  int64_t n_held_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t n_evicted_ = 0;
  int64_t evicted_until_ = 0;  // everything droppable before this chunk was dropped
};

}  // namespace quire
