// Which records of the stores of one device are in its memory: brought there on request, and given to lower tiers when
// a budget is reached.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/kv/record.h"
#include "lib/kv/record_table.h"
#include "lib/kv/tier.h"
#include "lib/kv/tier_budget.h"
#include "lib/kv/transfers.h"
#include "lib/support/mutex.h"

namespace quire {

// What becomes of the records that are pinned when others are asked for.
enum class Pins { kReplaced, kKept };

// Records in memory whose bytes count in one account, and which can leave it, in the order of their use.
struct OwnedRecords {
  TierAccount& account;
  RecordUser* user;  // null: of the records that count for no store
  Record* oldest = nullptr;
  Record* newest = nullptr;
  // Where the search for one that may leave begins, from either end: all before the first are pinned, and none behind
  // the second is_newest_victim(). Null: that holds for all. So a request that brings many records passes by those that
  // it has brought once, not for each of them.
  Record* look_from_oldest = nullptr;
  Record* look_from_newest = nullptr;
  int64_t bytes = 0;
  int64_t n_leaving = 0;  // records that were in here and are being written, or whose memory is being released
};

// Records with slots that are not in memory.
struct RecordsOut {
  int64_t n = 0;
  int64_t n_in_snapshot = 0;  // of these, those that a snapshot has
};

// One store, as the residency sees it. The store makes it and calls the residency with it, one thread at a time; what
// is not const here is the residency's, under its mutex.
class RecordUser {
 public:
  // The references must outlive it. record_bytes: of its largest records.
  RecordUser(Backend& backend, TierAccount& account, std::span<const std::shared_ptr<Tier>> tiers, int64_t record_bytes)
      : backend_(backend),
        account_(account),
        tiers_(tiers),
        record_bytes_(record_bytes),
        owned_{account, this},
        lower_(tiers.size() + 1) {}
  RecordUser(const RecordUser&) = delete;
  RecordUser& operator=(const RecordUser&) = delete;

 private:
  friend class Residency;

  Backend& backend_;
  TierAccount& account_;  // of its part of device memory
  std::span<const std::shared_ptr<Tier>> tiers_;
  const int64_t record_bytes_;
  std::unique_ptr<Transfers> transfers_;  // null: all its records are fixed
  std::unique_ptr<Transfers> behind_;  // of write_behind(), so that nobody waits for what that has queued; null: none
  IoThreads* io_ = nullptr;

