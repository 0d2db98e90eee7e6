#include "lib/kv/transfers.h"

#include <array>
#include <exception>
#include <utility>

namespace quire {
namespace {

// So many transfers behind the one that runs are announced to their tiers. More did not read faster from a disk.
constexpr size_t kAnnounced = 8;

}  // namespace

Result<std::unique_ptr<Transfers>> Transfers::create(Backend& backend, TierAccount& account, int64_t record_bytes,
                                                     IoThreads* io, TransferListener& listener) {
  std::unique_ptr<Transfers> made(new Transfers(backend, account, record_bytes, io, listener));
  QUIRE_ASSIGN(made->queue_, backend.create_queue());
  return made;
}

Transfers::~Transfers() {
  {
    MutexLock lock(mutex_);
    while (scheduled_) idle_.wait(mutex_);
  }
  if (!staging_) return;
  staging_.reset();  // it counts as long as it is there
  account_.remove(record_bytes_);
}

Status Transfers::make_staging() {
  if (staging_) return {};
  QUIRE_ASSIGN(staging_, account_.allocate(backend_, record_bytes_, MemoryKind::kStaging));
  return {};
}

bool Transfers::submit(Transfer transfer, bool awaited) {
  MutexLock lock(mutex_);
  all_.push_back(std::move(transfer));
  if (scheduled_ || (awaited && io_)) return false;
  scheduled_ = true;
  return !io_ || !io_->add(*this);
}

bool Transfers::claim() {
  MutexLock lock(mutex_);
  if (scheduled_ || all_.empty()) return false;
  scheduled_ = true;
  return true;
}

void Transfers::run_all() noexcept {
  while (run_one()) {
  }
}

bool Transfers::take_back(Transfer* transfer) {
  MutexLock lock(mutex_);
  if (all_.size() <= (running_ ? 1u : 0u)) return false;
  *transfer = std::move(all_.back());
  all_.pop_back();
  return true;
}

// The transfer to run; it stays where it is while others are added and taken back behind it. Null: there is none.
Transfer* Transfers::next() {
  std::array<std::pair<Tier*, int64_t>, kAnnounced> soon;
  size_t n_soon = 0;
  Transfer* first = nullptr;
  {
    MutexLock lock(mutex_);
    running_ = !all_.empty();
    if (!running_) return nullptr;
    first = &all_.front();
    for (size_t i = 1; i < all_.size() && i <= kAnnounced; ++i) {
      Transfer& t = all_[i];
      if (t.reads && !t.announced) soon[n_soon++] = {t.in->tier, t.in->slot};
      t.announced = true;
    }
  }
  for (size_t i = 0; i < n_soon; ++i) soon[i].first->will_read(soon[i].second);
  return first;
}

bool Transfers::run_one() {
  Transfer* const transfer = next();
  if (transfer) {
    run(*transfer);
    listener_.finished(*transfer);
  }
  MutexLock lock(mutex_);
  if (transfer) all_.pop_front();
  running_ = false;
  scheduled_ = !all_.empty();
  if (!scheduled_) idle_.notify_all();
  return scheduled_;
}

void Transfers::run(Transfer& transfer) noexcept {
  try {
    transfer.status = move(transfer);
  } catch (const std::exception&) {
    transfer.status = Status(Code::kOutOfMemory, "out of memory");  // short enough not to allocate
  }
  transfer.after.reset();
}

Status Transfers::move(Transfer& t) {
  if (t.after) {
    for (const auto& fence : *t.after) QUIRE_TRY(backend_.wait(*queue_, *fence));
  }
  if (t.writes) {
    QUIRE_TRY(write(*t.memory, *t.out));
    t.written = true;
  }
  if (t.reads) return read(*t.in, *t.memory);
  return finish_queue(backend_, *queue_);  // after the fences
}

// From memory to the slot: to where that lies, or by way of the staging buffer.
Status Transfers::write(const Buffer& memory, const Record& record) {
  struct Writing {
    const Record& record;
    void* place = nullptr;
    bool written = false;
    ~Writing() {
      if (place) record.tier->end_write(record.slot, written);
    }
  } writing{record};
  QUIRE_ASSIGN(writing.place, record.tier->begin_write(record.slot));
  void* const host = writing.place ? writing.place : staging_->host();
  const Status status = copy([&] { return backend_.download(*queue_, memory, 0, host, memory.size()); });
  if (!status.ok()) return status;
  if (!writing.place) return record.tier->write(record.slot, host);
  writing.written = true;
  return {};
}

Status Transfers::read(const Record& record, Buffer& memory) {
  struct Reading {
    const Record& record;
    const void* place = nullptr;
    ~Reading() {
      if (place) record.tier->end_read(record.slot);
    }
  } reading{record};
  reading.place = record.tier->begin_read(record.slot);
  if (!reading.place) QUIRE_TRY(record.tier->read(record.slot, staging_->host()));
  const void* const host = reading.place ? reading.place : staging_->host();
  return copy([&] { return backend_.upload(*queue_, host, memory, 0, memory.size()); });
}

// Queues a copy and waits until it is done, so that nothing works on the host's memory when this returns.
template <typename Enqueue>
Status Transfers::copy(const Enqueue& enqueue) {
  const Status queued = enqueue();
  const Status done = finish_queue(backend_, *queue_);
  return queued.ok() ? done : queued;
}

}  // namespace quire
