// Snapshots: sessions as files.
#include <numeric>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"
#include "lib/session/describe_snapshot.h"
#include "lib/session/session.h"

using namespace quire;
using namespace quire::abi;

namespace {

// `options` may be null; it must outlive *control.
Status read_snapshot_options(const quire_snapshot_options* options, quire_snapshot_options* read,
                             SaveControl* control) {
  if (!options) return {};
  QUIRE_TRY(read_options(options, 0, "quire_snapshot_options", read));
  if (read->cancel) control->cancel = read->cancel->impl.get();
  if (read->progress) {
    control->progress = [read](int64_t done, int64_t total) { read->progress(read->progress_user_data, done, total); };
  }
  return {};
}

}  // namespace

extern "C" {

void quire_snapshot_options_init(quire_snapshot_options* options, size_t size) { init_struct(options, size); }

quire_status quire_session_save(quire_session* session, const char* path, size_t path_len,
                                const quire_snapshot_options* options, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!session) return invalid("session is NULL");
    std::string file;
    QUIRE_TRY(read_path(path, path_len, "path", &file));
    quire_snapshot_options o{};
    SaveControl control;
    QUIRE_TRY(read_snapshot_options(options, &o, &control));
    return session->impl->save(file, control);
  });
}

quire_status quire_session_fork(quire_session* session, quire_session** out, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!session || !out) return invalid(session ? "out is NULL" : "session is NULL");
    QUIRE_ASSIGN(auto fork, session->impl->fork());
    *out = new quire_session(std::move(fork));
    return {};
  });
}

quire_status quire_session_load(quire_model* model, const char* path, size_t path_len,
                                const quire_session_options* options, quire_session** out, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!model || !out) return invalid(model ? "out is NULL" : "model is NULL");
    std::string file;
    QUIRE_TRY(read_path(path, path_len, "path", &file));
    LoadOptions o;
    if (options) {
      QUIRE_TRY(read_session_options(options, &o.session));
      quire_session_options given;
      QUIRE_TRY(read_options(options, 0, "quire_session_options", &given));
      o.strategy_given = given.strategy != nullptr;
      o.kv_type_given = given.kv_type != 0;
      o.overflow_given = given.overflow != QUIRE_OVERFLOW_DEFAULT;
    }
    QUIRE_ASSIGN(auto session, Session::load(model->impl, file, std::move(o)));
    *out = new quire_session(std::move(session));
    return {};
  });
}

quire_status quire_snapshot_describe(const char* path, size_t path_len, char* buf, size_t cap, size_t* needed,
                                     quire_error* err) {
  return guard(err, [&]() -> Status {
    std::string file;
    QUIRE_TRY(read_path(path, path_len, "path", &file));
    QUIRE_ASSIGN(const std::string description, describe_snapshot(file));
    return write_text(description, buf, cap, needed);
  });
}

quire_status quire_snapshot_verify(const char* path, size_t path_len, const quire_snapshot_options* options,
                                   quire_error* err) {
  return guard(err, [&]() -> Status {
    std::string file;
    QUIRE_TRY(read_path(path, path_len, "path", &file));
    quire_snapshot_options o{};
    SaveControl control;
    QUIRE_TRY(read_snapshot_options(options, &o, &control));
    return verify_snapshot(file, control);
  });
}
}
