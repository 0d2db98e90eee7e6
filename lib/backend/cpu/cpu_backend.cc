#include "lib/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_matrix.h"
#include "lib/backend/cpu/cpu_ranking.h"
#include "lib/backend/cpu/cpu_selection.h"
#include "lib/backend/cpu/cpu_sequence_attention.h"
#include "lib/backend/cpu/cpu_step.h"
#include "lib/backend/cpu/rope_cache.h"
#include "lib/support/int4.h"
#include "lib/support/quantization.h"

namespace quire::cpu {
namespace {

class CpuBuffer : public Buffer {
 public:
  explicit CpuBuffer(HostMemory memory) : Buffer(memory.size()), memory_(std::move(memory)) {}
  void* host() const override { return memory_.data(); }

 private:
  HostMemory memory_;
};

class CpuQueue : public Queue {};

class CpuFence : public Fence {
 public:
  bool done() const override { return true; }
  Status wait() const override { return {}; }  // operations that fail say so at once
};

class CpuTable : public Table {
 public:
  ElementType type = ElementType::kF32;
  const std::byte* data = nullptr;
  HostMemory copy;
  std::shared_ptr<const void> keep;
};

Status out_of_memory(size_t bytes, const char* what) {
  return Status(Code::kOutOfMemory, "no memory for " + std::string(what) + " (" + std::to_string(bytes) + " bytes)");
}

Status cancelled() { return Status(Code::kCancelled, "cancelled"); }

// Elements of work that is not worth handing over.
constexpr int64_t kWorthAThread = 32768;

// Most rows per task of row-wise operations: small enough to spread, large enough to be worth handing over.
constexpr int64_t kRowsPerTask = 8;

// Bytes of a KV head's parts in the neutral form of a record, but for kInt4.
struct NeutralParts {
  explicit NeutralParts(const KvGeometry& g)
      : rows(static_cast<size_t>(g.chunk) * row_bytes(g.type, g.head_dim)),
        key_scales(g.type == ElementType::kInt8 ? static_cast<size_t>(g.head_dim) * sizeof(float) : 0),
        value_scales(g.type == ElementType::kInt8 ? static_cast<size_t>(g.chunk) * sizeof(float) : 0) {}
  size_t rows, key_scales, value_scales;
};

// n keys or values from the layout that kernels read to rows, and back; exact. place(j, i): where channel i of the j-th
// lies there, in elements.
template <class Element, class Place>
void to_rows(const std::byte* from, int64_t n, int64_t d, const Place& place, std::byte* rows) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < d; ++i, rows += sizeof(Element)) {
      std::memcpy(rows, from + static_cast<size_t>(place(j, i)) * sizeof(Element), sizeof(Element));
    }
  }
}

template <class Element, class Place>
void from_rows(const std::byte* rows, int64_t n, int64_t d, const Place& place, std::byte* to) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < d; ++i, rows += sizeof(Element)) {
      std::memcpy(to + static_cast<size_t>(place(j, i)) * sizeof(Element), rows, sizeof(Element));
    }
  }
}

// Keys [0, n) of those at `keys`, and no byte of others.
void copy_keys(ElementType type, const std::byte* keys, int64_t n, int64_t d, std::byte* to) {
  const int64_t whole = n - n % kKeyBlock;
  const size_t size = element_bytes(type), lanes = static_cast<size_t>(n % kKeyBlock) * size;
  size_t at = static_cast<size_t>(whole * d) * size;
  std::copy_n(keys, at, to);
  for (int64_t i = 0; lanes > 0 && i < d; ++i, at += static_cast<size_t>(kKeyBlock) * size) {
    std::copy_n(keys + at, lanes, to + at);
  }
}

void keys_to_rows(ElementType type, const std::byte* keys, int64_t n, int64_t d, std::byte* rows) {
  const auto place = [=](int64_t j, int64_t i) { return key_place(type, j, i, d); };
  const size_t size = element_bytes(type);
  (size == 4   ? to_rows<uint32_t, decltype(place)>
   : size == 2 ? to_rows<uint16_t, decltype(place)>
               : to_rows<uint8_t, decltype(place)>)(keys, n, d, place, rows);
}

