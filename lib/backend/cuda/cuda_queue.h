// Queues of a CUDA device are streams. Each has working memory of its own, for operations of several queues may run at
// the same time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "lib/backend/cuda/cuda_device.h"
#include "lib/backend/cuda/step_graphs.h"
#include "lib/backend/operations.h"

namespace quire::cuda {

// Pinned memory through which small data goes to the device, so that the host need not wait until the device has read
// it. One thread at a time.
class UploadRing {
 public:
  UploadRing(const CudaDevice& device, Stream stream) : device_(device), stream_(stream) {}
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  // Memory that is the caller's until the work that it queues next, before another take(), is done. Waits if all is in
  // use.
  Result<std::byte*> take(size_t bytes);

  static constexpr size_t kSlabBytes = size_t{1} << 20;
  static constexpr size_t kMostSlabs = 4;

 private:
  struct Slab {
    DeviceMemory memory;
    Event event = nullptr;  // behind the last work with this slab, once it is full
  };
  Result<bool> is_free(const Slab& slab);

  const CudaDevice& device_;
  const Stream stream_;
  std::vector<Slab> slabs_;
  size_t current_ = 0;
  size_t used_ = 0;  // of the current one
};

// What operations need working memory for. Each has its own, which grows to what the largest call needed.
enum class Work { kParts, kStats, kScores, kLists, kBlas, kWeights, kRanks, kCount };
// It grows by multiples of this, so that it stays where it is for most of the steps of a growing text.
constexpr int64_t kWorkspaceStep = int64_t{256} << 10;

// One thread at a time.
class CudaQueue : public Queue {
 public:
  // total: counts the working memory of all queues; outlives them.
  static Result<std::unique_ptr<CudaQueue>> create(const CudaDevice& device, std::atomic<int64_t>& total);
  ~CudaQueue() override;

  const CudaDevice& device() const { return device_; }
  Stream stream() const { return stream_; }
  // The first failure of what was queued here, as far as the host knows.
  const Status& failure() const { return failure_; }
  Status fail(Status status);

  // Calls queue(api, stream), which returns an error of the table, unless something failed before or `cancel` is set.
  template <typename Function>
  Status add(const char* what, const CancelToken* cancel, const Function& queue) {
    QUIRE_TRY(begin(cancel));
    QUIRE_TRY(flush());
    const int error = queue(device_.api(), stream_);
    return error == 0 ? Status() : fail(device_.check(error, what));
  }
  // The same with a function of the table that launches kernels and its arguments behind the stream. In a step of few
  // rows the call is noted at first (StepGraphs), and made when something follows that is no such call.
  template <auto kFunction, typename... Arguments>
  Status launch(const char* what, const CancelToken* cancel, const Arguments&... arguments) {
    if (notes_) {
      QUIRE_TRY(may_go_on(cancel));
      noted_.push_back(std::make_unique<CommandOf<kFunction>>(what, arguments...));
      return {};
    }
    QUIRE_TRY(begin(cancel));
    const int error = (device_.api().*kFunction)(stream_, arguments...);
    return error == 0 ? Status() : fail(device_.check(error, what));
  }
  // Makes the calls that were noted; then none are noted until the next step.
  Status flush();
  // Waits for what was queued.
  Status finish();

  // At least `bytes`, contents undefined: valid until the next call for the same work. Work that is queued on it may go
  // on.
  Result<std::byte*> workspace(Work work, size_t bytes);
  // Copies host data, which may change when the call returns.
  Status upload(const void* from, void* to, size_t bytes);
  // The same of `bytes` that write(memory) leaves there.
  template <typename Write>
  Status upload_written(size_t bytes, void* to, const Write& write) {
    if (bytes == 0) return {};
    QUIRE_TRY(begin(nullptr));
    auto taken = ring_.take(bytes);
    if (!taken.ok()) return fail(taken.status());
    write(*taken);
    return add("copying to the device", nullptr,
               [&](const DeviceApi& api, Stream s) { return api.upload(s, to, *taken, bytes); });
  }
  // Copies to host memory and waits.
  Status read(const void* from, void* to, size_t bytes);

