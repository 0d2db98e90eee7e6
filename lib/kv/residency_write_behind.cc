// Records that are written before they have to leave: the Residency's part of write-behind.
#include <algorithm>
#include <exception>
#include <utility>

#include "lib/kv/residency.h"

namespace quire {
namespace {

// So many records are looked at after a step, so that looking takes no time to speak of. A step makes fewer.
constexpr int64_t kMostLooked = 4096;

}  // namespace

void Residency::complete(ChunkRecords& chunk) {
  MutexLock lock(mutex_);
  chunk.complete = true;
}

void Residency::write_behind(RecordUser& user) noexcept {
  if (!asynchronous(user)) return;
  const int64_t own = user.account_.own_shortage();
  int64_t bytes = std::max(own, budget_->shortage());
  if (bytes == 0) return;
  try {
    if (!user.behind_) {
      auto made = Transfers::create(user.backend_, user.account_, user.record_bytes_, user.io_, *this);
      if (!made.ok()) return;
      user.behind_ = std::move(*made);
    }
    int64_t n_looked = 0;
    MutexLock lock(mutex_);
    const auto after = fences();
    // In the order of choose_victim(), as far as it is known beforehand.
    if (own == 0) {
      for (RecordUser* const other : users_) {
        if (other->kept_) write_oldest(user, other->owned_, after, &bytes, &n_looked);
      }
      write_oldest(user, unowned_, after, &bytes, &n_looked);
      for (RecordUser* const other : users_) {
        if (other != &user && other->rests_ && !other->kept_) {
          write_oldest(user, other->owned_, after, &bytes, &n_looked);
        }
      }
    }
    write_oldest(user, user.owned_, after, &bytes, &n_looked);
    run_transfers(*user.behind_, user);
  } catch (const std::exception&) {  // what was not begun is written when it leaves
  }
}

// Of the first ones of the list, which are to have *bytes that can leave at once. What came for a scan does not count:
// it leaves at once, but its place is wanted by what the scan reads next.
void Residency::write_oldest(RecordUser& user, const OwnedRecords& owned, const std::shared_ptr<const Fences>& after,
                             int64_t* bytes, int64_t* n_looked) {
  for (Record* record = owned.oldest; record && *bytes > 0 && *n_looked < kMostLooked; record = record->after) {
    ++*n_looked;
    if (record->used_at == 0) continue;
    *bytes -= record->chunk->record_bytes;
    if (record->saved || record->saving || !record->chunk->complete) continue;
    if (&record->chunk->holders.front()->backend_ != &user.backend_) continue;
    if (!record->tier->can_write_behind(record->slot)) continue;
    Transfer transfer;
    transfer.memory = record->memory.get();
    transfer.out = record;
    transfer.writes = true;
    transfer.stays = true;
    transfer.prefetch = true;
    transfer.user = &user;
    transfer.after = after;
    record->saving = true;
    if (!submit(*user.behind_, std::move(transfer)).ok()) return;
  }
}

void Residency::finish_saving(const Transfer& t) {
  Record& record = *t.out;
  record.saving = false;
  if (t.written) {
    RecordUser& whose = charged(record, *record.owner);
    record.saved = true;
    consider_again(record);
    ++whose.device_.n_written_behind;
    lower(whose, record).bytes_written += record.chunk->record_bytes;
  }
  --n_in_transit_;
  --t.user->n_saving_;
  changed_.notify_all();
}

}  // namespace quire
