#include "tests/unit/backend/deferred_backend.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/unit/backend/late_queue.h"
#include "tests/unit/backend/rank_on_host.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define QUIRE_POISON(address, size) ASAN_POISON_MEMORY_REGION(address, size)
#define QUIRE_UNPOISON(address, size) ASAN_UNPOISON_MEMORY_REGION(address, size)
#else
#define QUIRE_POISON(address, size) (void)0
#define QUIRE_UNPOISON(address, size) (void)0
#endif

namespace quire::test {
namespace {

using Worker = std::shared_ptr<LateWorker>;
using Line = std::shared_ptr<LateWorker::Line>;

// Memory of the real backend that its owner has freed. Work that is still queued finds nothing useful there.
class Freed {
 public:
  explicit Freed(std::unique_ptr<Buffer> memory) : memory_(std::move(memory)) {
    std::memset(memory_->host(), 0xFF, memory_->size());
    QUIRE_POISON(memory_->host(), memory_->size());
  }
  ~Freed() { QUIRE_UNPOISON(memory_->host(), memory_->size()); }
  Freed(const Freed&) = delete;
  Freed& operator=(const Freed&) = delete;

 private:
  std::unique_ptr<Buffer> memory_;
};

class DeviceBuffer : public Buffer {
 public:
  DeviceBuffer(Worker worker, std::unique_ptr<Buffer> real)
      : Buffer(real->size()), worker_(std::move(worker)), real_(std::move(real)) {
    std::memset(real_->host(), 0xFF, real_->size());  // nothing is known of new memory
  }
  ~DeviceBuffer() override {
    if (worker_->idle()) return;
    worker_->keep_until_idle(std::make_shared<Freed>(std::move(real_)));
  }
  void* host() const override { return nullptr; }
  Buffer* real() const { return real_.get(); }

 private:
  const Worker worker_;
  std::unique_ptr<Buffer> real_;
};

Buffer* real(const Buffer* buffer) {
  if (!buffer) return nullptr;
  const auto* device = dynamic_cast<const DeviceBuffer*>(buffer);
  if (!device) throw std::logic_error("an operation was given memory that is not the device's");
  return device->real();
}

Rows real(Rows rows) {
  rows.buffer = real(rows.buffer);
  return rows;
}

// ---- copies of arguments, with the real backend's memory in the place of the device's

// What lists it by unique_ptr gets one that another owns.
class Alias : public Buffer {
 public:
  explicit Alias(const Buffer& of) : Buffer(of.size()), host_(of.host()) {}
  void* host() const override { return host_; }

 private:
  void* host_;
};

struct OwnedRecords {
  OwnedRecords() = default;
  explicit OwnedRecords(const KvRecords& records) : chunks(records.chunks.begin(), records.chunks.end()) {
    stored_div = records.stored_div;
    for (KvRecord& record : chunks) {
      if (record) record.page = real(record.page);
    }
  }
  KvRecords get() const { return {chunks, stored_div}; }

  std::vector<KvRecord> chunks;
  int64_t stored_div = 1;
};

struct OwnedPages {
  explicit OwnedPages(const Representations& representations) {
    for (const auto& page : representations.pages) {
      pages.push_back(page ? std::make_unique<Alias>(*real(page.get())) : nullptr);
    }
  }
  Representations get() const { return {pages}; }

  std::vector<std::shared_ptr<Buffer>> pages;
};

struct OwnedAttention {
  explicit OwnedAttention(const AttentionArgs& given) : args(given) {
    args.queries = real(given.queries);
    args.out = real(given.out);
    args.shares.out = real(given.shares.out);
    args.selection = real(given.selection);
    args.state = real(given.state);
    for (size_t kind = 0; kind < records.size(); ++kind) records[kind] = OwnedRecords(given.records[kind]);
  }
  AttentionArgs get() const {
    AttentionArgs all = args;
    for (size_t kind = 0; kind < records.size(); ++kind) all.records[kind] = records[kind].get();
    return all;
  }

