#include "lib/kv/record_memory.h"

#include <utility>

namespace quire {

Result<int32_t> RecordMemory::add_page(int64_t n, PageKind kind) {
  Page made;
  made.next_free.resize(static_cast<size_t>(n));
  for (int64_t r = 0; r < n; ++r) made.next_free[static_cast<size_t>(r)] = static_cast<int32_t>(r + 1 < n ? r + 1 : -1);
  made.first_free = 0;
  made.fixed = kind == PageKind::kFixed;
  if (unused_.empty()) {
    pages_.emplace_back();
    unused_.reserve(pages_.capacity());
    unused_.push_back(static_cast<int32_t>(pages_.size()) - 1);
  }
  QUIRE_ASSIGN(made.buffer, account_.allocate_shared(backend_, n * record_bytes_, MemoryKind::kDevice));
  const int32_t number = unused_.back();
  unused_.pop_back();
  page(number) = std::move(made);
  if (kind == PageKind::kOpen) open(number);
  ++n_empty_;
  bytes_ += n * record_bytes_;
  if (kind == PageKind::kFixed) fixed_bytes_ += n * record_bytes_;
  return number;
}

void RecordMemory::share(RecordMemory& other, Share which) {
  for (Page& page : other.pages_) {
    if (page.buffer && (page.fixed || which == Share::kAllPages)) page.shared = true;
  }
  pages_ = other.pages_;
  unused_.reserve(pages_.capacity());
  for (size_t number = 0; number < pages_.size(); ++number) {
    Page& page = pages_[number];
    if (page.shared) {
      const auto bytes = static_cast<int64_t>(page.buffer->size());
      account_.hold_shared(bytes);
      bytes_ += bytes;
      if (page.fixed) fixed_bytes_ += bytes;
    } else {
      page = Page();
      unused_.push_back(static_cast<int32_t>(number));
    }
  }
}

Status RecordMemory::own(int32_t number) {
  QUIRE_TRY(account_.own(backend_, page(number).buffer));
  page(number).shared = false;
  return {};
}

RecordMemory::Slot RecordMemory::take_from(int32_t number) {
  Page& from = page(number);
  const int32_t index = from.first_free;
  from.first_free = from.next_free[static_cast<size_t>(index)];
  if (from.n_taken++ == 0) --n_empty_;
  if (from.first_free < 0 && !from.fixed) close(number);
  return {number, index};
}

void RecordMemory::give_back(Slot slot) {
  Page& to = page(slot.page);
  if (to.first_free < 0 && !to.fixed) open(slot.page);
  to.next_free[static_cast<size_t>(slot.index)] = to.first_free;
  to.first_free = slot.index;
  if (--to.n_taken == 0) ++n_empty_;
}

void RecordMemory::trim() {
  for (int32_t number = 0; n_empty_ > 0; ++number) {
    Page& empty = page(number);
    if (!empty.buffer || empty.n_taken > 0) continue;
    if (!empty.fixed) close(number);
    const int64_t bytes = static_cast<int64_t>(empty.next_free.size()) * record_bytes_;
    if (empty.fixed) fixed_bytes_ -= bytes;
    empty = Page();
    account_.let_go_shared(bytes);
    bytes_ -= bytes;
    unused_.push_back(number);
    --n_empty_;
  }
}

int32_t RecordMemory::emptiest_page() const {
  int32_t best = -1;
  for (size_t p = 0; p < pages_.size(); ++p) {
    if (!pages_[p].buffer || pages_[p].fixed) continue;
    if (best < 0 || pages_[p].n_taken < pages_[static_cast<size_t>(best)].n_taken) best = static_cast<int32_t>(p);
  }
  return best;
}

// Puts a page before the others that have a free record.
void RecordMemory::open(int32_t number) {
  Page& opened = page(number);
  opened.before = -1;
  opened.after = first_open_;
  if (first_open_ >= 0) page(first_open_).before = number;
  first_open_ = number;
}

void RecordMemory::close(int32_t number) {
  Page& closed = page(number);
  if (closed.after >= 0) page(closed.after).before = closed.before;
  (closed.before >= 0 ? page(closed.before).after : first_open_) = closed.after;
}

}  // namespace quire
