// The KV records of one chunk, which several stores may share.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/tier.h"

namespace quire {

class RecordUser;
struct ChunkRecords;
struct OwnedRecords;

// What the records of a chunk are: KvKind, but that text in layers whose queries see the last keys alone has records of
// its own, kWindow, which go when the text behind them is long enough (WindowLayers).
enum class RecordKind : uint8_t { kText, kCondensed, kNarrow, kWindow };
inline constexpr std::array kAllRecordKinds = {RecordKind::kText, RecordKind::kCondensed, RecordKind::kNarrow,
                                               RecordKind::kWindow};
// Those that tokens of a text have.
inline constexpr std::array kTextKinds = {RecordKind::kText, RecordKind::kNarrow, RecordKind::kWindow};

// Keys and values of one chunk in one layer. `tier` and `slot` are set before others see the record; everything else is
// the Residency's, under its mutex.
//
// A record with a slot of a lower tier is out, arriving, in, or leaving. kOut: the slot alone has its bytes, if it has
// any yet. kArriving: it gets `memory`, and what the slot has is read into it. kIn: it is in `memory`. kLeaving: it is
// written from memory to the slot; `memory` is its own still, or belongs to the record that arrives there.
//
// kIn, `saving`: it is being written to its slot while it stays, so that it can leave at once later (write-behind). It
// is read as any other that is in, but does not leave, is not changed and not dropped until that is done.
//
// A record without a slot is always in, at `fixed`, and is changed by its store alone.
struct Record {
  enum class State : uint8_t { kOut, kArriving, kIn, kLeaving };

  Tier* tier = nullptr;  // the chunk's; null: none
  int64_t slot = -1;
  State state = State::kOut;
  bool saved = false;              // the slot has its present bytes
  bool saving = false;             // it is being written to the slot
  bool expected = false;           // it was prefetched and has not been asked for since
  int32_t n_pins = 0;              // requests of stores that need it where it is
  std::unique_ptr<Buffer> memory;  // of the record's size
  KvRecord fixed;                  // in the chunk's page
  ChunkRecords* chunk = nullptr;   // whose record it is
  int layer = 0;                   // of the model
  OwnedRecords* owner = nullptr;   // with whom `memory` counts; null: not in, or fixed
  // Neighbours among those of the owner, in the order of their use.
  Record* before = nullptr;
  Record* after = nullptr;
  uint64_t used_at = 0;  // when it was used last, as a number that grows with each use; 0: it came for a scan

  // Where it lies; none unless it is in.
  KvRecord place() const { return tier ? KvRecord{state == State::kIn ? memory.get() : nullptr, 0} : fixed; }
};

// The records of one chunk of a kind, in the layers that have records of it, ascending. What several stores hold is not
// changed: who wants to makes a copy.
struct ChunkRecords {
  ChunkRecords(std::span<const int> layers, int64_t bytes) : record_bytes(bytes), records(layers.size()) {
    for (size_t i = 0; i < layers.size(); ++i) {
      records[i].chunk = this;
      records[i].layer = layers[i];
    }
  }
  ChunkRecords(const ChunkRecords&) = delete;
  ChunkRecords& operator=(const ChunkRecords&) = delete;

  const int64_t record_bytes;        // of each
  std::vector<RecordUser*> holders;  // the Residency's, under its mutex
  bool complete = false;             // the same; nothing will be written to the records unless the text is cut
  int64_t n_out = 0;                 // the same; of records with slots, those that are not in memory
  std::shared_ptr<Tier> tier;        // of records with slots: all of them; the store that made them may be gone
  std::shared_ptr<Buffer> page;      // of records without slots: all of them, one behind the other
  std::vector<Record> records;

  bool in_snapshot() const { return tier && tier->read_only(); }
  int64_t n() const { return static_cast<int64_t>(records.size()); }
  int64_t bytes() const { return n() * record_bytes; }
};

}  // namespace quire
