// The CPU backend: operations run at once on the runtime's thread pool; a queue has nothing to queue.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/support/allocator.h"
#include "lib/support/thread_pool.h"

namespace quire::cpu {

struct AttentionLists;
class CpuStep;

// The allocator and the pool must outlive the backend and everything it made.
std::unique_ptr<Backend> create_cpu_backend(Allocator& allocator, ThreadPool& pool);

// Working memory of attention: grows to what the largest call needed.
class Workspace {
 public:
  explicit Workspace(Allocator& allocator) : allocator_(allocator) {}
  // At least `bytes`, contents undefined; nullptr if there is no memory (what was held before stays).
  void* require(size_t bytes);
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }

 private:
  Allocator& allocator_;
  HostMemory memory_;
};

inline float* rows_ptr(const Rows& rows) { return static_cast<float*>(rows.buffer->host()) + rows.offset; }

inline std::byte* record_ptr(const KvRecord& record) {
  return static_cast<std::byte*>(record.page->host()) + record.offset;
}

// Byte offsets inside a KV record: [kv head][keys | values], and of kInt8 [kv head][keys | scales | values | scales]
// (layouts: kernels/cpu/kernels.h).
struct RecordLayout {
  explicit RecordLayout(const KvGeometry& geometry);
  size_t key_bytes;
  size_t key_scale_bytes;
  size_t value_bytes;
  size_t value_scale_bytes;
  size_t keys(int64_t head) const {
    return static_cast<size_t>(head) * (key_bytes + key_scale_bytes + value_bytes + value_scale_bytes);
  }
  size_t key_scales(int64_t head) const { return keys(head) + key_bytes; }
  size_t values(int64_t head) const { return key_scales(head) + key_scale_bytes; }
  size_t value_scales(int64_t head) const { return values(head) + value_bytes; }
};

// Workspace of a call: defined in cpu_attention.cc. selection as in Backend::attention_workspace_bytes.
size_t attention_floats(int n_threads, const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                        const ChunkSelection& selection);
// Runs the plans of sequences of the step. Defined in cpu_attention.cc.
Status run_attention(ThreadPool& pool, Workspace& workspace, AttentionLists& lists, const CancelToken* cancel,
                     const CpuStep& step, std::span<const AttentionArgs> sequences);

}  // namespace quire::cpu
