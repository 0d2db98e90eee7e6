// A runtime: the threads, memory and log sink that models and sessions share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/devices.h"
#include "lib/kv/io_thread.h"
#include "lib/kv/prefix_cache.h"
#include "lib/kv/prefix_table.h"
#include "lib/kv/residency.h"
#include "lib/kv/tier_budget.h"
#include "lib/model/forward_pass.h"
#include "lib/model/llama_model.h"
#include "lib/model/model_loader.h"
#include "lib/session/scheduler.h"
#include "lib/support/allocator.h"
#include "lib/support/cancel.h"
#include "lib/support/log.h"
#include "lib/support/mutex.h"
#include "lib/support/thread_pool.h"

namespace quire {

class Session;

struct RuntimeOptions {
  int n_threads = 0;     // 0: one for each usable core
  int n_io_threads = 0;  // 0: one; -1: none, and sessions that spill read and write on the engine thread
  // What the KV caches of all sessions may hold together; 0: no limit.
  int64_t kv_device_bytes = 0;      // in the memory of each device that has its own
  int64_t kv_memory_bytes = 0;      // in the machine's memory
  int64_t kv_compressed_bytes = 0;  // compressed
  int64_t kv_file_bytes = 0;        // and in spill files
  int64_t prefix_cache_bytes = 0;   // of these, what is kept of released sessions; 0: nothing is
  Allocator::AllocFn alloc = nullptr;
  Allocator::FreeFn free = nullptr;
  void* alloc_user = nullptr;
  Log log;
  // Of tests.
  Devices::Wrap wrap_backend;
  Devices::FindCuda find_cuda;
};

// Any thread. Everything made from a runtime holds a shared_ptr to it.
class Runtime {
 public:
  explicit Runtime(RuntimeOptions options);
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Called after the callbacks of the options were used for the last time.
  void set_on_destroy(std::function<void()> hook) noexcept { destroy_hook_.run = std::move(hook); }

  // Cancels everything, frees the sessions' memory, and ends all threads. Idempotent; a second call waits for the
  // first.
  void close();
  bool closed() const { return closed_.cancelled(); }
  const CancelToken& closing() const { return closed_; }

  Scheduler& scheduler() { return scheduler_; }
  Devices& devices() { return devices_; }
  ThreadPool& pool() { return pool_; }
  // Of all KV caches on a device, whose backend this is. It lives as long as the runtime.
  std::shared_ptr<Residency> residency(const Backend& backend);
  // Has sessions that rest, and texts that are kept of released ones, release so many bytes of the device's memory, or
  // what they can. False: there is none. Any thread.
  bool make_device_room(Backend& backend, int64_t bytes);
  const std::shared_ptr<PrefixTable>& prefixes() const { return prefixes_; }
  PrefixCache& prefix_cache() { return prefix_cache_; }
  const std::shared_ptr<TierBudget>& kv_host() const { return kv_host_; }
  const std::shared_ptr<TierBudget>& kv_compressed() const { return kv_compressed_; }
  const std::shared_ptr<TierBudget>& kv_file() const { return kv_file_; }
  Allocator& allocator() { return allocator_; }
  // Null: there are none.
  IoThreads* io() { return io_.get(); }
  const Log& log() const { return options_.log; }

  // The session will be closed with the runtime. False: that is closed already.
  bool add_session(const std::shared_ptr<Session>& session);

 private:
  // Runs on_destroy after every other member is gone.
  struct DestroyHook {
    std::function<void()> run;
    ~DestroyHook() {
      if (run) run();
    }
  };
  DestroyHook destroy_hook_;
  RuntimeOptions options_;
  Allocator allocator_;
  ThreadPool pool_;
  Devices devices_;
  // Of all sessions' KV caches: of the machine's memory, compressed memory, spill files.
  const std::shared_ptr<TierBudget> kv_host_, kv_compressed_, kv_file_;
  const std::shared_ptr<PrefixTable> prefixes_;  // their texts, as far as these are in complete chunks
  std::unique_ptr<IoThreads> io_;                // started with the first session that spills; null: none
  PrefixCache prefix_cache_;                     // what is kept of released sessions
  Scheduler scheduler_;
  CancelToken closed_;  // set when a close begins
  Mutex mutex_;
  CondVar changed_;  // notified when close_done_ is set
  bool close_begun_ QUIRE_GUARDED_BY(mutex_) = false;
  bool close_done_ QUIRE_GUARDED_BY(mutex_) = false;
  std::map<const Backend*, std::shared_ptr<Residency>> residencies_ QUIRE_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Session>> sessions_ QUIRE_GUARDED_BY(mutex_);
};

// A loaded model and the runtime, whose device it runs on, that must outlive it.
struct Model {
  ~Model() {
    if (runtime) runtime->prefix_cache().drop(this);
  }
  std::shared_ptr<Runtime> runtime;
  std::string device;                    // its name
  std::string device_reason;             // why it runs there
  std::shared_ptr<Residency> residency;  // of all KV caches on its device
  std::unique_ptr<const LlamaModel> llama;
  std::shared_ptr<const ModelTokenizer> tokenizer;
  std::unique_ptr<ForwardPass> pass;  // of the steps of its sessions, one at a time: the engine's
};

// An adapter and the model it was loaded for.
struct LoadedAdapter {
  std::shared_ptr<Model> model;
  std::unique_ptr<const Adapter> adapter;
};

struct ModelLoadOptions {
  std::string device;  // a name; empty: auto
  bool map = false;
  int32_t weight_type = 0;
  ElementType activation_type = ElementType::kInt8;
  std::vector<AdapterSource> merge;
  std::string packed_directory;  // empty: no packed weights are kept
  std::string beacon_directory;
  std::shared_ptr<CancelToken> cancel;  // may be null
  std::function<void(int64_t, int64_t)> progress;
};

struct AdapterLoadOptions {
  std::shared_ptr<CancelToken> cancel;  // may be null
  std::function<void(int64_t, int64_t)> progress;
};

// Reads the files on this thread; the engine thread packs them, a piece at a time between the steps of other jobs.
Result<std::shared_ptr<Model>> load_model(std::shared_ptr<Runtime> runtime, const std::string& path,
                                          const ModelLoadOptions& options);
Result<std::shared_ptr<LoadedAdapter>> load_adapter(std::shared_ptr<Model> model, const std::string& path,
                                                    const AdapterLoadOptions& options = {});

}  // namespace quire
