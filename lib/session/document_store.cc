#include "lib/session/document_store.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lib/session/describe_snapshot.h"
#include "lib/support/os_file.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

using Lock = StoreDirectory::Lock;
using Kind = FileLock::Kind;

// Of entries that have equally much of a text: the others may have less of it in the KV cache.
constexpr int kMostTried = 4;

// An entry's snapshot, which nobody removes to make room while this is there.
class EntrySource : public ByteSource {
 public:
  EntrySource(std::unique_ptr<ReadFile> file, std::unique_ptr<FileLock> lock)
      : lock_(std::move(lock)), file_(std::move(file)) {}
  const std::string& name() const override { return file_->name(); }
  int64_t size() const override { return file_->size(); }
  Status read_at(int64_t offset, std::span<std::byte> out) const override { return file_->read_at(offset, out); }
  int64_t size_now() const override { return file_->size_now(); }
  bool is_being_appended() const override { return file_->is_being_appended(); }
  void will_read(int64_t offset, int64_t n_bytes) const override { file_->will_read(offset, n_bytes); }

 private:
  const std::unique_ptr<FileLock> lock_;
  const std::unique_ptr<ReadFile> file_;
};

Status check_name(const std::string& name) {
  if (StoreDirectory::is_name(name)) return {};
  return Status(Code::kInvalidArgument,
                "\"" + utf8_sanitize(name.substr(0, 100)) + "\" names no entry: expected 32 hexadecimal digits");
}

int64_t count_equal(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

bool begins_with(std::span<const int32_t> text, std::span<const int32_t> begin) {
  return count_equal(begin, text) == static_cast<int64_t>(begin.size());
}

std::string count(int64_t n, const char* one, const char* more) { return std::to_string(n) + (n == 1 ? one : more); }

std::string called(const StoreEntry& entry) {
  return entry.text->title.empty() ? entry.name : entry.name + " (" + entry.text->title + ")";
}

// Whether loading failed for what the entry is, so that another one may do.
bool is_of_file(Code code) {
  return code == Code::kBadFile || code == Code::kIo || code == Code::kInvalidArgument || code == Code::kUnsupported;
}

struct Candidate {
  const StoreEntry* entry;
  int64_t n_common;  // as far as the hashes tell
};

// Those that may have some of the text, the best first.
std::vector<Candidate> candidates(const StoreListing& listing, const std::string& fingerprint_wanted,
                                  std::span<const int32_t> tokens) {
  const TokenChain chain(fingerprint_wanted, tokens);
  std::vector<Candidate> found;
  for (const StoreEntry& entry : listing.entries) {
    if (!entry.damage.ok() || fingerprint(entry.text->origin) != fingerprint_wanted) continue;
    const int64_t n = entry.text->chain.common(chain, tokens);
    if (n > 0) found.push_back({&entry, n});
  }
  std::ranges::stable_sort(found, [](const Candidate& a, const Candidate& b) {
    return a.n_common != b.n_common ? a.n_common > b.n_common : a.entry->used_ns > b.entry->used_ns;
  });
  return found;
}

}  // namespace

Result<std::shared_ptr<DocumentStore>> DocumentStore::open(const std::string& path, const StoreOptions& options) {
  QUIRE_ASSIGN(StoreDirectory directory, StoreDirectory::open(path, !options.must_exist));
  directory.clean();
  return std::shared_ptr<DocumentStore>(new DocumentStore(std::move(directory), options.budget_bytes));
}

// ---- putting

Result<StoreMatch> DocumentStore::put(Session& session, SaveControl control) const {
  const CancelToken* const both[] = {&session.closing(), control.cancel};
  const CancelToken stop(both);
  control.cancel = &stop;
  auto match = put_text(session, std::move(control));
  if (match.ok()) return match;
  return session.unless_closed(match.status());
}

