#include "lib/kv/transfers.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

namespace quire {
namespace {

// So many transfers behind the one that runs are announced to their tiers. More did not read faster from a disk.
constexpr size_t kAnnounced = 8;

Status out_of_memory() { return Status(Code::kOutOfMemory, "out of memory"); }  // short enough not to allocate

}  // namespace

Result<std::unique_ptr<Transfers>> Transfers::create(Backend& backend, TierAccount& account, int64_t record_bytes,
                                                     IoThreads* io, TransferListener& listener) {
  std::unique_ptr<Transfers> made(new Transfers(backend, account, record_bytes, io, listener));
  QUIRE_ASSIGN(made->queue_, backend.create_queue());
  made->together_.reserve(kMostTogether);
  made->uploads_.reserve(kMostTogether);
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

void Transfers::submit(Transfer transfer) {
  MutexLock lock(mutex_);
  all_.push_back(std::move(transfer));
}

bool Transfers::schedule() { return claim() && (!io_ || !io_->add(*this)); }

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
  if (all_.size() <= n_running_) return false;
  *transfer = std::move(all_.back());
  all_.pop_back();
  return true;
}

// Tells tiers what will be read behind the transfer that comes first.
void Transfers::announce() {
  std::array<std::pair<Tier*, int64_t>, kAnnounced> soon;
  size_t n_soon = 0;
  {
    MutexLock lock(mutex_);
    for (size_t i = 1; i < all_.size() && i <= kAnnounced; ++i) {
      Transfer& t = all_[i];
      if (t.reads && !t.announced) soon[n_soon++] = {t.in->tier, t.in->slot};
      t.announced = true;
    }
  }
  for (size_t i = 0; i < n_soon; ++i) soon[i].first->will_read(soon[i].second);
}

// The one behind the n_joined that run together: it runs as well from here on. It stays where it is while others are
// added and taken back behind it. Null: there is none.
Transfer* Transfers::next(size_t n_joined) {
  MutexLock lock(mutex_);
  if (n_joined == all_.size()) return nullptr;
  n_running_ = n_joined + 1;
  return &all_[n_joined];
}

// A queue on which something failed does nothing more: the transfers behind it get another one, so that a launch that
// was refused does not cost the store its records. Where none can be had, the old one says again what failed.
void Transfers::renew_queue() noexcept {
  if (!queue_failed_) return;
  try {
    auto made = backend_.create_queue();
    if (!made.ok()) return;
    queue_ = std::move(*made);
    queue_failed_ = false;
  } catch (const std::exception&) {  // as if there were none
  }
}

bool Transfers::run_one() {
  renew_queue();
  announce();
  together_.clear();
  Transfer* alone = nullptr;
  size_t bytes = 0;
  while (together_.size() < kMostTogether && bytes < kMostBytesTogether) {
    Transfer* const transfer = next(together_.size());
    if (!transfer) break;
    if (!join(*transfer)) {
      if (together_.empty()) alone = transfer;
      break;
    }
    bytes += transfer->memory->size();
  }
  const size_t n = alone ? 1 : together_.size();
  {
    MutexLock lock(mutex_);
    n_running_ = n;
  }
  if (alone) {
    run_alone(*alone);
    finish(*alone);
  } else {
    run_together();
    for (const Running& r : together_) finish(*r.transfer);
  }
  MutexLock lock(mutex_);
  all_.erase(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(n));
  n_running_ = 0;
  scheduled_ = !all_.empty();
  if (!scheduled_) idle_.notify_all();
  return scheduled_;
}

void Transfers::finish(Transfer& transfer) noexcept {
  listener_.finished(transfer);
  transfer.after.reset();  // not under the mutex: it may destroy the fences
}

// ---- together

// False: it needs the staging buffer, and nothing was begun.
bool Transfers::join(Transfer& transfer) noexcept {
  Running running{&transfer};
  try {
    if (!begin(running)) return false;
  } catch (const std::exception&) {
    transfer.status = out_of_memory();
  }
  together_.push_back(running);  // it has the capacity
  return true;
}

bool Transfers::begin(Running& r) {
  const Transfer& t = *r.transfer;
  if (t.writes) {
    if (t.stays && !t.out->tier->can_write_behind(t.out->slot)) {
      r.transfer->status = Status(Code::kBudget, "no room");
      return true;
    }
    auto place = t.out->tier->begin_write(t.out->slot);
    if (!place.ok()) {
      r.transfer->status = place.status();
      return true;
    }
    r.to = *place;
    if (!r.to && !t.stays) return false;
    if (!r.to) r.transfer->status = Status(Code::kBudget, "no place");
  }
  if (!t.reads) return true;
  r.from = t.in->tier->begin_read(t.in->slot);
  if (!r.from && r.to) t.out->tier->end_write(t.out->slot, false);
  return bool(r.from);
}

// Memory is read into when its old record is safe: so there are two waits where something is written.
void Transfers::run_together() noexcept {
  const auto stage = [&](Status (Transfers::*run)(), const auto& concerns) {
    Status status;
    try {
      status = (this->*run)();
    } catch (const std::exception&) {
      status = out_of_memory();
    }
    for (const Running& r : together_) {
      if (status.ok() || !r.transfer->status.ok() || !concerns(*r.transfer)) continue;
      try {
        r.transfer->status = status;
      } catch (const std::exception&) {
        r.transfer->status = out_of_memory();
      }
    }
  };
  stage(&Transfers::write_together, [](const Transfer&) { return true; });
  for (const Running& r : together_) {
    if (!r.to) continue;
    r.transfer->written = r.transfer->status.ok();
    r.transfer->out->tier->end_write(r.transfer->out->slot, r.transfer->written);
  }
  stage(&Transfers::read_together, [](const Transfer& t) { return !t.writes || t.reads; });
  for (const Running& r : together_) {
    if (r.from) r.transfer->in->tier->end_read(r.transfer->in->slot);
  }
}

// Those of one request wait for the same ones, which are queued once.
Status Transfers::wait_for_fences() {
  const Fences* before = nullptr;
  for (const Running& r : together_) {
    const Fences* const after = r.transfer->after.get();
    if (!after || (before && *before == *after)) continue;
    QUIRE_TRY(wait_for(*after));
    before = after;
  }
  return {};
}

Status Transfers::wait_for(const Fences& after) {
  for (const auto& fence : after) {
    const Status status = backend_.wait(*queue_, *fence);
    if (status.ok()) continue;
    queue_failed_ = true;
    return status;
  }
  return {};
}

Status Transfers::write_together() {
  QUIRE_TRY(wait_for_fences());
  if (std::ranges::none_of(together_, [](const Running& r) { return r.to != nullptr; })) return {};
  return copy([&]() -> Status {
    for (const Running& r : together_) {
      if (!r.to) continue;
      const Buffer& memory = *r.transfer->memory;
      QUIRE_TRY(backend_.download(*queue_, memory, 0, r.to, memory.size()));
    }
    return {};
  });
}

Status Transfers::read_together() {
  uploads_.clear();
  bool waits = false;  // for the fences
  for (const Running& r : together_) {
    Buffer& memory = *r.transfer->memory;
    const bool ok = r.transfer->status.ok();
    if (ok && r.from) uploads_.push_back({r.from.memory, r.from.offset, &memory, 0, memory.size()});
    waits = waits || (ok && !r.transfer->writes);
  }
  if (uploads_.empty() && !waits) return {};
  return copy([&] { return backend_.upload_all(*queue_, uploads_); });
}

// ---- alone

void Transfers::run_alone(Transfer& transfer) noexcept {
  try {
    transfer.status = move(transfer);
  } catch (const std::exception&) {
    transfer.status = out_of_memory();
  }
}

Status Transfers::move(Transfer& t) {
  if (t.after) QUIRE_TRY(wait_for(*t.after));
  if (t.writes) {
    QUIRE_TRY(write(*t.memory, *t.out));
    t.written = true;
  }
  return t.reads ? read(*t.in, *t.memory) : Status();
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
    StagedRecord place;
    ~Reading() {
      if (place) record.tier->end_read(record.slot);
    }
  } reading{record, record.tier->begin_read(record.slot)};
  if (!reading.place) QUIRE_TRY(record.tier->read(record.slot, staging_->host()));
  const void* const host = reading.place ? reading.place.data() : staging_->host();
  return copy([&] { return backend_.upload(*queue_, host, memory, 0, memory.size()); });
}

// Queues a copy and waits until it is done, so that nothing works on the host's memory when this returns.
template <typename Enqueue>
Status Transfers::copy(const Enqueue& enqueue) {
  Status queued;
  try {
    queued = enqueue();
  } catch (const std::exception&) {  // perhaps behind the first copies
    queued = out_of_memory();
  }
  const Status done = finish_queue(backend_, *queue_);
  queue_failed_ = queue_failed_ || !queued.ok() || !done.ok();
  return queued.ok() ? done : queued;
}

}  // namespace quire
