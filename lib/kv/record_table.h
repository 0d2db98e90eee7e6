// Which chunks a store holds, and what the backend sees of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/record.h"

namespace quire {

// What computing does with records that it asks for. kScan: it reads them as a part of more than memory holds, all of
// which it reads again and again in the same order. What is in memory stays there then, and what had to come is the
// first to leave: the record used last is the one that is needed again latest. kLikely, of prefetches alone: it may
// read them. They take no place of what the step before used in a layer to come: that is as likely to be read.
enum class Access { kRead, kScan, kWrite, kLikely };

// What the records of several chunks come to.
struct RecordSums {
  int64_t n = 0;
  int64_t full_bytes = 0, narrow_bytes = 0;

  // The records of a chunk more or, with times = -1, fewer.
  void add(RecordKind kind, const ChunkRecords& records, int64_t times = 1) {
    n += times * records.n();
    (kind == RecordKind::kNarrow ? narrow_bytes : full_bytes) += times * records.bytes();
  }
  bool operator==(const RecordSums&) const = default;
};

// A chunk of a kind is held, in all layers that have records of it, or not. One thread at a time.
class RecordTable {
 public:
  // windowed: of each layer, whether its records of text are kWindow; empty: in none they are.
  RecordTable(int n_layers, const std::vector<bool>& windowed);

  int n_layers() const { return static_cast<int>(index_.size()); }
  // Those that have records of a kind, ascending.
  std::span<const int> layers(RecordKind kind) const { return kind == RecordKind::kWindow ? windowed_ : others_; }
  bool is_windowed(int layer) const { return is_windowed_[static_cast<size_t>(layer)]; }
  // Which layer it is among those of its kind.
  int index_of(int layer) const { return index_[static_cast<size_t>(layer)]; }
  // The records of a layer that have what the backend knows as this kind.
  RecordKind kind_in(int layer, KvKind kind) const;
  const RecordSums& held() const { return held_; }
  // Chunks of a kind, dropped ones included.
  int64_t n_chunks(RecordKind kind) const { return static_cast<int64_t>(of(kind).size()); }
  bool holds(RecordKind kind, int64_t chunk) const {
    return chunk < n_chunks(kind) && of(kind)[static_cast<size_t>(chunk)];
  }
  // Whether the chunks [first, end) of a kind are all held.
  bool holds(RecordKind kind, int64_t first, int64_t end) const;
  // Of a chunk that is held.
  ChunkRecords& chunk(RecordKind kind, int64_t chunk) const { return *of(kind)[static_cast<size_t>(chunk)]; }
  Record& record(int layer, RecordKind kind, int64_t chunk) const {
    return this->chunk(kind, chunk).records[static_cast<size_t>(index_of(layer))];
  }

  // What the backend sees of a layer, by chunk: records that lie in memory, and stay there while they are seen.
  std::span<const KvRecord> layer(int layer, KvKind kind) const { return views_[track(layer, kind_in(layer, kind))]; }
  // Of no other table, and of this one while the backend sees the same.
  uint64_t version() const { return version_; }
  void see(int layer, RecordKind kind, int64_t chunk, const KvRecord& place) {
    change();
    view(layer, kind, chunk) = place;
  }

  // The backend sees all records that lie in memory, or none that could leave it.
  void see_all();
  void see_fixed();

  // Lengthens the table of a kind to n_chunks, and lists the chunks from `first` on that are not held.
  std::vector<int64_t> extend(RecordKind kind, int64_t first, int64_t n_chunks);
  // Forgets the chunks of a kind from n_chunks on, none of which is held.
  void shorten(RecordKind kind, int64_t n_chunks);
  // Never fails. The store holds the records from now on.
  void hold(RecordKind kind, int64_t chunk, ChunkRecords& records);
  // Of a chunk that is held. The caller lets it go.
  ChunkRecords& forget(RecordKind kind, int64_t chunk);

  // Calls use(kind, records) for each chunk that is held.
  template <typename Use>
  void for_held(const Use& use) const {
    for (const RecordKind kind : kAllRecordKinds) {
      for (int64_t chunk = 0; chunk < n_chunks(kind); ++chunk) {
        if (holds(kind, chunk)) use(kind, this->chunk(kind, chunk));
      }
    }
  }

 private:
  // Comes before any change of what the backend sees, also of where it lies.
  void change();
  KvRecord& view(int layer, RecordKind kind, int64_t chunk) {
    return views_[track(layer, kind)][static_cast<size_t>(chunk)];
  }
  template <typename Place>
  void see_each(const Place& place_of);
  size_t track(int layer, RecordKind kind) const {
    return static_cast<size_t>(layer + static_cast<int>(kind) * n_layers());
  }
  std::vector<ChunkRecords*>& of(RecordKind kind) { return chunks_[static_cast<size_t>(kind)]; }
  const std::vector<ChunkRecords*>& of(RecordKind kind) const { return chunks_[static_cast<size_t>(kind)]; }

  std::vector<bool> is_windowed_;                              // [layer]
  std::vector<int> index_;                                     // [layer]
  std::vector<int> windowed_, others_;                         // layers
  std::vector<ChunkRecords*> chunks_[kAllRecordKinds.size()];  // null: not held
  std::vector<std::vector<KvRecord>> views_;                   // [layer of a kind][chunk]
  RecordSums held_;
  uint64_t version_ = 0;  // 0: nothing was seen yet
};

}  // namespace quire
