#include "lib/backend/cuda/cuda_queue.h"

#include <algorithm>
#include <cstring>

namespace quire::cuda {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

// ---- UploadRing

UploadRing::~UploadRing() {
  for (const Slab& slab : slabs_) {
    if (slab.event != nullptr) (void)device_.api().destroy_event(slab.event);
  }
}

Result<bool> UploadRing::is_free(const Slab& slab) {
  bool done = false;
  QUIRE_TRY(device_.check(device_.api().ask_event(slab.event, &done), "asking for uploads"));
  return done;
}

Result<std::byte*> UploadRing::take(size_t bytes) {
  bytes = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kAlignment));
  if (!slabs_.empty() && used_ + bytes <= slabs_[current_].memory.size()) {
    return slabs_[current_].memory.data() + std::exchange(used_, used_ + bytes);
  }
  if (!slabs_.empty()) {
    QUIRE_TRY(device_.check(device_.api().record_event(slabs_[current_].event, stream_), "marking uploads"));
  }
  // The next one in turn, if it is large enough and the device has read it; else a new one; else it is waited for.
  const size_t next = slabs_.empty() ? 0 : (current_ + 1) % slabs_.size();
  bool takes = false;
  if (!slabs_.empty()) {
    QUIRE_ASSIGN(takes, is_free(slabs_[next]));
    takes = takes && slabs_[next].memory.size() >= bytes;
  }
  if (!takes && slabs_.size() < kMostSlabs) {
    Slab made;
    QUIRE_ASSIGN(made.memory, DeviceMemory::make(device_, std::max(bytes, kSlabBytes), MemoryKind::kStaging));
    QUIRE_TRY(device_.check(device_.api().create_event(&made.event), "creating an event"));
    slabs_.push_back(std::move(made));
    current_ = slabs_.size() - 1;
  } else {
    Slab& slab = slabs_[next];
    if (!takes) QUIRE_TRY(device_.check(device_.api().finish_event(slab.event), "waiting for uploads"));
    if (slab.memory.size() < bytes) {
      QUIRE_ASSIGN(slab.memory, DeviceMemory::make(device_, bytes, MemoryKind::kStaging));
    }
    current_ = next;
  }
  used_ = bytes;
  return slabs_[current_].memory.data();
}

// ---- CudaQueue

Result<std::unique_ptr<CudaQueue>> CudaQueue::create(const CudaDevice& device, std::atomic<int64_t>& total) {
  QUIRE_TRY(device.use());
  Stream stream = nullptr;
  QUIRE_TRY(device.check(device.api().create_stream(&stream), "creating a stream"));
  return std::unique_ptr<CudaQueue>(new CudaQueue(device, total, stream));
}

CudaQueue::~CudaQueue() {
  (void)device_.use();
  (void)device_.api().finish_stream(stream_);
  (void)device_.api().destroy_stream(stream_);
  for (const DeviceMemory& memory : workspaces_) total_ -= static_cast<int64_t>(memory.size());
  for (const AddressTable& table : tables_) total_ -= static_cast<int64_t>(table.memory.size());
}

Status CudaQueue::fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

Status CudaQueue::may_go_on(const CancelToken* cancel) {
  QUIRE_TRY(failure_);
  return cancel && cancel->cancelled() ? fail(Status(Code::kCancelled, "cancelled")) : Status();
}

Status CudaQueue::begin(const CancelToken* cancel) {
  QUIRE_TRY(may_go_on(cancel));
  const Status status = device_.use();
  return status.ok() ? Status() : fail(status);
}

Status CudaQueue::flush() {
  if (noted_.empty()) return {};
  notes_ = false;
  Commands noted = std::exchange(noted_, {});
  Status status = device_.use();
  if (status.ok()) status = graphs_.queue(std::move(noted));
  return status.ok() ? Status() : fail(status);
}

Status CudaQueue::finish() {
  return add("waiting for a stream", nullptr, [](const DeviceApi& api, Stream s) { return api.finish_stream(s); });
}

Status CudaQueue::replace(DeviceMemory& memory, size_t bytes) {
  if (memory.data() != nullptr) QUIRE_TRY(finish());
  // Other threads read the total: meanwhile it is more than there is, not less.
  const size_t before = memory.size();
  memory = DeviceMemory();
  total_ += static_cast<int64_t>(bytes) - static_cast<int64_t>(before);
  auto made = DeviceMemory::make(device_, bytes, MemoryKind::kDevice);
  if (!made.ok()) {
    total_ -= static_cast<int64_t>(bytes);
    return fail(made.status());
  }
  memory = std::move(*made);
  return {};
}

