#include "lib/kv/residency.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "lib/support/make_room.h"

namespace quire {

// ---- users

void Residency::add(RecordUser& user) {
  begin_step(user);
  MutexLock lock(mutex_);
  users_.push_back(&user);
}

Status Residency::let_spill(RecordUser& user, IoThreads* io) {
  if (spills(user)) return {};
  user.io_ = io;
  QUIRE_ASSIGN(user.transfers_, Transfers::create(user.backend_, user.account_, user.record_bytes_, io, *this));
  return {};
}

void Residency::stop(RecordUser& user) {
  for (Transfers* const transfers : {user.transfers_.get(), user.behind_.get()}) {
    Transfer transfer;
    while (transfers && transfers->take_back(&transfer)) {
      transfer.status = Status(Code::kCancelled, "closed");
      transfer.prefetch = true;  // who waits for it looks again
      finished(transfer);
    }
  }
}

void Residency::remove(RecordUser& user) {
  {
    MutexLock lock(mutex_);
    unpin(user);
    settle(user);
    while (user.n_saving_ > 0) wait(user);
    std::erase(users_, &user);
  }
  user.behind_.reset();
  user.transfers_.reset();
}

// ---- chunks

void Residency::hold(RecordUser& user, ChunkRecords& chunk) {
  MutexLock lock(mutex_);
  chunk.holders.push_back(&user);
  chunk.n_out = std::ranges::count_if(chunk.records, [](const Record& r) { return r.tier && r.state != State::kIn; });
  count_slots(user, chunk, 1);
}

void Residency::share(std::span<ChunkRecords* const> chunks, RecordUser& other) {
  MutexLock lock(mutex_);
  for (ChunkRecords* const chunk : chunks) quire::make_room(chunk->holders, 1);
  for (ChunkRecords* const chunk : chunks) {
    chunk->holders.push_back(&other);
    count_slots(other, *chunk, 1);
  }
}

int64_t Residency::n_holders(const ChunkRecords& chunk) const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(chunk.holders.size());
}

void Residency::let_go(RecordUser& user, ChunkRecords& chunk) {
  int64_t own_bytes = 0, unowned_bytes = 0;  // of memory that is released
  {
    MutexLock lock(mutex_);
    unpin(user);
    const auto moves = [](const Record& r) {
      return r.state == State::kArriving || r.state == State::kLeaving || r.saving;
    };
    while (std::any_of(chunk.records.begin(), chunk.records.end(), moves)) wait(user);
    chunk.holders.erase(std::ranges::find(chunk.holders, &user));
    count_slots(user, chunk, -1);
    if (std::ranges::find(chunk.holders, &user) != chunk.holders.end()) return;
    if (!chunk.holders.empty()) {
      for (Record& record : chunk.records) {
        if (record.owner != &user.owned_) continue;
        unlink(record);
        append(unowned_, record);
        user.account_.give(static_cast<int64_t>(record.memory->size()), unowned_account_);
      }
      changed_.notify_all();
      return;
    }
    for (Record& record : chunk.records) {
      if (!record.owner) continue;
      (record.owner == &user.owned_ ? own_bytes : unowned_bytes) += static_cast<int64_t>(record.memory->size());
      unlink(record);
    }
    ++n_releasing_;
  }
  for (const Record& record : chunk.records) {
    if (record.tier) record.tier->free_slot(record.slot);
  }
  delete &chunk;
  user.account_.remove(own_bytes);
  unowned_account_.remove(unowned_bytes);
  MutexLock lock(mutex_);
  --n_releasing_;
  changed_.notify_all();
}

// ---- requests

