#include "lib/kv/residency.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace quire {

Residency::Residency(Backend& backend, RecordTable& table, RecordMemory& memory, TierAccount& account,
                     std::span<const std::shared_ptr<Tier>> tiers, std::unique_ptr<Transfers> transfers,
                     int64_t page_records)
    : backend_(backend),
      table_(table),
      memory_(memory),
      account_(account),
      tiers_(tiers),
      page_records_(page_records),
      order_(table),
      n_in_of_(tiers.size()),
      lower_(tiers.size()),
      transfers_(std::move(transfers)) {}

int64_t Residency::staging_left() const {
  return transfers_ && !transfers_->has_staging() ? transfers_->staging_bytes() : 0;
}

// ---- requests

Status Residency::acquire(Queue& queue, std::span<const RecordId> records, Access access, Pins pins) {
  if (!transfers_) return {};
  Status status = acquire_all(queue, records, pins);
  if (!status.ok()) {
    settle();  // so that the next request sees failures of its own alone
    return status;
  }
  if (access == Access::kWrite) {
    for (const RecordId id : records) table_.entry(id).saved = false;
  }
  return {};
}

Status Residency::acquire_all(Queue& queue, std::span<const RecordId> records, Pins pins) {
  collect();
  if (pins == Pins::kReplaced) ++pins_;
  failure_ = {};
  fence_.reset();
  // First the ones that are here, so that making room for the others does not push them out.
  for (const RecordId id : records) {
    RecordEntry& e = table_.entry(id);
    e.pin = pins_;
    ++(e.state == State::kIn ? device_.n_hits : device_.n_misses);
    if (e.state == State::kIn) use(id);
  }
  for (const RecordId id : records) {
    if (table_.entry(id).state == State::kOut) QUIRE_TRY(start(queue, id, Purpose::kAcquire));
    QUIRE_TRY(failure_);
  }
  for (const RecordId id : records) {
    const RecordEntry& e = table_.entry(id);
    while (e.state != State::kIn) {
      if (e.state != State::kOut) {
        wait();
      } else if (!failure_.ok()) {
        return failure_;
      } else {  // a prefetch failed, or it was leaving
        QUIRE_TRY(start(queue, id, Purpose::kAcquire));
      }
    }
  }
  return {};
}

void Residency::prefetch(Queue& queue, std::span<const RecordId> records) noexcept {
  if (!asynchronous()) return;
  try {
    collect();
    fence_.reset();
    const int64_t record = memory_.record_bytes();
    int64_t share = (memory_.bytes() - memory_.fixed_bytes() +
                     std::clamp<int64_t>(account_.room() - staging_left(), 0, kNoLimit / 4)) /
                        record / 2 -
                    transfers_->n_in_flight();
    for (const RecordId id : records) {
      if (!table_.holds(id)) continue;
      const RecordEntry& e = table_.entry(id);
      if (e.state == State::kIn) use(id);
      if (e.state != State::kOut || !e.saved) continue;
      if (share-- <= 0 || !start(queue, id, Purpose::kPrefetch).ok()) return;
    }
  } catch (const std::exception&) {  // no memory for the request
  }
}

// Sends for a record that is out. Without a place for it a prefetch is given up, while others wait for one.
Status Residency::start(Queue& queue, RecordId id, Purpose purpose) {
  for (;;) {
    Place place;
    QUIRE_ASSIGN(const bool found, find_place(&place));
    if (found) return start_at(queue, id, place, purpose);
    if (purpose == Purpose::kPrefetch) return Status(Code::kBudget, "no place");
    if (transfers_->n_in_flight() == 0) {
      QUIRE_TRY(account_.check(account_.used() + staging_left() + memory_.record_bytes(), ""));
      continue;  // another store made room
    }
    wait();
    if (table_.entry(id).state != State::kOut) return {};
  }
}

// A free record, a record of a new page as large as the budget allows, or the place of one that may leave. Nothing was
// taken yet.
Result<bool> Residency::find_place(Place* place) {
  if (!memory_.has_free()) {
    const int64_t room = (account_.room() - staging_left()) / memory_.record_bytes();
    if (room > 0) {
      const Status added = memory_.add_page(std::min(room, page_records_)).status();
      if (!added.ok() && added.code() != Code::kBudget) return added;  // kBudget: another store was faster
    }
  }
  if (memory_.has_free()) return true;
  place->victim = oldest_unpinned();
  if (place->victim) place->memory = table_.entry(place->victim).memory;
  return bool(place->victim);
}

