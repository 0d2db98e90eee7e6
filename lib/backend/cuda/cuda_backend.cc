#include "lib/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/backend/cuda/cuda_operations.h"
#include "lib/backend/cuda/cuda_weights.h"

namespace quire::cuda {
namespace {

// A record begins where kernels copy 16 bytes at a time.
constexpr int64_t kRecordAlignment = 64;
constexpr size_t kGatherAlignment = 16;
constexpr int64_t kSharedMemory = 96 << 10;  // of a block, on every device that kernels are made for
// What is at most this long goes to the device through pinned memory; copies of the rest may wait for the queue.
constexpr size_t kSmallUpload = size_t{256} << 10;

// What is at least this long is worth a copy of its own. It takes some 20 us on a bus of 50 GB/s, several times what
// the copy engine needs from one copy to the next, and takes no processor meanwhile. Of shorter pieces many go together
// (gather), for as single copies they would leave the bus idle for much of the time. Nobody has measured the bound.
constexpr size_t kLargeUpload = size_t{1} << 20;

// Weights that are dequantised together: those of consecutive columns of a product.
struct WeightSlab {
  int64_t columns;
  int64_t stride;  // from row to row of the weights

  size_t bytes() const { return row_bytes(ElementType::kBF16, columns * stride); }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(Allocator& allocator, const DeviceApi& api, int index, const DeviceFacts& facts,
              std::string blas_obstacle, const CudaOptions& options)
      : facts_(facts),
        blas_obstacle_(std::move(blas_obstacle)),
        most_dequantized_bytes_(options.most_dequantized_bytes),
        device_(api, index, allocator),
        lists_(device_, total_),
        loader_(device_, total_, options.pool) {}

  std::string name() const override { return device_.name() + "/" + facts_.name; }
  std::string shortcoming() const override {
    if (has_blas()) return {};
    return "it reads long texts more slowly than with cuBLASLt, which cannot be used: " + blas_obstacle_;
  }
  ElementType row_type() const override { return ElementType::kBF16; }
  ElementType residual_type() const override { return ElementType::kF32; }
  Status can_serve(const BackendNeeds& needs) const override;
  // Attention of 32 heads has wide tiles for all processors of an H100 from 528 rows on.
  int64_t prefill_block() const override { return 1024; }
  int64_t device_bytes() const override { return std::max<int64_t>(1, facts_.memory_bytes); }
  int64_t free_device_bytes() const override;

  // ---- memory and queues
  Result<std::unique_ptr<Buffer>> allocate(size_t bytes, MemoryKind kind) override {
    QUIRE_ASSIGN(auto memory, DeviceMemory::make(device_, bytes, kind));
    return std::unique_ptr<Buffer>(std::make_unique<CudaBuffer>(std::move(memory), kind));
  }
  Result<std::unique_ptr<Queue>> create_queue() override {
    QUIRE_ASSIGN(auto queue, CudaQueue::create(device_, total_));
    return std::unique_ptr<Queue>(std::move(queue));
  }
  Status upload(Queue& queue, const void* source, Buffer& target, size_t offset, size_t bytes) override {
    if (bytes == 0) return {};
    CudaQueue& own = cuda_queue(queue);
    std::byte* const to = address(target) + offset;
    if (bytes <= kSmallUpload) return own.upload(source, to, bytes);
    return own.add("copying to the device", nullptr,
                   [&](const DeviceApi& api, Stream s) { return api.upload(s, to, source, bytes); });
  }
  Status upload_all(Queue& queue, std::span<const StagedUpload> uploads) override;
  Status download(Queue& queue, const Buffer& source, size_t offset, void* target, size_t bytes) override {
    if (bytes == 0) return {};
    return cuda_queue(queue).add("copying from the device", nullptr, [&](const DeviceApi& api, Stream s) {
      return api.download(s, target, address(source) + offset, bytes);
    });
  }
  Result<std::unique_ptr<Fence>> record(Queue& queue) override {
    QUIRE_ASSIGN(auto fence, CudaFence::record(cuda_queue(queue)));
    return std::unique_ptr<Fence>(std::move(fence));
  }
  Status wait(Queue& queue, const Fence& fence) override {
    return cuda_queue(queue).add("waiting for another queue", nullptr, [&](const DeviceApi& api, Stream s) {
      return api.wait_event(s, static_cast<const CudaFence&>(fence).event());
    });
  }

