// Which KV records of a session exist, and where each of them is.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/record_memory.h"

namespace quire {

// A record is found by its track (a layer of a kind: those of the text first) and its chunk.
struct RecordId {
  int32_t track = -1;  // -1: none
  int32_t chunk = -1;
  explicit operator bool() const { return track >= 0; }
};

// What computing does with a record that it asks for.
enum class Access { kRead, kWrite };

struct RecordEntry {
  // kOut: a lower tier alone has the record. kArriving: it is read into `memory`. kIn: it is in `memory`. kLeaving: it
  // is written from `memory`, which then belongs to the record that arrives there.
  enum class State : uint8_t { kOut, kArriving, kIn, kLeaving };

  bool held = false;    // the record exists
  bool saved = false;   // its slot of the lower tier holds its present bytes
  bool shared = false;  // a fork has the slot too, and nobody writes to it
  State state = State::kOut;
  int8_t tier = -1;  // of the lower tiers; -1: without them
  int64_t slot = -1;
  RecordMemory::Slot memory;
  uint64_t pin = 0;  // of the acquire() that asked for it last (Residency)
  // Neighbours in the list of records that are kIn, in the order of their use (UseOrder).
  RecordId before, after;
};

// A chunk of a kind is held in all layers or in none. One thread at a time.
class RecordTable {
 public:
  explicit RecordTable(int n_layers)
      : n_layers_(n_layers),
        records_(static_cast<size_t>(n_layers * kKvKinds)),
        entries_(static_cast<size_t>(n_layers * kKvKinds)) {}

  RecordId id(int layer, KvKind kind, int64_t chunk) const {
    return {layer + (kind == KvKind::kCondensed ? n_layers_ : 0), static_cast<int32_t>(chunk)};
  }
  RecordEntry& entry(RecordId id) { return entries_[static_cast<size_t>(id.track)][static_cast<size_t>(id.chunk)]; }
  const RecordEntry& entry(RecordId id) const {
    return entries_[static_cast<size_t>(id.track)][static_cast<size_t>(id.chunk)];
  }
  // What the backend sees: none unless the record is in memory and stays there.
  KvRecord& record(RecordId id) { return records_[static_cast<size_t>(id.track)][static_cast<size_t>(id.chunk)]; }
  std::span<const KvRecord> layer(int layer, KvKind kind) const {
    return records_[static_cast<size_t>(id(layer, kind, 0).track)];
  }

  int n_layers() const { return n_layers_; }
  int64_t n_held() const { return n_held_; }
  // Chunks of a kind, dropped ones included.
  int64_t n_chunks(KvKind kind) const {
    return static_cast<int64_t>(entries_[static_cast<size_t>(id(0, kind, 0).track)].size());
  }
  // Whether the chunks [first, end) of a kind are all held.
  bool holds(KvKind kind, int64_t first, int64_t end) const;
  bool holds(RecordId id) const;

  // Calls use(entry, record) for each record that is held.
  template <typename Use>
  void for_held(const Use& use) {
    for (size_t track = 0; track < entries_.size(); ++track) {
      for (size_t chunk = 0; chunk < entries_[track].size(); ++chunk) {
        if (entries_[track][chunk].held) use(entries_[track][chunk], records_[track][chunk]);
      }
    }
  }

  // Lengthens the table of a kind to n_chunks, in all layers or in none, and lists the records from chunk `first` on
  // that are not held: chunk by chunk, the layers of a chunk in their order.
  std::vector<RecordId> extend(KvKind kind, int64_t first, int64_t n_chunks);
  // Forgets the chunks of a kind from n_chunks on, none of which is held.
  void shorten(KvKind kind, int64_t n_chunks);
  void hold(RecordId id);
  // The entry of a record that is held is as if it had never been.
  void forget(RecordId id);

 private:
  int n_layers_;
  std::vector<std::vector<KvRecord>> records_;     // [track][chunk]
  std::vector<std::vector<RecordEntry>> entries_;  // [track][chunk]
  int64_t n_held_ = 0;
};

}  // namespace quire