Status Residency::start_at(Queue& queue, RecordId id, const Place& place, Purpose purpose) {
  struct Free {  // the record of memory, until somebody has it
    RecordMemory& memory;
    RecordMemory::Slot slot;
    ~Free() {
      if (slot) memory.give_back(slot);
    }
  } free{memory_, {}};
  RecordMemory::Slot slot = place.memory;
  if (!place.victim) slot = free.slot = memory_.take();
  const bool writes = place.victim && !table_.entry(place.victim).saved;
  const bool reads = table_.entry(id).saved;
  if (writes || reads) {
    Transfer transfer;
    transfer.memory = memory_.record(slot);
    if (writes) transfer.out = end_of(place.victim);
    transfer.in = end_of(id);
    if (!reads) transfer.in.tier = nullptr;
    transfer.prefetch = purpose == Purpose::kPrefetch;
    if (!fence_) {
      QUIRE_ASSIGN(auto fence, backend_.record(queue));
      fence_ = std::move(fence);
    }
    transfer.after = fence_;
    QUIRE_TRY(submit(std::move(transfer)));
  }
  // Nothing fails from here on.
  free.slot = {};
  if (place.victim) leave(place.victim, writes ? State::kLeaving : State::kOut);
  if (place.victim && !writes) ++device_.n_evicted;
  RecordEntry& e = table_.entry(id);
  if (writes || reads) {
    e.state = State::kArriving;
    e.memory = slot;
    collect();  // without an I/O thread it is there
  } else {
    enter(id, slot);
  }
  return {};
}

Transfer::End Residency::end_of(RecordId id) {
  const RecordEntry& e = table_.entry(id);
  return {id, tiers_[static_cast<size_t>(e.tier)].get(), e.slot};
}

// ---- what came of them

Status Residency::submit(Transfer transfer) {
  const auto begin = std::chrono::steady_clock::now();
  const Status status = transfers_->submit(std::move(transfer));
  // Without an I/O thread it is done in there.
  if (!asynchronous()) device_.stall_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  return status;
}

void Residency::wait() {
  const auto begin = std::chrono::steady_clock::now();
  transfers_->wait();
  device_.stall_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
  collect();
}

void Residency::settle() {
  while (transfers_ && transfers_->n_in_flight() > 0) wait();
}

void Residency::collect() {
  Transfer done;
  while (transfers_->take_done(&done)) finish(done);
}

void Residency::finish(const Transfer& t) {
  const int64_t bytes = memory_.record_bytes();
  RecordMemory::Slot place;
  if (t.in.record) place = table_.entry(t.in.record).memory;
  if (!t.status.ok() && !t.prefetch) failure_ = t.status;
  if (t.out.tier) {
    RecordEntry& out = table_.entry(t.out.record);
    place = out.memory;
    out.memory = {};
    out.state = State::kOut;
    if (t.written) {
      out.saved = true;
      lower_[static_cast<size_t>(out.tier)].bytes_written += bytes;
      ++device_.n_evicted;
    } else {
      enter(t.out.record, place);
      place = {};
    }
  }
  if (t.in.record) {
    RecordEntry& in = table_.entry(t.in.record);
    in.memory = {};
    in.state = State::kOut;
    if (t.status.ok()) {
      if (t.in.tier) {
        lower_[static_cast<size_t>(in.tier)].bytes_read += bytes;
        ++lower_[static_cast<size_t>(in.tier)].n_hits;
      }
      device_.n_prefetched += t.prefetch ? 1 : 0;
      enter(t.in.record, place);
      return;
    }
  }
  if (place) memory_.give_back(place);
}

// ---- leaving

void Residency::drop(RecordId id) {
  RecordEntry& e = table_.entry(id);
  while (e.state == State::kArriving || e.state == State::kLeaving) wait();
  if (e.state == State::kIn) {
    const RecordMemory::Slot memory = e.memory;
    leave(id, State::kOut);
    memory_.give_back(memory);
  }
  if (e.slot >= 0) tiers_[static_cast<size_t>(e.tier)]->free_slot(e.slot);
  table_.forget(id);
}