  AttentionArgs args;
  std::array<OwnedRecords, kKvKinds> records;
};

// ---- queues

}  // namespace

class DeferredQueue : public Queue {
 public:
  DeferredQueue(Worker worker, std::shared_ptr<SlowQueues> slow, std::unique_ptr<Queue> real)
      : worker_(std::move(worker)),
        slow_(std::move(slow)),
        number_(slow_ ? slow_->n_queues_++ : 0),
        line_(std::make_shared<LateWorker::Line>()),
        real_(std::move(real)) {}
  ~DeferredQueue() override { (void)worker_->wait(line_, worker_->last(*line_)); }

  Status add(LateWorker::Work work) {
    worker_->add(*line_, std::move(work));
    return {};
  }
  Queue& real() const { return *real_; }

 private:
  friend class DeferredFence;
  const Worker worker_;
  const std::shared_ptr<SlowQueues> slow_;
  const int64_t number_;
  const Line line_;
  const std::unique_ptr<Queue> real_;
};

class DeferredFence : public Fence {
 public:
  explicit DeferredFence(const DeferredQueue& queue)
      : worker_(queue.worker_),
        slow_(queue.slow_),
        queue_(queue.number_),
        line_(queue.line_),
        number_(worker_->last(*line_)) {}
  bool done() const override {
    if (held()) {
      ++slow_->n_asked_;
      return false;
    }
    if (slow_) return worker_->poll(line_, number_);
    (void)worker_->wait(line_, number_);
    return true;
  }
  Status wait() const override {
    if (held()) ++slow_->n_waited_;
    return worker_->wait(line_, number_);
  }
  // What is queued there from now on begins when this is done.
  void delay(const DeferredQueue& queue) const { worker_->add_wait(*queue.line_, line_, number_); }

 private:
  bool held() const { return slow_ && queue_ < slow_->held_; }

  const Worker worker_;
  const std::shared_ptr<SlowQueues> slow_;
  const int64_t queue_;
  const Line line_;
  const int64_t number_;
};

namespace {

DeferredQueue& deferred(Queue& queue) { return static_cast<DeferredQueue&>(queue); }

// Prepared by the real backend late, as everything.
class DeferredStep : public PreparedStep {
 public:
  // Shared with the work that makes and uses it; gone with the owner's object, so that a step that is freed early
  // shows.
  struct Real {
    std::unique_ptr<PreparedStep> step;
    bool owned = true;
  };
  ~DeferredStep() override {
    real->owned = false;
    real->step.reset();
  }
  std::shared_ptr<Real> real = std::make_shared<Real>();
};

const std::shared_ptr<DeferredStep::Real>& real(const PreparedStep& step) {
  return static_cast<const DeferredStep&>(step).real;
}

const PreparedStep& alive(const std::shared_ptr<DeferredStep::Real>& step) {
  if (!step->step) throw std::logic_error("a prepared step was freed before its operations were done");
  return *step->step;
}

class DeferredBackend final : public Backend {
 public:
  DeferredBackend(std::unique_ptr<Backend> real, std::shared_ptr<SlowQueues> slow)
      : real_(std::move(real)), slow_(std::move(slow)), worker_(std::make_shared<LateWorker>()) {}

  std::string name() const override { return "deferred/" + real_->name(); }
  ElementType row_type() const override { return real_->row_type(); }
  ElementType residual_type() const override { return real_->residual_type(); }
  Status can_serve(const BackendNeeds& needs) const override { return real_->can_serve(needs); }

  Result<std::unique_ptr<Buffer>> allocate(size_t bytes, MemoryKind kind) override {
    QUIRE_ASSIGN(auto memory, real_->allocate(bytes, kind));
    if (kind == MemoryKind::kStaging) return memory;
    return std::unique_ptr<Buffer>(std::make_unique<DeviceBuffer>(worker_, std::move(memory)));
  }
  Result<std::unique_ptr<Queue>> create_queue() override {
    QUIRE_ASSIGN(auto queue, real_->create_queue());
    return std::unique_ptr<Queue>(std::make_unique<DeferredQueue>(worker_, slow_, std::move(queue)));
  }
  Status upload(Queue& queue, const void* source, Buffer& target, size_t offset, size_t bytes) override {
    return deferred(queue).add([this, &q = deferred(queue).real(), source, to = real(&target), offset, bytes] {
      return real_->upload(q, source, *to, offset, bytes);
    });
  }
  Status download(Queue& queue, const Buffer& source, size_t offset, void* target, size_t bytes) override {
    return deferred(queue).add([this, &q = deferred(queue).real(), from = real(&source), offset, target, bytes] {
      return real_->download(q, *from, offset, target, bytes);
    });
  }
  Result<std::unique_ptr<Fence>> record(Queue& queue) override {
    return std::unique_ptr<Fence>(std::make_unique<DeferredFence>(deferred(queue)));
  }
  Status wait(Queue& queue, const Fence& fence) override {
    static_cast<const DeferredFence&>(fence).delay(deferred(queue));
    return {};
  }