  OwnedRecords owned_;
  std::vector<Record*> pinned_;  // by its last requests
  bool pins_all_ = false;        // all that it holds, by pin_all(); then pinned_ is empty
  int64_t n_slots_ = 0;          // records with slots that it holds
  RecordsOut out_;               // of these
  uint64_t n_changes_ = 0;       // how often one of them came, left, was held or let go
  bool ready_ = false;           // it has its staging buffer
  bool computes_ = false;        // it has asked for records since release()
  bool rests_ = true;            // no stream works on the session
  bool kept_ = false;            // there is no session: its records are the first to leave
  uint64_t step_began_ = 0;      // as a record's used_at
  uint64_t step_before_began_ = 0;
  uint64_t pinned_all_at_ = 0;          // likewise; 0: never
  int64_t layer_ = -1;                  // of its last request in this step
  std::shared_ptr<const Fence> fence_;  // after the work on what it had pinned; null: there is none
  int64_t n_in_transit_ = 0;            // its transfers, but for those of behind_
  int64_t n_saving_ = 0;                // of behind_
  Status failure_;                      // of its transfer that was no prefetch, since the last acquire() began
  TierStats device_;                    // hits, misses, evictions, stall
  std::vector<TierStats> lower_;        // by tier; the last: those of other users, whose chunks it shares
};

// Memory belongs to records, and a record's memory counts for one store, its owner: the one that brought it there. A
// store that asks for a record which a fork has in memory finds it there, at no cost. When the owner is gone, the
// record counts for the runtime alone until another store that holds it uses it.
//
// What a store has asked for is pinned until it asks for something else: it leaves memory neither for a request nor for
// a prefetch. Of the records that are in and not pinned leaves, when a store needs room:
// - if its own budget is reached, one of its own (below);
// - else, of those that are kept of released sessions, the one that was used longest ago;
// - else, of those that count for nobody or for sessions that rest (no stream is open), the one that was used longest
//   ago;
// - else one of the session that has most. So no session that works is pushed below an equal share of the runtime's
//   budget by others.
// Of its own that is the one used longest ago, unless this step is likely to need that one: the step before used it, in
// a layer that is still to come. Then steps read more than memory holds, layer by layer, and much of it again and again
// in the same order. So the one leaves that this step used last, which is needed again latest; but for what is not
// written yet and what was prefetched. Of others' it is the one used longest ago.
// What came for a scan (Access) counts as not used yet: of its owner's it is the first to leave.
//
// A record that leaves has to be written first if its slot is not up to date, and who needs its memory waits for that.
// So records are written before they have to leave (write_behind), once they are complete: as many of those that leave
// next as are missing to an eighth of the budget that is free. What fits into seven eighths of its budget copies
// nothing. It goes to the host's memory alone, as far as there is room, in the background, on a queue of its own.
//
// The bytes of a record are in memory or in its slot, or both, at any time. One that cannot be written stays in memory,
// and is written when its place is wanted again. One that cannot be read is out, and is read when it is asked for
// again.
//
// Where all that a store holds is in memory and the budgets have an eighth to spare, there is nothing to decide: it
// pins everything for a step (pin_all), which takes no longer for more records.
//
// Memory counts in an account before it is allocated, and until it is released: nobody takes its place in the budget
// while it is there.
//
// A device with memory of its own may have less than the budgets allow. What it has left is then a limit too, which is
// looked at now and then; and where memory cannot be allocated, that of other records is taken.
//
// Any thread; each user is one thread's at a time. Nothing is read, written, allocated or released while the mutex is
// held.
class Residency final : private TransferListener {
 public:
  // limit_bytes: of the device memory of all users together; 0: no limit.
  explicit Residency(int64_t limit_bytes = 0) : Residency(std::make_shared<TierBudget>(limit_bytes)) {}
  // The same, of an account that others may count in as well.
  explicit Residency(std::shared_ptr<TierBudget> budget)
      : budget_(std::move(budget)), unowned_account_("of memory", 0, budget_), unowned_{unowned_account_, nullptr} {}
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  const std::shared_ptr<TierBudget>& budget() const { return budget_; }

  // ---- users
  void add(RecordUser& user);
  // It will hold records with slots. io: may be null. kOutOfMemory.
  Status let_spill(RecordUser& user, IoThreads* io);
  // Gives up what it has asked for and what has not begun.
  void stop(RecordUser& user);
  // It was stopped, and holds no record any more. Waits for what it has asked for.
  void remove(RecordUser& user);
  // Whether it may hold records with slots.
  static bool spills(const RecordUser& user) { return user.transfers_ != nullptr; }
  static bool asynchronous(const RecordUser& user) { return user.transfers_ && user.transfers_->asynchronous(); }
  // Bytes that must stay free for its staging buffer.
  static int64_t staging_left(const RecordUser& user) { return user.transfers_ ? user.transfers_->staging_left() : 0; }

  // ---- chunks
  // The user, who made it, holds it.
  void hold(RecordUser& user, ChunkRecords& chunk);
  // `other` holds each of the chunks too, once more if it did before: of its text, and for a move. All or, at an
  // exception, none.
  void share(std::span<ChunkRecords* const> chunks, RecordUser& other);
  // How many users hold it.
  int64_t n_holders(const ChunkRecords& chunk) const;
  // The user holds it once less; with its last holder it is gone, and its slots are free. Waits for records on their
  // way. Nothing works on what the user had pinned.
  void let_go(RecordUser& user, ChunkRecords& chunk);

