// The directory of a document store: which entries it has, and the locks that processes hold on them.
//
// An entry NAME (32 hexadecimal digits) is a snapshot, NAME.quire, and what is known of it without opening that,
// NAME.text (stored_text.h). Bytes of the file store.lock, which has none, are the locks: of the directory, and two of
// each entry. Its use lock is held shared by whoever reads or writes the entry, and exclusively by who removes it to
// make room. Its write lock is held by who writes it, or removes it. Locks are taken in the order write, use,
// directory. Everything else in the directory is not the store's, and is left alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/session/stored_text.h"
#include "lib/session/stored_text_cache.h"
#include "lib/support/cancel.h"
#include "lib/support/os_directory.h"
#include "lib/support/os_file_lock.h"
#include "lib/support/status.h"

namespace quire {

struct StoreEntry {
  std::string name;
  StoredTextCache::Shared text;  // null: the entry is damaged
  Status damage;                 // of its snapshot
  int64_t bytes = 0;
  int64_t snapshot_bytes = 0;  // of those
  int64_t used_ns = 0;         // when it was last put or loaded; see StoreDirectory::note_use
};

struct StoreListing {
  std::vector<StoreEntry> entries;   // by name
  std::vector<std::string> unknown;  // names of what is not the store's
  int64_t bytes = 0;                 // of the entries, and of what is being written
  int64_t newest_use_ns = 0;

  const StoreEntry* find(const std::string& name) const;
};

// What is kept here of the directory counts only while its files are unchanged, so that any thread may use this, and
// any process the directory.
class StoreDirectory {
 public:
  enum class Lock { kUse, kWrite };

  // make: the directory and its file of locks are made where they are missing. Errors: kNotFound: there is no store;
  // kIo.
  static Result<StoreDirectory> open(const std::string& path, bool make);

  const std::string& path() const { return path_; }
  std::string snapshot_path(const std::string& name) const { return path_ + "/" + name + ".quire"; }
  std::string text_path(const std::string& name) const { return path_ + "/" + name + ".text"; }
  static bool is_name(const std::string& text);

  // Null: another one holds a lock that excludes this one.
  Result<std::unique_ptr<FileLock>> try_lock(const std::string& name, Lock lock, FileLock::Kind kind) const;
  // Waits for it. kCancelled; cancel: may be null.
  Result<std::unique_ptr<FileLock>> lock(const std::string& name, Lock lock, FileLock::Kind kind,
                                         const CancelToken* cancel) const;
  Result<std::unique_ptr<FileLock>> lock_directory(const CancelToken* cancel) const;
  // Whether someone holds it, shared or not.
  Result<bool> is_locked(const std::string& name, Lock lock) const;

  // What is known of an entry is read from its snapshot where it is missing, damaged or out of date, and then kept, if
  // that can be done. Of an entry whose files are as they were for the last listing nothing is read. Errors: kIo,
  // kNotFound: the directory cannot be read.
  Result<StoreListing> list() const;
  // Makes what is known of an entry anew; the caller has its write lock. Errors: those of files, kBadFile.
  Status refresh(const std::string& name) const;
  // The entry was used after all that were used before, whatever the system's clock says. If the time cannot be
  // written, it stays as it was.
  void note_use(const std::string& name, int64_t newest_use_ns) const;
  // The caller has its write lock, or its use lock exclusively. Errors: kIo.
  Status remove(const std::string& name) const;
  // Removes what killed processes left behind. What cannot be removed stays.
  void clean() const;

 private:
  explicit StoreDirectory(std::string path) : path_(std::move(path)) {}
  std::string lock_path() const { return path_ + "/store.lock"; }
  Result<std::unique_ptr<FileLock>> wait_for(int64_t byte, FileLock::Kind kind, const CancelToken* cancel) const;
  Result<StoredText> read_snapshot(const std::string& name) const;
  // files: its own, looked at after looked_ns; the snapshot is a file. Nothing: it was removed meanwhile.
  std::optional<StoreEntry> read_entry(const std::string& name, const StoredTextCache::Files& files,
                                       int64_t looked_ns) const;

  std::string path_;
  std::shared_ptr<StoredTextCache> known_ = std::make_shared<StoredTextCache>();
};

}  // namespace quire
