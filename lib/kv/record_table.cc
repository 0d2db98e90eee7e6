#include "lib/kv/record_table.h"

#include "lib/support/make_room.h"

namespace quire {

bool RecordTable::holds(RecordId id) const {
  const auto& entries = entries_[static_cast<size_t>(id.track)];
  return static_cast<size_t>(id.chunk) < entries.size() && entries[static_cast<size_t>(id.chunk)].held;
}

bool RecordTable::holds(KvKind kind, int64_t first, int64_t end) const {
  for (int64_t chunk = first; chunk < end; ++chunk) {
    if (!holds(id(0, kind, chunk))) return false;
  }
  return true;
}

std::vector<RecordId> RecordTable::extend(KvKind kind, int64_t first, int64_t n_chunks) {
  const auto end = static_cast<size_t>(n_chunks);
  std::vector<RecordId> missing;
  const auto grow = [&](const auto& change) {
    for (int layer = 0; layer < n_layers_; ++layer) {
      const auto track = static_cast<size_t>(id(layer, kind, 0).track);
      if (records_[track].size() < end) change(records_[track]);
      if (entries_[track].size() < end) change(entries_[track]);
    }
  };
  // What can fail comes first, so that the tracks of a kind always have one length.
  grow([&](auto& track) { make_room(track, end - track.size()); });
  grow([&](auto& track) { track.resize(end); });
  for (int64_t chunk = first; chunk < n_chunks; ++chunk) {
    for (int layer = 0; layer < n_layers_; ++layer) {
      const RecordId record = id(layer, kind, chunk);
      if (!holds(record)) missing.push_back(record);
    }
  }
  return missing;
}

void RecordTable::shorten(KvKind kind, int64_t n_chunks) {
  const auto keep = static_cast<size_t>(n_chunks);
  for (int layer = 0; layer < n_layers_; ++layer) {
    const auto track = static_cast<size_t>(id(layer, kind, 0).track);
    if (entries_[track].size() > keep) entries_[track].resize(keep);
    if (records_[track].size() > keep) records_[track].resize(keep);
  }
}

void RecordTable::hold(RecordId id) {
  entry(id).held = true;
  ++n_held_;
}

void RecordTable::forget(RecordId id) {
  entry(id) = RecordEntry();
  record(id) = {};
  --n_held_;
}

}  // namespace quire
