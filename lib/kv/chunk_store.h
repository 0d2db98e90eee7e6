// The chunk store of one session: keys and values of its tokens, in records of `chunk` tokens per layer.
//
// Records are allocated when the first token of their chunk arrives and dropped when the strategy will never need them
// again or the session forgets them. The byte budget is never exceeded. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/support/status.h"

namespace quire {

class ChunkStore {
 public:
  // budget_bytes 0: no limit. The backend must outlive the store.
  ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, int64_t budget_bytes);

  const KvGeometry& geometry() const { return geometry_; }
  // Makes room for keys [first, first + n) in all layers. kBudget or kOutOfMemory: nothing was changed.
  Status reserve(int64_t first, int64_t n);
  // Forgets the keys from n_tokens on.
  void truncate(int64_t n_tokens);
  // Drops the records whose keys all lie in [begin, end). Calls come with ascending ranges.
  void evict(int64_t begin, int64_t end);
  KvRecords layer(int layer) const { return {layers_[static_cast<size_t>(layer)]}; }

  int64_t bytes() const { return n_records_ * record_bytes_; }
  int64_t peak_bytes() const { return peak_records_ * record_bytes_; }
  int64_t n_records() const { return n_records_; }
  int64_t n_evicted() const { return n_evicted_; }

 private:
  int64_t drop(int64_t first_chunk, int64_t end_chunk);

  Backend& backend_;
  KvGeometry geometry_;
  int64_t budget_bytes_;
  int64_t record_bytes_;
  std::vector<std::vector<std::unique_ptr<Buffer>>> layers_;  // [layer][chunk], null where dropped
  int64_t n_records_ = 0;
  int64_t peak_records_ = 0;
  int64_t n_evicted_ = 0;
  int64_t evicted_until_ = 0;  // everything droppable before this chunk was dropped
};

}  // namespace quire
