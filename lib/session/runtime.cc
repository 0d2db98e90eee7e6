#include "lib/session/runtime.h"

#include <algorithm>
#include <utility>

#include "lib/session/load_job.h"
#include "lib/session/session.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

// Runs load(control) on this thread with the engine to pack what it reads, until it is done, the caller cancels, or the
// runtime closes.
template <typename Load>
auto run_load(Runtime& runtime, const CancelToken* cancel, LoadControl control, const Load& load) {
  using Loaded = decltype(load(control));
  const CancelToken* const both[] = {&runtime.closing(), cancel};
  const CancelToken stop(both);
  const auto job = std::make_shared<LoadJob>(runtime);
  if (!runtime.scheduler().add(job)) return Loaded(Status(Code::kClosed, "the runtime is closed"));
  struct End {
    LoadJob& job;
    ~End() { job.end(); }
  } end{*job};
  control.cancel = &stop;
  control.engine = job.get();
  Loaded loaded = load(control);
  const bool stopped = !loaded.ok() && loaded.status().code() == Code::kCancelled;
  if (stopped && runtime.closed()) return Loaded(Status(Code::kClosed, "the runtime was closed during loading"));
  return loaded;
}

}  // namespace

Runtime::Runtime(RuntimeOptions options)
    : options_(std::move(options)),
      allocator_(options_.alloc, options_.free, options_.alloc_user),
      pool_(thread_count(options_.n_threads)),
      devices_(allocator_, pool_, options_.wrap_backend, options_.find_cuda),
      kv_host_(std::make_shared<TierBudget>(options_.kv_memory_bytes)),
      kv_compressed_(std::make_shared<TierBudget>(options_.kv_compressed_bytes)),
      kv_file_(std::make_shared<TierBudget>(options_.kv_file_bytes)),
      prefixes_(std::make_shared<PrefixTable>()),
      io_(options_.n_io_threads < 0 ? nullptr : std::make_unique<IoThreads>(std::max(1, options_.n_io_threads))),
      prefix_cache_(options_.prefix_cache_bytes) {}

void Runtime::close() {
  std::vector<std::weak_ptr<Session>> sessions;
  {
    MutexLock lock(mutex_);
    if (close_begun_) {
      while (!close_done_) changed_.wait(mutex_);
      return;
    }
    close_begun_ = true;
    closed_.cancel();
    sessions.swap(sessions_);
  }
  for (const auto& weak : sessions) {
    if (auto session = weak.lock()) session->request_stop();
  }
  scheduler_.stop();
  prefix_cache_.close();
  for (const auto& weak : sessions) {
    if (auto session = weak.lock()) {
      session->engine_stopped();
      session->close();
    }
  }
  if (io_) io_->stop();
  pool_.stop();
  scheduler_.drain();
  MutexLock lock(mutex_);
  close_done_ = true;
  changed_.notify_all();
}

// Devices do not count in each other's budget. The memory of the CPU is the machine's, where records of other devices
// go too.
std::shared_ptr<Residency> Runtime::residency(const Backend& backend) {
  MutexLock lock(mutex_);
  std::shared_ptr<Residency>& own = residencies_[&backend];
  if (!own) {
    own = std::make_shared<Residency>(backend.has_own_memory() ? std::make_shared<TierBudget>(options_.kv_device_bytes)
                                                               : kv_host_);
  }
  return own;
}

bool Runtime::make_device_room(Backend& backend, int64_t bytes) {
  if (!backend.has_own_memory() || bytes <= 0) return false;
  const std::shared_ptr<Residency> records = residency(backend);
  if (records->give_back(backend, bytes)) return true;
  // Where the host has no place for records, that of a kept text gives them one.
  return records->budget()->used() > 0 && prefix_cache_.drop_oldest(*records);
}

bool Runtime::add_session(const std::shared_ptr<Session>& session) {
  MutexLock lock(mutex_);
  if (close_begun_) return false;
  std::erase_if(sessions_, [](const auto& weak) { return weak.expired(); });
  sessions_.push_back(session);
  return true;
}

