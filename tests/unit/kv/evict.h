// Drops text of a chunk store, as if no query to come saw the keys [begin, end).
#pragma once

#include <cstdint>

#include "lib/kv/chunk_store.h"

namespace quire::test {

inline void evict(ChunkStore& store, int64_t begin, int64_t end) {
  store.drop_unseen({.text = {{0, begin}, {end, kNoLimit}}});
}

}  // namespace quire::test
