// The backend interface: memory, queues and operations of one compute device.
//
// The decoder (lib/model) is written once against this interface. lib/README.md says for each call how a CUDA backend
// implements it.
//
// Time. Operations are queued and may run later, in the order of their queue; a Status that a queueing call returns is
// of the queueing alone, and what went wrong afterwards is said by the next Fence. What the arguments say (numbers,
// spans, what they point to on the host) is read during the call, with three exceptions that must live until the
// operation is done: device objects (Buffer, Matrix, Table, Rope, PreparedStep), the host memory of upload() and
// download(), and the cancel flag.
//
// Threads. `allocate`, `create_*` and destruction are any-thread. A queue is used by one thread at a time. Copies and
// fences of different queues may be called by different threads at once, operations by the scheduler's alone.
//
// Element types. Activations have row_type(), or residual_type(); matrices, tables and KV records have formats of
// blocks (BlockFormat) in a layout that the backend chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lib/backend/operations.h"
#include "lib/backend/ranked_logits.h"
#include "lib/plan/rope_table.h"
#include "lib/support/status.h"

namespace quire {

// What a session will ask of a backend.
struct BackendNeeds {
  KvGeometry geometry{};
  int n_query_heads = 0;
  ChunkSelection selection{};
  OldText old_text{};
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  // What makes it slower than such a device can be, for a person; empty: nothing that it knows of. Any thread.
  virtual std::string shortcoming() const { return {}; }
  // Of activations: what Rows hold.
  virtual ElementType row_type() const = 0;
  // Of the rows to which each layer adds, where sums of many layers come together. Operations take rows of both types.
  virtual ElementType residual_type() const { return row_type(); }
  // Whether sessions that need this can run here. Errors: kUnsupported, which says what they cannot have.
  virtual Status can_serve(const BackendNeeds&) const { return {}; }
  // Tokens of a forward pass over fed text where nobody asks for another number: enough to keep the device busy, and
  // few enough that other sessions do not wait long.
  virtual int64_t prefill_block() const { return 256; }
  // Bytes of memory that the device has of its own, beside the machine's; 0: it works on that.
  virtual int64_t device_bytes() const { return 0; }
  bool has_own_memory() const { return device_bytes() > 0; }
  // Of these, what KV records do not take: activations, workspaces and others need it. 256 MiB of 8 GiB.
  int64_t device_bytes_for_work() const { return device_bytes() / 32; }
  // Bytes of its own memory that are free now; kNoLimit: it does not say. Any thread.
  virtual int64_t free_device_bytes() const { return kNoLimit; }

  // ---- memory and queues
  virtual Result<std::unique_ptr<Buffer>> allocate(size_t bytes, MemoryKind kind) = 0;
  virtual Result<std::unique_ptr<Queue>> create_queue() = 0;
  // Copies between host memory and buffers. The host memory is read, or written, at any time until the copy is done.
  virtual Status upload(Queue& queue, const void* source, Buffer& target, size_t offset, size_t bytes) = 0;
  virtual Status download(Queue& queue, const Buffer& source, size_t offset, void* target, size_t bytes) = 0;
  // The same for several pieces at once, in any order: no two of them overlap. Both memories live until they are done.
  // A device for which many small copies are slow overrides this (coarse_operations.cc: one upload() each).
  virtual Status upload_all(Queue& queue, std::span<const StagedUpload> uploads);
  // A point behind all that was queued. Where none can be made, which is said or thrown (std::bad_alloc), all of that
  // is done: memory that it works on may be released.
  virtual Result<std::unique_ptr<Fence>> record(Queue& queue) = 0;
  // What is queued from now on begins when the fence, of another queue, is done.
  virtual Status wait(Queue& queue, const Fence& fence) = 0;