Status Residency::acquire(RecordUser& user, Queue& queue, std::span<Record* const> records, Access access, Pins pins) {
  if (!user.transfers_) return {};
  if (user.pins_all_) {
    if (access == Access::kWrite) change(user, records);
    return {};
  }
  look_at_device(user.backend_);
  QUIRE_TRY(prepare(user));
  // What is queued so far works on what is pinned so far.
  QUIRE_ASSIGN(std::shared_ptr<const Fence> fence, user.backend_.record(queue));
  if (fence->done()) fence.reset();
  MutexLock lock(mutex_);
  user.fence_ = std::move(fence);
  pin(user, records, access, pins);
  const Status status = bring(user, records, access);
  if (!status.ok()) {
    unpin(user);
    settle(user);  // so that the next request sees failures of its own alone
    return status;
  }
  if (access == Access::kWrite) {
    for (Record* const record : records) record->saved = record->chunk->complete = false;
  }
  return {};
}

// Of what is pinned.
void Residency::change(RecordUser& user, std::span<Record* const> records) {
  MutexLock lock(mutex_);
  for (Record* const record : records) {
    while (record->saving) wait(user);
    record->saved = record->chunk->complete = false;
  }
}

// Of records that nobody has written to. False: some have no memory, for there is not enough that is free.
bool Residency::make_fresh(RecordUser& user, std::span<ChunkRecords* const> chunks) {
  bool all = true;
  for (ChunkRecords* const chunk : chunks) {
    for (Record& record : chunk->records) {
      if (record.state != State::kOut || record.saved) continue;
      all = user.account_.room() - staging_left(user) >= chunk->record_bytes &&
            start(user, record, Access::kWrite, Purpose::kPrefetch).ok();
      if (!all) break;
      ++user.device_.n_misses;
    }
    if (!all) break;
  }
  // A device that had less than its budget may have given another record's place, which is to be left first.
  run_transfers(*user.transfers_, user);
  return all;
}

bool Residency::pin_all(RecordUser& user, std::span<ChunkRecords* const> fresh, uint64_t* changes) {
  const auto spares = [&] { return user.account_.own_shortage() == 0 && budget_->shortage() == 0; };
  if (!spares() || !prepare(user).ok()) return false;
  MutexLock lock(mutex_);
  unpin(user);
  const int64_t misses = user.device_.n_misses;
  if (!make_fresh(user, fresh) || user.out_.n > 0 || !spares()) return false;
  user.pins_all_ = user.computes_ = true;
  user.rests_ = false;
  user.pinned_all_at_ = ++clock_;
  user.device_.n_hits += user.n_slots_ - (user.device_.n_misses - misses);
  *changes = user.n_changes_;
  return true;
}

void Residency::pin(RecordUser& user, std::span<Record* const> records, Access access, Pins pins) {
  if (pins == Pins::kReplaced) unpin(user);
  quire::make_room(user.pinned_, records.size());
  user.computes_ = true;
  user.rests_ = false;
  user.failure_ = {};
  if (!records.empty()) user.layer_ = records.front()->layer;
  for (Record* const record : records) {
    user.pinned_.push_back(record);
    ++record->n_pins;
    record->expected = false;
    ++(record->state == State::kIn ? user.device_.n_hits : user.device_.n_misses);
    if (record->state == State::kIn && access != Access::kScan) use(user, *record);
  }
}

Status Residency::bring(RecordUser& user, std::span<Record* const> records, Access access) {
  // All are sent for before one is waited for, so that they come together: by this thread, for what it waits for anyway
  // cannot overlap with its work.
  for (Record* const record : records) {
    if (record->state == State::kOut) QUIRE_TRY(start(user, *record, access, Purpose::kAcquire));
    QUIRE_TRY(user.failure_);
  }
  for (Record* const record : records) {
    while (record->state != State::kIn || (access == Access::kWrite && record->saving)) {
      if (record->state != State::kOut) {
        wait(user);
      } else if (!user.failure_.ok()) {
        return user.failure_;
      } else {  // a prefetch failed, or it was leaving
        QUIRE_TRY(start(user, *record, access, Purpose::kAcquire));
      }
    }
  }
  return {};
}