  Result<std::unique_ptr<Matrix>> create_matrix(std::span<const MatrixPart> parts, int64_t k) override {
    return real_->create_matrix(parts, k);
  }
  Status load_rows(Matrix& matrix, ElementType type, const void* source, int64_t first, int64_t rows) override {
    return at_once([&] { return real_->load_rows(matrix, type, source, first, rows); });
  }
  Result<std::unique_ptr<Table>> create_table(int64_t rows, int64_t columns, ElementType type, const void* source,
                                              std::shared_ptr<const void> keep) override {
    return real_->create_table(rows, columns, type, source, std::move(keep));
  }
  Result<std::shared_ptr<const Rope>> create_rope(const RopeTable& table, int64_t chunk) override {
    return real_->create_rope(table, chunk);
  }
  size_t kv_record_bytes(const KvGeometry& geometry) const override { return real_->kv_record_bytes(geometry); }
  void to_neutral(const KvGeometry& geometry, const void* record, void* neutral) const override {
    real_->to_neutral(geometry, record, neutral);
  }
  void from_neutral(const KvGeometry& geometry, const void* neutral, void* record) const override {
    real_->from_neutral(geometry, neutral, record);
  }
  void page_to_neutral(int n_vectors, int head_dim, ElementType type, const void* page, void* neutral) const override {
    real_->page_to_neutral(n_vectors, head_dim, type, page, neutral);
  }
  void page_from_neutral(int n_vectors, int head_dim, ElementType type, const void* neutral,
                         void* page) const override {
    real_->page_from_neutral(n_vectors, head_dim, type, neutral, page);
  }
  Status copy_representations(Queue& queue, const Buffer& source, int n_vectors, int head_dim, ElementType type,
                              int64_t n_chunks, Buffer& target) override {
    return deferred(queue).add([this, &q = deferred(queue).real(), from = real(&source), n_vectors, head_dim, type,
                                n_chunks, to = real(&target)] {
      return real_->copy_representations(q, *from, n_vectors, head_dim, type, n_chunks, *to);
    });
  }
  size_t representation_page_bytes(int n_vectors, int head_dim, ElementType type) const override {
    return real_->representation_page_bytes(n_vectors, head_dim, type);
  }

  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, int n_query_heads,
                                                     std::span<const StepSequence> sequences) override {
    auto step = std::make_unique<DeferredStep>();
    const std::vector<StepSequence> all(sequences.begin(), sequences.end());
    QUIRE_TRY(add(exec, [this, n_query_heads, all, made = step->real](Exec late) -> Status {
      if (!made->owned) throw std::logic_error("a step was freed before it was prepared");
      QUIRE_ASSIGN(made->step, real_->prepare_step(late, n_query_heads, all));
      return {};
    }));
    return std::unique_ptr<PreparedStep>(std::move(step));
  }
  Status embed(Exec exec, const Table& table, const Buffer& ids, int64_t first, int64_t n, float scale,
               Rows out) override {
    return add(exec, [this, &table, at = real(&ids), first, n, scale, to = real(out)](Exec late) {
      return real_->embed(late, table, *at, first, n, scale, to);
    });
  }
  Status rms_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t width, Write write,
                  Rows out) override {
    return add(exec, [this, from = real(x), w = real(&weight), eps, n, width, write, to = real(out)](Exec late) {
      return real_->rms_norm(late, from, *w, eps, n, width, write, to);
    });
  }
  Status head_norm(Exec exec, Rows x, const Buffer& weight, float eps, int64_t n, int64_t heads,
                   int64_t head_dim) override {
    return add(exec, [this, own = real(x), w = real(&weight), eps, n, heads, head_dim](Exec late) {
      return real_->head_norm(late, own, *w, eps, n, heads, head_dim);
    });
  }
  Status matmul(Exec exec, Rows x, int64_t n, const Matrix& matrix, const Buffer* bias, Write write, Rows y) override {
    return add(exec, [this, from = real(x), n, &matrix, b = real(bias), write, to = real(y)](Exec late) {
      return real_->matmul(late, from, n, matrix, b, write, to);
    });
  }
  Status add_low_rank(Exec exec, const LowRankArgs& args) override {
    LowRankArgs own = args;
    own.x = real(args.x);
    own.work = real(args.work);
    own.y = real(args.y);
    return add(exec, [this, own](Exec late) { return real_->add_low_rank(late, own); });
  }
  Status scale_unrotated(Exec exec, Rows x, int64_t n, const HeadShape& shape, float by) override {
    return add(exec, [this, own = real(x), n, shape, by](Exec late) {
      return real_->scale_unrotated(late, own, n, shape, by);
    });
  }
  Status gated_linear_unit(Exec exec, Activation activation, Rows x, int64_t n, int64_t width, Rows out) override {
    return add(exec, [this, activation, from = real(x), n, width, to = real(out)](Exec late) {
      return real_->gated_linear_unit(late, activation, from, n, width, to);
    });
  }
  Status store_kv(Exec exec, const PreparedStep& step, const StoreKvArgs& args) override {
    StoreKvArgs own = args;
    own.keys = real(args.keys);
    own.values = real(args.values);
    return add(exec, [this, own, records = OwnedRecords(args.records), prepared = real(step)](Exec late) mutable {
      own.records = records.get();
      return real_->store_kv(late, alive(prepared), own);
    });
  }
  Status move_kv(Exec exec, const MoveKvArgs& args) override {
    MoveKvArgs own = args;
    for (KvRecord* record : {&own.first, &own.second, &own.to}) record->page = real(record->page);
    return add(exec, [this, own](Exec late) { return real_->move_kv(late, own); });
  }
  Status copy_rows(Exec exec, Rows from, int64_t n, int64_t width, Rows to) override {
    return add(exec, [this, source = real(from), n, width, target = real(to)](Exec late) {
      return real_->copy_rows(late, source, n, width, target);
    });
  }
  Status narrow_chunks(Exec exec, const PreparedStep& step, const NarrowArgs& args) override {
    return add(exec, [this, args, from = OwnedRecords(args.records), to = OwnedRecords(args.out),
                      prepared = real(step)](Exec late) {
      NarrowArgs own = args;
      own.records = from.get();
      own.out = to.get();
      return real_->narrow_chunks(late, alive(prepared), own);
    });
  }
  Status keep_queries(Exec exec, const PreparedStep& step, const KeepQueriesArgs& args) override {
    KeepQueriesArgs own = args;
    own.from = real(args.from);
    own.to = real(args.to);
    return add(exec, [this, own, prepared = real(step)](Exec late) {
      return real_->keep_queries(late, alive(prepared), own);
    });
  }
  Status represent_chunks(Exec exec, const PreparedStep& step, const RepresentArgs& args) override {
    RepresentArgs own = args;
    own.queries = real(args.queries);
    const auto pages = std::make_shared<const OwnedPages>(args.out);
    return add(exec,
               [this, own, records = OwnedRecords(args.records), pages, prepared = real(step)](Exec late) mutable {
                 own.records = records.get();
                 own.out = pages->get();
                 return real_->represent_chunks(late, alive(prepared), own);
               });
  }
  Status select_chunks(Exec exec, const PreparedStep& step, const SelectArgs& args) override {
    SelectArgs own = args;
    own.queries = real(args.queries);
    own.out = real(args.out);
    const auto pages = std::make_shared<const OwnedPages>(args.representations);
    return add(exec, [this, own, pages, prepared = real(step)](Exec late) mutable {
      own.representations = pages->get();
      return real_->select_chunks(late, alive(prepared), own);
    });
  }
  Status attention(Exec exec, const PreparedStep& step, std::span<const AttentionArgs> sequences) override {
    std::vector<OwnedAttention> own;
    for (const AttentionArgs& args : sequences) own.emplace_back(args);
    return add(exec, [this, own = std::move(own), prepared = real(step)](Exec late) {
      std::vector<AttentionArgs> all;
      for (const OwnedAttention& args : own) all.push_back(args.get());
      return real_->attention(late, alive(prepared), all);
    });
  }

