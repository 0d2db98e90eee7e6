#include "lib/kv/snapshot_tier.h"

namespace quire {

Status SnapshotTier::read(int64_t slot, void* record) {
  std::vector<std::byte> neutral(kv_neutral_bytes(geometry_));
  QUIRE_TRY(source_->read(slot, neutral));
  backend_.from_neutral(geometry_, neutral.data(), record);
  return {};
}

}  // namespace quire
