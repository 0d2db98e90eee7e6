// Device memory for the KV records of one store, in pages that hold several records each.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/tier_budget.h"
#include "lib/support/status.h"

namespace quire {

// A page is allocated as a whole and released as a whole. A record of a page is free or taken; pages with a free record
// form a list, and so do the free records of a page. Fixed pages are not in it: their records are taken from a page
// that the caller names, and never leave it for another one. The lists run through the pages themselves, so taking a
// record and giving it back never allocate. One thread at a time.
//
// A fork shares pages with the memory that it was made from. What lies in a shared page does not change: own() gives a
// page a copy of its own before.
class RecordMemory {
 public:
  // A record's place; page < 0: none.
  struct Slot {
    int32_t page = -1;
    int32_t index = -1;
    explicit operator bool() const { return page >= 0; }
  };

  // Pages are counted in the account. It and the backend must outlive this.
  RecordMemory(Backend& backend, TierAccount& account, int64_t record_bytes)
      : backend_(backend), account_(account), record_bytes_(record_bytes) {}

  enum class PageKind { kOpen, kFixed };

  // An empty memory becomes one that shares pages with `other`, under the same numbers: all of them, whose records are
  // all taken, or the fixed ones only.
  enum class Share { kAllPages, kFixedPages };
  void share(RecordMemory& other, Share which);
  // Whether a fork had the page too when it was made. It stays so when the fork is gone: nobody asks other threads.
  bool is_shared(int32_t page) const { return pages_[static_cast<size_t>(page)].shared; }
  // A copy takes the place of a shared page. kBudget, kOutOfMemory: nothing was changed.
  Status own(int32_t page);

  // Allocates a page of n free records, and returns its number. kBudget, kOutOfMemory: nothing was changed.
  Result<int32_t> add_page(int64_t n, PageKind kind = PageKind::kOpen);
  bool has_free() const { return first_open_ >= 0; }
  // Takes a free record of any page, which there is.
  Slot take() { return take_from(first_open_); }
  // Takes a free record of that page, which it has.
  Slot take_from(int32_t page);
  void give_back(Slot slot);
  // Releases the pages of which no record is taken.
  void trim();
  // The page of which the fewest records are taken, among those that are not fixed; -1: there is none.
  int32_t emptiest_page() const;

  KvRecord record(Slot slot) const {
    return {pages_[static_cast<size_t>(slot.page)].buffer.get(),
            static_cast<size_t>(slot.index) * static_cast<size_t>(record_bytes_)};
  }
  int64_t record_bytes() const { return record_bytes_; }
  // Of all pages, their free records included.
  int64_t bytes() const { return bytes_; }
  int64_t fixed_bytes() const { return fixed_bytes_; }

 private:
  struct Page {
    std::shared_ptr<Buffer> buffer;  // null: released, and the number can be used again
    std::vector<int32_t> next_free;  // by record: the next free one; -1: the last
    int32_t first_free = -1;         // -1: every record is taken
    int32_t n_taken = 0;
    bool fixed = false;
    bool shared = false;
    int32_t before = -1, after = -1;  // in the list of pages with a free record
  };
  Page& page(int32_t number) { return pages_[static_cast<size_t>(number)]; }
  void open(int32_t number);
  void close(int32_t number);

  Backend& backend_;
  TierAccount& account_;
  int64_t record_bytes_;
  std::vector<Page> pages_;
  std::vector<int32_t> unused_;  // numbers of released pages; its capacity is that of pages_
  int32_t first_open_ = -1;
  int64_t n_empty_ = 0;  // pages of which no record is taken
  int64_t bytes_ = 0;
  int64_t fixed_bytes_ = 0;  // of those, of fixed pages
};

}  // namespace quire
