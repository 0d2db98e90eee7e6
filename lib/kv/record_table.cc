#include "lib/kv/record_table.h"

#include <atomic>
#include <utility>

#include "lib/support/make_room.h"

namespace quire {

void RecordTable::change() {
  static std::atomic<uint64_t> n_versions = 0;  // of all tables of the process
  version_ = n_versions.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool RecordTable::holds(KvKind kind, int64_t first, int64_t end) const {
  for (int64_t chunk = first; chunk < end; ++chunk) {
    if (!holds(kind, chunk)) return false;
  }
  return true;
}

std::vector<int64_t> RecordTable::extend(KvKind kind, int64_t first, int64_t n_chunks) {
  const auto end = static_cast<size_t>(n_chunks);
  if (of(kind).size() < end) change();
  std::vector<int64_t> missing;
  // What can fail comes first, so that all parts of the table have one length.
  missing.reserve(static_cast<size_t>(n_chunks - first));
  const auto grow = [&](const auto& change) {
    if (of(kind).size() < end) change(of(kind));
    for (int layer = 0; layer < n_layers_; ++layer) {
      if (views_[track(layer, kind)].size() < end) change(views_[track(layer, kind)]);
    }
  };
  grow([&](auto& part) { make_room(part, end - part.size()); });
  grow([&](auto& part) { part.resize(end); });
  for (int64_t chunk = first; chunk < n_chunks; ++chunk) {
    if (!holds(kind, chunk)) missing.push_back(chunk);
  }
  return missing;
}

void RecordTable::shorten(KvKind kind, int64_t n_chunks) {
  const auto keep = static_cast<size_t>(n_chunks);
  if (of(kind).size() > keep) change();
  const auto cut = [&](auto& part) {
    if (part.size() > keep) part.resize(keep);
  };
  cut(of(kind));
  for (int layer = 0; layer < n_layers_; ++layer) cut(views_[track(layer, kind)]);
}

template <typename Place>
void RecordTable::see_each(const Place& place_of) {
  change();
  for (const KvKind kind : kAllKvKinds) {
    for (int64_t chunk = 0; chunk < n_chunks(kind); ++chunk) {
      if (!holds(kind, chunk)) continue;
      for (int layer = 0; layer < n_layers_; ++layer) view(layer, kind, chunk) = place_of(record(layer, kind, chunk));
    }
  }
}

void RecordTable::see_all() {
  see_each([](const Record& record) { return record.place(); });
}

void RecordTable::see_fixed() {
  see_each([](const Record& record) { return record.fixed; });
}

void RecordTable::hold(KvKind kind, int64_t chunk, ChunkRecords& records) {
  change();
  of(kind)[static_cast<size_t>(chunk)] = &records;
  for (int layer = 0; layer < n_layers_; ++layer) {
    view(layer, kind, chunk) = records.records[static_cast<size_t>(layer)].fixed;
  }
  n_held_ += n_layers_;
}

ChunkRecords& RecordTable::forget(KvKind kind, int64_t chunk) {
  change();
  ChunkRecords& records = *std::exchange(of(kind)[static_cast<size_t>(chunk)], nullptr);
  for (int layer = 0; layer < n_layers_; ++layer) view(layer, kind, chunk) = {};
  n_held_ -= n_layers_;
  return records;
}

}  // namespace quire
