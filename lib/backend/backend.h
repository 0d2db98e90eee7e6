// The backend interface: memory, streams and operations of one compute device.
//
// The decoder (lib/model) is written once against this interface. Work is queued on a Queue and may run later; the
// host reads results only after `synchronize` or a completed Fence. Element types: activations are f32; matrices,
// tables and KV records are f32, f16 or bf16 in a layout that the backend chooses. lib/README.md says for each call how
// a CUDA backend implements it.
//
// Threads: `allocate`, `create_*` and Buffer/Matrix/... destruction are any-thread. Streams and the operations queued
// on them are used by one thread at a time, the scheduler's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/plan/plan.h"
#include "lib/plan/rope_table.h"
#include "lib/support/cancel.h"
#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

// Memory of a backend. `host()` is its address if the host may touch it, else nullptr.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* host() const = 0;
  size_t size() const { return size_; }

 protected:
  explicit Buffer(size_t size) : size_(size) {}

 private:
  size_t size_;
};

enum class MemoryKind {
  kDevice,   // where operations work
  kStaging,  // host memory from which asynchronous copies run at full speed
};

// An in-order queue of operations.
class Queue {
 public:
  virtual ~Queue() = default;
};

// A point in a queue: done when everything queued before it is.
class Fence {
 public:
  virtual ~Fence() = default;
  virtual bool done() const = 0;
};

// A weight matrix [n][k], applied as y = x W^T.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t n = 0;
  int64_t k = 0;
  ElementType type = ElementType::kF32;
  size_t bytes = 0;
};

// Rows to look up by token id.
class Table {
 public:
  virtual ~Table() = default;
  int64_t rows = 0;
  int64_t columns = 0;
  size_t bytes = 0;
};

// Rotations of the sessions that have the same frequencies and chunk: angles of any position, and of the offsets inside
// a chunk. Immutable: any thread.
class Rope {
 public:
  virtual ~Rope() = default;
  size_t bytes = 0;  // from the runtime's allocator
};

// f32 rows in a buffer: row r begins at element offset + r * stride.
struct Rows {
  Buffer* buffer = nullptr;
  int64_t offset = 0;
  int64_t stride = 0;

  Rows at(int64_t row) const { return {buffer, offset + row * stride, stride}; }
  Rows column(int64_t c) const { return {buffer, offset + c, stride}; }
};

// Shape of one KV record: keys and values of `chunk` tokens in one layer, per KV head contiguous.
struct KvGeometry {
  int n_kv_heads = 0;
  int head_dim = 0;
  int64_t chunk = 0;
  ElementType type = ElementType::kF16;
};

// Bytes of a record's neutral form.
inline size_t kv_neutral_bytes(const KvGeometry& g) {
  return static_cast<size_t>(2 * g.n_kv_heads * g.chunk * g.head_dim) * element_bytes(g.type);
}

// Where a record lies: kv_record_bytes of a page that may hold others, from a byte offset that is a multiple of
// kv_record_bytes. Borrowed. No page: the record is dropped, or not in this memory.
struct KvRecord {
  Buffer* page = nullptr;
  size_t offset = 0;

  explicit operator bool() const { return page != nullptr; }
  bool operator==(const KvRecord&) const = default;
};

// The records of one layer and KV kind, by chunk index.
struct KvRecords {
  std::span<const KvRecord> chunks;
  bool raw = false;  // keys were stored unrotated; spans over them have rotation kRaw
};

// Where an operation is queued, and what may stop it. An operation that saw the cancel flag returns kCancelled and
// leaves its outputs undefined.
struct Exec {
  Queue& queue;
  const CancelToken* cancel = nullptr;
};

// y += scale * (x A^T) B^T (LoRA: Hu et al. 2021, arXiv:2106.09685, eq. 3).
struct LowRankArgs {
  Rows x;  // [n][a->k]
  int64_t n = 0;
  const Matrix* a = nullptr;  // [rank][in]; nullptr: `work` holds x A^T already
  const Matrix* b = nullptr;  // [out][rank]
  float scale = 1;
  Rows work;  // [n][rank], overwritten
  Rows y;     // [n][b->n]
};

struct StoreKvArgs {
  Rows keys;    // [n][n_kv_heads * head_dim], not rotated
  Rows values;  // the same
  int64_t first_key = 0;
  int64_t n = 0;
  const Rope* rope = nullptr;  // nullptr: keys are stored raw
  KvGeometry geometry;
  KvRecords records;
};

// Chunk representations of one layer (LongHeads, arXiv:2402.10685, Eq. 1-2), one vector per query head and chunk, in
// pages of kPageChunks chunks; nullptr where none. Borrowed.
struct Representations {
  static constexpr int64_t kPageChunks = 64;
  std::span<const std::unique_ptr<Buffer>> pages;
};

struct RepresentArgs {
  Rows queries;   // [chunk][n_query_heads * head_dim], not rotated: those of the chunk's tokens
  int64_t chunk;  // its index; its record is complete
  int n_query_heads = 0;
  float scale = 1;  // of the logits, all constant factors included
  const Rope* rope = nullptr;
  KvGeometry geometry;
  KvRecords records;
  Representations out;
};

// Chooses chunks for the queries of the plan's blocks that are `selected`.
struct SelectArgs {
  int layer = 0;  // so that what is chosen at random differs from layer to layer
  Rows queries;   // [n_queries][n_query_heads * head_dim], not rotated
  const Plan* plan = nullptr;
  int64_t first_query = 0;
  int64_t n_queries = 0;
  int n_query_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  Representations representations;
  // int32 [n_queries][n_query_heads][selection.count]: ascending chunk indexes, -1 behind them; rows of other queries
  // are undefined.
  Buffer* out = nullptr;
};

