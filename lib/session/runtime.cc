#include "lib/session/runtime.h"

#include <algorithm>
#include <condition_variable>
#include <thread>
#include <utility>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/session/contain.h"
#include "lib/session/session.h"

namespace quire {
namespace {

int thread_count(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Loader: step() and take(), as ModelLoader has them.
template <typename Loader>
class LoadJob : public Job {
 public:
  using Loaded = decltype(std::declval<Loader&>().take());

  template <typename... Arguments>
  explicit LoadJob(Arguments&&... arguments) : loader_(std::forward<Arguments>(arguments)...) {}

  bool ready() override { return true; }

  bool step() override {
    {
      std::lock_guard lock(mutex_);
      if (done_) return true;
      in_step_ = true;
    }
    bool finished = false;
    Loaded loaded;
    Status status = contain([&]() -> Status {
      QUIRE_ASSIGN(finished, loader_.step());
      if (finished) loaded = loader_.take();
      return {};
    });
    std::lock_guard lock(mutex_);
    in_step_ = false;
    done_ = finished || !status.ok();
    status_ = std::move(status);
    loaded_ = std::move(loaded);
    changed_.notify_all();
    return done_;
  }

  // Waits for the end, or for the runtime's: a closed one may have dropped the job. Afterwards the loader uses nothing
  // of the caller's.
  Result<Loaded> wait(Runtime& runtime) {
    std::unique_lock lock(mutex_);
    while (!done_) {
      if (runtime.closed() && !in_step_) {
        done_ = true;
        return Status(Code::kClosed, "the runtime was closed during loading");
      }
      changed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return done_; });
    }
    if (!status_.ok()) return std::move(status_);
    return std::move(loaded_);
  }

 private:
  Loader loader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool in_step_ = false;
  bool done_ = false;
  Status status_;
  Loaded loaded_;
};

}  // namespace

Runtime::Runtime(RuntimeOptions options)
    : options_(std::move(options)),
      allocator_(options_.alloc, options_.free, options_.alloc_user),
      pool_(thread_count(options_.n_threads)),
      backend_(cpu::create_cpu_backend(allocator_, pool_)) {}

void Runtime::close() {
  std::vector<std::weak_ptr<Session>> sessions;
  {
    MutexLock lock(mutex_);
    if (close_begun_) {
      while (!close_done_) changed_.wait(mutex_);
      return;
    }
    close_begun_ = true;
    closed_.store(true, std::memory_order_release);
    sessions.swap(sessions_);
  }
  for (const auto& weak : sessions) {
    if (auto session = weak.lock()) session->request_stop();
  }
  scheduler_.stop();
  for (const auto& weak : sessions) {
    if (auto session = weak.lock()) {
      session->engine_stopped();
      session->close();
    }
  }
  pool_.stop();
  MutexLock lock(mutex_);
  close_done_ = true;
  changed_.notify_all();
}

bool Runtime::add_session(const std::shared_ptr<Session>& session) {
  MutexLock lock(mutex_);
  if (close_begun_) return false;
  std::erase_if(sessions_, [](const auto& weak) { return weak.expired(); });
  sessions_.push_back(session);
  return true;
}

Result<std::shared_ptr<Model>> load_model(std::shared_ptr<Runtime> runtime, const std::string& path,
                                          const ModelLoadOptions& options) {
  auto job = std::make_shared<LoadJob<ModelLoader>>(
      runtime->backend(), path,
      ModelLoader::Options{options.map, options.weight_type, options.merge, options.beacon_directory,
                           options.cancel.get(), options.progress});
  if (!runtime->scheduler().add(job)) return Status(Code::kClosed, "the runtime is closed");
  QUIRE_ASSIGN(auto llama, job->wait(*runtime));
  auto model = std::make_shared<Model>();
  model->runtime = runtime;
  model->llama = std::move(llama);
  const LlamaWeights& weights = model->llama->weights();
  runtime->log().write(LogLevel::kInfo, "loaded " + path + ": " + std::to_string(weights.n_parameters) +
                                            " parameters, " + std::to_string(weights.bytes) + " bytes, " +
                                            element_name(weights.type) + ", on " + runtime->backend().name());
  return model;
}

Result<std::shared_ptr<LoadedAdapter>> load_adapter(std::shared_ptr<Model> model, const std::string& path,
                                                    const AdapterLoadOptions& options) {
  Runtime& runtime = *model->runtime;
  auto job =
      std::make_shared<LoadJob<AdapterLoader>>(runtime.backend(), path, model->llama->config(), model->llama->weights(),
                                               AdapterLoader::Options{options.cancel.get(), options.progress});
  if (!runtime.scheduler().add(job)) return Status(Code::kClosed, "the runtime is closed");
  QUIRE_ASSIGN(auto adapter, job->wait(runtime));
  runtime.log().write(LogLevel::kInfo, "loaded adapter " + path + ": " + std::to_string(adapter->n_parameters) +
                                           " parameters, " + std::to_string(adapter->bytes) + " bytes");
  auto loaded = std::make_shared<LoadedAdapter>();
  loaded->model = model;
  loaded->adapter = std::move(adapter);
  return loaded;
}

}  // namespace quire
