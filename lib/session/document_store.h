// A directory of documents that were read: snapshots of sessions, found again by the tokens of their texts, within a
// budget of bytes, and shared by processes.
//
// An entry counts for a text as far as its tokens are the same, of a session with the same fingerprint, and neither
// generated nor at positions of their own (read_plain_tokens). It is named by the text that it was first put with; a
// longer text that begins with all of its own takes its place under that name. Whatever is known of entries beside
// their snapshots may be missing or wrong: the tokens of a snapshot are compared before it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/session/session.h"
#include "lib/session/store_directory.h"
#include "lib/support/status.h"

namespace quire {

struct StoreOptions {
  int64_t budget_bytes = 0;  // of all entries together; 0: no limit
  bool must_exist = false;   // a missing store is an error, and is not made
};

// What a store has of a text.
struct StoreMatch {
  std::string name;        // of the entry; empty: none
  int64_t n_tokens = 0;    // the first so many tokens of the text are in it
  int64_t n_computed = 0;  // of those, the first so many need not be read again
  std::string reason;      // why there is none
};

// Any thread, also several at once.
class DocumentStore {
 public:
  // Errors: kNotFound, kIo.
  static Result<std::shared_ptr<DocumentStore>> open(const std::string& path, const StoreOptions& options);

  // Puts what the session has read there: its text up to the first token that was generated or has a position of its
  // own, without pending ones. A damaged entry counts as missing. control.title: of the entry; empty: it keeps the one
  // that it has. Errors: those of Session::save; kBudget: the entry alone would exceed the budget, or what is in use
  // leaves no room for it; kEmpty: nothing was read; kUnsupported: the strategy keeps too little of the text before its
  // generated tokens.
  Result<StoreMatch> put(Session& session, SaveControl control) const;
  // The entry that has most of the text, all of whose tokens but the last may be taken from it. None is no error.
  Result<StoreMatch> find(const std::shared_ptr<Model>& model, const SessionOptions& options,
                          std::span<const int32_t> tokens) const;
  // A session that stands behind that part of the text; it has the entry open, and locked, until it is closed.
  // Where there is none: null, and match->reason says why.
  Result<std::shared_ptr<Session>> load(const std::shared_ptr<Model>& model, const SessionOptions& options,
                                        std::span<const int32_t> tokens, StoreMatch* match) const;
  // Sessions that read the entry go on. Errors: kInvalidArgument: no name; kNotFound; kBusy: it is being written; kIo.
  Status remove(const std::string& name) const;
  // Reads the entry and compares its checksums. Errors: as of remove; kBadFile.
  Status verify(const std::string& name, const SaveControl& control) const;
  // What quire_store_describe says.
  Result<std::string> describe() const;

 private:
  DocumentStore(StoreDirectory directory, int64_t budget_bytes)
      : directory_(std::move(directory)), budget_bytes_(budget_bytes) {}
  // What put() does, until control.cancel.
  Result<StoreMatch> put_text(Session& session, SaveControl control) const;
  // The snapshot's bytes, under a use lock that lives as long as they do. kNotFound: it is gone, or being removed.
  Result<std::shared_ptr<const ByteSource>> open_snapshot(const std::string& name) const;
  Result<std::vector<int32_t>> read_tokens(const std::string& name) const;
  // The entry that a text of these tokens belongs to, and how much of the text it has.
  Result<StoreMatch> choose_place(const StoreListing& listing, const std::string& fingerprint,
                                  std::span<const int32_t> tokens) const;
  Result<bool> can_be_read(Session& session, const std::string& name, const CancelToken* cancel) const;
  // Removes entries, the least recently used first, until `bytes` more than all of `keep`'s fit.
  Status make_room(int64_t bytes, const std::string& keep, const CancelToken* cancel) const;
  Status write(const Session& session, const std::string& name, int64_t bytes, SaveControl control) const;
  std::string explain(const StoreListing& listing, const SnapshotOrigin& origin, std::span<const int32_t> tokens) const;

  const StoreDirectory directory_;
  const int64_t budget_bytes_;
};

}  // namespace quire
