#include "lib/kv/chunk_store.h"

#include <algorithm>
#include <string>

namespace quire {

ChunkStore::ChunkStore(Backend& backend, const KvGeometry& geometry, int n_layers, int64_t budget_bytes)
    : backend_(backend),
      geometry_(geometry),
      budget_bytes_(budget_bytes),
      record_bytes_(static_cast<int64_t>(backend.kv_record_bytes(geometry))),
      layers_(static_cast<size_t>(n_layers)) {}

Status ChunkStore::reserve(int64_t first, int64_t n) {
  const auto begin = static_cast<size_t>(first / geometry_.chunk);
  const auto end = static_cast<size_t>(ceil_div(first + n, geometry_.chunk));
  std::vector<std::unique_ptr<Buffer>*> missing;
  for (auto& chunks : layers_) {
    if (chunks.size() < end) chunks.resize(end);
    for (size_t c = begin; c < end; ++c) {
      if (!chunks[c]) missing.push_back(&chunks[c]);
    }
  }
  const int64_t needed = bytes() + static_cast<int64_t>(missing.size()) * record_bytes_;
  if (budget_bytes_ > 0 && needed > budget_bytes_) {
    return Status(Code::kBudget, "the KV cache needs " + std::to_string(needed) + " bytes for " +
                                     std::to_string(first + n) + " tokens; the budget is " +
                                     std::to_string(budget_bytes_));
  }
  for (size_t m = 0; m < missing.size(); ++m) {
    auto buffer = backend_.allocate(static_cast<size_t>(record_bytes_), MemoryKind::kDevice);
    if (!buffer.ok()) {
      for (size_t undo = 0; undo < m; ++undo) missing[undo]->reset();
      n_records_ -= static_cast<int64_t>(m);
      return buffer.status().with_context("KV cache at token " + std::to_string(first));
    }
    *missing[m] = std::move(*buffer);
    ++n_records_;  // at once: allocate may throw, and the records so far are there
  }
  peak_records_ = std::max(peak_records_, n_records_);
  return {};
}

int64_t ChunkStore::drop(int64_t first_chunk, int64_t end_chunk) {
  int64_t dropped = 0;
  for (auto& chunks : layers_) {
    const int64_t end = std::min(end_chunk, static_cast<int64_t>(chunks.size()));
    for (int64_t c = first_chunk; c < end; ++c) {
      auto& record = chunks[static_cast<size_t>(c)];
      if (!record) continue;
      record.reset();
      ++dropped;
    }
  }
  n_records_ -= dropped;
  return dropped;
}

void ChunkStore::truncate(int64_t n_tokens) {
  const int64_t keep = ceil_div(n_tokens, geometry_.chunk);
  drop(keep, kNoLimit);
  for (auto& chunks : layers_) {
    if (static_cast<int64_t>(chunks.size()) > keep) chunks.resize(static_cast<size_t>(keep));
  }
  evicted_until_ = std::min(evicted_until_, keep);
}

void ChunkStore::evict(int64_t begin, int64_t end) {
  const int64_t first = std::max(ceil_div(begin, geometry_.chunk), evicted_until_);
  const int64_t last = end / geometry_.chunk;
  if (first >= last) return;
  n_evicted_ += drop(first, last);
  evicted_until_ = last;
}

}  // namespace quire