  // ---- immutable data
  Result<std::unique_ptr<Matrix>> create_matrix(std::span<const MatrixPart> parts, int64_t k) override {
    auto matrix = std::make_unique<CudaMatrix>(parts, k);
    QUIRE_ASSIGN(matrix->memory, DeviceMemory::make(device_, matrix->bytes, MemoryKind::kDevice));
    return std::unique_ptr<Matrix>(std::move(matrix));
  }
  Status load_rows(Matrix& matrix, ElementType source_type, const void* source, int64_t first_row,
                   int64_t rows) override {
    const auto& target = static_cast<const CudaMatrix&>(matrix);
    for (const MatrixRun& run : target.runs) {
      const int64_t first = std::max(first_row, run.first_row);
      const int64_t end = std::min(first_row + rows, run.first_row + run.n);
      if (first >= end) continue;
      const auto* from = static_cast<const std::byte*>(source) + row_bytes(source_type, (first - first_row) * matrix.k);
      std::byte* to = target.memory.data() + run.begin + (first - run.first_row) * run.row_bytes;
      QUIRE_TRY(loader_.load(source_type, from, end - first, matrix.k, run.type, run.row_bytes, to));
    }
    return {};
  }
  // `keep` is let go of: the device has a copy.
  Result<std::unique_ptr<Table>> create_table(int64_t rows, int64_t columns, ElementType type, const void* source,
                                              std::shared_ptr<const void>) override {
    auto table = std::make_unique<CudaTable>();
    table->rows = rows, table->columns = columns, table->type = type;
    table->row_bytes = device_row_bytes(type, columns);
    table->bytes = static_cast<size_t>(rows * table->row_bytes);
    QUIRE_ASSIGN(table->memory, DeviceMemory::make(device_, table->bytes, MemoryKind::kDevice));
    QUIRE_TRY(loader_.load(type, source, rows, columns, type, table->row_bytes, table->memory.data()));
    return std::unique_ptr<Table>(std::move(table));
  }
  Result<std::shared_ptr<const Rope>> create_rope(const RopeTable& table, int64_t chunk) override;

  size_t kv_record_bytes(const KvGeometry& geometry) const override {
    return static_cast<size_t>(round_up(static_cast<int64_t>(kv_neutral_bytes(geometry)), kRecordAlignment));
  }
  void to_neutral(const KvGeometry& geometry, const void* record, void* neutral) const override {
    std::memcpy(neutral, record, kv_neutral_bytes(geometry));
  }
  void from_neutral(const KvGeometry& geometry, const void* neutral, void* record) const override {
    std::memcpy(record, neutral, kv_neutral_bytes(geometry));
  }
  size_t representation_page_bytes(int n_vectors, int head_dim, ElementType type) const override {
    return static_cast<size_t>(n_vectors * Representations::kPageChunks) * row_bytes(type, head_dim);
  }
  void page_to_neutral(int n_vectors, int head_dim, ElementType type, const void* page, void* neutral) const override {
    std::memcpy(neutral, page, representation_page_bytes(n_vectors, head_dim, type));
  }
  void page_from_neutral(int n_vectors, int head_dim, ElementType type, const void* neutral,
                         void* page) const override {
    std::memcpy(page, neutral, representation_page_bytes(n_vectors, head_dim, type));
  }
  Status copy_representations(Queue& queue, const Buffer& from, int n_vectors, int head_dim, ElementType type,
                              int64_t n_chunks, Buffer& to) override {
    const size_t vectors = representation_page_bytes(1, head_dim, type), bytes = row_bytes(type, n_chunks * head_dim);
    return cuda_queue(queue).add("copying representations", nullptr, [&](const DeviceApi& api, Stream s) {
      int failure = 0;
      for (size_t v = 0; failure == 0 && v < static_cast<size_t>(n_vectors); ++v) {
        failure = api.copy(s, address(to) + v * vectors, address(from) + v * vectors, bytes);
      }
      return failure;
    });
  }

