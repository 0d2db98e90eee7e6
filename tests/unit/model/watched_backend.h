// A backend that counts what one packing operation is given; everything else it passes on.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "lib/backend/backend.h"

namespace quire::test {

class WatchedBackend : public Backend {
 public:
  explicit WatchedBackend(Backend& real) : real_(real) {}

  int64_t n_packed = 0;     // calls of load_rows and upload
  int64_t n_row_loads = 0;  // of load_rows alone
  int64_t most_packed = 0;  // bytes of one such call, of those with more than one row
  int64_t widest_row = 0;

  Status load_rows(Matrix& matrix, ElementType type, const void* source, int64_t first, int64_t rows) override {
    ++n_packed;
    ++n_row_loads;
    const auto row = static_cast<int64_t>(row_bytes(type, matrix.k));
    widest_row = std::max(widest_row, row);
    if (rows > 1) most_packed = std::max(most_packed, rows * row);
    return real_.load_rows(matrix, type, source, first, rows);
  }
  Status upload(Queue& queue, const void* source, Buffer& target, size_t offset, size_t bytes) override {
    ++n_packed;
    return real_.upload(queue, source, target, offset, bytes);
  }

  std::string name() const override { return real_.name(); }
  ElementType row_type() const override { return real_.row_type(); }
  ElementType residual_type() const override { return real_.residual_type(); }
  Status can_serve(const BackendNeeds& needs) const override { return real_.can_serve(needs); }
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes, MemoryKind kind) override {
    return real_.allocate(bytes, kind);
  }
  Result<std::unique_ptr<Queue>> create_queue() override { return real_.create_queue(); }
  Status download(Queue& queue, const Buffer& source, size_t offset, void* target, size_t bytes) override {
    return real_.download(queue, source, offset, target, bytes);
  }
  Result<std::unique_ptr<Fence>> record(Queue& queue) override { return real_.record(queue); }
  Status wait(Queue& queue, const Fence& fence) override { return real_.wait(queue, fence); }
  Result<std::unique_ptr<Matrix>> create_matrix(std::span<const MatrixPart> parts, int64_t k) override {
    return real_.create_matrix(parts, k);
  }
  std::string matrix_layout() const override { return real_.matrix_layout(); }
  std::span<const std::byte> matrix_memory(const Matrix& matrix) const override { return real_.matrix_memory(matrix); }
  Result<std::unique_ptr<Matrix>> map_matrix(std::span<const MatrixPart> parts, int64_t k,
                                             std::span<const std::byte> memory,
                                             std::shared_ptr<const void> keep) override {
    return real_.map_matrix(parts, k, memory, std::move(keep));
  }
  Result<std::unique_ptr<Table>> create_table(int64_t rows, int64_t columns, ElementType type, const void* source,
                                              std::shared_ptr<const void> keep) override {
    return real_.create_table(rows, columns, type, source, std::move(keep));
  }
  Result<std::shared_ptr<const Rope>> create_rope(const RopeTable& table, int64_t chunk) override {
    return real_.create_rope(table, chunk);
  }
  size_t kv_record_bytes(const KvGeometry& geometry) const override { return real_.kv_record_bytes(geometry); }
  void to_neutral(const KvGeometry& geometry, const void* record, void* neutral) const override {
    real_.to_neutral(geometry, record, neutral);
  }
  void from_neutral(const KvGeometry& geometry, const void* neutral, void* record) const override {
    real_.from_neutral(geometry, neutral, record);
  }
  void page_to_neutral(int n_vectors, int head_dim, ElementType type, const void* page, void* neutral) const override {
    real_.page_to_neutral(n_vectors, head_dim, type, page, neutral);
  }
  void page_from_neutral(int n_vectors, int head_dim, ElementType type, const void* neutral,
                         void* page) const override {
    real_.page_from_neutral(n_vectors, head_dim, type, neutral, page);
  }
  Status copy_representations(Queue& queue, const Buffer& from, int n_vectors, int head_dim, ElementType type,
                              int64_t n_chunks, Buffer& to) override {
    return real_.copy_representations(queue, from, n_vectors, head_dim, type, n_chunks, to);
  }
  size_t representation_page_bytes(int n_vectors, int head_dim, ElementType type) const override {
    return real_.representation_page_bytes(n_vectors, head_dim, type);
  }
  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    return real_.prepare_step(exec, n_query_heads, sequences);
  }
  Status embed(Exec exec, const Table& table, const Buffer& ids, int64_t first, int64_t n, float scale,
               Rows out) override {
    return real_.embed(exec, table, ids, first, n, scale, out);
  }
  Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Write write,
                  Rows out) override {
    return real_.rms_norm(exec, x, weight, eps, n, width, write, out);
  }
  Status head_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t heads,
                   int64_t head_dim) override {
    return real_.head_norm(exec, x, weight, eps, n, heads, head_dim);
  }
  Status matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, Write write, Rows y) override {
    return real_.matmul(exec, x, n, matrix, bias, write, y);
  }
  Status add_low_rank(Exec exec, const LowRankArgs& args) override { return real_.add_low_rank(exec, args); }
  Status scale_unrotated(Exec exec, Rows x, int64_t n, const HeadShape& shape, float by) override {
    return real_.scale_unrotated(exec, x, n, shape, by);
  }
  Status gated_linear_unit(Exec exec, Activation activation, Rows x, int64_t n, int64_t width, Rows out) override {
    return real_.gated_linear_unit(exec, activation, x, n, width, out);
  }
  Status store_kv(Exec exec, const PreparedStep& step, const StoreKvArgs& args) override {
    return real_.store_kv(exec, step, args);
  }
  Status move_kv(Exec exec, const MoveKvArgs& args) override { return real_.move_kv(exec, args); }
  Status copy_rows(Exec exec, Rows from, int64_t n, int64_t width, Rows to) override {
    return real_.copy_rows(exec, from, n, width, to);
  }
  Status narrow_chunks(Exec exec, const PreparedStep& step, const NarrowArgs& args) override {
    return real_.narrow_chunks(exec, step, args);
  }
  Status keep_queries(Exec exec, const PreparedStep& step, const KeepQueriesArgs& args) override {
    return real_.keep_queries(exec, step, args);
  }
  Status represent_chunks(Exec exec, const PreparedStep& step, const RepresentArgs& args) override {
    return real_.represent_chunks(exec, step, args);
  }
  Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) override {
    return real_.select_chunks(exec, step, args);
  }
  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    return real_.attention(exec, step, sequences);
  }
  Status keep_peaks(Exec exec, const Buffer& shares, int64_t n, int n_heads, int64_t n_cells, bool first,
                    Buffer& peaks) override {
    return real_.keep_peaks(exec, shares, n, n_heads, n_cells, first, peaks);
  }
  int64_t workspace_bytes() const override { return real_.workspace_bytes(); }
  size_t rope_bytes(int head_dim, int64_t chunk) const override { return real_.rope_bytes(head_dim, chunk); }
  size_t matrix_bytes(std::span<const MatrixPart> parts, int64_t k) const override {
    return real_.matrix_bytes(parts, k);
  }
  size_t matmul_workspace_bytes(std::span<const MatrixPart> parts, int64_t k, int64_t n_rows) const override {
    return real_.matmul_workspace_bytes(parts, k, n_rows);
  }
  size_t attention_workspace_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                                   const ChunkSelection& selection) const override {
    return real_.attention_workspace_bytes(geometry, n_query_heads, n_queries, n_keys, selection);
  }
  size_t workspace_for(size_t matmul_bytes, size_t attention_bytes) const override {
    return real_.workspace_for(matmul_bytes, attention_bytes);
  }

 private:
  Backend& real_;
};

}  // namespace quire::test