namespace {

void log_packed(const Log& log, const Result<std::string>& file) {
  if (file.ok()) {
    log.write(LogLevel::kInfo, "packed weights are mapped from " + file.value());
  } else {
    log.write(LogLevel::kWarning, "packed weights are not kept: " + file.status().message());
  }
}

Result<std::shared_ptr<Model>> load_model_on(std::shared_ptr<Runtime> runtime, Devices::Choice device,
                                             const std::string& path, const ModelLoadOptions& options) {
  LoadControl control;
  control.progress = options.progress;
  const auto make_room = [&](int64_t bytes) { return runtime->make_device_room(*device.backend, bytes); };
  control.make_room = make_room;
  auto model = std::make_shared<Model>();
  QUIRE_ASSIGN(auto llama, run_load(*runtime, options.cancel.get(), control, [&](const LoadControl& c) {
                 ModelLoader loader(*device.backend, path,
                                    {options.map, options.weight_type, options.activation_type, options.merge,
                                     options.packed_directory, options.beacon_directory, c});
                 auto loaded = loader.load();
                 if (!loaded.ok()) return loaded;
                 model->tokenizer = loader.tokenizer();
                 if (!options.packed_directory.empty()) log_packed(runtime->log(), loader.packed_file());
                 return loaded;
               }));
  model->runtime = runtime;
  model->device = std::move(device.name);
  model->device_reason = std::move(device.reason);
  if (!device.shortcoming.empty()) {
    runtime->log().write(LogLevel::kWarning, model->device + ": " + device.shortcoming);
    model->device_reason += "; " + device.shortcoming;
  }
  model->residency = runtime->residency(*device.backend);
  make_room(device.backend->device_bytes_for_work() - device.backend->free_device_bytes());
  model->llama = std::move(llama);
  model->pass = std::make_unique<ForwardPass>(*model->llama);
  const LlamaWeights& weights = model->llama->weights();
  runtime->log().write(LogLevel::kInfo, "loaded " + path + ": " + std::to_string(weights.n_parameters) +
                                            " parameters, " + std::to_string(weights.bytes) + " bytes, " +
                                            element_name(weights.type) + ", on " + model->device + ", " +
                                            model->device_reason);
  return model;
}

}  // namespace

Result<std::shared_ptr<Model>> load_model(std::shared_ptr<Runtime> runtime, const std::string& path,
                                          const ModelLoadOptions& options) {
  if (runtime->closed()) return Status(Code::kClosed, "the runtime was closed");
  QUIRE_ASSIGN(const auto device, runtime->devices().open(options.device));
  auto loaded = load_model_on(runtime, device, path, options);
  const bool automatic = options.device.empty() || options.device == "auto";
  if (loaded.ok() || !automatic || device.name == "cpu" || loaded.status().code() != Code::kOutOfMemory) return loaded;
  QUIRE_ASSIGN(auto cpu, runtime->devices().open("cpu"));
  cpu.reason = "chosen because the model does not fit " + device.name + ": " + utf8_sanitize(loaded.status().message());
  return load_model_on(std::move(runtime), std::move(cpu), path, options);
}

Result<std::shared_ptr<LoadedAdapter>> load_adapter(std::shared_ptr<Model> model, const std::string& path,
                                                    const AdapterLoadOptions& options) {
  Runtime& runtime = *model->runtime;
  LoadControl control;
  control.progress = options.progress;
  control.make_room = [&](int64_t bytes) { return runtime.make_device_room(model->llama->backend(), bytes); };
  QUIRE_ASSIGN(
      auto adapter, run_load(runtime, options.cancel.get(), control, [&](const LoadControl& c) {
        return AdapterLoader(model->llama->backend(), path, model->llama->config(), model->llama->weights(), c).load();
      }));
  runtime.log().write(LogLevel::kInfo, "loaded adapter " + path + ": " + std::to_string(adapter->n_parameters) +
                                           " parameters, " + std::to_string(adapter->bytes) + " bytes");
  auto loaded = std::make_shared<LoadedAdapter>();
  loaded->model = model;
  loaded->adapter = std::move(adapter);
  return loaded;
}

}  // namespace quire
