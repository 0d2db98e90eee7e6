#include "lib/session/earlier_records.h"

#include <algorithm>

namespace quire {

int64_t EarlierRecords::block(RecordKind kind, int64_t chunk, int64_t index) const {
  const auto k = static_cast<size_t>(kind);
  // Behind the last key a record has zeros, so it must end where it did.
  const auto end = [&](int64_t n) { return std::min((chunk + 1) * chunk_, n); };
  if (end(n_keys_[k]) > n_unchanged_[k] || end(n_keys_[k]) != end(earlier_.n_keys[k])) return -1;
  int64_t before = earlier_.first_block;  // blocks of other kinds
  for (size_t other = 0; other < k; ++other) {
    for (const ChunkRange& range : earlier_.held[other]) before += (range.end - range.begin) * n_records_[other];
  }
  for (const ChunkRange& range : earlier_.held[k]) {
    if (chunk < range.begin) return -1;
    if (chunk < range.end) return before + (chunk - range.begin) * n_records_[k] + index;
    before += (range.end - range.begin) * n_records_[k];
  }
  return -1;
}

}  // namespace quire