  // ---- operations
  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    auto step = std::make_unique<CudaStep>(lists_, n_query_heads);
    step->cut(sequences, facts_);
    int64_t n_rows = 0;
    for (const StepSequence& sequence : sequences) n_rows += sequence.n;
    cuda_queue(exec.queue).begin_step(n_rows);
    QUIRE_TRY(step->upload(cuda_queue(exec.queue)));
    return std::unique_ptr<PreparedStep>(std::move(step));
  }
  Status embed(Exec exec, const Table& table, const Buffer& ids, int64_t first, int64_t n, float scale,
               Rows out) override {
    const auto& source = static_cast<const CudaTable&>(table);
    const auto* id = reinterpret_cast<const int32_t*>(address(ids)) + first;
    return launch<&DeviceApi::embed>(exec, "looking up tokens", source.rows_of(), id, n, scale, device_rows(out));
  }
  Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Write write,
                  Rows out) override {
    return launch<&DeviceApi::rms_norm>(exec, "a norm", device_rows(x), floats(weight), eps, n, width,
                                        write == Write::kAdd, device_rows(out));
  }
  using Backend::head_norm;
  Status head_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t heads,
                   int64_t head_dim) override {
    return launch<&DeviceApi::head_norm>(exec, "a norm of heads", device_rows(x), floats(weight), eps, n, heads,
                                         head_dim);
  }
  using Backend::scale_unrotated;
  Status scale_unrotated(Exec exec, Rows x, int64_t n, const HeadShape& shape, float by) override {
    return launch<&DeviceApi::scale_unrotated>(exec, "the scale of what is not rotated", device_rows(x), n, shape.heads,
                                               shape.head_dim, shape.rotary_dim, by);
  }
  Status matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, Write write, Rows y) override;
  Status add_low_rank(Exec exec, const LowRankArgs& args) override {
    const int64_t rank = args.b->k;
    if (args.a) QUIRE_TRY(matmul(exec, args.x, args.n, *args.a, nullptr, Write::kSet, args.work));
    if (args.scale != 1) {
      QUIRE_TRY(launch<&DeviceApi::scale_rows>(exec, "the scale of an adapter", device_rows(args.work), args.n, rank,
                                               args.scale));
    }
    return matmul(exec, args.work, args.n, *args.b, nullptr, Write::kAdd, args.y);
  }
  Status gated_linear_unit(Exec exec, Activation activation, Rows x, int64_t n, int64_t width, Rows out) override {
    return launch<&DeviceApi::gated_linear_unit>(exec, "a gated linear unit", activation, device_rows(x), n, width,
                                                 device_rows(out));
  }
  Status copy_rows(Exec exec, Rows from, int64_t n, int64_t width, Rows to) override {
    return launch<&DeviceApi::copy_rows>(exec, "copying rows", device_rows(from), n, width, device_rows(to));
  }
  Status keep_queries(Exec exec, const PreparedStep& step, const KeepQueriesArgs& args) override {
    return launch<&DeviceApi::copy_to_turn>(exec, "keeping queries", device_rows(args.from), args.n, args.width,
                                            device_rows(args.to), cuda_step(step).first_key(args.sequence),
                                            args.first_row, args.chunk);
  }
  Status store_kv(Exec exec, const PreparedStep& step, const StoreKvArgs& args) override {
    const CudaStep::Sequence& sequence = cuda_step(step).at(args.sequence);
    StoreKv of;
    of.keys = device_rows(args.keys);
    of.values = device_rows(args.values);
    of.n = sequence.n;
    of.first_key = cuda_step(step).first_key(args.sequence);
    of.shape = shape_of(sequence.geometry);
    of.stored_div = args.records.stored_div;
    of.turns = turns_of(sequence.rope);
    QUIRE_ASSIGN(of.records, cuda_queue(exec.queue).records(args.records));
    return launch<&DeviceApi::store_kv>(exec, "storing keys", of);
  }
  Status move_kv(Exec exec, const MoveKvArgs& args) override {
    MoveKv of;
    of.shape = shape_of(args.geometry);
    of.turns = turns_of(args.rope);
    of.stored_div = args.stored_div;
    of.first = address(args.first);
    of.second = address(args.second);
    of.offset = args.offset;
    of.to = address(args.to);
    return launch<&DeviceApi::move_kv>(exec, "moving keys", of);
  }
  Status narrow_chunks(Exec exec, const PreparedStep& step, const NarrowArgs& args) override {
    const CudaStep::Sequence& sequence = cuda_step(step).at(args.sequence);
    NarrowKv of;
    of.shape = shape_of(sequence.geometry);
    of.type = sequence.old.type;
    QUIRE_ASSIGN(of.records, cuda_queue(exec.queue).records(args.records));
    QUIRE_ASSIGN(of.out, cuda_queue(exec.queue).records(args.out));
    of.first_chunk = args.first_chunk;
    of.n_chunks = args.n_chunks;
    return launch<&DeviceApi::narrow_kv>(exec, "narrowing old text", of);
  }
  Status represent_chunks(Exec exec, const PreparedStep& step, const RepresentArgs& args) override {
    return run_represent(cuda_queue(exec.queue), exec.cancel, cuda_step(step), args);
  }
  Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) override {
    return run_select(cuda_queue(exec.queue), exec.cancel, cuda_step(step), args);
  }
  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    for (const AttentionArgs& args : sequences) {
      QUIRE_TRY(run_attention(cuda_queue(exec.queue), exec.cancel, cuda_step(step), args));
    }
    return {};
  }
  Status keep_peaks(Exec exec, const Buffer& shares, int64_t n, int n_heads, int64_t n_cells, bool first,
                    Buffer& peaks) override {
    return launch<&DeviceApi::keep_peaks>(exec, "peaks", floats(shares), n, n_heads, n_cells, first,
                                          reinterpret_cast<float*>(address(peaks)));
  }

  int64_t most_ranked(int64_t width) const override { return width <= kMostRankedWidth ? kMostRanked : 0; }
  Status rank_logits(Exec exec, Rows logits, int64_t n, int64_t width, int64_t k, Buffer& out) override {
    const RankedRows layout{n, k};
    RankLogits of;
    of.logits = static_cast<const float*>(device_rows(logits).data);
    of.stride = logits.stride;
    of.n = n;
    of.width = width;
    of.k = static_cast<int>(k);
    const size_t bytes = rank_logits_bytes(n, width, of.k);
    if (bytes > 0) {
      QUIRE_ASSIGN(of.workspace, cuda_queue(exec.queue).workspace(Work::kRanks, bytes));
    }
    of.tokens = reinterpret_cast<int32_t*>(address(out) + layout.tokens());
    of.values = reinterpret_cast<float*>(address(out) + layout.values());
    of.sums = reinterpret_cast<double*>(address(out) + layout.sums());
    of.finite = reinterpret_cast<int32_t*>(address(out) + layout.finite());
    return launch<&DeviceApi::rank_logits>(exec, "ranking logits", of);
  }

  int64_t workspace_bytes() const override { return total_; }
  size_t matrix_bytes(std::span<const MatrixPart> parts, int64_t k) const override {
    return CudaMatrix(parts, k).bytes;
  }
  size_t rope_bytes(int head_dim, int64_t) const override { return static_cast<size_t>(head_dim / 2) * sizeof(Turns); }
  size_t matmul_workspace_bytes(std::span<const MatrixPart> parts, int64_t k, int64_t n_rows) const override;
  size_t attention_workspace_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                                   const ChunkSelection& selection) const override {
    return attention_bytes(geometry, n_query_heads, n_queries, n_keys, selection, facts_.n_processors);
  }
  size_t workspace_for(size_t matmul_bytes, size_t attention_bytes) const override {
    return matmul_bytes + attention_bytes;
  }

 private:
  template <auto kFunction, typename... Arguments>
  Status launch(Exec exec, const char* what, const Arguments&... arguments) {
    return cuda_queue(exec.queue).launch<kFunction>(what, exec.cancel, arguments...);
  }
  static const float* floats(const Buffer& buffer) { return reinterpret_cast<const float*>(address(buffer)); }
  bool has_blas() const { return blas_obstacle_.empty(); }
  // Slabs of a matrix of n columns are of equal size, but for the last one.
  WeightSlab slab_of(int64_t n, int64_t k) const;
  // The product of n rows of x with all of w by cuBLASLt. bias and y begin with w's first column.
  Status multiply_by_blas(Exec exec, Rows x, int64_t n, const DeviceMatrix& w, const float* bias, Write write, Rows y);
  // The same with weights of another type than x's, which are made bf16 for it.
  Status multiply_dequantized(Exec exec, Rows x, int64_t n, const DeviceMatrix& w, const float* bias, Write write,
                              Rows y);

  const DeviceFacts facts_;
  const std::string blas_obstacle_;  // why cuBLASLt does not multiply; empty: it does
  const size_t most_dequantized_bytes_;
  const CudaDevice device_;
  std::atomic<int64_t> total_{0};  // bytes of working memory
  ListPool lists_;
  Loader loader_;
  CudaRopes ropes_;
};

