#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"

using namespace quire;
using namespace quire::abi;

namespace {

Status runtime_options(const quire_runtime_options* in, RuntimeOptions* out, std::function<void()>* on_destroy) {
  quire_runtime_options o;
  QUIRE_TRY(read_options(in, 0, "quire_runtime_options", &o));
  QUIRE_TRY(check_range("n_threads", o.n_threads, 0, 1024));
  QUIRE_TRY(check_range("log_level", o.log_level, 0, QUIRE_LOG_DEBUG));
  QUIRE_TRY(check_range("n_io_threads", o.n_io_threads, -1, 64));
  if (o.backend != QUIRE_BACKEND_AUTO && o.backend != QUIRE_BACKEND_CPU) {
    return Status(Code::kUnsupported, "backend " + std::to_string(o.backend) + " is not available; known: auto, cpu");
  }
  if (!o.alloc != !o.free) return invalid("alloc and free go together: give both or neither");
  out->n_threads = o.n_threads;
  out->n_io_threads = o.n_io_threads;
  out->log = Log(o.log, o.log_user_data, static_cast<LogLevel>(o.log_level == 0 ? QUIRE_LOG_WARNING : o.log_level));
  out->alloc = o.alloc;
  out->free = o.free;
  out->alloc_user = o.alloc_user_data;
  *on_destroy = [o] {
    if (o.log_destroy) o.log_destroy(o.log_user_data);
    if (o.alloc_destroy) o.alloc_destroy(o.alloc_user_data);
  };
  return {};
}

}  // namespace

extern "C" {

quire_status quire_runtime_create(const quire_runtime_options* options, quire_runtime** out, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!out) return invalid("out is NULL");
    RuntimeOptions o;
    std::function<void()> on_destroy;
    QUIRE_TRY(runtime_options(options, &o, &on_destroy));
    auto handle = std::make_unique<quire_runtime>(nullptr);
    try {
      handle->impl = std::make_shared<Runtime>(std::move(o));
    } catch (const std::system_error& e) {
      return Status(Code::kOutOfMemory, std::string("cannot start threads: ") + e.what(), -1, e.code().value());
    }
    handle->impl->set_on_destroy(std::move(on_destroy));  // last: a call that fails leaves user_data to the caller
    *out = handle.release();
    return {};
  });
}

void quire_runtime_retain(quire_runtime* runtime) { retain(runtime); }

void quire_runtime_release(quire_runtime* runtime) {
  // Models and sessions hold the runtime too. If this is the last owner, nothing runs and the threads stop at once.
  if (drop_reference(runtime)) delete runtime;
}

quire_status quire_runtime_close(quire_runtime* runtime, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!runtime) return invalid("runtime is NULL");
    runtime->impl->close();
    return {};
  });
}

quire_status quire_cancel_create(quire_cancel** out, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!out) return invalid("out is NULL");
    *out = new quire_cancel(std::make_shared<CancelToken>());
    return {};
  });
}

void quire_cancel_trigger(quire_cancel* cancel) {
  if (cancel) cancel->impl->cancel();
}

void quire_cancel_release(quire_cancel* cancel) {
  if (drop_reference(cancel)) delete cancel;
}
}
