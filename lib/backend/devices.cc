#include "lib/backend/devices.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/backend/cuda/cuda_backend.h"
#include "lib/support/os_memory.h"

namespace quire {
namespace {

// "cuda" or "cuda:N".
bool names_cuda(std::string_view name) {
  constexpr std::string_view kCuda = "cuda";
  if (!name.starts_with(kCuda)) return false;
  const std::string_view rest = name.substr(kCuda.size());
  if (rest.empty()) return true;
  return rest.size() >= 2 && rest.size() <= 4 && rest.front() == ':' &&
         rest.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

std::string names(const std::vector<Device>& devices) {
  std::string all;
  for (const Device& device : devices) all += (all.empty() ? "" : ", ") + device.name;
  return all;
}

}  // namespace

Backend& Devices::cpu() {
  MutexLock lock(mutex_);
  if (!cpu_) {
    auto own = cpu::create_cpu_backend(allocator_, pool_);
    cpu_ = wrap_ ? wrap_(std::move(own)) : std::move(own);
  }
  return *cpu_;
}

Result<Backend*> Devices::gpu(int index) {
  MutexLock lock(mutex_);
  std::unique_ptr<Backend>& backend = gpus_[index];
  if (!backend) {
    cuda::CudaOptions options;
    options.pool = &pool_;
    QUIRE_ASSIGN(backend, cuda::create_cuda_backend(allocator_, *find_cuda_().api, index, options));
  }
  return backend.get();
}

Device Devices::describe_cpu() {
  const MemorySize memory = os_memory_size();
  Device device;
  device.name = "cpu";
  device.description =
      cpu().name() + ", " + std::to_string(pool_.n_threads()) + (pool_.n_threads() == 1 ? " thread" : " threads");
  device.memory_bytes = memory.total;
  device.free_bytes = memory.available;
  return device;
}

Device Devices::describe_gpu(int index) {
  const cuda::DeviceApi& api = *find_cuda_().api;
  Device device;
  device.kind = Device::Kind::kCuda;
  device.name = "cuda:" + std::to_string(index);
  cuda::DeviceFacts facts;
  if (const int error = api.describe(index, &facts); error != 0) {
    device.description = "an NVIDIA GPU";
    device.obstacle = std::string("the NVIDIA driver failed: ") + api.error_text(error);
    return device;
  }
  const std::string capability = std::to_string(facts.major) + "." + std::to_string(facts.minor);
  device.description = std::string(facts.name) + ", compute capability " + capability;
  device.memory_bytes = facts.memory_bytes;
  if (!facts.usable) device.obstacle = "the plugin has no code for compute capability " + capability;
  return device;
}

std::vector<Device> Devices::list() {
  std::vector<Device> all;
  for (int index = 0; index < find_cuda_().n_devices; ++index) all.push_back(describe_gpu(index));
  all.push_back(describe_cpu());
  // So that the first one can be used.
  std::stable_partition(all.begin(), all.end(), [](const Device& device) { return device.obstacle.empty(); });
  return all;
}

Result<Devices::Choice> Devices::open(std::string_view wanted) {
  if (wanted == "cpu") return Choice{&cpu(), "cpu", "asked for", cpu().shortcoming()};  // no plugin is looked for
  const std::vector<Device> all = list();
  const bool automatic = wanted.empty() || wanted == "auto";
  const std::string name(wanted == "cuda" ? "cuda:0" : wanted);
  const cuda::Plugin& cuda = find_cuda_();
  // Why those before it were not chosen. Of a machine without a GPU nobody wants to hear that no plugin is there
  // either, if nobody put one there.
  const bool has_plugin = cuda.api || cuda.expected;
  std::string passed_over = has_plugin && cuda.n_devices == 0 ? "; no GPU: " + cuda.obstacle : "";
  for (const Device& device : all) {
    if (automatic ? !device.obstacle.empty() : device.name != name) continue;
    if (!device.obstacle.empty()) return Status(Code::kUnsupported, device.name + ": " + device.obstacle);
    Backend* backend = nullptr;
    if (device.kind == Device::Kind::kCpu) {
      backend = &cpu();
    } else if (auto opened = gpu(std::atoi(device.name.c_str() + std::string_view("cuda:").size())); opened.ok()) {
      backend = *opened;
    } else if (!automatic) {
      return opened.status();
    } else {
      passed_over += "; " + opened.status().message();
      continue;
    }
    const auto usable = std::count_if(all.begin(), all.end(), [](const Device& d) { return d.obstacle.empty(); });
    const char* const chosen =
        usable == 1 ? "chosen because it is the only usable device" : "chosen because it is the first usable device";
    return Choice{backend, device.name, automatic ? chosen + passed_over : "asked for", backend->shortcoming()};
  }
  const std::string there = "; there is: auto, " + names(all);
  if (names_cuda(wanted)) {
    const std::string why = cuda.n_devices == 0 ? cuda.obstacle : "this machine has no such GPU";
    return Status(Code::kUnsupported, std::string(wanted) + ": " + why + there);
  }
  return Status(Code::kInvalidArgument,
                "device \"" + std::string(wanted.substr(0, 64)) + "\" is not one that this library knows" + there);
}

}  // namespace quire