Status CudaBackend::can_serve(const BackendNeeds& needs) const {
  const KvGeometry& g = needs.geometry;
  if (g.type != ElementType::kF16 && g.type != ElementType::kBF16) {
    return Status(Code::kUnsupported, device_.name() + " cannot keep keys and values as " + element_name(g.type) +
                                          "; it can as f16 and bf16 (kv_type)");
  }
  if (!can_attend(shape_of(g))) {
    return Status(Code::kUnsupported, device_.name() + " has no attention for heads of " + std::to_string(g.head_dim) +
                                          " elements; it has for even numbers up to " + std::to_string(kMostHeadDim));
  }
  if (needs.selection.keeps_queries() && attend_in_chunks_bytes(shape_of(g)) > kSharedMemory) {
    return Status(Code::kUnsupported, device_.name() + " cannot represent chunks of " + std::to_string(g.chunk) +
                                          " tokens by their attention; shorter ones it can");
  }
  return {};
}

int64_t CudaBackend::free_device_bytes() const {
  int64_t free = 0;
  if (!device_.use().ok()) return kNoLimit;
  return device_.api().free_memory(device_.index(), &free) == 0 ? free : kNoLimit;
}

// Small pieces go by one launch for many: the device reads pinned memory where it lies. Plain memory it cannot read.
Status CudaBackend::upload_all(Queue& queue, std::span<const StagedUpload> uploads) {
  GatherList list;
  const auto launch = [&]() -> Status {
    if (list.n == 0) return {};
    QUIRE_TRY(cuda_queue(queue).add("gathering from the host", nullptr,
                                    [&](const DeviceApi& api, Stream s) { return api.gather(s, list); }));
    list.n = 0;
    return {};
  };
  for (const StagedUpload& u : uploads) {
    const bool aligned = (u.from_offset | u.to_offset) % kGatherAlignment == 0;
    const auto& from = static_cast<const CudaBuffer&>(*u.from);
    if (u.bytes >= kLargeUpload || !aligned || from.is_plain()) {
      QUIRE_TRY(upload(queue, static_cast<const std::byte*>(from.host()) + u.from_offset, *u.to, u.to_offset, u.bytes));
      continue;
    }
    const auto bytes = static_cast<int64_t>(u.bytes);
    list.copies[list.n++] = {address(from) + u.from_offset, address(*u.to) + u.to_offset, bytes};
    if (list.n == kMostGathered) QUIRE_TRY(launch());
  }
  return launch();
}

