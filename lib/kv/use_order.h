// The records in device memory that can leave it, in the order of their use.
#pragma once

#include "lib/kv/record_table.h"

namespace quire {

// A list that runs through the table's entries: nothing is allocated. One thread at a time.
class UseOrder {
 public:
  explicit UseOrder(RecordTable& table) : table_(table) {}

  RecordId oldest() const { return oldest_; }
  RecordId after(RecordId id) { return table_.entry(id).after; }
  // A record that is not in the list becomes the last used.
  void add(RecordId id) {
    RecordEntry& e = table_.entry(id);
    e.before = newest_;
    e.after = {};
    (newest_ ? table_.entry(newest_).after : oldest_) = id;
    newest_ = id;
  }
  void remove(RecordId id) {
    RecordEntry& e = table_.entry(id);
    (e.before ? table_.entry(e.before).after : oldest_) = e.after;
    (e.after ? table_.entry(e.after).before : newest_) = e.before;
    e.before = e.after = {};
  }
  void use(RecordId id) {
    remove(id);
    add(id);
  }

 private:
  RecordTable& table_;
  RecordId oldest_, newest_;
};

}  // namespace quire