  // ---- requests
  // Brings the records, which the user holds, into memory and pins them. `queue`: where work on what memory holds is
  // queued. kWrite: the user alone holds them, and changes them. kIo, kOutOfMemory, kBudget: nothing is lost, and
  // nothing of this user is pinned.
  Status acquire(RecordUser& user, Queue& queue, std::span<Record* const> records, Access access, Pins pins);
  // Pins all that the user holds until release(), if all of it is in memory, and the budgets have their spare bytes so
  // that other users find room meanwhile. Then acquire() has nothing to bring, and is called for what is changed.
  // Records of `fresh` chunks (is_fresh) get memory for it. *changes: as long as it is the same
  // number, the records lie where they lay. False: nothing is pinned.
  bool pin_all(RecordUser& user, std::span<ChunkRecords* const> fresh, uint64_t* changes);
  // Begins to bring the records into memory, the first ones first, as far as half of what the user can have and what is
  // not pinned suffice. What fails is as if it had not been asked for.
  void prefetch(RecordUser& user, std::span<Record* const> records, Access access) noexcept;
  // Nothing more will be queued on what is pinned: it can leave when `fence`, which is behind that work, is done.
  void release(RecordUser& user, std::shared_ptr<const Fence> fence) noexcept;
  // The same where all of the work is in `queue`.
  void release(RecordUser& user, Queue& queue) noexcept;
  // The session's records are the first to leave until it asks for some again.
  void rest(RecordUser& user);
  // There is no session any more that could. Of its tiers the user keeps the first n_tiers.
  void keep(RecordUser& user, size_t n_tiers);
  // Records leave memory until `bytes` more fit into the user's account, beside its staging buffer, or none is left
  // that may. kIo: so far as it came.
  Status make_room(RecordUser& user, int64_t bytes);
  // The same where the device had no memory for them. False: no record has left.
  bool make_room_on_device(RecordUser& user, int64_t bytes);
  // Records that count for nobody or for sessions that rest leave memory, until so many bytes are released or none is
  // left that may: for what is no record, as the weights of another model. It stays theirs until the device is looked
  // at the next time. Whether any has left.
  bool give_back(Backend& backend, int64_t bytes);
  // Nothing will be written to the chunk's records any more, unless the text is cut.
  void complete(ChunkRecords& chunk);
  // Begins to write complete records that leave next and are not written yet, as many as a budget of the user's asks
  // for. They stay in memory; what fails is written when it leaves. Without an I/O thread it does nothing.
  void write_behind(RecordUser& user) noexcept;
  // At the beginning of a step. Where an allocation failed, asks the device what it has left: it may be more now.
  void begin_step(RecordUser& user);
  // Asks the device at once. Whether it has more room than was known.
  bool look_again(RecordUser& user);
  // Copies a record that the user holds to the host, from where it is.
  Status read(RecordUser& user, Queue& queue, Record& record, std::span<std::byte> out);

  // ---- what it has come to
  // Bytes that all records of other users hold, which can leave.
  int64_t reclaimable(const RecordUser& user) const;
  // Records of the user's largest size that it can have in memory together.
  int64_t capacity(const RecordUser& user) const;
  TierStats device_stats(const RecordUser& user) const;
  TierStats tier_stats(const RecordUser& user, size_t tier) const;
  bool is_in(const Record& record) const;
  // Whether nobody has written to any of its records, which have slots, nor asked for one.
  bool is_fresh(const ChunkRecords& chunk) const;
  // Of the records that the user holds.
  RecordsOut n_out(const RecordUser& user) const;
  // How many records were looked at to find some that leave.
  int64_t n_looked_at() const;

 private:
  using State = Record::State;

  enum class Purpose { kAcquire, kPrefetch, kGuess };  // kGuess: a prefetch of what is only likely

  // Memory that a record has got, and the record that is to be written from it first.
  struct Place {
    bool found = false;
    Record* victim = nullptr;
    OwnedRecords* victim_owner = nullptr;
    std::shared_ptr<const Fences> after;
  };