Result<std::shared_ptr<const Rope>> CudaBackend::create_rope(const RopeTable& table, int64_t chunk) {
  if (auto rope = ropes_.find(table, chunk)) return std::shared_ptr<const Rope>(std::move(rope));
  std::vector<Turns> turns;
  for (const double theta : table.theta) {
    constexpr double kWhole = 6.283185307179586476925;
    const double turn = theta / kWhole;
    const auto high = static_cast<float>(turn);
    turns.push_back({high, static_cast<float>(turn - static_cast<double>(high))});
  }
  auto rope = std::make_shared<CudaRope>();
  rope->theta = table.theta;
  rope->chunk = chunk;
  rope->bytes = turns.size() * sizeof(Turns);
  QUIRE_ASSIGN(rope->memory, DeviceMemory::make(device_, rope->bytes, MemoryKind::kDevice));
  const auto n = static_cast<int64_t>(turns.size() * sizeof(Turns) / sizeof(float));
  QUIRE_TRY(loader_.load(ElementType::kF32, turns.data(), 1, n, ElementType::kF32, static_cast<int64_t>(rope->bytes),
                         rope->memory.data()));
  return std::shared_ptr<const Rope>(ropes_.share(std::move(rope)));
}

WeightSlab CudaBackend::slab_of(int64_t n, int64_t k) const {
  // cuBLASLt has the most algorithms to choose from where y begins at a multiple of 256 bytes: so many columns of bf16.
  constexpr int64_t kColumns = 128, kRowAlignment = 8;
  const int64_t stride = round_up(k, kRowAlignment);
  const auto row = static_cast<int64_t>(row_bytes(ElementType::kBF16, stride));
  const int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(most_dequantized_bytes_) / (row * kColumns));
  const int64_t n_slabs = std::max<int64_t>(1, ceil_div(n, steps * kColumns));
  return {std::min(n, round_up(ceil_div(n, n_slabs), kColumns)), stride};
}

