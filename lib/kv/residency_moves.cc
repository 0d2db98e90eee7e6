// How a record of the residency gets its memory, which one leaves for it, and what comes of transfers.
#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "lib/kv/residency.h"

namespace quire {
namespace {

// How the work ended does not matter: it is not on its way any more.
void wait_for(const Fences& fences) noexcept {
  for (const auto& fence : fences) {
    try {
      (void)fence->wait();
    } catch (const std::bad_alloc&) {  // of the message
    }
  }
}

}  // namespace

// ---- one record

// Sends for a record that is out: it comes with others when the caller waits for it or calls run_transfers(). A
// prefetch is given up where others would wait.
Status Residency::start(RecordUser& user, Record& record, Access access, Purpose purpose) {
  record.state = State::kArriving;  // nobody else sends for it
  Status status;
  try {
    status = start_claimed(user, record, access, purpose);
  } catch (const std::bad_alloc&) {
    status = Status(Code::kOutOfMemory, "out of memory");
  }
  if (status.ok()) return {};
  if (record.memory) free(std::move(record.memory), user.owned_);
  record.state = State::kOut;
  changed_.notify_all();
  return status;
}

Status Residency::start_claimed(RecordUser& user, Record& record, Access access, Purpose purpose) {
  Place place;
  for (;;) {
    QUIRE_ASSIGN(place, take_place(user, record, purpose));
    if (place.found) break;
    if (purpose != Purpose::kAcquire) return Status(Code::kBudget, "no place");
    if (may_wait(user)) {
      wait(user);
      QUIRE_TRY(user.failure_);
    } else {
      QUIRE_TRY(user.account_.check(user.account_.used() + staging_left(user) + record.chunk->record_bytes, ""));
    }
  }
  // What is queued by this user comes before what it will queue.
  const bool others_work = place.after && (place.after->size() > 1 || place.after->front() != user.fence_);
  if (!place.victim && !record.saved && !others_work) {
    enter(record, user.owned_, access == Access::kScan);
    return {};
  }
  Transfer transfer;
  transfer.memory = record.memory.get();
  transfer.out = place.victim;
  transfer.out_owner = place.victim_owner;
  transfer.writes = place.victim != nullptr;
  transfer.in = &record;
  transfer.reads = record.saved;
  transfer.scan = access == Access::kScan;
  transfer.prefetch = purpose != Purpose::kAcquire;
  transfer.user = &user;
  transfer.after = std::move(place.after);
  QUIRE_TRY(submit(*user.transfers_, std::move(transfer)));
  // Where neither a thread nor a device would gain by several at once, the first one that fails is the last one.
  if (!asynchronous(user) && !user.backend_.has_own_memory()) run_transfers(*user.transfers_, user);
  return {};
}

// Memory within the budgets, or that of a record which may leave.
Result<Residency::Place> Residency::take_place(RecordUser& user, Record& record, Purpose purpose) {
  const int64_t bytes = record.chunk->record_bytes;
  for (;;) {
    if (user.account_.room() - staging_left(user) >= bytes && user.account_.add(bytes).ok()) {
      auto memory = allocate(user, bytes);
      if (!memory.ok()) {
        user.account_.remove(bytes);
        if (memory.status().code() != Code::kOutOfMemory || !user.backend_.has_own_memory()) return memory.status();
        run_short(budget_->used());
        continue;
      }
      record.memory = std::move(*memory);
      return Place{true, nullptr, nullptr, nullptr};
    }
    Place place{true, nullptr, nullptr, fences()};
    Record* const victim = choose_victim(user, bytes);
    if (!victim || (purpose == Purpose::kGuess && needed_soon(user, *victim))) return Place{};
    if (!can_move(user, *victim) || victim->chunk->record_bytes != bytes) {
      if (purpose != Purpose::kAcquire && (!victim->saved || place.after)) return Place{};
      QUIRE_TRY(push_out(user, *victim));
      continue;
    }
    OwnedRecords& owner = *victim->owner;
    unlink(*victim);
    count_out(*victim, 1);
    record.memory = std::move(victim->memory);
    owner.account.give(bytes, user.account_);
    if (victim->saved) {
      victim->state = State::kOut;
      ++charged(*victim, owner).device_.n_evicted;
    } else {
      victim->state = State::kLeaving;
      ++owner.n_leaving;
      place.victim = victim;
      place.victim_owner = &owner;
    }
    return place;
  }
}

Result<std::unique_ptr<Buffer>> Residency::allocate(RecordUser& user, int64_t bytes) {
  const auto unlocked = [&]() -> Result<std::unique_ptr<Buffer>> {
    try {
      return user.backend_.allocate(static_cast<size_t>(bytes), MemoryKind::kDevice);
    } catch (const std::bad_alloc&) {
      return Status(Code::kOutOfMemory, "out of memory");
    }
  };
  mutex_.unlock();
  auto memory = unlocked();
  mutex_.lock();
  return memory;
}

// after: what is queued on the memory; null: nothing. A device may give the memory to others at once.
void Residency::free(std::unique_ptr<Buffer> memory, OwnedRecords& owner, const Fences* after) {
  const auto bytes = static_cast<int64_t>(memory->size());
  ++n_releasing_;
  ++owner.n_leaving;
  mutex_.unlock();
  if (after) wait_for(*after);
  memory.reset();
  mutex_.lock();
  owner.account.remove(bytes);
  --owner.n_leaving;
  --n_releasing_;
  changed_.notify_all();
}

// Makes a record leave memory, which is released then. It may be on its way still: the caller looks again.
Status Residency::push_out(RecordUser& user, Record& victim) {
  Transfer transfer;
  transfer.after = fences();
  OwnedRecords& owner = *victim.owner;
  count_out(victim, 1);
  if (victim.saved && !transfer.after) {
    unlink(victim);
    victim.state = State::kOut;
    ++charged(victim, owner).device_.n_evicted;
    free(std::move(victim.memory), owner);
    return {};
  }
  transfer.memory = victim.memory.get();
  transfer.out = &victim;
  transfer.out_owner = &owner;
  transfer.writes = !victim.saved;
  transfer.user = &user;
  unlink(victim);
  victim.state = State::kLeaving;
  ++owner.n_leaving;
  Transfers& by = *writer(user, victim)->transfers_;
  QUIRE_TRY(submit(by, std::move(transfer)));
  run_transfers(by, user);
  if (n_in_transit_ > 0) wait(user);
  return user.failure_;
}

// ---- transfers

// All or nothing: where it cannot be submitted, it is as if it had failed.
Status Residency::submit(Transfers& by, Transfer transfer) {
  ++n_in_transit_;
  ++(transfer.stays ? transfer.user->n_saving_ : transfer.user->n_in_transit_);
  Transfer failed = transfer;
  try {
    by.submit(std::move(transfer));
  } catch (const std::bad_alloc&) {
    failed.status = Status(Code::kOutOfMemory, "out of memory");
    finish(failed);
    return failed.status;
  }
  return {};
}

// Has a thread run what `by` has submitted, or runs it here, where `user` waits.
void Residency::run_transfers(Transfers& by, RecordUser& user) {
  if (!by.schedule()) return;
  const auto begin = std::chrono::steady_clock::now();
  mutex_.unlock();
  by.run_all();
  mutex_.lock();
  user.device_.stall_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

void Residency::finished(const Transfer& transfer) noexcept {
  MutexLock lock(mutex_);
  finish(transfer);
}

void Residency::finish(const Transfer& t) {
  if (t.stays) return finish_saving(t);
  // A record that turns out to find no room below stays, and who needs its memory looks for another one.
  const bool stays = t.writes && !t.written && t.status.code() == Code::kBudget && !t.out->tier->can_write(t.out->slot);
  if (!t.status.ok() && !t.prefetch && !stays) t.user->failure_ = t.status;
  std::unique_ptr<Buffer> memory = std::move(t.in ? t.in->memory : t.out->memory);
  const auto bytes = static_cast<int64_t>(memory->size());
  OwnedRecords& counted = t.in ? t.user->owned_ : *t.out_owner;  // where it counts
  if (t.out) {
    if (t.writes ? t.written : t.status.ok()) {
      RecordUser& whose = charged(*t.out, *t.out_owner);
      t.out->saved = true;
      t.out->state = State::kOut;
      ++whose.device_.n_evicted;
      if (t.writes) lower(whose, *t.out).bytes_written += bytes;
    } else {
      t.out->memory = std::move(memory);
      counted.account.give(bytes, t.out_owner->account);
      enter(*t.out, *t.out_owner);
    }
  }
  if (t.in && t.status.ok() && memory) {  // which the other one keeps if it could not leave
    if (t.reads) {
      TierStats& tier = lower(*t.user, *t.in);
      tier.bytes_read += bytes;
      ++tier.n_hits;
    }
    t.user->device_.n_prefetched += t.prefetch ? 1 : 0;
    t.in->memory = std::move(memory);
    t.in->expected = t.prefetch && t.in->n_pins == 0;
    enter(*t.in, t.user->owned_, t.scan);
  } else if (t.in) {
    if (memory) free(std::move(memory), counted, t.after.get());
    t.in->state = State::kOut;  // not before: then others might have sent for it meanwhile
  }
  if (memory) free(std::move(memory), counted);
  if (t.out) --t.out_owner->n_leaving;
  --n_in_transit_;
  --t.user->n_in_transit_;
  changed_.notify_all();
}

// What is queued on memory that may be given to another record; null: nothing.
std::shared_ptr<const Fences> Residency::fences() {
  std::shared_ptr<Fences> all;
  for (RecordUser* const user : users_) {
    if (user->fence_ && user->fence_->done()) user->fence_.reset();
    if (!user->fence_) continue;
    if (!all) all = std::make_shared<Fences>();
    all->push_back(user->fence_);
  }
  return all;
}

void Residency::wait(RecordUser& user) {
  const auto begin = std::chrono::steady_clock::now();
  if (user.transfers_ && user.transfers_->claim()) {
    mutex_.unlock();
    user.transfers_->run_all();
    mutex_.lock();
  } else {
    changed_.wait(mutex_);
  }
  user.device_.stall_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
}

// Whether something goes on that may give room. What users pin while they compute, they compute on one thread: none of
// them waits for another one of them.
bool Residency::may_wait(const RecordUser& user) const {
  if (n_in_transit_ > 0 || n_reading_ > 0 || n_releasing_ > 0) return true;
  return !user.computes_ &&
         std::any_of(users_.begin(), users_.end(), [](const RecordUser* other) { return pins(*other); });
}

void Residency::settle(RecordUser& user) {
  while (user.n_in_transit_ > 0 || user.owned_.n_leaving > 0) wait(user);
}

// ---- pins and the order of use

void Residency::unpin(RecordUser& user) {
  if (!pins(user)) return;
  for (Record* const record : user.pinned_) unpin(*record);
  user.pinned_.clear();
  user.pins_all_ = false;
  changed_.notify_all();
}

void Residency::unpin(Record& record) {
  if (--record.n_pins == 0 && record.owner) consider_again(record);
}

// The record may be able to leave from now on: the search must not begin beyond it. Records that came for a scan are
// not in the order of their use, but the search from the newest ends before them.
void Residency::consider_again(Record& record) {
  OwnedRecords& owner = *record.owner;
  if (record.used_at == 0) {
    owner.look_from_oldest = owner.oldest;
  } else if (!owner.look_from_oldest || record.used_at < owner.look_from_oldest->used_at) {
    owner.look_from_oldest = &record;
  }
  if (is_newest_victim(record) && (!owner.look_from_newest || record.used_at > owner.look_from_newest->used_at)) {
    owner.look_from_newest = &record;
  }
}

// The user holds the chunk from now on, or, with times = -1, no longer.
void Residency::count_slots(RecordUser& user, const ChunkRecords& chunk, int64_t times) {
  user.n_slots_ += times * std::ranges::count_if(chunk.records, [](const Record& r) { return r.tier != nullptr; });
  count_out(user, chunk, times * chunk.n_out);
}

// The record leaves memory (n = 1) or is in it again (-1).
void Residency::count_out(const Record& record, int64_t n) {
  record.chunk->n_out += n;
  for (RecordUser* const holder : record.chunk->holders) count_out(*holder, *record.chunk, n);
}

void Residency::count_out(RecordUser& user, const ChunkRecords& chunk, int64_t n) {
  user.out_.n += n;
  if (chunk.in_snapshot()) user.out_.n_in_snapshot += n;
  ++user.n_changes_;
}

void Residency::enter(Record& record, OwnedRecords& owner, bool scan) {
  record.state = State::kIn;
  count_out(record, -1);
  if (scan) {
    put_first(owner, record);
  } else {
    append(owner, record);
  }
}

// Before all others: the first to leave.
void Residency::put_first(OwnedRecords& owner, Record& record) {
  record.owner = &owner;
  record.used_at = 0;
  record.before = nullptr;
  record.after = owner.oldest;
  (owner.oldest ? owner.oldest->before : owner.newest) = &record;
  owner.oldest = &record;
  owner.bytes += static_cast<int64_t>(record.memory->size());
  if (record.n_pins == 0) owner.look_from_oldest = &record;
  if (!owner.look_from_newest && is_newest_victim(record)) owner.look_from_newest = &record;
}

void Residency::append(OwnedRecords& owner, Record& record) {
  record.owner = &owner;
  record.used_at = ++clock_;
  record.before = owner.newest;
  record.after = nullptr;
  (owner.newest ? owner.newest->after : owner.oldest) = &record;
  owner.newest = &record;
  owner.bytes += static_cast<int64_t>(record.memory->size());
  if (!owner.look_from_oldest && record.n_pins == 0) owner.look_from_oldest = &record;
  if (is_newest_victim(record)) owner.look_from_newest = &record;
}

void Residency::unlink(Record& record) {
  OwnedRecords& owner = *record.owner;
  if (owner.look_from_oldest == &record) owner.look_from_oldest = record.after;
  if (owner.look_from_newest == &record) owner.look_from_newest = record.before;
  (record.before ? record.before->after : owner.oldest) = record.after;
  (record.after ? record.after->before : owner.newest) = record.before;
  owner.bytes -= static_cast<int64_t>(record.memory->size());
  record.before = record.after = nullptr;
  record.owner = nullptr;
}

// A record that counts for nobody counts for who uses it, if its budget allows.
void Residency::use(RecordUser& user, Record& record) {
  OwnedRecords* owner = record.owner;
  const int64_t bytes = record.chunk->record_bytes;
  unlink(record);
  if (owner == &unowned_ && user.account_.own_room() - staging_left(user) >= bytes) {
    unowned_account_.give(bytes, user.account_);
    owner = &user.owned_;
  }
  append(*owner, record);
}

// Whether the user's transfers can move the record.
bool Residency::can_move(const RecordUser& user, const Record& record) {
  return record.chunk->record_bytes <= user.record_bytes_ && &record.chunk->holders.front()->backend_ == &user.backend_;
}

// Whose transfers can write the record; null: nobody's.
RecordUser* Residency::writer(RecordUser& user, const Record& record) {
  if (user.ready_ && can_move(user, record)) return &user;
  for (RecordUser* const holder : record.chunk->holders) {
    if (holder->ready_) return holder;
  }
  return nullptr;
}

bool Residency::may_leave(RecordUser& user, const Record& record) {
  if (record.n_pins > 0 || record.saving || !writer(user, record)) return false;
  if (std::ranges::any_of(record.chunk->holders, [](const RecordUser* holder) { return holder->pins_all_; }))
    return false;
  return record.saved || record.tier->can_write(record.slot);
}

Record* Residency::oldest_that_may_leave(RecordUser& user, OwnedRecords& owned) {
  if (owned.user && owned.user->pins_all_) return nullptr;
  Record*& first = owned.look_from_oldest;
  for (; first && first->n_pins > 0; first = first->after) ++n_looked_at_;
  for (Record* record = first; record; record = record->after) {
    ++n_looked_at_;
    if (may_leave(user, *record)) return record;
  }
  return nullptr;
}

// Whether a layer to come in this step is likely to need the record: the step before did there, or it was prefetched.
bool Residency::needed_soon(const RecordUser& user, const Record& record) {
  if (record.used_at > user.step_began_) return record.expected;
  return record.used_at > user.step_before_began_ && record.layer > user.layer_;
}

// Whether it may be the one that leaves because this step used it last.
bool Residency::is_newest_victim(const Record& record) {
  return record.n_pins == 0 && record.saved && !record.expected;
}

Record* Residency::own_victim(RecordUser& user) {
  Record* const oldest = oldest_that_may_leave(user, user.owned_);
  if (!oldest || (oldest->used_at <= user.step_began_ && !needed_soon(user, *oldest))) return oldest;
  Record*& last = user.owned_.look_from_newest;
  const auto used_now = [&](const Record* record) { return record && record->used_at > user.step_began_; };
  for (; used_now(last) && !is_newest_victim(*last); last = last->before) ++n_looked_at_;
  for (Record* record = last; used_now(record); record = record->before) {
    ++n_looked_at_;
    if (is_newest_victim(*record) && may_leave(user, *record)) return record;
  }
  return oldest;
}

// Of what is kept of released sessions the record used longest ago, else of what counts for nobody or for sessions that
// rest.
Record* Residency::choose_idle(RecordUser& user) {
  Record* best = nullptr;
  uint64_t best_used_at = 0;
  const auto consider = [&](OwnedRecords& owned) QUIRE_REQUIRES(mutex_) {
    Record* const oldest = oldest_that_may_leave(user, owned);
    if (!oldest) return;
    uint64_t used_at = oldest->used_at;
    if (used_at > 0 && owned.user) used_at = std::max(used_at, owned.user->pinned_all_at_);
    if (best && used_at >= best_used_at) return;
    best = oldest;
    best_used_at = used_at;
  };
  for (RecordUser* const other : users_) {
    if (other->kept_) consider(other->owned_);
  }
  if (best) return best;
  consider(unowned_);
  for (RecordUser* const other : users_) {
    if (other->rests_) consider(other->owned_);
  }
  return best;
}

Record* Residency::choose_victim(RecordUser& user, int64_t bytes) {
  Record* const own = own_victim(user);
  if (user.account_.own_room() - staging_left(user) < bytes) return own;
  if (Record* const idle = choose_idle(user)) return idle;
  Record* best = own;
  int64_t most = best ? user.owned_.bytes : 0;
  for (RecordUser* const other : users_) {
    if (other->owned_.bytes <= most) continue;
    if (Record* const oldest = oldest_that_may_leave(user, other->owned_)) {
      best = oldest;
      most = other->owned_.bytes;
    }
  }
  return best;
}

// Whose statistics a record's moves belong to.
RecordUser& Residency::charged(const Record& record, const OwnedRecords& owner) {
  return owner.user ? *owner.user : *record.chunk->holders.front();
}

TierStats& Residency::lower(RecordUser& user, const Record& record) {
  size_t tier = 0;
  while (tier < user.tiers_.size() && user.tiers_[tier].get() != record.tier) ++tier;
  return user.lower_[tier];
}

}  // namespace quire
