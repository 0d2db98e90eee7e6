#include "lib/kv/transfers.h"

#include <exception>
#include <utility>

namespace quire {

Result<std::unique_ptr<Transfers>> Transfers::create(Backend& backend, TierAccount& account, int64_t record_bytes,
                                                     IoThreads* io) {
  std::unique_ptr<Transfers> made(new Transfers(backend, account, record_bytes, io));
  QUIRE_ASSIGN(made->queue_, backend.create_queue());
  return made;
}

Transfers::~Transfers() {
  {
    MutexLock lock(mutex_);
    // The first that is not done may be running.
    while (all_.size() > n_done_ + 1) all_.pop_back();
    while (scheduled_) changed_.wait(mutex_);
  }
  if (staging_) account_.remove(record_bytes_);
}

Status Transfers::submit(Transfer transfer) {
  if (!staging_) {
    QUIRE_ASSIGN(staging_, account_.allocate(backend_, record_bytes_, MemoryKind::kStaging));
  }
  bool add = false;
  {
    MutexLock lock(mutex_);
    all_.push_back(std::move(transfer));
    ++n_in_flight_;
    add = !scheduled_;
    scheduled_ = true;
  }
  if (!add || (io_ && io_->add(*this))) return {};
  while (run_one()) {
  }
  return {};
}

bool Transfers::take_done(Transfer* transfer) {
  MutexLock lock(mutex_);
  if (n_done_ == 0) return false;
  *transfer = std::move(all_.front());
  all_.pop_front();
  --n_done_;
  --n_in_flight_;
  return true;
}

void Transfers::wait() {
  MutexLock lock(mutex_);
  while (n_done_ == 0) changed_.wait(mutex_);
}

bool Transfers::run_one() {
  Transfer* next = nullptr;
  {
    MutexLock lock(mutex_);
    // Neither end of the queue moves it while it runs.
    if (n_done_ < all_.size()) next = &all_[n_done_];
  }
  if (next) run(*next);
  MutexLock lock(mutex_);
  if (next) ++n_done_;
  scheduled_ = n_done_ < all_.size();
  changed_.notify_all();
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
  const auto bytes = static_cast<size_t>(record_bytes_);
  void* const host = staging_->host();
  if (t.after) QUIRE_TRY(backend_.wait(*queue_, *t.after));
  if (t.out.tier) {
    QUIRE_TRY(backend_.download(*queue_, *t.memory.page, t.memory.offset, host, bytes));
    QUIRE_TRY(finish_queue(backend_, *queue_));
    QUIRE_TRY(t.out.tier->write(t.out.slot, host));
    t.written = true;
  }
  if (!t.in.tier) return {};
  QUIRE_TRY(t.in.tier->read(t.in.slot, host));
  QUIRE_TRY(backend_.upload(*queue_, host, *t.memory.page, t.memory.offset, bytes));
  return finish_queue(backend_, *queue_);
}

}  // namespace quire