Status Residency::shrink_for(int64_t added) {
  if (!transfers_) return {};
  failure_ = {};
  while (account_.room() < added + staging_left() && memory_.bytes() > memory_.fixed_bytes()) {
    settle();
    const int32_t page = memory_.emptiest_page();
    for (RecordId next = order_.oldest(); next;) {
      const RecordId id = next;
      next = order_.after(id);
      if (table_.entry(id).memory.page == page) QUIRE_TRY(write_out(id));
    }
    memory_.trim();
  }
  return {};
}

// Makes a record leave memory, and waits for it.
Status Residency::write_out(RecordId id) {
  RecordEntry& e = table_.entry(id);
  if (e.saved) {
    memory_.give_back(e.memory);
    leave(id, State::kOut);
    ++device_.n_evicted;
    return {};
  }
  Transfer transfer;
  transfer.memory = memory_.record(e.memory);
  transfer.out = end_of(id);
  QUIRE_TRY(submit(std::move(transfer)));
  leave(id, State::kLeaving);
  settle();
  return failure_;
}

// ---- forks

Status Residency::save_all() {
  if (!transfers_) return {};
  failure_ = {};
  for (RecordId id = order_.oldest(); id; id = order_.after(id)) {
    if (!table_.entry(id).saved) QUIRE_TRY(save(id));
  }
  return {};
}

// Writes a record that stays where it is.
Status Residency::save(RecordId id) {
  const RecordEntry& e = table_.entry(id);
  std::vector<std::byte> bytes(static_cast<size_t>(memory_.record_bytes()));
  const KvRecord at = table_.record(id);
  QUIRE_ASSIGN(const auto queue, backend_.create_queue());
  QUIRE_TRY(backend_.download(*queue, *at.page, at.offset, bytes.data(), bytes.size()));
  QUIRE_TRY(finish_queue(backend_, *queue));
  QUIRE_TRY(tiers_[static_cast<size_t>(e.tier)]->write(e.slot, bytes.data()));
  lower_[static_cast<size_t>(e.tier)].bytes_written += memory_.record_bytes();
  table_.entry(id).saved = true;
  return {};
}

void Residency::begin_as_fork(RecordTable& other) {
  other.for_held([](RecordEntry& e, const KvRecord&) { e.shared = e.slot >= 0; });
  table_.for_held([&](RecordEntry& e, KvRecord& record) {
    e.pin = 0;
    e.before = e.after = {};
    if (e.slot < 0) {
      ++n_in_;
      return;
    }
    e.state = State::kOut;
    e.memory = {};
    e.shared = true;
    record = {};
    tiers_[static_cast<size_t>(e.tier)]->share_slot(e.slot);
  });
}

void Residency::free_slots() {
  transfers_.reset();  // waits for the one that runs
  table_.for_held([&](const RecordEntry& e, const KvRecord&) {
    if (e.slot >= 0) tiers_[static_cast<size_t>(e.tier)]->free_slot(e.slot);
  });
}

void Residency::move_to(RecordId id, int8_t tier, int64_t slot) {
  RecordEntry& e = table_.entry(id);
  tiers_[static_cast<size_t>(e.tier)]->free_slot(e.slot);
  --n_in_of_[static_cast<size_t>(e.tier)];
  ++n_in_of_[static_cast<size_t>(tier)];
  e.tier = tier;
  e.slot = slot;
  e.shared = e.saved = false;
}

// From kIn. Only a record that is written keeps its place a while.
void Residency::leave(RecordId id, State state) {
  RecordEntry& e = table_.entry(id);
  if (can_leave(id)) {
    order_.remove(id);
    --n_in_of_[static_cast<size_t>(e.tier)];
  }
  --n_in_;
  table_.record(id) = {};
  e.state = state;
  if (state == State::kOut) e.memory = {};
}

void Residency::enter(RecordId id, RecordMemory::Slot memory) {
  RecordEntry& e = table_.entry(id);
  e.memory = memory;
  e.state = State::kIn;
  table_.record(id) = memory_.record(memory);
  if (can_leave(id)) {
    order_.add(id);
    ++n_in_of_[static_cast<size_t>(e.tier)];
  }
  ++n_in_;
}

void Residency::use(RecordId id) {
  if (can_leave(id)) order_.use(id);
}

RecordId Residency::oldest_unpinned() {
  RecordId id = order_.oldest();
  while (id && table_.entry(id).pin == pins_) id = order_.after(id);
  return id;
}

}  // namespace quire