Result<StoreMatch> DocumentStore::put_text(Session& session, SaveControl control) const {
  StorableText text;
  QUIRE_TRY(session.storable_text(&text));
  std::shared_ptr<Session> part;
  std::optional<Session::Work> turn;
  if (!text.is_all && !text.tokens.empty()) {
    // Saving the part is work on the session too: who closes that waits for the host's callbacks.
    QUIRE_ASSIGN(Session::Work work, session.begin_work());
    turn.emplace(std::move(work));
    QUIRE_ASSIGN(part, turn->fork());
    part->keep_nothing();
    QUIRE_TRY(part->truncate(static_cast<int64_t>(text.tokens.size())));
    QUIRE_TRY(part->storable_text(&text));
  }
  // Whoever found less would read most of the text again.
  if (text.n_computed < std::max<int64_t>(1, part ? std::ssize(text.tokens) / 2 : 0)) {
    if (!part) return Status(Code::kEmpty, "the session has read nothing that can be put into a store");
    return Status(Code::kUnsupported, "of the " + std::to_string(text.tokens.size()) +
                                          " tokens before the generated ones, " + session.strategy() +
                                          " can go back to " + std::to_string(text.n_computed) +
                                          ", less than half: put the session before it generates");
  }
  if (budget_bytes_ > 0 && text.snapshot_bytes > budget_bytes_) {
    return Status(Code::kBudget, directory_.path() + ": the entry would have up to " +
                                     std::to_string(text.snapshot_bytes) + " bytes; the store's budget is " +
                                     std::to_string(budget_bytes_));
  }
  directory_.clean();
  std::unique_ptr<FileLock> writing;
  std::string locked;
  for (;;) {
    QUIRE_ASSIGN(const StoreListing listing, directory_.list());
    QUIRE_ASSIGN(StoreMatch place, choose_place(listing, session.fingerprint(), text.tokens));
    place.n_computed = text.n_computed;
    bool is_there = place.n_tokens == static_cast<int64_t>(text.tokens.size());
    if (is_there) {
      QUIRE_ASSIGN(is_there, can_be_read(part ? *part : session, place.name, control.cancel));
    }
    if (is_there || place.name == locked) {
      place.n_tokens = static_cast<int64_t>(text.tokens.size());
      const StoreEntry* entry = listing.find(place.name);
      if (is_there) {
        if (place.name == locked) [[maybe_unused]]
          const Status known = directory_.refresh(place.name);
      } else {
        if (control.title.empty() && entry && entry->text) control.title = entry->text->title;
        QUIRE_TRY(write(part ? *part : session, place.name, text.snapshot_bytes, control));
        if (part) {
          const auto saved = part->begin_work();
          if (saved.ok()) turn->contents().note_saved(saved.value().contents());
        }
      }
      directory_.note_use(place.name, listing.newest_use_ns);
      return place;
    }
    // Another one may write there meanwhile: look again under the lock.
    writing.reset();
    QUIRE_ASSIGN(writing, directory_.lock(place.name, Lock::kWrite, Kind::kExclusive, control.cancel));
    locked = place.name;
  }
}

Result<StoreMatch> DocumentStore::choose_place(const StoreListing& listing, const std::string& fingerprint,
                                               std::span<const int32_t> tokens) const {
  const auto found = candidates(listing, fingerprint, tokens);
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  StoreMatch place;
  for (const bool longer : {true, false}) {  // an entry that has all of it, else the longest that it begins with
    for (const Candidate& candidate : found) {
      const int64_t n_stored = candidate.entry->text->chain.n_tokens();
      // What fills no link of the text can only be compared with the longer entry's tokens.
      const bool may_have =
          n_stored >= n_tokens && candidate.n_common >= n_tokens / TokenChain::kTokens * TokenChain::kTokens;
      if (longer ? !may_have : candidate.n_common < n_stored) continue;
      const auto own = read_tokens(candidate.entry->name);
      if (!own.ok()) continue;  // removed meanwhile
      if (!(longer ? begins_with(own.value(), tokens) : begins_with(tokens, own.value()))) continue;
      place.name = candidate.entry->name;
      place.n_tokens = std::min(static_cast<int64_t>(own.value().size()), n_tokens);
      return place;
    }
  }
  // A text shorter than a link, of which candidates() knows nothing.
  place.name = TokenChain(fingerprint, tokens).name(fingerprint);
  const StoreEntry* same = listing.find(place.name);
  if (!same || !same->damage.ok() || quire::fingerprint(same->text->origin) != fingerprint) return place;
  const auto own = read_tokens(place.name);
  if (own.ok() && begins_with(own.value(), tokens)) place.n_tokens = n_tokens;
  return place;
}