void Residency::prefetch(RecordUser& user, std::span<Record* const> records, Access access) noexcept {
  if (!asynchronous(user)) return;
  MutexLock lock(mutex_);
  if (!user.ready_) return;
  int64_t share = capacity_of(user) / 2 - user.n_in_transit_;
  for (Record* const record : records) {
    if (record->state == State::kIn && access == Access::kRead) {
      use(user, *record);
      record->expected = record->n_pins == 0;
    }
    if (record->state != State::kOut || !record->saved) continue;
    const Purpose purpose = access == Access::kLikely ? Purpose::kGuess : Purpose::kPrefetch;
    if (share-- <= 0 || !start(user, *record, access, purpose).ok()) break;
  }
  run_transfers(*user.transfers_, user);
}

void Residency::release(RecordUser& user, Queue& queue) noexcept {
  if (!user.transfers_) return;
  std::shared_ptr<const Fence> fence;
  try {
    auto recorded = user.backend_.record(queue);
    if (recorded.ok()) fence = std::move(*recorded);
  } catch (const std::bad_alloc&) {
  }
  if (!fence) {  // what cannot be known later is waited for
    try {
      (void)finish_queue(user.backend_, queue);
    } catch (const std::bad_alloc&) {
    }
  }
  release(user, std::move(fence));
}

void Residency::release(RecordUser& user, std::shared_ptr<const Fence> fence) noexcept {
  if (!user.transfers_) return;
  MutexLock lock(mutex_);
  user.fence_ = fence && !fence->done() ? std::move(fence) : nullptr;
  unpin(user);
  user.computes_ = false;
}

void Residency::rest(RecordUser& user) {
  MutexLock lock(mutex_);
  user.rests_ = true;
}

void Residency::keep(RecordUser& user, size_t n_tiers) {
  MutexLock lock(mutex_);
  unpin(user);
  user.tiers_ = user.tiers_.first(n_tiers);
  user.rests_ = user.kept_ = true;
}

Status Residency::make_room(RecordUser& user, int64_t bytes) {
  MutexLock lock(mutex_);
  user.failure_ = {};
  while (user.account_.room() < bytes + staging_left(user)) {
    if (Record* const victim = choose_victim(user, bytes)) {
      QUIRE_TRY(push_out(user, *victim));
    } else if (may_wait(user)) {
      wait(user);
    } else {
      return {};
    }
  }
  return {};
}

// The device has no more than that: the next step looks again.
void Residency::run_short(int64_t bytes) {
  budget_->set_ceiling(bytes);
  ran_short_ = true;
}

bool Residency::make_room_on_device(RecordUser& user, int64_t bytes) {
  if (!user.backend_.has_own_memory()) return false;
  const int64_t before = budget_->used();
  run_short(before);
  (void)make_room(user, bytes);  // as far as it comes
  return budget_->used() < before;
}

bool Residency::give_back(Backend& backend, int64_t bytes) {
  TierAccount account("of memory", 0, budget_);
  RecordUser nobody(backend, account, {}, 0);  // holds nothing, and waits for what leaves
  const int64_t before = budget_->used();
  MutexLock lock(mutex_);
  while (before - budget_->used() < bytes) {
    if (Record* const victim = choose_idle(nobody)) {
      if (!push_out(nobody, *victim).ok()) break;
    } else if (n_in_transit_ > 0 || n_releasing_ > 0) {
      wait(nobody);
    } else {
      break;
    }
  }
  settle(nobody);
  const int64_t used = budget_->used();
  budget_->set_ceiling(used);
  return used < before;
}

void Residency::begin_step(RecordUser& user) {
  if (ran_short_.exchange(false)) looked_at_ns_ = 0;
  look_at_device(user.backend_);
  MutexLock lock(mutex_);
  user.step_before_began_ = std::exchange(user.step_began_, clock_);
  user.layer_ = -1;
}

bool Residency::look_again(RecordUser& user) {
  const int64_t before = budget_->room();
  looked_at_ns_ = 0;
  look_at_device(user.backend_);
  return budget_->room() > before;
}