void rows_to_keys(ElementType type, const std::byte* rows, int64_t n, int64_t d, std::byte* keys) {
  const auto place = [=](int64_t j, int64_t i) { return key_place(type, j, i, d); };
  const size_t size = element_bytes(type);
  (size == 4   ? from_rows<uint32_t, decltype(place)>
   : size == 2 ? from_rows<uint16_t, decltype(place)>
               : from_rows<uint8_t, decltype(place)>)(rows, n, d, place, keys);
}

// Values of all types but kInt8 are kept as rows.
void values_to_rows(ElementType type, const std::byte* values, int64_t n, int64_t d, std::byte* rows) {
  const auto place = [=](int64_t j, int64_t i) { return value_place(type, j, i, d); };
  if (type == ElementType::kInt8) return to_rows<uint8_t>(values, n, d, place, rows);
  std::copy_n(values, static_cast<size_t>(n) * row_bytes(type, d), rows);
}

void rows_to_values(ElementType type, const std::byte* rows, int64_t n, int64_t d, std::byte* values) {
  const auto place = [=](int64_t j, int64_t i) { return value_place(type, j, i, d); };
  if (type == ElementType::kInt8) return from_rows<uint8_t>(rows, n, d, place, values);
  std::copy_n(rows, static_cast<size_t>(n) * row_bytes(type, d), values);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(Allocator& allocator, ThreadPool& pool)
      : allocator_(allocator), pool_(pool), workspace_(allocator), ropes_(allocator) {}

  std::string name() const override { return std::string("cpu/") + target_name(); }
  ElementType row_type() const override { return ElementType::kF32; }

  Result<std::unique_ptr<Buffer>> allocate(size_t bytes, MemoryKind) override {
    HostMemory memory(allocator_, bytes);
    if (!memory) return out_of_memory(bytes, "a buffer");
    return std::unique_ptr<Buffer>(std::make_unique<CpuBuffer>(std::move(memory)));
  }
  Result<std::unique_ptr<Queue>> create_queue() override {
    return std::unique_ptr<Queue>(std::make_unique<CpuQueue>());
  }
  Status upload(Queue&, const void* source, Buffer& target, size_t offset, size_t bytes) override {
    std::memcpy(static_cast<std::byte*>(target.host()) + offset, source, bytes);
    return {};
  }
  Status download(Queue&, const Buffer& source, size_t offset, void* target, size_t bytes) override {
    std::memcpy(target, static_cast<const std::byte*>(source.host()) + offset, bytes);
    return {};
  }
  Result<std::unique_ptr<Fence>> record(Queue&) override {
    return std::unique_ptr<Fence>(std::make_unique<CpuFence>());
  }
  Status wait(Queue&, const Fence&) override { return {}; }

  Result<std::unique_ptr<Matrix>> create_matrix(std::span<const MatrixPart> parts, int64_t k) override {
    auto matrix = std::make_unique<CpuMatrix>(parts, k);
    matrix->memory = HostMemory(allocator_, matrix->bytes);
    if (!matrix->memory) return out_of_memory(matrix->bytes, "a weight matrix");
    matrix->data = static_cast<const std::byte*>(matrix->memory.data());
    for (size_t i = 0; i < matrix->runs.size(); ++i) {
      const PackedRows& run = matrix->runs[i];
      const size_t end = i + 1 < matrix->runs.size() ? matrix->runs[i + 1].begin : matrix->bytes;
      // Rows beyond n are computed and thrown away; they must be numbers. Behind them is what fills the cache line.
      const size_t rows_end = packed_bytes(run.type, run.n, k);
      const size_t zeros = run.n % kPanel == 0 ? 0 : packed_bytes(run.type, kPanel, k);
      std::memset(matrix->writable(run) + rows_end - zeros, 0, end - run.begin - rows_end + zeros);
    }
    return std::unique_ptr<Matrix>(std::move(matrix));
  }

  std::string matrix_layout() const override { return kPackedLayout; }

  std::span<const std::byte> matrix_memory(const Matrix& matrix) const override {
    return {static_cast<const CpuMatrix&>(matrix).data, matrix.bytes};
  }

  Result<std::unique_ptr<Matrix>> map_matrix(std::span<const MatrixPart> parts, int64_t k,
                                             std::span<const std::byte> memory,
                                             std::shared_ptr<const void> keep) override {
    auto matrix = std::make_unique<CpuMatrix>(parts, k);
    if (matrix->bytes != memory.size() || reinterpret_cast<uintptr_t>(memory.data()) % Allocator::kAlignment != 0) {
      return Status(Code::kBadFile, "a packed matrix has " + std::to_string(memory.size()) + " bytes; expected " +
                                        std::to_string(matrix->bytes) + ", aligned to " +
                                        std::to_string(Allocator::kAlignment));
    }
    matrix->data = memory.data();
    matrix->keep = std::move(keep);
    return std::unique_ptr<Matrix>(std::move(matrix));
  }

  Status load_rows(Matrix& matrix, ElementType source_type, const void* source, int64_t first_row,
                   int64_t rows) override {
    const auto& target = static_cast<const CpuMatrix&>(matrix);
    const int64_t k = matrix.k;
    for (const PackedRows& run : target.runs) {
      const int64_t first = std::max(first_row, run.first_row);
      const int64_t end = std::min(first_row + rows, run.first_row + run.n);
      if (first >= end) continue;
      pool_.run(ceil_div(end - first, kPanel), nullptr, [&](int64_t task, int) {
        const int64_t row = first + task * kPanel;
        const auto* from = static_cast<const std::byte*>(source) + row_bytes(source_type, (row - first_row) * k);
        pack_rows(source_type, from, k, std::min(kPanel, end - row), k, run.type, target.writable(run),
                  row - run.first_row);
      });
    }
    return {};
  }

  Result<std::unique_ptr<Table>> create_table(int64_t rows, int64_t columns, ElementType type, const void* source,
                                              std::shared_ptr<const void> keep) override {
    auto table = std::make_unique<CpuTable>();
    table->rows = rows, table->columns = columns, table->type = type;
    table->bytes = static_cast<size_t>(rows) * row_bytes(type, columns);
    if (keep) {
      table->data = static_cast<const std::byte*>(source);
      table->keep = std::move(keep);
    } else {
      table->copy = HostMemory(allocator_, table->bytes);
      if (!table->copy) return out_of_memory(table->bytes, "the embedding table");
      std::memcpy(table->copy.data(), source, table->bytes);
      table->data = static_cast<const std::byte*>(table->copy.data());
    }
    return std::unique_ptr<Table>(std::move(table));
  }

  Result<std::shared_ptr<const Rope>> create_rope(const RopeTable& table, int64_t chunk) override {
    std::shared_ptr<const Rope> rope = ropes_.get(table, chunk);
    if (!rope) return out_of_memory(rope_bytes(static_cast<int>(2 * table.theta.size()), chunk), "RoPE tables");
    return rope;
  }

  size_t kv_record_bytes(const KvGeometry& geometry) const override {
    return RecordLayout(geometry).keys(geometry.n_kv_heads);
  }

  // Neutral records have rows of keys and values; this backend keeps keys in blocks, and integers in pairs.
  void to_neutral(const KvGeometry& g, const void* record, void* neutral) const override {
    const RecordLayout layout(g);
    const auto* from = static_cast<const std::byte*>(record);
    auto* to = static_cast<std::byte*>(neutral);
    const NeutralParts parts(g);
    for (int64_t head = 0; head < g.n_kv_heads; ++head) {
      if (g.type == ElementType::kInt4) {
        to = std::copy_n(from + layout.keys(head), int4_key_bytes(g.chunk, g.head_dim), to);
        to = std::copy_n(from + layout.values(head), int4_value_bytes(g.chunk, g.head_dim), to);
        continue;
      }
      keys_to_rows(g.type, from + layout.keys(head), g.chunk, g.head_dim, to);
      to = std::copy_n(from + layout.key_scales(head), parts.key_scales, to + parts.rows);
      values_to_rows(g.type, from + layout.values(head), g.chunk, g.head_dim, to);
      to = std::copy_n(from + layout.value_scales(head), parts.value_scales, to + parts.rows);
    }
  }

  void from_neutral(const KvGeometry& g, const void* neutral, void* record) const override {
    const RecordLayout layout(g);
    const auto* from = static_cast<const std::byte*>(neutral);
    auto* to = static_cast<std::byte*>(record);
    const NeutralParts parts(g);
    const auto take = [&](size_t bytes, size_t at) {
      std::copy_n(from, bytes, to + at);
      from += bytes;
    };
    for (int64_t head = 0; head < g.n_kv_heads; ++head) {
      if (g.type == ElementType::kInt4) {
        take(int4_key_bytes(g.chunk, g.head_dim), layout.keys(head));
        take(int4_value_bytes(g.chunk, g.head_dim), layout.values(head));
        continue;
      }
      rows_to_keys(g.type, from, g.chunk, g.head_dim, to + layout.keys(head));
      from += parts.rows;
      take(parts.key_scales, layout.key_scales(head));
      rows_to_values(g.type, from, g.chunk, g.head_dim, to + layout.values(head));
      from += parts.rows;
      take(parts.value_scales, layout.value_scales(head));
    }
  }

  size_t representation_page_bytes(int n_vectors, int head_dim, ElementType type) const override {
    return static_cast<size_t>(n_vectors * Representations::kPageChunks) * row_bytes(type, head_dim);
  }

  void page_to_neutral(int n_vectors, int head_dim, ElementType type, const void* page, void* neutral) const override {
    const size_t bytes = representation_page_bytes(1, head_dim, type);
    for (size_t v = 0; v < static_cast<size_t>(n_vectors); ++v) {
      keys_to_rows(type, static_cast<const std::byte*>(page) + v * bytes, Representations::kPageChunks, head_dim,
                   static_cast<std::byte*>(neutral) + v * bytes);
    }
  }

  void page_from_neutral(int n_vectors, int head_dim, ElementType type, const void* neutral,
                         void* page) const override {
    const size_t bytes = representation_page_bytes(1, head_dim, type);
    for (size_t v = 0; v < static_cast<size_t>(n_vectors); ++v) {
      rows_to_keys(type, static_cast<const std::byte*>(neutral) + v * bytes, Representations::kPageChunks, head_dim,
                   static_cast<std::byte*>(page) + v * bytes);
    }
  }

  Status copy_representations(Queue&, const Buffer& from, int n_vectors, int head_dim, ElementType type,
                              int64_t n_chunks, Buffer& to) override {
    const size_t bytes = representation_page_bytes(1, head_dim, type);
    for (size_t v = 0; v < static_cast<size_t>(n_vectors); ++v) {
      copy_keys(type, static_cast<const std::byte*>(from.host()) + v * bytes, n_chunks, head_dim,
                static_cast<std::byte*>(to.host()) + v * bytes);
    }
    return {};
  }

  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    return std::unique_ptr<PreparedStep>(std::make_unique<CpuStep>(n_query_heads, sequences));
  }

  Status embed(Exec exec, const Table& table, const Buffer& ids, int64_t first, int64_t n, float scale,
               Rows out) override {
    const auto& source = static_cast<const CpuTable&>(table);
    const auto* id = static_cast<const int32_t*>(ids.host()) + first;
    const size_t row = row_bytes(source.type, table.columns);
    return for_rows(exec, n, [&](int64_t r, int) {
      float* const to = rows_ptr(out.at(r));
      dequantize(source.type, source.data + static_cast<size_t>(id[r]) * row, table.columns, to);
      if (scale == 1) return;
      for (int64_t j = 0; j < table.columns; ++j) to[j] *= scale;
    });
  }

  Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Write write,
                  Rows out) override {
    const auto* w = static_cast<const float*>(weight.host());
    auto* const normalise = write == Write::kAdd ? &cpu::add_rms_norm : &cpu::rms_norm;
    return for_rows(exec, n, [&](int64_t r, int) { normalise(rows_ptr(x.at(r)), w, eps, width, rows_ptr(out.at(r))); });
  }

  Status head_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t heads,
                   int64_t head_dim) override {
    const auto* w = static_cast<const float*>(weight.host());
    return for_rows(exec, n, [&](int64_t r, int) {
      float* head = rows_ptr(x.at(r));
      for (int64_t h = 0; h < heads; ++h, head += head_dim) cpu::rms_norm(head, w, eps, head_dim, head);
    });
  }

  Status scale_unrotated(Exec exec, Rows x, int64_t n, const HeadShape& shape, float by) override {
    const int64_t half = shape.head_dim / 2;
    return for_rows(exec, n, [&](int64_t r, int) {
      float* row = rows_ptr(x.at(r));
      for (int64_t h = 0; h < 2 * shape.heads; ++h) {  // halves
        for (int64_t a = shape.rotary_dim / 2; a < half; ++a) row[h * half + a] *= by;
      }
    });
  }

  Status gated_linear_unit(Exec exec, Activation activation, Rows x, int64_t n, int64_t width, Rows out) override {
    auto* const unit = activation == Activation::kSilu ? &cpu::swiglu : &cpu::geglu;
    return for_rows(
        exec, n, [&](int64_t r, int) { unit(rows_ptr(x.at(r)), width, rows_ptr(out.at(r))); }, rows_per_task(n, width));
  }

  Status matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, Write write, Rows y) override {
    const auto& w = static_cast<const CpuMatrix&>(matrix);
    const auto* b = bias ? static_cast<const float*>(bias->host()) : nullptr;
    QUIRE_ASSIGN(const RoundedRows rounded, round_rows(exec, x, n, w));
    for (const PackedRows& run : w.runs) {
      const Rows columns = y.column(run.first_row);
      if (!multiply(exec, x, rounded, n, w, run, b ? b + run.first_row : nullptr, write, columns)) return cancelled();
    }
    return {};
  }

  // The rows rounded as the matrix's runs want them, in the workspace.
  Result<RoundedRows> round_rows(Exec exec, Rows x, int64_t n, const CpuMatrix& w) {
    const RoundedLayout layout(w, n);
    if (layout.bytes == 0) return RoundedRows();
    auto* const memory = static_cast<std::byte*>(workspace_.require(layout.bytes));
    if (!memory) return out_of_memory(layout.bytes, "rounded rows");
    const RoundedRows rows = layout.rows(memory);
    const auto round = [&](int64_t r, int) { rows.round(rows_ptr(x.at(r)), r); };
    if (n * w.k <= kWorthAThread) {
      for (int64_t r = 0; r < n; ++r) round(r, 0);
    } else {
      QUIRE_TRY(for_rows(exec, n, round, rows_per_task(n, w.k)));
    }
    return rows;
  }

  // The columns of y that a run of the matrix's rows makes; false: cancelled.
  bool multiply(Exec exec, Rows x, const RoundedRows& rounded, int64_t n, const CpuMatrix& w, const PackedRows& run,
                const float* bias, Write write, Rows y) {
    const int64_t panels = ceil_div(run.n, kPanel);
    // One row: a few tasks a thread, so that a thread that lost its core does not hold up the others. Many rows: tiles
    // whose weights and rows stay in the second-level cache.
    const int64_t row_tile = n <= 16 ? n : 96;
    const int64_t panel_tile = n <= 16 ? std::max<int64_t>(1, panels / (4 * pool_.n_threads())) : 4;
    const int64_t row_tiles = ceil_div(n, row_tile);
    const int64_t panel_tiles = ceil_div(panels, panel_tile);
    return pool_.run(row_tiles * panel_tiles, exec.cancel, [&](int64_t task, int) {
      const int64_t row = task % row_tiles * row_tile;
      const int64_t panel = task / row_tiles * panel_tile, end = std::min(panel + panel_tile, panels);
      const int64_t rows = std::min(row_tile, n - row);
      if (run.rounding == ElementType::kInt8) {
        gemm_int8(rounded.int8, row, rows, run.type, w.packed(run), run.n, panel, end, bias, write == Write::kAdd,
                  rows_ptr(y.at(row)), y.stride);
      } else if (run.rounding == ElementType::kBF16) {
        gemm_bf16(rounded.bf16 + row * rounded.bf16_stride(), rounded.bf16_stride(), rows, w.packed(run), run.n, w.k,
                  panel, end, bias, write == Write::kAdd, rows_ptr(y.at(row)), y.stride);
      } else {
        gemm(rows_ptr(x.at(row)), x.stride, rows, run.type, w.packed(run), run.n, w.k, panel, end, bias,
             write == Write::kAdd, rows_ptr(y.at(row)), y.stride);
      }
    });
  }

  Status add_low_rank(Exec exec, const LowRankArgs& args) override {
    const int64_t rank = args.b->k;
    const auto* a = static_cast<const CpuMatrix*>(args.a);
    // A has few panels: the rows are what spreads.
    const bool done = pool_.run(ceil_div(args.n, kRowsPerTask), exec.cancel, [&](int64_t task, int) {
      const int64_t row = task * kRowsPerTask, rows = std::min(kRowsPerTask, args.n - row);
      if (a) {
        for (const PackedRows& run : a->runs) {
          gemm(rows_ptr(args.x.at(row)), args.x.stride, rows, run.type, a->packed(run), run.n, a->k, 0,
               ceil_div(run.n, kPanel), nullptr, false, rows_ptr(args.work.at(row).column(run.first_row)),
               args.work.stride);
        }
      }
      for (int64_t r = row; r < row + rows; ++r) {
        float* work = rows_ptr(args.work.at(r));
        for (int64_t c = 0; c < rank; ++c) work[c] *= args.scale;
      }
    });
    return done ? matmul(exec, args.work, args.n, *args.b, nullptr, Write::kAdd, args.y) : cancelled();
  }

  Status store_kv(Exec exec, const PreparedStep& step, const StoreKvArgs& args) override {
    const StepSequence& sequence = cpu_step(step).at(args.sequence);
    const KvGeometry& g = sequence.geometry;
    const RecordLayout layout(g);
    const auto* rope = args.records.stored_div == 0 ? nullptr : static_cast<const RopeCache*>(sequence.rope);
    const int64_t d = g.head_dim;
    const size_t bytes = static_cast<size_t>(pool_.n_threads() * d) * sizeof(float);
    auto* rotated = static_cast<float*>(workspace_.require(bytes));
    if (!rotated) return out_of_memory(bytes, "rotated keys");
    return for_rows(exec, sequence.n, [&](int64_t r, int thread) {
      const int64_t index = sequence.first_key + r;
      const int64_t offset = index % g.chunk, position = stored_position(offset, args.records.stored_div);
      std::byte* record = record_ptr(args.records.chunks[static_cast<size_t>(index / g.chunk)]);
      const float* keys = rows_ptr(args.keys.at(r));
      const float* values = rows_ptr(args.values.at(r));
      for (int64_t head = 0; head < g.n_kv_heads; ++head) {
        const float* key = keys + head * d;
        if (rope) {
          float* own = rotated + thread * d;
          rotate(key, rope->chunk_cos(position), rope->chunk_sin(position), 1, d, own);
          key = own;
        }
        store_key(key, d, g.type, record + layout.keys(head), offset);
        convert(ElementType::kF32, values + head * d, g.type,
                record + layout.values(head) + static_cast<size_t>(offset) * row_bytes(g.type, d), d);
      }
    });
  }

  Status move_kv(Exec exec, const MoveKvArgs& args) override {
    const KvGeometry& g = args.geometry;
    const RecordLayout layout(g);
    const int64_t d = g.head_dim;
    // Stored positions of a record's tokens change by one of two neighbouring numbers.
    const int64_t n_first = g.chunk - args.offset;
    const int64_t changes[2] = {args.stored_div == 0 ? 0 : -ceil_div(args.offset, args.stored_div),
                                stored_position(n_first, args.stored_div)};
    const size_t bytes = static_cast<size_t>((pool_.n_threads() + 4) * d) * sizeof(float);
    auto* turns = static_cast<float*>(workspace_.require(bytes));  // cos and sin of each change; then a key a thread
    if (!turns) return out_of_memory(bytes, "turned keys");
    for (int64_t i = 0; args.stored_div > 0 && i < 4; ++i) {
      float* const turn = turns + i * d;
      static_cast<const RopeCache*>(args.rope)->angles(static_cast<double>(changes[i / 2] + i % 2), turn, turn + d / 2);
    }
    const size_t row = row_bytes(g.type, d);
    return for_rows(exec, g.chunk, [&](int64_t to, int thread) {
      const bool of_first = to < n_first;
      const int64_t from = of_first ? to + args.offset : to - n_first;
      const std::byte* source = record_ptr(of_first ? args.first : args.second);
      std::byte* target = record_ptr(args.to);
      const int64_t change = stored_position(to, args.stored_div) - stored_position(from, args.stored_div);
      const float* turn = of_first ? turns + (change - changes[0]) * d : turns + (2 + change - changes[1]) * d;
      float* key = turns + (4 + thread) * d;
      for (int64_t head = 0; head < g.n_kv_heads; ++head) {
        load_key(g.type, source + layout.keys(head), from, d, key);
        if (args.stored_div > 0) rotate(key, turn, turn + d / 2, 1, d, key);
        store_key(key, d, g.type, target + layout.keys(head), to);
        std::memcpy(target + layout.values(head) + static_cast<size_t>(to) * row,
                    source + layout.values(head) + static_cast<size_t>(from) * row, row);
      }
    });
  }

  Status narrow_chunks(Exec exec, const PreparedStep& step, const NarrowArgs& args) override {
    const CpuStep::Sequence& sequence = cpu_step(step).at(args.sequence);
    const KvGeometry& g = sequence.geometry;
    const RecordLayout from(g), to(narrow_geometry(g, sequence.old));
    const bool done = pool_.run(args.n_chunks * g.n_kv_heads, exec.cancel, [&](int64_t task, int) {
      const auto chunk = static_cast<size_t>(args.first_chunk + task / g.n_kv_heads);
      const int64_t head = task % g.n_kv_heads;
      const std::byte* const full = record_ptr(args.records.chunks[chunk]);
      std::byte* const narrow = record_ptr(args.out.chunks[chunk]);
      if (sequence.old.type == ElementType::kInt4) {
        quantize_keys_int4(g.type, full + from.keys(head), g.chunk, g.head_dim, narrow + to.keys(head));
        quantize_values_int4(g.type, full + from.values(head), g.chunk, g.head_dim, narrow + to.values(head));
        return;
      }
      quantize_keys(g.type, full + from.keys(head), g.chunk, g.head_dim, narrow + to.keys(head),
                    reinterpret_cast<float*>(narrow + to.key_scales(head)));
      quantize_values(g.type, full + from.values(head), g.chunk, g.head_dim, narrow + to.values(head),
                      reinterpret_cast<float*>(narrow + to.value_scales(head)));
    });
    return done ? Status() : cancelled();
  }

  Status copy_rows(Exec exec, Rows from, int64_t n, int64_t width, Rows to) override {
    return for_rows(exec, n, [&](int64_t r, int) { std::copy_n(rows_ptr(from.at(r)), width, rows_ptr(to.at(r))); });
  }

  Status keep_queries(Exec exec, const PreparedStep& step, const KeepQueriesArgs& args) override {
    const int64_t first = cpu_step(step).at(args.sequence).first_key + args.first_row;
    return copy_rows(exec, args.from, args.n, args.width, args.to.at(first % args.chunk));
  }

  Status represent_chunks(Exec exec, const PreparedStep& step, const RepresentArgs& args) override {
    return run_represent(pool_, workspace_, exec.cancel, cpu_step(step), args);
  }

  Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) override {
    return run_select(pool_, workspace_, exec.cancel, cpu_step(step), args);
  }

  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    return run_attention(pool_, workspace_, attention_lists_, exec.cancel, cpu_step(step), sequences);
  }

  Status keep_peaks(Exec exec, const Buffer& shares, int64_t n, int n_heads, int64_t n_cells, bool first,
                    Buffer& peaks) override {
    // Tasks of a few thousand numbers: the work of a row grows with the text. To wake a thread takes longer than a few
    // of them.
    constexpr int64_t kCellsPerTask = 1024;
    const int64_t tasks = ceil_div(n_cells, kCellsPerTask);
    const auto keep = [&](int64_t task, int) {
      const int64_t row = task / tasks, begin = task % tasks * kCellsPerTask;
      const int64_t end = std::min(n_cells, begin + kCellsPerTask);
      const float* from = static_cast<const float*>(shares.host()) + row * n_heads * n_cells;
      float* to = static_cast<float*>(peaks.host()) + row * n_cells;
      if (first) std::fill(to + begin, to + end, 0.0f);
      for (int head = 0; head < n_heads; ++head, from += n_cells) {
        cpu::keep_peaks(from + begin, end - begin, to + begin);
      }
    };
    if (n * n_heads * n_cells <= kWorthAThread) {
      for (int64_t task = 0; task < n * tasks; ++task) keep(task, 0);
      return {};
    }
    return pool_.run(n * tasks, exec.cancel, keep) ? Status() : cancelled();
  }

  int64_t most_ranked(int64_t /*width*/) const override { return kMostRanked; }

  Status rank_logits(Exec exec, Rows logits, int64_t n, int64_t width, int64_t k, Buffer& out) override {
    return run_ranking(pool_, workspace_, exec.cancel, logits, n, width, k, out);
  }

  int64_t workspace_bytes() const override { return workspace_.bytes(); }

  size_t matrix_bytes(std::span<const MatrixPart> parts, int64_t k) const override { return CpuMatrix(parts, k).bytes; }

  size_t matmul_workspace_bytes(std::span<const MatrixPart> parts, int64_t k, int64_t n_rows) const override {
    return RoundedLayout(CpuMatrix(parts, k), n_rows).bytes;
  }

  size_t rope_bytes(int head_dim, int64_t chunk) const override { return RopeCache::bytes_of(head_dim / 2, chunk); }

  size_t attention_workspace_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                                   const ChunkSelection& selection) const override {
    const int n_threads = pool_.n_threads();
    const size_t attention = attention_floats(n_threads, geometry, n_query_heads, n_queries, n_keys, selection);
    if (selection.count == 0) return attention * sizeof(float);
    const size_t selecting = select_floats(n_threads, geometry, n_query_heads, ceil_div(n_keys, selection.chunk));
    const size_t representing = static_cast<size_t>(n_threads) * represent_floats(geometry);
    return std::max({attention, selecting, representing}) * sizeof(float);
  }

  size_t workspace_for(size_t matmul_bytes, size_t attention_bytes) const override {
    return std::max(matmul_bytes, attention_bytes);
  }

 private:
  // function(row, thread)
  template <typename RowFunction>
  Status for_rows(Exec exec, int64_t n, const RowFunction& function, int64_t per_task = kRowsPerTask) {
    const bool done = pool_.run(ceil_div(n, per_task), exec.cancel, [&](int64_t task, int thread) {
      const int64_t end = std::min(n, (task + 1) * per_task);
      for (int64_t r = task * per_task; r < end; ++r) function(r, thread);
    });
    return done ? Status() : cancelled();
  }

  // Of rows that are much work: where there are few of them, each thread has some.
  int64_t rows_per_task(int64_t n, int64_t width) const {
    if (n * width <= kWorthAThread) return kRowsPerTask;
    return std::min(kRowsPerTask, ceil_div(n, 2 * pool_.n_threads()));
  }

  Allocator& allocator_;
  ThreadPool& pool_;
  Workspace workspace_;
  AttentionLists attention_lists_;
  RopeCaches ropes_;
};

}  // namespace