  // Sessions that take turns find their tables, and so their graphs, as they left them.
  static constexpr int64_t kStepsOfTables = 2 * int64_t{StepGraphs::kMostSteps};
  // Arrays of addresses that were last used kStepsOfTables calls ago may be replaced. Not within an operation. n_rows:
  // of the step.
  void begin_step(int64_t n_rows) {
    ++step_;
    notes_ = n_rows <= kMostNotedRows && graphs_.possible();
  }
  // The addresses on the device, as an array there: valid until the step after this one. They are copied only where
  // they are not what they were: `key` says which array it is, and need not be right.
  Result<void* const*> table(const void* key, const std::vector<void*>& addresses, uint64_t version = 0);
  Result<void* const*> records(const KvRecords& records);
  Result<void* const*> pages(const Representations& representations);

 private:
  // Longer steps take the device longer than their launches take the host. (Where cuBLASLt has products of so few rows
  // the calls in front of the first one are noted, and the rest are made.)
  static constexpr int64_t kMostNotedRows = kFewQuantizedRows;

  CudaQueue(const CudaDevice& device, std::atomic<int64_t>& total, Stream stream)
      : device_(device), total_(total), stream_(stream), graphs_(device, stream), ring_(device, stream) {}
  Status may_go_on(const CancelToken* cancel);
  // The same, and the device is the thread's.
  Status begin(const CancelToken* cancel);
  // Working memory of `bytes` in place of what `memory` was, once nothing uses that any more.
  Status replace(DeviceMemory& memory, size_t bytes);

  struct AddressTable {
    const void* key;
    int64_t step;  // that used it last
    DeviceMemory memory;
    std::vector<void*> addresses;
    uint64_t version = 0;  // KvRecords::version of these addresses; 0: they are compared

    void* const* on_device() const { return reinterpret_cast<void* const*>(memory.data()); }
  };
  // The table of `key`, which is now the last of tables_. A key without one gets the table that was used longest ago,
  // if none of the last kStepsOfTables steps used it, else a new one. So there are never more than these steps used.
  AddressTable& table_of(const void* key);

  const CudaDevice& device_;
  std::atomic<int64_t>& total_;
  const Stream stream_;
  Status failure_;
  StepGraphs graphs_;
  bool notes_ = false;
  Commands noted_;
  UploadRing ring_;
  std::array<DeviceMemory, static_cast<size_t>(Work::kCount)> workspaces_;
  int64_t step_ = 0;
  std::list<AddressTable> tables_;  // by their last use
  std::unordered_map<const void*, std::list<AddressTable>::iterator> table_by_key_;
  std::vector<void*> addresses_;
};

inline CudaQueue& cuda_queue(Queue& queue) { return static_cast<CudaQueue&>(queue); }

// It may outlive its queue, not the device.
class CudaFence : public Fence {
 public:
  static Result<std::unique_ptr<CudaFence>> record(CudaQueue& queue);
  ~CudaFence() override;
  bool done() const override;
  Status wait() const override;
  Event event() const { return event_; }

 private:
  CudaFence(const CudaDevice& device, Status failure) : device_(device), failure_(std::move(failure)) {}

  const CudaDevice& device_;
  Event event_ = nullptr;  // record()'s
  const Status failure_;   // of what was queued before it
};

// Memory of the device, or staging memory.
class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(DeviceMemory memory, MemoryKind kind) : Buffer(memory.size()), memory_(std::move(memory)), kind_(kind) {}
  void* host() const override { return kind_ == MemoryKind::kStaging ? memory_.data() : nullptr; }
  std::byte* data() const { return memory_.data(); }
  bool is_plain() const { return memory_.is_plain(); }

 private:
  const DeviceMemory memory_;
  const MemoryKind kind_;
};

inline std::byte* address(const Buffer& buffer) { return static_cast<const CudaBuffer&>(buffer).data(); }

inline void* address(const KvRecord& record) { return record ? address(*record.page) + record.offset : nullptr; }

// What kernels are given of rows.
inline DeviceRows device_rows(const Rows& rows) {
  return {address(*rows.buffer) + rows.offset * static_cast<int64_t>(element_bytes(rows.type)), rows.stride, rows.type};
}

inline KvShape shape_of(const KvGeometry& g) { return {g.n_kv_heads, g.head_dim, g.chunk, g.type}; }

}  // namespace quire::cuda
