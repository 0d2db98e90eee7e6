// Stores of documents: directories that keep what was read.
#pragma once

#include <cstdint>
#include <string>

#include "document.h"
#include "engine.h"
#include "quire_handles.h"

namespace CLI {
class App;
}

namespace cli {

struct StoreArguments {
  std::string directory;  // empty: none
  int64_t budget_bytes = 0;
};

void add_store_options(CLI::App& command, StoreArguments& arguments);

// Makes it where it is missing.
Store open_store(const StoreArguments& arguments);
Store open_existing_store(const std::string& directory);
// By its file of locks.
bool is_store(const std::string& path);

// What quire_store_describe says.
Json describe_store(quire_store* store);
// As verify_snapshot does.
void verify_entry(quire_store* store, const std::string& name);
// The title of a document in this file.
std::string title_of(const std::string& file);

// Throws StoreFailure if a text that the session is to read is certain to have no room in the store's budget.
void check_store_room(const StoreArguments& store, const Engine& engine, SessionArguments arguments,
                      const quire_session* session, int64_t n_tokens);

// A session that stands behind what the store has of a text, and what that is; else a new one.
struct StoredSession {
  Session session;
  quire_store_match match;
};
StoredSession open_stored(const Engine& engine, quire_store* store, const std::vector<int32_t>& ids,
                          const SessionArguments& arguments, int64_t n_expected);
// Whether reading failed because the entry that the session was loaded from is damaged. Then it is removed, which
// stderr says, and the document can be read anew.
bool remove_damaged(quire_store* store, const quire_store_match& match, const QuireFailure& failure);
// Shows progress. Ctrl-C does not stop it, as with save_session.
quire_store_match put(quire_store* store, quire_session* session, const std::string& title);

// One line on stderr: how much of a text was reused, or why nothing was.
void report_reuse(const quire_store_match& match, size_t n_tokens);

}  // namespace cli
