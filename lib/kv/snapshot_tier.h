// The tier that a restored store reads its records from: a snapshot's blocks, which are never written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/store_snapshot.h"
#include "lib/kv/tier.h"

namespace quire {

// A slot is the number of a block, which has the record in its neutral form.
class SnapshotTier : public Tier {
 public:
  // The backend must outlive this.
  SnapshotTier(const Backend& backend, const KvGeometry& geometry, std::shared_ptr<const BlockSource> source)
      : backend_(backend), geometry_(geometry), source_(std::move(source)) {}

  std::string name() const override { return "snapshot"; }
  bool read_only() const override { return true; }
  Result<std::vector<int64_t>> take_slots(int64_t) override { return refused(); }
  void free_slot(int64_t) override {}
  Status write(int64_t, const void*) override { return refused(); }
  Status read(int64_t slot, void* record) override;
  void will_read(int64_t slot) override { source_->will_read(slot); }
  void describe(TierStats&) const override {}

 private:
  static Status refused() { return Status(Code::kInternal, "a snapshot is not written to"); }

  const Backend& backend_;
  const KvGeometry geometry_;
  const std::shared_ptr<const BlockSource> source_;
};

}  // namespace quire
