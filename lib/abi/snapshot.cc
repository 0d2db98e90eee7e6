// Snapshots: sessions as files.
#include <numeric>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"
#include "lib/abi/snapshot_streams.h"
#include "lib/session/describe_snapshot.h"
#include "lib/session/session.h"

using namespace quire;
using namespace quire::abi;

namespace {

Status read_load_options(const quire_session_options* options, const Backend& backend, LoadOptions* out) {
  QUIRE_TRY(read_session_options(options, backend, &out->session));
  quire_session_options given;
  QUIRE_TRY(read_options(options, kSessionFlags, "quire_session_options", &given));
  out->strategy_given = given.strategy != nullptr;
  out->kv_type_given = given.kv_type != 0;
  out->old_text_given = given.kv_old_type != 0;
  out->overflow_given = given.overflow != QUIRE_OVERFLOW_DEFAULT;
  return {};
}

}  // namespace

namespace quire::abi {

Status read_snapshot_options(const quire_snapshot_options* in, uint32_t known_flags, SnapshotOptions* out) {
  quire_snapshot_options o;
  QUIRE_TRY(read_options(in, known_flags, "quire_snapshot_options", &o));
  out->cancel = object_of(o.cancel);
  SaveControl& control = out->control;
  control.whole = (o.flags & QUIRE_SNAPSHOT_WHOLE) != 0;
  control.cancel = out->cancel.get();
  if (o.progress) {
    control.progress = [o](int64_t done, int64_t total) { o.progress(o.progress_user_data, done, total); };
  }
  return {};
}

}  // namespace quire::abi

extern "C" {

void quire_snapshot_options_init(quire_snapshot_options* options, size_t size) { init_struct(options, size); }

void quire_snapshot_writer_init(quire_snapshot_writer* writer, size_t size) { init_struct(writer, size); }

void quire_snapshot_reader_init(quire_snapshot_reader* reader, size_t size) { init_struct(reader, size); }

quire_status quire_session_save(quire_session* session, const char* path, size_t path_len,
                                const quire_snapshot_options* options, quire_error* err) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) -> Status {
    std::string file;
    QUIRE_TRY(read_path(path, path_len, "path", &file));
    SnapshotOptions o;
    QUIRE_TRY(read_snapshot_options(options, QUIRE_SNAPSHOT_WHOLE, &o));
    return s->save(file, o.control);
  });
}

quire_status quire_session_save_to(quire_session* session, const quire_snapshot_writer* writer,
                                   const quire_snapshot_options* options, quire_error* err) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) -> Status {
    CallbackSink sink;
    QUIRE_TRY(sink.set(writer));
    SnapshotOptions o;
    QUIRE_TRY(read_snapshot_options(options, QUIRE_SNAPSHOT_WHOLE, &o));
    return s->save_to(sink, o.control);
  });
}

quire_status quire_session_fork(quire_session* session, quire_session** out, quire_error* err) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) -> Status {
    if (!out) return invalid("out is NULL");
    QUIRE_ASSIGN(auto fork, s->fork());
    *out = new quire_session(std::move(fork));
    return {};
  });
}

quire_status quire_session_load(quire_model* model, const char* path, size_t path_len,
                                const quire_session_options* options, quire_session** out, quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    if (!out) return invalid("out is NULL");
    std::string file;
    QUIRE_TRY(read_path(path, path_len, "path", &file));
    LoadOptions o;
    QUIRE_TRY(read_load_options(options, m->llama->backend(), &o));
    QUIRE_ASSIGN(auto session, Session::load(m, file, std::move(o)));
    *out = new quire_session(std::move(session));
    return {};
  });
}

quire_status quire_session_load_from(quire_model* model, const quire_snapshot_reader* reader,
                                     const quire_session_options* options, quire_session** out, quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    if (!out) return invalid("out is NULL");
    const auto source = std::make_shared<CallbackSource>();
    QUIRE_TRY(source->set(reader));
    LoadOptions o;
    QUIRE_TRY(read_load_options(options, m->llama->backend(), &o));
    auto handle = std::make_unique<quire_session>(nullptr);  // first, so that nothing fails after others can read it
    QUIRE_ASSIGN(auto session, Session::load(m, std::shared_ptr<const ByteSource>(source), std::move(o)));
    source->own();  // last: a call that fails leaves user_data to the caller
    handle->set_object(std::move(session));
    *out = handle.release();
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
    SnapshotOptions o;
    QUIRE_TRY(read_snapshot_options(options, 0, &o));
    return verify_snapshot(file, o.control);
  });
}

quire_status quire_snapshot_describe_from(const quire_snapshot_reader* reader, char* buf, size_t cap, size_t* needed,
                                          quire_error* err) {
  return guard(err, [&]() -> Status {
    const auto source = std::make_shared<CallbackSource>();
    QUIRE_TRY(source->set(reader));
    QUIRE_ASSIGN(const std::string description, describe_snapshot(std::shared_ptr<const ByteSource>(source)));
    return write_text(description, buf, cap, needed);
  });
}

quire_status quire_snapshot_verify_from(const quire_snapshot_reader* reader, const quire_snapshot_options* options,
                                        quire_error* err) {
  return guard(err, [&]() -> Status {
    const auto source = std::make_shared<CallbackSource>();
    QUIRE_TRY(source->set(reader));
    SnapshotOptions o;
    QUIRE_TRY(read_snapshot_options(options, 0, &o));
    return verify_snapshot(std::shared_ptr<const ByteSource>(source), o.control);
  });
}
}