  Status keep_peaks(Exec exec, const Buffer& shares, int64_t n, int n_heads, int64_t n_cells, bool first,
                    Buffer& peaks) override {
    return add(exec, [this, from = real(&shares), n, n_heads, n_cells, first, to = real(&peaks)](Exec late) {
      return real_->keep_peaks(late, *from, n, n_heads, n_cells, first, *to);
    });
  }

  // So few that they do not always decide what comes next.
  int64_t most_ranked(int64_t) const override { return 20; }
  Status rank_logits(Exec exec, Rows logits, int64_t n, int64_t width, int64_t k, Buffer& out) override {
    return add(exec, [from = real(logits), layout = RankedRows{n, k}, width, to = real(&out)](Exec) {
      for (int64_t r = 0; r < layout.n; ++r) {
        const auto* const row = static_cast<const float*>(from.buffer->host()) + from.offset + r * from.stride;
        const RankedLogits ranked =
            rank_on_host(std::span(row, static_cast<size_t>(width)), static_cast<size_t>(layout.k));
        write_ranked(ranked, layout, r, static_cast<std::byte*>(to->host()));
      }
      return Status();
    });
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }
  size_t matrix_bytes(std::span<const MatrixPart> parts, int64_t k) const override {
    return real_->matrix_bytes(parts, k);
  }
  size_t rope_bytes(int head_dim, int64_t chunk) const override { return real_->rope_bytes(head_dim, chunk); }
  size_t matmul_workspace_bytes(std::span<const MatrixPart> parts, int64_t k, int64_t n_rows) const override {
    return real_->matmul_workspace_bytes(parts, k, n_rows);
  }
  size_t attention_workspace_bytes(const KvGeometry& geometry, int n_query_heads, int64_t n_queries, int64_t n_keys,
                                   const ChunkSelection& selection) const override {
    return real_->attention_workspace_bytes(geometry, n_query_heads, n_queries, n_keys, selection);
  }
  size_t workspace_for(size_t matmul_bytes, size_t attention_bytes) const override {
    return real_->workspace_for(matmul_bytes, attention_bytes);
  }

