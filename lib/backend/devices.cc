#include "lib/backend/devices.h"

#include <algorithm>

#include "lib/backend/cpu/cpu_backend.h"
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

std::vector<Device> Devices::list() {
  const MemorySize memory = os_memory_size();
  Device cpu_device;
  cpu_device.name = "cpu";
  cpu_device.description =
      cpu().name() + ", " + std::to_string(pool_.n_threads()) + (pool_.n_threads() == 1 ? " thread" : " threads");
  cpu_device.memory_bytes = memory.total;
  cpu_device.free_bytes = memory.available;
  return {std::move(cpu_device)};
}

Result<Devices::Choice> Devices::open(std::string_view wanted) {
  const std::vector<Device> all = list();
  const bool automatic = wanted.empty() || wanted == "auto";
  for (const Device& device : all) {
    if (automatic ? !device.obstacle.empty() : device.name != wanted) continue;
    if (!device.obstacle.empty()) return Status(Code::kUnsupported, device.name + ": " + device.obstacle);
    const auto usable = std::count_if(all.begin(), all.end(), [](const Device& d) { return d.obstacle.empty(); });
    const char* chosen =
        usable == 1 ? "chosen because it is the only usable device" : "chosen because it is the first usable device";
    return Choice{&cpu(), device.name, automatic ? chosen : "asked for"};
  }
  const std::string there = "; there is: auto, " + names(all);
  if (names_cuda(wanted)) {
    return Status(Code::kUnsupported, std::string(wanted) + ": this build has no CUDA backend" + there);
  }
  return Status(Code::kInvalidArgument,
                "device \"" + std::string(wanted.substr(0, 64)) + "\" is not one that this library knows" + there);
}

}  // namespace quire
