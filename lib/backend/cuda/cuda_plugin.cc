#include "lib/backend/cuda/cuda_plugin.h"

#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/support/os_directory.h"
#include "lib/support/os_library.h"

namespace quire::cuda {
namespace {

constexpr const char* kName = "libquire-cuda.so";

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Opens the plugin at `path`. The message of an error begins with the path.
Status open_at(const std::string& path, Plugin& plugin) {
  QUIRE_ASSIGN(void* const library, os_open_library(path));
  using Entry = const DeviceApi* (*)(uint32_t);
  const auto entry = reinterpret_cast<Entry>(os_library_symbol(library, "quire_cuda_entry"));
  if (!entry) return Status(Code::kUnsupported, path + ": is no plugin of Quire's: it has no quire_cuda_entry");
  const DeviceApi* const api = entry(kDeviceApiVersion);
  if (!api || api->version != kDeviceApiVersion || api->bytes != sizeof(DeviceApi)) {
    return Status(Code::kUnsupported, path + ": is of another version of Quire");
  }
  plugin.api = api;
  plugin.path = path;
  return {};
}

}  // namespace

std::string find_devices(const DeviceApi& api, int& n_devices) {
  n_devices = 0;
  Probe probe;
  if (const int error = api.probe(&probe); error != 0) {
    return std::string("the CUDA runtime failed: ") + api.error_text(error);
  }
  switch (probe.obstacle) {
    case Obstacle::kNone:
      n_devices = probe.n_devices;
      return {};
    case Obstacle::kNoDriver:
      return "no NVIDIA driver is installed";
    case Obstacle::kOldDriver:
      return "the NVIDIA driver is too old: it is made for CUDA " + version_text(probe.driver_version) +
             ", and this plugin needs " + version_text(probe.runtime_version);
    case Obstacle::kNoDevice:
      return "the NVIDIA driver finds no GPU";
    case Obstacle::kOther:
      break;
  }
  return std::string("the NVIDIA driver failed: ") + api.error_text(probe.error);
}

Plugin open_plugin() {
  Plugin plugin;
  std::vector<std::string> places;
  if (const char* const wanted = std::getenv("QUIRE_CUDA_PLUGIN"); wanted && *wanted) {
    if (std::string_view(wanted) == "none") {
      plugin.obstacle = "QUIRE_CUDA_PLUGIN is \"none\", so no plugin is looked for";
      return plugin;
    }
    places.emplace_back(wanted);
  } else {
    const std::string beside = os_own_folder() + "/" + kName;
    if (file_facts(beside).exists) places.push_back(beside);
    places.emplace_back(kName);
  }
  plugin.expected = places.size() > 1 || places.front() != kName;
  for (const std::string& place : places) {
    const Status opened = open_at(place, plugin);
    if (opened.ok()) break;
    plugin.obstacle += (plugin.obstacle.empty() ? "" : "; ") + opened.message();
  }
  if (plugin.api) plugin.obstacle = find_devices(*plugin.api, plugin.n_devices);
  return plugin;
}

const Plugin& plugin() {
  static const Plugin only = open_plugin();
  return only;
}

}  // namespace quire::cuda
