// What a store knows of its entries, kept in memory from one listing to the next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/session/stored_text.h"
#include "lib/support/mutex.h"
#include "lib/support/os_directory.h"

namespace quire {

// Each text belongs to the two files of an entry as they were when it was read: other processes change them at any
// time, so it counts only as long as nothing of these facts has changed. Any thread.
class StoredTextCache {
 public:
  using Shared = std::shared_ptr<const StoredText>;
  struct Files {
    FileFacts snapshot, text;
    bool operator==(const Files&) const = default;
  };
  static constexpr int64_t kMostBytes = int64_t{1} << 28;
  // A system's times of files go in steps. A file that was changed less than this before it was looked at may change
  // again and keep its time, so that its text is not kept.
  static constexpr int64_t kSettledNs = 20'000'000;

  explicit StoredTextCache(int64_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}
  // Null: it is not known.
  Shared find(const std::string& name, const Files& files) const;
  // looked_ns: the clock before `files` were looked at, which was before the text was read. What does not fit into
  // most_bytes beside the others is not kept: each listing goes over all entries, and would find none of those that it
  // needs next if the oldest had to leave.
  void keep(const std::string& name, const Files& files, Shared text, int64_t looked_ns);
  // Drops all but these, which are sorted.
  void keep_only(std::span<const std::string_view> names);

 private:
  struct Known {
    Files files;
    Shared text;
    int64_t bytes;
  };
  using Texts = std::map<std::string, Known>;

  const int64_t most_bytes_;
  mutable Mutex mutex_;
  Texts texts_ QUIRE_GUARDED_BY(mutex_);
  int64_t bytes_ QUIRE_GUARDED_BY(mutex_) = 0;  // of all texts_
};

}  // namespace quire