struct AttentionArgs {
  Rows queries;                // [n_queries][n_query_heads * head_dim], not rotated
  Rows out;                    // the same shape; may be `queries`
  const Plan* plan = nullptr;  // of these queries, in this order
  int64_t n_queries = 0;
  int n_query_heads = 0;
  float scale = 1;  // of the logits, all constant factors included
  const Rope* rope = nullptr;
  KvGeometry geometry;
  KvRecords records[kKvKinds];
  const Buffer* selection = nullptr;  // of select_chunks; needed if a block is selected

  // Keys that are not all in memory at once: several calls with ascending windows of text chunks that together hold
  // all, and the same `state` of state_floats() floats. `out` is complete after the last call. Windows change no bit.
  struct Window {
    int64_t first_chunk = 0;
    int64_t end_chunk = kNoLimit;
    bool first = true;
    bool last = true;
  };
  Window window;
  Buffer* state = nullptr;  // may be null if there is one window
  int64_t state_floats() const { return n_queries * n_query_heads * (geometry.head_dim + 2); }
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;

  // ---- memory and streams
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes, MemoryKind kind) = 0;
  virtual Result<std::unique_ptr<Queue>> create_queue() = 0;
  // Copies between host memory and buffers. The host memory must stay until the copy is done.
  virtual Status upload(Queue& queue, const void* source, Buffer& target, size_t offset, size_t bytes) = 0;
  virtual Status download(Queue& queue, const Buffer& source, size_t offset, void* target, size_t bytes) = 0;
  virtual Result<std::unique_ptr<Fence>> record(Queue& queue) = 0;
  virtual Status wait(Queue& queue, const Fence& fence) = 0;
  // Waits until everything queued is done; reports a failure of any of it.
  virtual Status synchronize(Queue& queue) = 0;

  // ---- immutable data (synchronous, while loading)
  virtual Result<std::unique_ptr<Matrix>> create_matrix(int64_t n, int64_t k, ElementType type) = 0;
  // Writes rows [first_row, first_row + rows) of `matrix` from row-major host memory. Several sources may share a
  // matrix.
  virtual Status load_rows(Matrix& matrix, ElementType source_type, const void* source, int64_t first_row,
                           int64_t rows) = 0;
  // `source` may be kept and read where it lies if `keep` holds it alive (a staging buffer, a mapped file); otherwise
  // it is copied.
  virtual Result<std::unique_ptr<Table>> create_table(int64_t rows, int64_t columns, ElementType type,
                                                      const void* source, std::shared_ptr<const void> keep) = 0;
  // The one object for these frequencies and this chunk: made if nobody holds it, gone with its last holder. Error:
  // kOutOfMemory.
  virtual Result<std::shared_ptr<const Rope>> create_rope(const RopeTable& table, int64_t chunk) = 0;
  // A multiple of the alignment that operations need of a record, so that records can lie one behind the other.
  virtual size_t kv_record_bytes(const KvGeometry& geometry) const = 0;
  // A record and its neutral form, the same on every backend: [n_kv_heads][keys, values][chunk][head_dim] in the
  // record's type, keys as stored. `record` and `neutral` are host memory of kv_record_bytes and
  // kv_neutral_bytes.
  virtual void to_neutral(const KvGeometry& geometry, const void* record, void* neutral) const = 0;
  virtual void from_neutral(const KvGeometry& geometry, const void* neutral, void* record) const = 0;
  // Bytes of a page of representations.
  virtual size_t representation_page_bytes(int n_query_heads, int head_dim) const = 0;

  // ---- operations; n = rows
  virtual Status embed(Exec exec, const Table& table, std::span<const int32_t> tokens, Rows out) = 0;
  virtual Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Rows out) = 0;
  // y = x W^T + bias, added to y if accumulate. bias: f32 [matrix.n] or nullptr.
  virtual Status matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, bool accumulate,
                        Rows y) = 0;
  virtual Status add_low_rank(Exec exec, const LowRankArgs& args) = 0;
  // out[r][0..width) = silu(x[r][0..width)) * x[r][width..2 width). out may be x.
  virtual Status swiglu(Exec exec, Rows x, int64_t n, int64_t width, Rows out) = 0;
  virtual Status store_kv(Exec exec, const StoreKvArgs& args) = 0;
  virtual Status copy_rows(Exec exec, Rows from, int64_t n, int64_t width, Rows to) = 0;
  virtual Status represent_chunk(Exec exec, const RepresentArgs& args) = 0;
  virtual Status select_chunks(Exec exec, const SelectArgs& args) = 0;
  virtual Status attention(Exec exec, const AttentionArgs& args) = 0;

  // Bytes of working memory that operations hold beside their arguments.
  virtual int64_t workspace_bytes() const = 0;

  // ---- what would be allocated, for planning
  virtual size_t matrix_bytes(int64_t n, int64_t k, ElementType type) const = 0;
  virtual size_t rope_bytes(int head_dim, int64_t chunk) const = 0;
  // Workspace of select_chunks, represent_chunk and attention over n_keys keys. selected: most chunks that a query
  // selects; 0: no selection.
  virtual size_t attention_workspace_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries,
                                           int64_t n_keys, int64_t selected) const = 0;
};

}  // namespace quire
