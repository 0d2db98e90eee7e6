// Records that an earlier snapshot of a session has, and that the session still has as they are.
#pragma once

#include <array>
#include <cstdint>

#include "lib/kv/store_snapshot.h"

namespace quire {

class EarlierRecords {
 public:
  // n_unchanged: so many of the first keys of each kind have been in the KV cache since `earlier`, as they are; n_keys
  // are there now. chunk: keys of a record. `earlier` must outlive this.
  EarlierRecords(const StoreSnapshot& earlier, int64_t chunk, int n_layers,
                 const std::array<int64_t, kKvKinds>& n_unchanged, const std::array<int64_t, kKvKinds>& n_keys)
      : earlier_(earlier), chunk_(chunk), n_layers_(n_layers), n_unchanged_(n_unchanged), n_keys_(n_keys) {}

  // The number of the block in the earlier snapshot; -1: it does not have the record as it is now.
  int64_t block(KvKind kind, int64_t chunk, int layer) const;

 private:
  const StoreSnapshot& earlier_;
  const int64_t chunk_;
  const int n_layers_;
  const std::array<int64_t, kKvKinds> n_unchanged_, n_keys_;
};

}  // namespace quire