// False: the entry is damaged. A session that stands behind it compares the checksums of what it reads; for another one
// the whole entry is read here.
Result<bool> DocumentStore::can_be_read(Session& session, const std::string& name, const CancelToken* cancel) const {
  auto source = open_snapshot(name);
  if (!source.ok()) return true;  // it is being removed
  {
    QUIRE_ASSIGN(const Session::Work work, session.begin_work());
    const auto& mark = work.contents().saved_as;
    if (mark && SnapshotFile::open(*source, *mark).ok()) return true;
  }
  const Status status = verify_snapshot(std::move(*source), {.cancel = cancel});
  if (status.code() == Code::kCancelled) return status;
  return status.code() != Code::kBadFile;
}

Status DocumentStore::write(const Session& session, const std::string& name, int64_t bytes, SaveControl control) const {
  const std::string path = directory_.snapshot_path(name);
  const FileFacts before = file_facts(path);
  if (before.exists && !before.is_file) return Status(Code::kIo, path + " is there and is not a regular file");
  QUIRE_ASSIGN(const auto use, directory_.lock(name, Lock::kUse, Kind::kShared, control.cancel));
  QUIRE_TRY(make_room(bytes, name, control.cancel));
  control.owner_only = true;
  // A file that is appended to may keep all of what it has beside what is new.
  control.whole = control.whole || (budget_bytes_ > 0 && bytes > budget_bytes_ - before.bytes);
  QUIRE_TRY(session.save(path, control));
  // The entry is there, whatever becomes of this: what is known of it is read from the snapshot otherwise.
  [[maybe_unused]] const Status known = directory_.refresh(name);
  [[maybe_unused]] const Status room = make_room(0, "", control.cancel);
  return {};
}

Status DocumentStore::make_room(int64_t bytes, const std::string& keep, const CancelToken* cancel) const {
  if (budget_bytes_ == 0) return {};
  QUIRE_ASSIGN(const auto lock, directory_.lock_directory(cancel));
  QUIRE_ASSIGN(StoreListing listing, directory_.list());
  if (const StoreEntry* kept = listing.find(keep)) listing.bytes -= kept->bytes;
  std::ranges::stable_sort(listing.entries, {}, &StoreEntry::used_ns);
  int64_t in_use = 0;
  for (const StoreEntry& entry : listing.entries) {
    if (listing.bytes <= budget_bytes_ - bytes) return {};
    if (entry.name == keep) continue;
    QUIRE_ASSIGN(const auto use, directory_.try_lock(entry.name, Lock::kUse, Kind::kExclusive));
    if (!use) {
      in_use += entry.bytes;
      continue;
    }
    QUIRE_TRY(directory_.remove(entry.name));
    listing.bytes -= entry.bytes;
  }
  if (listing.bytes <= budget_bytes_ - bytes) return {};
  return Status(Code::kBudget, directory_.path() + ": the entry would have up to " + std::to_string(bytes) +
                                   " bytes; of the store's budget of " + std::to_string(budget_bytes_) + ", " +
                                   std::to_string(listing.bytes) + " are taken, " + std::to_string(in_use) +
                                   " of them by entries in use");
}

// ---- finding

Result<std::shared_ptr<const ByteSource>> DocumentStore::open_snapshot(const std::string& name) const {
  QUIRE_ASSIGN(auto use, directory_.try_lock(name, Lock::kUse, Kind::kShared));
  if (!use) return Status(Code::kNotFound, directory_.path() + ": the entry " + name + " is being removed");
  QUIRE_ASSIGN(auto file, ReadFile::open(directory_.snapshot_path(name), false));
  return std::shared_ptr<const ByteSource>(std::make_shared<EntrySource>(std::move(file), std::move(use)));
}

