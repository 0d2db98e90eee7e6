// Stores of documents.
#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"
#include "lib/session/document_store.h"

using namespace quire;
using namespace quire::abi;

namespace {

constexpr size_t kMostTitleBytes = 1024;

// Runs body(store) behind the boundary.
template <typename Body>
int32_t with_store(const quire_store* store, quire_error* err, const Body& body) {
  return with_handle(store, err, [&](const std::shared_ptr<DocumentStore>& s) { return body(*s); });
}

Status write_match(const StoreMatch& match, quire_store_match* out) {
  quire_store_match full{};
  full.n_tokens = match.n_tokens;
  full.n_computed = match.n_computed;
  copy_text(match.name, full.name);
  copy_text(match.reason, full.reason);
  return write_output(full, "quire_store_match", out);
}

Status read_title(const char* title, size_t title_len, std::string* out) {
  std::string_view text;
  QUIRE_TRY(read_text(title, title_len, "title", &text));
  if (text.size() > kMostTitleBytes) {
    return invalid("title has " + std::to_string(text.size()) + " bytes; expected at most " +
                   std::to_string(kMostTitleBytes));
  }
  if (const size_t bad = utf8_first_invalid(text); bad < text.size()) {
    return Status(Code::kInvalidText, "title is not valid UTF-8", static_cast<int64_t>(bad));
  }
  *out = std::string(text);
  return {};
}

// The text that a match is wanted for.
Status read_wanted(const quire_model* model, const int32_t* tokens, size_t n_tokens, std::span<const int32_t>* out) {
  if (!model) return invalid("model is NULL");
  if (!tokens || n_tokens == 0) return invalid(tokens ? "n_tokens is 0" : "tokens is NULL");
  if (n_tokens > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / sizeof *tokens) {
    return invalid("n_tokens is too large");
  }
  *out = std::span(tokens, n_tokens);
  return {};
}

}  // namespace

extern "C" {

void quire_store_options_init(quire_store_options* options, size_t size) { init_struct(options, size); }

void quire_store_match_init(quire_store_match* match, size_t size) { init_struct(match, size); }

quire_status quire_store_open(const char* path, size_t path_len, const quire_store_options* options, quire_store** out,
                              quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!out) return invalid("out is NULL");
    std::string directory;
    QUIRE_TRY(read_path(path, path_len, "path", &directory));
    quire_store_options o;
    QUIRE_TRY(read_options(options, QUIRE_STORE_MUST_EXIST, "quire_store_options", &o));
    QUIRE_TRY(check_range("budget_bytes", o.budget_bytes, 0, std::numeric_limits<int64_t>::max()));
    QUIRE_ASSIGN(auto store, DocumentStore::open(directory, {.budget_bytes = o.budget_bytes,
                                                             .must_exist = (o.flags & QUIRE_STORE_MUST_EXIST) != 0}));
    *out = new quire_store(std::move(store));
    return {};
  });
}

void quire_store_retain(quire_store* store) { retain(store); }

void quire_store_release(quire_store* store) { release(store); }

quire_status quire_store_put(quire_store* store, quire_session* session, const char* title, size_t title_len,
                             const quire_snapshot_options* options, quire_store_match* match, quire_error* err) {
  return with_store(store, err, [&](const DocumentStore& s) -> Status {
    if (!session) return invalid("session is NULL");
    if (match) QUIRE_TRY(check_output(match, "quire_store_match"));
    const Held held(session);
    SnapshotOptions o;
    QUIRE_TRY(read_snapshot_options(options, QUIRE_SNAPSHOT_WHOLE, &o));
    QUIRE_TRY(read_title(title, title_len, &o.control.title));
    QUIRE_ASSIGN(const StoreMatch put, s.put(*held, std::move(o.control)));
    return match ? write_match(put, match) : Status();
  });
}

quire_status quire_store_find(quire_store* store, quire_model* model, const quire_session_options* options,
                              const int32_t* tokens, size_t n_tokens, quire_store_match* match, quire_error* err) {
  return with_store(store, err, [&](const DocumentStore& s) -> Status {
    QUIRE_TRY(check_output(match, "quire_store_match"));
    std::span<const int32_t> wanted;
    QUIRE_TRY(read_wanted(model, tokens, n_tokens, &wanted));
    const Held m(model);
    SessionOptions o;
    QUIRE_TRY(read_session_options(options, m->llama->backend(), &o));
    QUIRE_ASSIGN(const StoreMatch found, s.find(m.object(), o, wanted));
    return write_match(found, match);
  });
}

quire_status quire_store_load(quire_store* store, quire_model* model, const quire_session_options* options,
                              const int32_t* tokens, size_t n_tokens, quire_store_match* match, quire_session** out,
                              quire_error* err) {
  return with_store(store, err, [&](const DocumentStore& s) -> Status {
    if (!out) return invalid("out is NULL");
    if (match) QUIRE_TRY(check_output(match, "quire_store_match"));
    std::span<const int32_t> wanted;
    QUIRE_TRY(read_wanted(model, tokens, n_tokens, &wanted));
    const Held m(model);
    SessionOptions o;
    QUIRE_TRY(read_session_options(options, m->llama->backend(), &o));
    StoreMatch found;
    QUIRE_ASSIGN(auto session, s.load(m.object(), o, wanted, &found));
    if (!session) return Status(Code::kNotFound, found.reason);
    if (match) QUIRE_TRY(write_match(found, match));
    *out = new quire_session(std::move(session));
    return {};
  });
}

quire_status quire_store_remove(quire_store* store, const char* name, size_t name_len, quire_error* err) {
  return with_store(store, err, [&](const DocumentStore& s) -> Status {
    std::string_view text;
    QUIRE_TRY(read_text(name, name_len, "name", &text));
    return s.remove(std::string(text));
  });
}

quire_status quire_store_verify(quire_store* store, const char* name, size_t name_len,
                                const quire_snapshot_options* options, quire_error* err) {
  return with_store(store, err, [&](const DocumentStore& s) -> Status {
    std::string_view text;
    QUIRE_TRY(read_text(name, name_len, "name", &text));
    SnapshotOptions o;
    QUIRE_TRY(read_snapshot_options(options, 0, &o));
    return s.verify(std::string(text), o.control);
  });
}

quire_status quire_store_describe(quire_store* store, char* buf, size_t cap, size_t* needed, quire_error* err) {
  return with_store(store, err, [&](const DocumentStore& s) -> Status {
    QUIRE_ASSIGN(const std::string description, s.describe());
    return write_text(description, buf, cap, needed);
  });
}
}
