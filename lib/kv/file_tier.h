// The file tier of a chunk store: records that left memory, in slots of one temporary file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/support/os_scratch_file.h"
#include "lib/support/status.h"

namespace quire {

// One thread at a time.
class RecordFile {
 public:
  // budget_bytes 0: no limit.
  static Result<std::unique_ptr<RecordFile>> create(const std::string& directory, int64_t record_bytes,
                                                    int64_t budget_bytes);

  // Makes sure that `n` calls of take_slot() succeed. kBudget, kIo: nothing was changed.
  Status reserve(int64_t n);
  int64_t take_slot();
  void free_slot(int64_t slot) { free_.push_back(slot); }  // never allocates: reserve() made room
  Status write(int64_t slot, const void* record);
  Status read(int64_t slot, void* record);

  int64_t bytes() const { return file_->size(); }
  int64_t n_read() const { return n_read_; }
  int64_t n_written() const { return n_written_; }

 private:
  RecordFile(std::unique_ptr<ScratchFile> file, int64_t record_bytes, int64_t budget_bytes)
      : file_(std::move(file)), record_bytes_(record_bytes), budget_bytes_(budget_bytes) {}

  std::unique_ptr<ScratchFile> file_;
  int64_t record_bytes_;
  int64_t budget_bytes_;
  int64_t n_slots_ = 0;
  std::vector<int64_t> free_;  // capacity: n_slots_
  int64_t n_read_ = 0;
  int64_t n_written_ = 0;
};

}  // namespace quire
