// SPDX-License-Identifier: MIT
//
// Stores: directories that keep documents that were read, for every process that reads them again.
#pragma once

#include "quire/session.hpp"

namespace quire {
inline namespace v0 {

using StoreMatch = quire_store_match;

struct StoreOptions {
  std::int64_t budget_bytes = 0;  // for what this handle puts: of all entries; 0: no limit
  bool must_exist = false;        // do not make a store where there is none
};

struct StoredSession {
  Session session = {};
  StoreMatch match = {};
};

// Any thread, and any process.
class Store : public Handle<quire_store, quire_store_retain, quire_store_release> {
 public:
  using Handle::Handle;

  static Result<Store> open(std::string_view path, const StoreOptions& options = {}) {
    auto c = detail::initialised(quire_store_options_init);
    c.flags = options.must_exist ? QUIRE_STORE_MUST_EXIST : 0u;
    c.budget_bytes = options.budget_bytes;
    return detail::made<Store>(quire_store_open, path.data(), path.size(), &c);
  }

  // Puts what the session has read there. An empty title: the entry keeps the one that it has.
  Result<StoreMatch> put(Session& session, std::string_view title = {},
                         const SnapshotOptions& options = {}) {
    const detail::CSnapshotOptions c(options);
    return c.call().result(detail::filled<StoreMatch>(quire_store_put, get(), session.get(),
                                                      title.data(), title.size(), c.get()));
  }
  // How much of a text is there for a session with these options. Nothing is no error, but a match
  // without a name.
  Result<StoreMatch> find(const Model& model, Span<const std::int32_t> ids,
                          const SessionOptions& options = {}) const {
    const detail::CSessionOptions c(options);
    return detail::filled<StoreMatch>(quire_store_find, get(), model.get(), c.get(), ids.data(),
                                      ids.size());
  }
  // A session that holds the first match.n_tokens of them. Feed it the others.
  Result<StoredSession> load(const Model& model, Span<const std::int32_t> ids,
                             const SessionOptions& options = {}) const {
    const detail::CSessionOptions c(options);
    auto match = detail::initialised(quire_store_match_init);
    auto session = detail::made<Session>(quire_store_load, get(), model.get(), c.get(), ids.data(),
                                         ids.size(), &match);
    if (!session) return session.error();
    return StoredSession{*std::move(session), match};
  }
  // Removes the entry of that name, in use or not.
  Result<void> remove(std::string_view name) {
    return detail::call(quire_store_remove, get(), name.data(), name.size());
  }
  // Reads all of an entry and compares its checksums.
  Result<void> verify(std::string_view name, const SnapshotOptions& options = {}) const {
    const detail::CSnapshotOptions c(options);
    return c.call().result(
        detail::call(quire_store_verify, get(), name.data(), name.size(), c.get()));
  }
  // What is in the store, as JSON (quire_store_describe).
  Result<std::string> describe() const {
    return detail::copied<std::string>(quire_store_describe, get());
  }
};

}  // namespace v0
}  // namespace quire