size_t CudaBackend::matmul_workspace_bytes(std::span<const MatrixPart> parts, int64_t k, int64_t n_rows) const {
  if (!has_blas() || n_rows <= kFewRows) return 0;
  size_t blas = 0, weights = 0;
  for (const MatrixRun& run : CudaMatrix(parts, k).runs) {
    if (run.type == row_type()) {
      blas = kBlasWorkspace;
    } else if (n_rows > kRowsOfTile) {
      blas = kBlasWorkspace;
      weights = std::max(weights, slab_of(run.n, k).bytes());
    }
  }
  return blas + weights;
}

Status CudaBackend::multiply_by_blas(Exec exec, Rows x, int64_t n, const DeviceMatrix& w, const float* bias,
                                     Write write, Rows y) {
  QUIRE_ASSIGN(std::byte* const workspace, cuda_queue(exec.queue).workspace(Work::kBlas, kBlasWorkspace));
  // It is no kernel of the plugin's, so it is never noted: a graph would be made without it.
  return cuda_queue(exec.queue).add("a product by cuBLASLt", exec.cancel, [&](const DeviceApi& api, Stream s) {
    return api.blas_matmul(s, device_rows(x), n, w, bias, write == Write::kAdd, device_rows(y), workspace);
  });
}

Status CudaBackend::multiply_dequantized(Exec exec, Rows x, int64_t n, const DeviceMatrix& w, const float* bias,
                                         Write write, Rows y) {
  const WeightSlab slab = slab_of(w.n, w.k);
  QUIRE_ASSIGN(std::byte* const memory, cuda_queue(exec.queue).workspace(Work::kWeights, slab.bytes()));
  const DeviceRows weights{memory, slab.stride, ElementType::kBF16};
  for (int64_t first = 0; first < w.n; first += slab.columns) {
    DeviceMatrix part = w;
    part.data = static_cast<const std::byte*>(w.data) + first * w.row_bytes;
    part.n = std::min(slab.columns, w.n - first);
    QUIRE_TRY(launch<&DeviceApi::dequantize_rows>(exec, "dequantising weights", part, weights));
    const DeviceMatrix made{memory, part.n, w.k, static_cast<int64_t>(row_bytes(weights.type, slab.stride)),
                            weights.type};
    QUIRE_TRY(multiply_by_blas(exec, x, n, made, bias ? bias + first : nullptr, write, y.column(first)));
  }
  return {};
}

