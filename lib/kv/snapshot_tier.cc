#include "lib/kv/snapshot_tier.h"

namespace quire {

Status SnapshotTier::read(int64_t slot, void* record) {
  QUIRE_TRY(source_->read(slot, neutral_));
  backend_.from_neutral(geometry_, neutral_.data(), record);
  return {};
}

}  // namespace quire
