#include "lib/kv/record_table.h"

#include <atomic>
#include <utility>

#include "lib/support/make_room.h"

namespace quire {

RecordTable::RecordTable(int n_layers, const std::vector<bool>& windowed)
    : is_windowed_(windowed), views_(static_cast<size_t>(n_layers) * kAllRecordKinds.size()) {
  is_windowed_.resize(static_cast<size_t>(n_layers));
  for (int layer = 0; layer < n_layers; ++layer) {
    std::vector<int>& own = is_windowed(layer) ? windowed_ : others_;
    index_.push_back(static_cast<int>(own.size()));
    own.push_back(layer);
  }
}

RecordKind RecordTable::kind_in(int layer, KvKind kind) const {
  switch (kind) {
    case KvKind::kText:
      return is_windowed(layer) ? RecordKind::kWindow : RecordKind::kText;
    case KvKind::kCondensed:
      return RecordKind::kCondensed;
    case KvKind::kNarrow:
      break;
  }
  return RecordKind::kNarrow;
}

void RecordTable::change() {
  static std::atomic<uint64_t> n_versions = 0;  // of all tables of the process
  version_ = n_versions.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool RecordTable::holds(RecordKind kind, int64_t first, int64_t end) const {
  for (int64_t chunk = first; chunk < end; ++chunk) {
    if (!holds(kind, chunk)) return false;
  }
  return true;
}

std::vector<int64_t> RecordTable::extend(RecordKind kind, int64_t first, int64_t n_chunks) {
  const auto end = static_cast<size_t>(n_chunks);
  if (of(kind).size() < end) change();
  std::vector<int64_t> missing;
  // What can fail comes first, so that all parts of the table have one length.
  missing.reserve(static_cast<size_t>(n_chunks - first));
  const auto grow = [&](const auto& change) {
    if (of(kind).size() < end) change(of(kind));
    for (const int layer : layers(kind)) {
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

void RecordTable::shorten(RecordKind kind, int64_t n_chunks) {
  const auto keep = static_cast<size_t>(n_chunks);
  if (of(kind).size() > keep) change();
  const auto cut = [&](auto& part) {
    if (part.size() > keep) part.resize(keep);
  };
  cut(of(kind));
  for (const int layer : layers(kind)) cut(views_[track(layer, kind)]);
}

template <typename Place>
void RecordTable::see_each(const Place& place_of) {
  change();
  for (const RecordKind kind : kAllRecordKinds) {
    for (int64_t chunk = 0; chunk < n_chunks(kind); ++chunk) {
      if (!holds(kind, chunk)) continue;
      for (const int layer : layers(kind)) view(layer, kind, chunk) = place_of(record(layer, kind, chunk));
    }
  }
}

void RecordTable::see_all() {
  see_each([](const Record& record) { return record.place(); });
}

void RecordTable::see_fixed() {
  see_each([](const Record& record) { return record.fixed; });
}

void RecordTable::hold(RecordKind kind, int64_t chunk, ChunkRecords& records) {
  change();
  of(kind)[static_cast<size_t>(chunk)] = &records;
  for (const int layer : layers(kind)) {
    view(layer, kind, chunk) = records.records[static_cast<size_t>(index_of(layer))].fixed;
  }
  held_.add(kind, records);
}

ChunkRecords& RecordTable::forget(RecordKind kind, int64_t chunk) {
  change();
  ChunkRecords& records = *std::exchange(of(kind)[static_cast<size_t>(chunk)], nullptr);
  for (const int layer : layers(kind)) view(layer, kind, chunk) = {};
  held_.add(kind, records, -1);
  return records;
}

}  // namespace quire