Status CudaBackend::matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, Write write,
                           Rows y) {
  const auto& w = static_cast<const CudaMatrix&>(matrix);
  const bool rows_for_blas =
      n > kFewRows && x.type != ElementType::kF32 && (y.type == x.type || y.type == ElementType::kF32);
  for (const MatrixRun& run : w.runs) {
    const Rows to = y.column(run.first_row);
    const float* const own_bias = bias ? floats(*bias) + run.first_row : nullptr;
    // Up to kRowsOfTile rows the plugin's product dequantises each weight once, and need not write it anywhere.
    const bool dequantized = run.type != x.type && x.type == ElementType::kBF16 && n > kRowsOfTile;
    if (rows_for_blas && (run.type == x.type || dequantized) && has_blas()) {
      const auto multiply = dequantized ? &CudaBackend::multiply_dequantized : &CudaBackend::multiply_by_blas;
      QUIRE_TRY((this->*multiply)(exec, x, n, w.rows(run), own_bias, write, to));
      continue;
    }
    QUIRE_TRY(launch<&DeviceApi::matmul>(exec, "a product", device_rows(x), n, w.rows(run), own_bias,
                                         write == Write::kAdd, device_rows(to)));
  }
  return {};
}

}  // namespace

size_t attention_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                       const ChunkSelection& selection, int n_processors) {
  const int64_t group = n_query_heads / geometry.n_kv_heads;
  const int64_t n_tiles = ceil_div(n_queries * group, kTileRows) * geometry.n_kv_heads;
  const auto parts_of = [&](int64_t tiles) {
    const int64_t part = CudaStep::part_keys(n_keys, tiles, n_processors, geometry.chunk);
    return part == 0 ? 0 : tiles * ceil_div(n_keys, part);
  };
  // A KV head has tiles, or where plans have lists per head each query head: of whichever there are more parts.
  const int64_t parts = std::max(parts_of(n_tiles), parts_of(ceil_div(n_queries, kTileRows) * n_query_heads));
  const auto held = [](int64_t bytes) { return round_up(bytes, kWorkspaceStep); };
  int64_t bytes = held(parts * attention_part_floats(geometry.head_dim) * int64_t{sizeof(float)});
  if (selection.count > 0) {
    const int64_t chunks = ceil_div(n_keys, selection.chunk);
    const int64_t scores = n_queries * n_query_heads * chunks * int64_t{sizeof(float)};
    const int64_t picks = std::min<int64_t>(n_queries * group, kTileRows) * selection.most(n_keys - 1);
    const int64_t lists =
        n_tiles * (picks * int64_t{sizeof(AttentionPick)} + std::min(picks, chunks) * int64_t{sizeof(AttentionPiece)});
    bytes += held(std::min(scores, kMostScoreBytes)) + held(std::min(lists, kMostListBytes));
  }
  return static_cast<size_t>(bytes);
}

Result<std::unique_ptr<Backend>> create_cuda_backend(Allocator& allocator, const DeviceApi& api, int device,
                                                     const CudaOptions& options) {
  const CudaDevice of(api, device, allocator);
  DeviceFacts facts;
  QUIRE_TRY(of.check(api.describe(device, &facts), "asking what it is"));
  if (!facts.usable) {
    return Status(Code::kUnsupported, of.name() + " (" + facts.name + ") has compute capability " +
                                          std::to_string(facts.major) + "." + std::to_string(facts.minor) +
                                          ", which there are no kernels for");
  }
  QUIRE_TRY(of.use());
  facts.warpgroups = facts.warpgroups && options.warpgroups;
  char why[256] = "the plugin knows none";
  const bool has_blas = api.open_blas && api.open_blas(why, sizeof why);
  return std::unique_ptr<Backend>(
      std::make_unique<CudaBackend>(allocator, api, device, facts, has_blas ? "" : why, options));
}

}  // namespace quire::cuda