  void finished(const Transfer& transfer) noexcept override;
  Status prepare(RecordUser& user);
  bool make_fresh(RecordUser& user, std::span<ChunkRecords* const> chunks) QUIRE_REQUIRES(mutex_);
  void look_at_device(const Backend& backend);
  void run_short(int64_t bytes);
  void change(RecordUser& user, std::span<Record* const> records) QUIRE_EXCLUDES(mutex_);
  void pin(RecordUser& user, std::span<Record* const> records, Access access, Pins pins) QUIRE_REQUIRES(mutex_);
  Status bring(RecordUser& user, std::span<Record* const> records, Access access) QUIRE_REQUIRES(mutex_);
  Status start(RecordUser& user, Record& record, Access access, Purpose purpose) QUIRE_REQUIRES(mutex_);
  Status start_claimed(RecordUser& user, Record& record, Access access, Purpose purpose) QUIRE_REQUIRES(mutex_);
  Result<Place> take_place(RecordUser& user, Record& record, Purpose purpose) QUIRE_REQUIRES(mutex_);
  // These let go of the mutex for a moment.
  void finish(const Transfer& transfer) QUIRE_REQUIRES(mutex_);
  Result<std::unique_ptr<Buffer>> allocate(RecordUser& user, int64_t bytes) QUIRE_REQUIRES(mutex_);
  void free(std::unique_ptr<Buffer> memory, OwnedRecords& owner, const Fences* after = nullptr) QUIRE_REQUIRES(mutex_);
  Status submit(Transfers& by, Transfer transfer) QUIRE_REQUIRES(mutex_);
  void run_transfers(Transfers& by, RecordUser& user) QUIRE_REQUIRES(mutex_);
  void write_oldest(RecordUser& user, const OwnedRecords& owned, const std::shared_ptr<const Fences>& after,
                    int64_t* bytes, int64_t* n_looked) QUIRE_REQUIRES(mutex_);
  void finish_saving(const Transfer& transfer) QUIRE_REQUIRES(mutex_);
  Status push_out(RecordUser& user, Record& victim) QUIRE_REQUIRES(mutex_);
  std::shared_ptr<const Fences> fences() QUIRE_REQUIRES(mutex_);
  void wait(RecordUser& user) QUIRE_REQUIRES(mutex_);
  bool may_wait(const RecordUser& user) const QUIRE_REQUIRES(mutex_);
  void settle(RecordUser& user) QUIRE_REQUIRES(mutex_);

  static void count_slots(RecordUser& user, const ChunkRecords& chunk, int64_t times);
  static void count_out(const Record& record, int64_t n);
  static void count_out(RecordUser& user, const ChunkRecords& chunk, int64_t n);
  static bool pins(const RecordUser& user) { return user.pins_all_ || !user.pinned_.empty(); }
  void unpin(RecordUser& user) QUIRE_REQUIRES(mutex_);
  static void unpin(Record& record);
  static void consider_again(Record& record);
  void enter(Record& record, OwnedRecords& owner, bool scan = false) QUIRE_REQUIRES(mutex_);
  void append(OwnedRecords& owner, Record& record) QUIRE_REQUIRES(mutex_);
  static void put_first(OwnedRecords& owner, Record& record);
  void use(RecordUser& user, Record& record) QUIRE_REQUIRES(mutex_);
  static void unlink(Record& record);
  static bool can_move(const RecordUser& user, const Record& record);
  static RecordUser* writer(RecordUser& user, const Record& record);
  static bool may_leave(RecordUser& user, const Record& record);
  Record* oldest_that_may_leave(RecordUser& user, OwnedRecords& owned) QUIRE_REQUIRES(mutex_);
  Record* own_victim(RecordUser& user) QUIRE_REQUIRES(mutex_);
  static bool is_newest_victim(const Record& record);
  static bool needed_soon(const RecordUser& user, const Record& record);
  Record* choose_idle(RecordUser& user) QUIRE_REQUIRES(mutex_);
  Record* choose_victim(RecordUser& user, int64_t bytes) QUIRE_REQUIRES(mutex_);
  int64_t capacity_of(const RecordUser& user) const QUIRE_REQUIRES(mutex_);
  static RecordUser& charged(const Record& record, const OwnedRecords& owner);
  static TierStats& lower(RecordUser& user, const Record& record);

  const std::shared_ptr<TierBudget> budget_;
  std::atomic<int64_t> looked_at_ns_{0};  // when the device was asked what it has left; 0: never
  std::atomic<bool> ran_short_{false};    // it has failed to allocate since the last step began
  TierAccount unowned_account_;
  mutable Mutex mutex_;
  CondVar changed_;  // notified when a transfer or a read() is finished, and when records are not pinned any more
  OwnedRecords unowned_ QUIRE_GUARDED_BY(mutex_);  // of stores that let them go, while others hold them
  std::vector<RecordUser*> users_ QUIRE_GUARDED_BY(mutex_);
  uint64_t clock_ QUIRE_GUARDED_BY(mutex_) = 0;
  int64_t n_looked_at_ QUIRE_GUARDED_BY(mutex_) = 0;
  int64_t n_in_transit_ QUIRE_GUARDED_BY(mutex_) = 0;  // transfers, of write_behind() too
  int64_t n_reading_ QUIRE_GUARDED_BY(mutex_) = 0;     // read() calls that copy from memory
  int64_t n_releasing_ QUIRE_GUARDED_BY(mutex_) = 0;   // calls that release memory, which counts until they have
};

}  // namespace quire