Result<std::vector<int32_t>> DocumentStore::read_tokens(const std::string& name) const {
  QUIRE_ASSIGN(auto source, open_snapshot(name));
  QUIRE_ASSIGN(const auto file, SnapshotFile::open(std::move(source)));
  return read_plain_tokens(*file);
}

Result<StoreMatch> DocumentStore::find(const std::shared_ptr<Model>& model, const SessionOptions& options,
                                       std::span<const int32_t> tokens) const {
  QUIRE_ASSIGN(SnapshotOrigin origin, Session::identify(*model, options));
  SessionOptions plain = options;               // it computes nothing
  plain.strategy = std::move(origin.strategy);  // `auto` chooses by the budgets
  plain.reuse_prefixes = false;
  plain.device_budget_bytes = plain.kv_budget_bytes = plain.compressed_budget_bytes = plain.spill_budget_bytes = 0;
  plain.spill_directory.clear();
  StoreMatch match;
  QUIRE_TRY(load(model, plain, tokens, &match).status());
  return match;
}

Result<std::shared_ptr<Session>> DocumentStore::load(const std::shared_ptr<Model>& model, const SessionOptions& options,
                                                     std::span<const int32_t> tokens, StoreMatch* match) const {
  *match = {};
  if (tokens.empty()) return Status(Code::kInvalidArgument, "the text has no tokens");
  LoadOptions loading;
  QUIRE_ASSIGN(const SnapshotOrigin origin, Session::identify(*model, options));
  loading.session = options;
  loading.session.strategy = origin.strategy;
  loading.strategy_given = loading.kv_type_given = loading.old_text_given = loading.overflow_given = true;
  QUIRE_ASSIGN(const StoreListing listing, directory_.list());
  const auto found = candidates(listing, fingerprint(origin), tokens);
  std::shared_ptr<Session> best;
  std::map<int64_t, int> n_tried;
  for (const Candidate& candidate : found) {
    if (candidate.n_common + TokenChain::kTokens <= match->n_computed) break;  // not more, whatever its last link has
    if (++n_tried[candidate.n_common] > kMostTried) continue;
    auto source = open_snapshot(candidate.entry->name);
    if (!source.ok()) {
      match->reason = source.status().message();
      continue;
    }
    auto loaded = Session::load(model, std::move(*source), loading);
    if (!loaded.ok()) {
      if (!is_of_file(loaded.status().code())) {
        if (best) break;  // for want of memory: this one will do
        return loaded.status();
      }
      match->reason = loaded.status().message();
      continue;
    }
    const auto session = std::move(*loaded);
    StorableText text;
    QUIRE_TRY(session->storable_text(&text));
    const int64_t n = count_equal(text.tokens, tokens.first(tokens.size() - 1));
    if (n < static_cast<int64_t>(text.tokens.size()) || !text.is_all) {
      QUIRE_TRY(session->truncate(n));
      QUIRE_TRY(session->storable_text(&text));
    }
    if (text.n_computed <= match->n_computed) {
      session->keep_nothing();
      if (!best) {
        match->reason = origin.strategy + " has nothing of " + called(*candidate.entry) +
                        " to go on from where that is cut at token " + std::to_string(n);
      }
      continue;
    }
    if (best) best->keep_nothing();
    best = session;
    *match = {candidate.entry->name, n, text.n_computed, ""};
  }
  if (best) {
    directory_.note_use(match->name, listing.newest_use_ns);
  } else if (match->reason.empty()) {
    match->reason = explain(listing, origin, tokens);
  }
  return best;
}