  // ---- immutable data (done when the call returns)
  // Of the rows of all parts. k is whole blocks of each part's type.
  virtual Result<std::unique_ptr<Matrix>> create_matrix(std::span<const MatrixPart> parts, int64_t k) = 0;
  // Writes rows [first_row, first_row + rows) of `matrix` from row-major host memory, converted to the types of their
  // parts. Several sources may share a matrix.
  virtual Status load_rows(Matrix& matrix, ElementType source_type, const void* source, int64_t first_row,
                           int64_t rows) = 0;
  // A loaded matrix's memory, for a file that later ones are made of (lib/model/packed_weights.h). The layout's name
  // changes whenever other bytes would be expected; empty: this backend gives no memory of matrices.
  virtual std::string matrix_layout() const { return {}; }
  virtual std::span<const std::byte> matrix_memory(const Matrix&) const { return {}; }
  // A matrix over memory that matrix_memory gave, under the same layout, of one with the same parts and k. It is read
  // where it lies, at a multiple of Allocator::kAlignment; `keep` holds it alive. Errors: kBadFile (not its size),
  // kUnsupported.
  virtual Result<std::unique_ptr<Matrix>> map_matrix(std::span<const MatrixPart>, int64_t /*k*/,
                                                     std::span<const std::byte> /*memory*/,
                                                     std::shared_ptr<const void> /*keep*/) {
    return Status(Code::kUnsupported, name() + " maps no matrices");
  }
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
  // record's type, keys as stored; of kInt8 [n_kv_heads][keys, scales, values, scales] (kernels/cpu/kernels.h has the
  // scales); of kInt4 [n_kv_heads][keys, values] in groups (lib/support/int4.h). `record` and `neutral` are host memory
  // of kv_record_bytes and kv_neutral_bytes.
  virtual void to_neutral(const KvGeometry& geometry, const void* record, void* neutral) const = 0;
  virtual void from_neutral(const KvGeometry& geometry, const void* neutral, void* record) const = 0;
  // Bytes of a page of representations of n_vectors vectors of this type per chunk.
  virtual size_t representation_page_bytes(int n_vectors, int head_dim, ElementType type) const = 0;
  // Such a page and its neutral form, of as many bytes: [n_vectors][kPageChunks][head_dim]. Both are host memory.
  virtual void page_to_neutral(int n_vectors, int head_dim, ElementType type, const void* page,
                               void* neutral) const = 0;
  virtual void page_from_neutral(int n_vectors, int head_dim, ElementType type, const void* neutral,
                                 void* page) const = 0;
  // Copies what a page has of its first n_chunks chunks to another page. What it has of later ones is not even read:
  // meanwhile it may be written.
  virtual Status copy_representations(Queue& queue, const Buffer& from, int n_vectors, int head_dim, ElementType type,
                                      int64_t n_chunks, Buffer& to) = 0;