// What models loaded later and other processes take is not there for records.
void Residency::look_at_device(const Backend& backend) {
  constexpr int64_t kIntervalNs = 100'000'000;
  if (!backend.has_own_memory()) return;
  const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (now - looked_at_ns_ < kIntervalNs) return;
  looked_at_ns_ = now;
  const int64_t free = backend.free_device_bytes();
  if (free == kNoLimit) return budget_->set_ceiling(kNoLimit);
  budget_->set_ceiling(budget_->used() + std::max<int64_t>(0, free - backend.device_bytes_for_work()));
}

// The staging buffer comes with the first request.
Status Residency::prepare(RecordUser& user) {
  if (staging_left(user) == 0) return {};
  QUIRE_TRY(make_room(user, 0));
  QUIRE_TRY(user.transfers_->make_staging());
  MutexLock lock(mutex_);
  user.ready_ = true;
  return {};
}

Status Residency::read(RecordUser& user, Queue& queue, Record& record, std::span<std::byte> out) {
  struct Reading {
    Residency& residency;
    Record& record;
    bool pinned = false;
    ~Reading() {
      if (!pinned) return;
      MutexLock lock(residency.mutex_);
      unpin(record);
      --residency.n_reading_;
      residency.changed_.notify_all();
    }
  } reading{*this, record};
  KvRecord place;
  {
    MutexLock lock(mutex_);
    while (record.state == State::kArriving || record.state == State::kLeaving) wait(user);
    place = record.place();
    if (place && record.tier) {
      reading.pinned = true;
      ++record.n_pins;
      ++n_reading_;
    }
  }
  if (!place) return record.tier->read(record.slot, out.data());
  QUIRE_TRY(user.backend_.download(queue, *place.page, place.offset, out.data(), out.size()));
  return finish_queue(user.backend_, queue);
}

// ---- what it has come to

int64_t Residency::reclaimable(const RecordUser& user) const {
  MutexLock lock(mutex_);
  int64_t bytes = unowned_.bytes;
  for (const RecordUser* const other : users_) bytes += other == &user ? 0 : other->owned_.bytes;
  return bytes;
}

int64_t Residency::capacity(const RecordUser& user) const {
  MutexLock lock(mutex_);
  return capacity_of(user);
}

int64_t Residency::capacity_of(const RecordUser& user) const {
  const int64_t own = user.owned_.bytes, staging = staging_left(user);
  int64_t bytes = user.account_.own_room();
  if (bytes != kNoLimit) bytes += own - staging;
  const int64_t room = budget_->room();
  if (room != kNoLimit) {
    int64_t idle = room - staging + own + unowned_.bytes, working = 0, n_working = 1, pinned = 0;
    for (const RecordUser* const other : users_) {
      if (other == &user) continue;
      (other->rests_ ? idle : working) += other->owned_.bytes;
      n_working += other->rests_ ? 0 : 1;
      pinned +=
          other->pins_all_ ? other->owned_.bytes : static_cast<int64_t>(other->pinned_.size()) * other->record_bytes_;
    }
    const int64_t all = idle + working;
    bytes = std::min({bytes, std::max(idle, all / n_working), all - pinned});
  }
  return bytes == kNoLimit ? kNoLimit : bytes / user.record_bytes_;
}

bool Residency::is_fresh(const ChunkRecords& chunk) const {
  MutexLock lock(mutex_);
  return std::ranges::all_of(chunk.records,
                             [](const Record& r) { return r.tier && r.state == State::kOut && !r.saved; });
}

bool Residency::is_in(const Record& record) const {
  MutexLock lock(mutex_);
  return bool(record.place());
}

RecordsOut Residency::n_out(const RecordUser& user) const {
  MutexLock lock(mutex_);
  return user.out_;
}

int64_t Residency::n_looked_at() const {
  MutexLock lock(mutex_);
  return n_looked_at_;
}

TierStats Residency::device_stats(const RecordUser& user) const {
  MutexLock lock(mutex_);
  return user.device_;
}

TierStats Residency::tier_stats(const RecordUser& user, size_t tier) const {
  MutexLock lock(mutex_);
  return user.lower_[tier];
}

}  // namespace quire