RecordLayout::RecordLayout(const KvGeometry& geometry) {
  const auto aligned = [](size_t bytes) { return static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 64)); };
  const bool scaled = geometry.type == ElementType::kInt8;
  const bool groups = geometry.type == ElementType::kInt4;
  key_bytes = aligned(groups ? int4_key_bytes(geometry.chunk, geometry.head_dim)
                             : row_bytes(geometry.type, key_elements(geometry.chunk, geometry.head_dim)));
  key_scale_bytes = scaled ? aligned(static_cast<size_t>(geometry.head_dim) * sizeof(float)) : 0;
  value_bytes =
      aligned(groups ? int4_value_bytes(geometry.chunk, geometry.head_dim)
                     : row_bytes(geometry.type, value_elements(geometry.type, geometry.chunk, geometry.head_dim)));
  value_scale_bytes = scaled ? aligned(static_cast<size_t>(geometry.chunk) * sizeof(float)) : 0;
}

void* Workspace::require(size_t bytes) {
  if (bytes > memory_.size()) {
    HostMemory larger(allocator_, bytes);
    if (!larger) return nullptr;
    memory_ = std::move(larger);
  }
  return memory_.data();
}

std::unique_ptr<Backend> create_cpu_backend(Allocator& allocator, ThreadPool& pool) {
  return std::make_unique<CpuBackend>(allocator, pool);
}

}  // namespace quire::cpu