 private:
  // operation(exec of the real backend)
  template <typename Operation>
  Status add(Exec exec, Operation operation) {
    DeferredQueue& queue = deferred(exec.queue);
    return queue.add([this, operation = std::move(operation), &q = queue.real(), cancel = exec.cancel]() mutable {
      Status status = operation(Exec{q, cancel});
      workspace_bytes_ = real_->workspace_bytes();
      return status;
    });
  }
  // Work on the real backend that is done when the call returns: not beside queued work, for it has one thread pool.
  Status at_once(LateWorker::Work work) {
    const auto line = std::make_shared<LateWorker::Line>();
    return worker_->wait(line, worker_->add(*line, std::move(work)));
  }

  const std::unique_ptr<Backend> real_;
  const std::shared_ptr<SlowQueues> slow_;   // may be null
  std::atomic<int64_t> workspace_bytes_{0};  // of the real backend, after the last operation
  const Worker worker_;                      // before the real backend it is gone
};

}  // namespace

std::unique_ptr<Backend> create_deferred_backend(std::unique_ptr<Backend> real) {
  return std::make_unique<DeferredBackend>(std::move(real), nullptr);
}

std::unique_ptr<Backend> create_slow_backend(std::unique_ptr<Backend> real, std::shared_ptr<SlowQueues> slow) {
  return std::make_unique<DeferredBackend>(std::move(real), std::move(slow));
}

}  // namespace quire::test
