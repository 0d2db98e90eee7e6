// The file tier: records in slots of one temporary file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/mutex.h"
#include "lib/support/os_scratch_file.h"

namespace quire {

class FileTier : public Tier {
 public:
  // budget_bytes 0: no limit. `runtime` may be null. growth: the file grows by so many bytes at a time, or by what is
  // asked for if that is more. Errors: those of ScratchFile::create().
  static constexpr int64_t kGrowth = int64_t{4} << 20;
  static Result<std::unique_ptr<FileTier>> create(const std::string& directory, int64_t record_bytes,
                                                  int64_t budget_bytes, std::shared_ptr<TierBudget> runtime = nullptr,
                                                  int64_t growth = kGrowth);

  // Of a file without a budget that holds so many records at once.
  static int64_t most_bytes(int64_t record_bytes, int64_t n_records);

  std::string name() const override { return "file"; }
  Result<std::vector<int64_t>> take_slots(int64_t n) override;
  void free_slot(int64_t slot) override;
  Status write(int64_t slot, const void* record) override;
  Status read(int64_t slot, void* record) override;
  void will_read(int64_t slot) override { file_->will_read(slot * record_bytes_, record_bytes_); }
  void describe(TierStats& stats) const override;

  int64_t bytes() const;
  // For measuring: see ScratchFile.
  Status forget_cached() const { return file_->forget_cached(); }

 private:
  FileTier(std::unique_ptr<ScratchFile> file, int64_t record_bytes, int64_t budget_bytes,
           std::shared_ptr<TierBudget> runtime, int64_t growth)
      : file_(std::move(file)),
        record_bytes_(record_bytes),
        growth_(growth),
        account_("of the spill file", budget_bytes, std::move(runtime)) {}
  Status reserve(int64_t n) QUIRE_REQUIRES(mutex_);
  Status grow(int64_t n_slots) QUIRE_REQUIRES(mutex_);

  const std::unique_ptr<ScratchFile> file_;  // grows under the mutex
  const int64_t record_bytes_;
  const int64_t growth_;
  mutable Mutex mutex_;
  TierAccount account_ QUIRE_GUARDED_BY(mutex_);
  int64_t n_slots_ QUIRE_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> free_ QUIRE_GUARDED_BY(mutex_);  // capacity: n_slots_
};

}  // namespace quire
