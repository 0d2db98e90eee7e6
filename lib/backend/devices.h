// The devices of a machine that a model can run on, and their backends, opened when they are first asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/backend/cuda/cuda_plugin.h"
#include "lib/support/allocator.h"
#include "lib/support/mutex.h"
#include "lib/support/status.h"
#include "lib/support/thread_pool.h"

namespace quire {

struct Device {
  enum class Kind : int32_t { kCpu = 1, kCuda = 2 };  // the numbers of QUIRE_DEVICE_*
  Kind kind = Kind::kCpu;
  std::string name;  // as an application asks for it: "cpu", "cuda:0"
  std::string description;
  int64_t memory_bytes = 0;  // 0: unknown
  int64_t free_bytes = 0;
  std::string obstacle;  // why no model can run on it; empty: one can
};

// Any thread.
class Devices {
 public:
  struct Choice {
    Backend* backend;  // lives as long as the Devices; everything on this device shares it
    std::string name;
    std::string reason;       // for a person: why this one
    std::string shortcoming;  // Backend::shortcoming()
  };

  // Puts another backend in the place of the CPU's own, which it may compute with.
  using Wrap = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;
  // Where GPUs come from.
  using FindCuda = std::function<const cuda::Plugin&()>;

  // Allocator and pool must outlive the Devices and everything that their backends made. wrap: of tests; may be empty.
  // find_cuda: any thread; empty: cuda::plugin().
  Devices(Allocator& allocator, ThreadPool& pool, Wrap wrap, FindCuda find_cuda)
      : allocator_(allocator),
        pool_(pool),
        wrap_(std::move(wrap)),
        find_cuda_(find_cuda ? std::move(find_cuda) : cuda::plugin) {}

  // What there is now, in the order in which "auto" prefers it: GPUs by their index, then the CPU. At least one entry.
  std::vector<Device> list();
  // `wanted`: a device's name, "cuda" being "cuda:0"; empty or "auto": the first usable one that can be opened. Who
  // asks for "cpu" looks for no GPU. Errors: kInvalidArgument for a name that no device has, kUnsupported for one that
  // this build or machine cannot use, kOutOfMemory.
  Result<Choice> open(std::string_view wanted);

 private:
  Backend& cpu();
  Result<Backend*> gpu(int index);
  Device describe_cpu();
  Device describe_gpu(int index);

  Allocator& allocator_;
  ThreadPool& pool_;
  const Wrap wrap_;
  const FindCuda find_cuda_;
  Mutex mutex_;
  // Null until they are asked for.
  std::unique_ptr<Backend> cpu_ QUIRE_GUARDED_BY(mutex_);
  std::map<int, std::unique_ptr<Backend>> gpus_ QUIRE_GUARDED_BY(mutex_);  // by index
};

}  // namespace quire
