// Records that an earlier snapshot of a session has, and that the session still has as they are.
#pragma once

#include <array>
#include <cstdint>

#include "lib/kv/store_snapshot.h"

namespace quire {

class EarlierRecords {
 public:
  using Numbers = std::array<int64_t, kAllRecordKinds.size()>;  // of each kind

  // n_unchanged: so many of the first keys of each kind have been in the KV cache since `earlier`, as they are; n_keys
  // are there now. chunk: keys of a record; n_records: of a chunk. `earlier` must outlive this.
  EarlierRecords(const StoreSnapshot& earlier, int64_t chunk, const Numbers& n_records, const Numbers& n_unchanged,
                 const Numbers& n_keys)
      : earlier_(earlier), chunk_(chunk), n_records_(n_records), n_unchanged_(n_unchanged), n_keys_(n_keys) {}

  // The number of the block in the earlier snapshot; -1: it does not have the record as it is now. index: of the
  // chunk's records.
  int64_t block(RecordKind kind, int64_t chunk, int64_t index) const;

 private:
  const StoreSnapshot& earlier_;
  const int64_t chunk_;
  const Numbers n_records_, n_unchanged_, n_keys_;
};

}  // namespace quire
