#include "lib/session/earlier_records.h"

#include <algorithm>

namespace quire {

int64_t EarlierRecords::block(KvKind kind, int64_t chunk, int layer) const {
  const auto k = static_cast<size_t>(kind);
  // Behind the last key a record has zeros, so it must end where it did.
  const auto end = [&](int64_t n) { return std::min((chunk + 1) * chunk_, n); };
  if (end(n_keys_[k]) > n_unchanged_[k] || end(n_keys_[k]) != end(earlier_.n_keys[k])) return -1;
  int64_t before = 0;  // chunks of earlier kinds and ranges
  for (size_t other = 0; other < k; ++other) {
    for (const ChunkRange& range : earlier_.held[other]) before += range.end - range.begin;
  }
  for (const ChunkRange& range : earlier_.held[k]) {
    if (chunk < range.begin) return -1;
    if (chunk < range.end) return earlier_.first_block + (before + chunk - range.begin) * n_layers_ + layer;
    before += range.end - range.begin;
  }
  return -1;
}

}  // namespace quire