// Why no entry has any of the text.
std::string DocumentStore::explain(const StoreListing& listing, const SnapshotOrigin& origin,
                                   std::span<const int32_t> tokens) const {
  if (listing.entries.empty()) return "the store is empty";
  std::vector<const StoreEntry*> whole;
  for (const StoreEntry& entry : listing.entries) {
    if (entry.damage.ok()) whole.push_back(&entry);
  }
  if (whole.empty()) return "all entries of the store are damaged";
  // The most recently used entry of those that agree most with the session.
  const auto agreement = [&](const StoreEntry* entry) {
    const SnapshotOrigin& other = entry->text->origin;
    const int n = other.model != origin.model ? 0 : other.strategy != origin.strategy ? 1 : 2;
    return std::pair(check_same(other, origin).ok() ? 3 : n, entry->used_ns);
  };
  const StoreEntry& nearest = **std::ranges::max_element(whole, {}, agreement);
  const Status same = check_same(nearest.text->origin, origin);
  if (!same.ok()) {
    return "of " + count(static_cast<int64_t>(whole.size()), " entry", " entries") + " none is of this " +
           (nearest.text->origin.model != origin.model ? "model" : "model and strategy") + "; " + called(nearest) +
           ": " + same.message();
  }
  const auto own = read_tokens(nearest.name);
  if (!own.ok()) return own.status().message();
  const int64_t n_equal = count_equal(own.value(), tokens);
  if (n_equal == std::ssize(tokens)) {
    return "that of " + called(nearest) + " begins so, but the text's " + count(n_equal, " token", " tokens") +
           " are too few to find it by";
  }
  return "the text differs from that of " + called(nearest) + " from token " + std::to_string(n_equal) + " on";
}

// ---- entries

Status DocumentStore::remove(const std::string& name) const {
  QUIRE_TRY(check_name(name));
  QUIRE_ASSIGN(const auto lock, directory_.try_lock(name, Lock::kWrite, Kind::kExclusive));
  if (!lock) return Status(Code::kBusy, directory_.path() + ": the entry " + name + " is being written");
  if (!file_facts(directory_.snapshot_path(name)).is_file) {
    return Status(Code::kNotFound, directory_.path() + " has no entry " + name);
  }
  return directory_.remove(name);
}

Status DocumentStore::verify(const std::string& name, const SaveControl& control) const {
  QUIRE_TRY(check_name(name));
  QUIRE_ASSIGN(auto source, open_snapshot(name));
  QUIRE_TRY(verify_snapshot(source, control));
  QUIRE_ASSIGN(const auto file, SnapshotFile::open(std::move(source)));
  QUIRE_ASSIGN(const StoredText text, describe_text(*file));
  const auto known = read_stored_text(directory_.text_path(name));
  if (known.ok() && known.value().chain == text.chain) return {};
  // It cannot make a wrong match; it is made anew where that can be done.
  QUIRE_ASSIGN(const auto lock, directory_.try_lock(name, Lock::kWrite, Kind::kExclusive));
  if (lock) [[maybe_unused]]
    const Status status = directory_.refresh(name);
  return {};
}

Result<std::string> DocumentStore::describe() const {
  QUIRE_ASSIGN(StoreListing listing, directory_.list());
  std::ranges::stable_sort(listing.entries, std::greater<>(), &StoreEntry::used_ns);
  Json::Array entries, unknown;
  for (const StoreEntry& entry : listing.entries) {
    Json::Object out;
    out.emplace("name", Json(entry.name));
    out.emplace("bytes", Json(entry.bytes));
    out.emplace("last_use", Json(entry.used_ns / 1'000'000'000));
    const auto in_use = directory_.is_locked(entry.name, Lock::kUse);
    out.emplace("in_use", Json(in_use.ok() && in_use.value()));
    if (entry.damage.ok()) {
      out.emplace("title", Json(utf8_sanitize(entry.text->title)));
      out.emplace("n_tokens", Json(entry.text->chain.n_tokens()));
      out.emplace("origin", origin_json(entry.text->origin));
    } else {
      out.emplace("damage", Json(utf8_sanitize(entry.damage.message())));
    }
    entries.emplace_back(std::move(out));
  }
  for (const std::string& name : listing.unknown) unknown.emplace_back(utf8_sanitize(name));
  Json::Object all;
  all.emplace("path", Json(utf8_sanitize(directory_.path())));
  all.emplace("budget_bytes", Json(budget_bytes_));
  all.emplace("bytes", Json(listing.bytes));
  all.emplace("entries", Json(std::move(entries)));
  all.emplace("unknown", Json(std::move(unknown)));
  constexpr size_t kMost = size_t{1} << 26;
  std::string text;
  Json(std::move(all)).print(text, kMost);
  return text;
}

}  // namespace quire
