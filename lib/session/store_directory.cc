#include "lib/session/store_directory.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "lib/support/os_file.h"
#include "lib/support/os_output_file.h"

namespace quire {
namespace {

constexpr size_t kNameSize = 32;
constexpr int64_t kDirectoryByte = 0;
constexpr int64_t kWaitMs = 5;
constexpr std::string_view kSnapshot = ".quire", kText = ".text";

// Two bytes of the file of locks for each name. Names that agree in 60 bits share theirs, and only wait for each other.
int64_t lock_byte(const std::string& name, StoreDirectory::Lock lock) {
  const auto number = static_cast<int64_t>(std::stoull(name.substr(0, 15), nullptr, 16));
  return 2 + 2 * number + (lock == StoreDirectory::Lock::kWrite ? 1 : 0);
}

// What a name in the directory is.
struct FileName {
  enum class Kind { kSnapshot, kText, kTemporary, kLocks, kOther };
  Kind kind = Kind::kOther;
  std::string entry;
};

FileName parse(const std::string& name) {
  if (name == "store.lock") return {FileName::Kind::kLocks, ""};
  const std::string entry = name.substr(0, kNameSize);
  if (!StoreDirectory::is_name(entry)) return {};
  std::string_view end = std::string_view(name).substr(kNameSize);
  if (end == kSnapshot) return {FileName::Kind::kSnapshot, entry};
  if (end == kText) return {FileName::Kind::kText, entry};
  for (const std::string_view suffix : {kSnapshot, kText}) {
    if (end.starts_with(suffix) && is_temporary_end(end.substr(suffix.size()))) {
      return {FileName::Kind::kTemporary, entry};
    }
  }
  return {};
}

}  // namespace

const StoreEntry* StoreListing::find(const std::string& name) const {
  const auto found = std::ranges::find(entries, name, &StoreEntry::name);
  return found == entries.end() ? nullptr : &*found;
}

bool StoreDirectory::is_name(const std::string& text) {
  return text.size() == kNameSize && text.find_first_not_of("0123456789abcdef") == text.npos;
}

Result<StoreDirectory> StoreDirectory::open(const std::string& path, bool make) {
  StoreDirectory directory(absolute_path(path));
  const std::string locks = directory.lock_path();
  if (make) {
    QUIRE_TRY(make_directory(path));
    QUIRE_TRY(make_file(locks));
  }
  QUIRE_TRY(path_exists(locks).status());  // what cannot be looked at may well be there
  const FileFacts facts = file_facts(locks);
  if (!facts.exists) {
    QUIRE_ASSIGN(const bool is_directory, path_is_directory(path));
    return Status(Code::kNotFound, path + (is_directory ? " is no document store: it has no file store.lock"
                                                        : " is not there: no document store"));
  }
  if (!facts.is_file) return Status(Code::kIo, locks + " is not a regular file");
  return directory;
}

// ---- locks

Result<std::unique_ptr<FileLock>> StoreDirectory::try_lock(const std::string& name, Lock lock,
                                                           FileLock::Kind kind) const {
  return FileLock::try_take(lock_path(), lock_byte(name, lock), kind);
}

Result<std::unique_ptr<FileLock>> StoreDirectory::lock(const std::string& name, Lock lock, FileLock::Kind kind,
                                                       const CancelToken* cancel) const {
  return wait_for(lock_byte(name, lock), kind, cancel);
}

Result<std::unique_ptr<FileLock>> StoreDirectory::lock_directory(const CancelToken* cancel) const {
  return wait_for(kDirectoryByte, FileLock::Kind::kExclusive, cancel);
}

Result<bool> StoreDirectory::is_locked(const std::string& name, Lock lock) const {
  return FileLock::is_held(lock_path(), lock_byte(name, lock));
}

// By asking again: a wait inside the system could not be cancelled.
Result<std::unique_ptr<FileLock>> StoreDirectory::wait_for(int64_t byte, FileLock::Kind kind,
                                                           const CancelToken* cancel) const {
  for (;;) {
    QUIRE_ASSIGN(auto taken, FileLock::try_take(lock_path(), byte, kind));
    if (taken) return taken;
    if (cancel && cancel->cancelled()) return Status(Code::kCancelled, "waiting for another process was cancelled");
    wait_milliseconds(kWaitMs);
  }
}

// ---- entries

// The file's facts are those from before it was opened: if it changes meanwhile, they do not fit any more.
Result<StoredText> StoreDirectory::read_snapshot(const std::string& name) const {
  const std::string path = snapshot_path(name);
  const FileFacts facts = file_facts(path);
  QUIRE_ASSIGN(auto opened, ReadFile::open(path, false));
  QUIRE_ASSIGN(const auto file, SnapshotFile::open(std::shared_ptr<const ByteSource>(std::move(opened))));
  QUIRE_ASSIGN(StoredText text, describe_text(*file));
  text.snapshot_bytes = facts.bytes;
  text.snapshot_modified_ns = facts.modified_ns;
  return text;
}

Status StoreDirectory::refresh(const std::string& name) const {
  QUIRE_ASSIGN(const StoredText text, read_snapshot(name));
  return write_stored_text(text_path(name), text);
}

std::optional<StoreEntry> StoreDirectory::read_entry(const std::string& name, const StoredTextCache::Files& files,
                                                     int64_t looked_ns) const {
  const FileFacts &snapshot = files.snapshot, &known = files.text;
  StoreEntry entry;
  entry.name = name;
  entry.snapshot_bytes = snapshot.bytes;
  entry.bytes = snapshot.bytes + (known.is_file ? known.bytes : 0);
  entry.used_ns = known.is_file ? known.modified_ns : snapshot.modified_ns;
  if (known.is_file) {
    entry.text = known_->find(name, files);
    if (entry.text) return entry;
    auto text = read_stored_text(text_path(name));
    if (text.ok() && text.value().snapshot_bytes == snapshot.bytes &&
        text.value().snapshot_modified_ns == snapshot.modified_ns) {
      entry.text = std::make_shared<const StoredText>(std::move(*text));
      known_->keep(name, files, entry.text, looked_ns);
      return entry;
    }
  }
  auto text = read_snapshot(name);
  if (!text.ok()) {
    if (text.status().code() == Code::kNotFound) return std::nullopt;
    entry.damage = text.status();
    return entry;
  }
  entry.text = std::make_shared<const StoredText>(std::move(*text));
  const auto lock = try_lock(name, Lock::kWrite, FileLock::Kind::kExclusive);
  if (lock.ok() && lock.value() && refresh(name).ok()) {
    if (!set_modified(text_path(name), entry.used_ns).ok()) return entry;
  }
  return entry;
}

Result<StoreListing> StoreDirectory::list() const {
  StoreListing listing;
  QUIRE_ASSIGN(const auto names, list_directory(path_));
  std::string text_name;  // of the last entry that has such a file, which comes after its snapshot
  for (const std::string& name : names) {
    if (name == "." || name == ".." || name == text_name) continue;
    const FileName file = parse(name);
    const int64_t looked_ns = wall_clock_ns();
    const FileFacts facts = file_facts(path_ + "/" + name);
    if (!facts.exists) continue;
    if (file.kind == FileName::Kind::kOther || !facts.is_file) {
      listing.unknown.push_back(name);
    } else if (file.kind == FileName::Kind::kTemporary) {
      listing.bytes += facts.bytes;
    } else if (file.kind == FileName::Kind::kSnapshot) {
      const StoredTextCache::Files files = {facts, file_facts(text_path(file.entry))};
      if (files.text.is_file) text_name = file.entry + std::string(kText);
      auto entry = read_entry(file.entry, files, looked_ns);
      if (!entry) continue;
      listing.bytes += entry->bytes;
      listing.newest_use_ns = std::max(listing.newest_use_ns, entry->used_ns);
      listing.entries.push_back(std::move(*entry));
    }
  }
  std::vector<std::string_view> entries;
  for (const StoreEntry& entry : listing.entries) entries.push_back(entry.name);
  known_->keep_only(entries);
  return listing;
}

void StoreDirectory::note_use(const std::string& name, int64_t newest_use_ns) const {
  const int64_t now = std::max(wall_clock_ns(), newest_use_ns + 1);
  const std::string path = file_facts(text_path(name)).is_file ? text_path(name) : snapshot_path(name);
  [[maybe_unused]] const Status status = set_modified(path, now);
}

Status StoreDirectory::remove(const std::string& name) const {
  QUIRE_TRY(remove_file(snapshot_path(name)));
  return remove_file(text_path(name));
}

void StoreDirectory::clean() const {
  const auto names = list_directory(path_);
  if (!names.ok()) return;
  for (const std::string& name : names.value()) {
    const FileName file = parse(name);
    const bool temporary = file.kind == FileName::Kind::kTemporary;
    const bool orphan = file.kind == FileName::Kind::kText && !file_facts(snapshot_path(file.entry)).exists;
    if ((!temporary && !orphan) || !file_facts(path_ + "/" + name).is_file) continue;
    const auto lock = try_lock(file.entry, Lock::kWrite, FileLock::Kind::kExclusive);
    if (!lock.ok() || !lock.value()) continue;
    if (orphan && file_facts(snapshot_path(file.entry)).exists) continue;
    [[maybe_unused]] const Status status = remove_file(path_ + "/" + name);
  }
}

}  // namespace quire