  // ---- fine operations; n = rows
  // What the layers of a step have in common. Errors: kOutOfMemory.
  virtual Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                             std::span<const StepSequence> sequences) = 0;
  // Looks up the rows of n int32 ids, from ids[first] on, and multiplies them by `scale`.
  virtual Status embed(Exec exec, const Table& table, const Buffer& ids, int64_t first, int64_t n, float scale,
                       Rows out) = 0;
  virtual Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Write write,
                          Rows out) = 0;
  // The same for each of `heads` consecutive heads of a row with one weight, f32 [head_dim]; in place.
  virtual Status head_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t heads,
                           int64_t head_dim) = 0;
  // x *= by for the dimensions of each of `heads` consecutive heads of a row that are not rotated, in place: of each
  // half of a head those behind its first rotary_dim / 2.
  virtual Status scale_unrotated(Exec exec, Rows x, int64_t n, const HeadShape& shape, float by) = 0;
  // y = x W^T + bias, added to y or not. bias: f32 [matrix.n] or nullptr.
  virtual Status matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, Write write,
                        Rows y) = 0;
  virtual Status add_low_rank(Exec exec, const LowRankArgs& args) = 0;
  // out[r][0..width) = activation(x[r][0..width)) * x[r][width..2 width). out may be x.
  virtual Status gated_linear_unit(Exec exec, Activation activation, Rows x, int64_t n, int64_t width, Rows out) = 0;
  virtual Status store_kv(Exec exec, const PreparedStep& step, const StoreKvArgs& args) = 0;
  virtual Status move_kv(Exec exec, const MoveKvArgs& args) = 0;
  virtual Status narrow_chunks(Exec exec, const PreparedStep& step, const NarrowArgs& args) = 0;
  virtual Status copy_rows(Exec exec, Rows from, int64_t n, int64_t width, Rows to) = 0;
  virtual Status keep_queries(Exec exec, const PreparedStep& step, const KeepQueriesArgs& args) = 0;
  virtual Status represent_chunks(Exec exec, const PreparedStep& step, const RepresentArgs& args) = 0;
  virtual Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) = 0;
  // Of several sequences of the step.
  virtual Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) = 0;

  // peaks[r][c] = the greatest of shares[r][h][c] over the heads h and, unless `first`, of what it was; n rows.
  // shares: as attention() leaves them; peaks: f32 [n][n_cells].
  virtual Status keep_peaks(Exec exec, const Buffer& shares, int64_t n, int n_heads, int64_t n_cells, bool first,
                            Buffer& peaks) = 0;

  // ---- what sampling needs of rows of logits, so that these can stay in a device's memory; optional
  // How many tokens of a row of `width` logits rank_logits() names at most; 0: this backend ranks none.
  virtual int64_t most_ranked(int64_t /*width*/) const { return 0; }
  // Of each of n rows of f32 logits the k most probable tokens, and what makes probabilities of logits, in the layout
  // RankedRows{n, k}. k: from 1 to most_ranked(width).
  virtual Status rank_logits(Exec /*exec*/, Rows /*logits*/, int64_t /*n*/, int64_t /*width*/, int64_t /*k*/,
                             Buffer& /*out*/) {
    return Status(Code::kUnsupported, name() + " ranks no logits");
  }

  // ---- coarse operations. A device overrides those that it can fuse; here they are made of the fine ones
  // (coarse_operations.cc), which give the same numbers on one device.
  virtual Status project_qkv(Exec exec, const PreparedStep& step, const ProjectQkvArgs& args);
  virtual Status mlp(Exec exec, const MlpArgs& args);
  virtual Status head(Exec exec, const HeadArgs& args);
  Status norm(Exec exec, const NormArgs& args);
  Status head_norm(Exec exec, const HeadNormArgs& args);
  Status scale_unrotated(Exec exec, const UnrotatedScaleArgs& args);
  Status linear(Exec exec, const LinearArgs& args);

  // Bytes of working memory that operations hold beside their arguments. Asked while operations of other queues run.
  virtual int64_t workspace_bytes() const = 0;

  // ---- what would be allocated, for planning
  virtual size_t matrix_bytes(std::span<const MatrixPart> parts, int64_t k) const = 0;
  // Workspace of matmul for so many rows, beside its arguments.
  virtual size_t matmul_workspace_bytes(std::span<const MatrixPart> parts, int64_t k, int64_t n_rows) const = 0;
  virtual size_t rope_bytes(int head_dim, int64_t chunk) const = 0;
  // Workspace of select_chunks, represent_chunks and attention over n_keys keys. selection.count 0: no query selects.
  virtual size_t attention_workspace_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries,
                                           int64_t n_keys, const ChunkSelection& selection) const = 0;
  // What is held for both: their sum, or the larger one where they take turns in the same memory.
  virtual size_t workspace_for(size_t matmul_bytes, size_t attention_bytes) const = 0;
};

// Waits until everything queued is done; reports a failure of any of it.
Status finish_queue(Backend& backend, Queue& queue);

}  // namespace quire
