#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"

using namespace quire;
using namespace quire::abi;

namespace {

static_assert(static_cast<int32_t>(Device::Kind::kCpu) == QUIRE_DEVICE_CPU);
static_assert(static_cast<int32_t>(Device::Kind::kCuda) == QUIRE_DEVICE_CUDA);

// Runs body(runtime) behind the boundary, unless that was closed.
template <typename Body>
int32_t with_runtime(const quire_runtime* runtime, quire_error* err, const Body& body) {
  return with_handle(runtime, err, [&](const std::shared_ptr<Runtime>& r) -> Status {
    QUIRE_TRY(check_open(*r));
    return body(*r);
  });
}

Status runtime_options(const quire_runtime_options* in, RuntimeOptions* out, std::function<void()>* on_destroy) {
  quire_runtime_options o;
  QUIRE_TRY(read_options(in, 0, "quire_runtime_options", &o));
  QUIRE_TRY(check_range("n_threads", o.n_threads, 0, 1024));
  QUIRE_TRY(check_range("log_level", o.log_level, 0, QUIRE_LOG_DEBUG));
  QUIRE_TRY(check_range("n_io_threads", o.n_io_threads, -1, 64));
  QUIRE_TRY(check_range("n_kept_log_lines", o.n_kept_log_lines, 0, 65536));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  QUIRE_TRY(check_range("kv_device_budget_bytes", o.kv_device_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("kv_host_budget_bytes", o.kv_host_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("kv_compressed_budget_bytes", o.kv_compressed_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("kv_file_budget_bytes", o.kv_file_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("prefix_cache_bytes", o.prefix_cache_bytes, 0, kMost));
  if (!o.alloc != !o.free) return invalid("alloc and free go together: give both or neither");
  out->n_threads = o.n_threads;
  out->n_io_threads = o.n_io_threads;
  out->kv_device_bytes = o.kv_device_budget_bytes;
  out->kv_memory_bytes = o.kv_host_budget_bytes;
  out->kv_compressed_bytes = o.kv_compressed_budget_bytes;
  out->kv_file_bytes = o.kv_file_budget_bytes;
  out->prefix_cache_bytes = o.prefix_cache_bytes;
  out->log = Log(o.log, o.log_user_data, static_cast<LogLevel>(o.log_level == 0 ? QUIRE_LOG_WARNING : o.log_level),
                 static_cast<size_t>(o.n_kept_log_lines));
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
    auto handle = std::make_unique<quire_runtime>(nullptr);  // first, so that nothing fails after the threads run
    std::shared_ptr<Runtime> runtime;
    QUIRE_TRY(start_threads([&] { runtime = std::make_shared<Runtime>(std::move(o)); }));
    runtime->set_on_destroy(std::move(on_destroy));  // last: a call that fails leaves user_data to the caller
    handle->set_object(std::move(runtime));
    *out = handle.release();
    return {};
  });
}

void quire_runtime_retain(quire_runtime* runtime) { retain(runtime); }

void quire_runtime_release(quire_runtime* runtime) { release(runtime); }

quire_status quire_runtime_close(quire_runtime* runtime, quire_error* err) {
  return with_handle(runtime, err, [](const std::shared_ptr<Runtime>& r) -> Status {
    r->close();
    return {};
  });
}

quire_status quire_runtime_get_stats(const quire_runtime* runtime, quire_runtime_stats* stats, quire_error* err) {
  return with_runtime(runtime, err, [&](Runtime& r) -> Status {
    const PrefixCacheStats cache = r.prefix_cache().stats();
    quire_runtime_stats full{};
    full.prefix_cache_bytes = cache.bytes;
    full.prefix_cache_texts = cache.n_texts;
    full.prefix_cache_tokens = cache.n_hits;
    return write_output(full, "stats", stats);
  });
}

quire_status quire_runtime_take_log_line(quire_runtime* runtime, int32_t* level, int64_t* n_lost, char* buf, size_t cap,
                                         size_t* needed, quire_error* err) {
  return with_runtime(runtime, err, [&](Runtime& r) -> Status {
    if (!level) return invalid("level is NULL");
    if (!n_lost) return invalid("n_lost is NULL");
    Status written;
    const auto accept = [&](int32_t level_of_line, int64_t lost_before, std::string_view text) {
      written = write_text(text, buf, cap, needed);
      if (!written.ok()) return false;
      *level = level_of_line;
      *n_lost = lost_before;
      return buf != nullptr;
    };
    LogLines* const kept = r.log().kept();
    if (kept && kept->take(accept)) return written;
    *level = 0;
    *n_lost = 0;
    return write_text({}, buf, cap, needed);
  });
}

quire_status quire_runtime_get_device_count(const quire_runtime* runtime, int32_t* n_devices, quire_error* err) {
  return with_runtime(runtime, err, [&](Runtime& r) -> Status {
    if (!n_devices) return invalid("n_devices is NULL");
    *n_devices = static_cast<int32_t>(r.devices().list().size());
    return {};
  });
}

quire_status quire_runtime_get_device_info(const quire_runtime* runtime, int32_t index, quire_device_info* info,
                                           quire_error* err) {
  return with_runtime(runtime, err, [&](Runtime& r) -> Status {
    const std::vector<Device> all = r.devices().list();
    if (index < 0 || static_cast<size_t>(index) >= all.size()) {
      return Status(Code::kNotFound, "device " + std::to_string(index) + " is asked for; there are " +
                                         std::to_string(all.size()) + ", from 0 on");
    }
    const Device& device = all[static_cast<size_t>(index)];
    quire_device_info full{};
    if (device.obstacle.empty()) full.flags |= QUIRE_DEVICE_USABLE;
    full.kind = static_cast<int32_t>(device.kind);
    full.memory_bytes = device.memory_bytes;
    full.free_bytes = device.free_bytes;
    copy_text(device.name, full.name);
    copy_text(device.description, full.description);
    copy_text(device.obstacle, full.obstacle);
    return write_output(full, "info", info);
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
  if (cancel) Held(cancel)->cancel();
}

void quire_cancel_retain(quire_cancel* cancel) { retain(cancel); }

void quire_cancel_release(quire_cancel* cancel) { release(cancel); }
}