Result<std::byte*> CudaQueue::workspace(Work work, size_t bytes) {
  DeviceMemory& memory = workspaces_[static_cast<size_t>(work)];
  if (memory.size() < bytes || memory.data() == nullptr) {
    QUIRE_TRY(replace(memory, static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kWorkspaceStep))));
  }
  return memory.data();
}

Status CudaQueue::upload(const void* from, void* to, size_t bytes) {
  return upload_written(bytes, to, [&](std::byte* memory) { std::memcpy(memory, from, bytes); });
}

Status CudaQueue::read(const void* from, void* to, size_t bytes) {
  if (bytes == 0) return {};
  QUIRE_TRY(begin(nullptr));
  auto taken = ring_.take(bytes);
  if (!taken.ok()) return fail(taken.status());
  QUIRE_TRY(add("copying from the device", nullptr,
                [&](const DeviceApi& api, Stream s) { return api.download(s, *taken, from, bytes); }));
  QUIRE_TRY(finish());
  std::memcpy(to, *taken, bytes);
  return {};
}

CudaQueue::AddressTable& CudaQueue::table_of(const void* key) {
  const auto known = table_by_key_.find(key);
  if (known != table_by_key_.end()) {
    tables_.splice(tables_.end(), tables_, known->second);
  } else if (!tables_.empty() && tables_.front().step + kStepsOfTables <= step_) {
    table_by_key_.erase(tables_.front().key);
    tables_.splice(tables_.end(), tables_, tables_.begin());
    tables_.back().key = key;
    tables_.back().version = 0;
    table_by_key_[key] = std::prev(tables_.end());
  } else {
    tables_.push_back({key, step_, {}, {}, 0});
    table_by_key_[key] = std::prev(tables_.end());
  }
  tables_.back().step = step_;
  return tables_.back();
}

Result<void* const*> CudaQueue::table(const void* key, const std::vector<void*>& addresses, uint64_t version) {
  AddressTable& own = table_of(key);
  const size_t bytes = addresses.size() * sizeof(void*);
  if (own.memory.data() == nullptr || own.memory.size() < bytes) {
    own.addresses.clear();
    QUIRE_TRY(replace(own.memory, std::max<size_t>(2 * bytes, kAlignment)));
  } else if (own.addresses == addresses) {
    own.version = version;
    return own.on_device();
  }
  own.addresses.clear();  // until the copy is queued
  own.version = 0;
  QUIRE_TRY(upload(addresses.data(), own.memory.data(), bytes));
  own.addresses = addresses;
  own.version = version;
  return own.on_device();
}

Result<void* const*> CudaQueue::records(const KvRecords& records) {
  const AddressTable& own = table_of(records.chunks.data());
  if (records.version != 0 && own.version == records.version) return own.on_device();
  addresses_.clear();
  for (const KvRecord& record : records.chunks) addresses_.push_back(address(record));
  return table(records.chunks.data(), addresses_, records.version);
}

Result<void* const*> CudaQueue::pages(const Representations& representations) {
  addresses_.clear();
  for (const auto& page : representations.pages) addresses_.push_back(page ? address(*page) : nullptr);
  return table(representations.pages.data(), addresses_);
}

// ---- CudaFence

Result<std::unique_ptr<CudaFence>> CudaFence::record(CudaQueue& queue) {
  const CudaDevice& device = queue.device();
  struct FinishUnlessRecorded {
    CudaQueue& queue;
    bool recorded = false;
    ~FinishUnlessRecorded() {
      if (!recorded) (void)queue.device().api().finish_stream(queue.stream());
    }
  } work{queue};
  QUIRE_TRY(device.use());
  if (queue.failure().ok()) (void)queue.flush();  // its failure is the queue's, and so the fence's
  std::unique_ptr<CudaFence> fence(new CudaFence(device, queue.failure()));
  QUIRE_TRY(device.check(device.api().create_event(&fence->event_), "creating an event"));
  QUIRE_TRY(device.check(device.api().record_event(fence->event_, queue.stream()), "recording an event"));
  work.recorded = true;
  return fence;
}

CudaFence::~CudaFence() {
  if (!event_) return;
  (void)device_.use();
  (void)device_.api().destroy_event(event_);
}

// What failed is done: wait() says how.
bool CudaFence::done() const {
  bool done = false;
  return !device_.use().ok() || device_.api().ask_event(event_, &done) != 0 || done;
}

Status CudaFence::wait() const {
  QUIRE_TRY(device_.use());
  const int error = device_.api().finish_event(event_);
  QUIRE_TRY(failure_);
  return device_.check(error, "work on the device");
}

}  // namespace quire::cuda
