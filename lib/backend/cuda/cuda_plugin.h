// The plugin libquire-cuda.so: where it is looked for, and whether what it finds on this machine can be used.
#pragma once

#include <functional>
#include <string>

#include "kernels/cuda/device_api.h"

namespace quire::cuda {

struct Plugin {
  const DeviceApi* api = nullptr;  // null: there is no plugin
  int n_devices = 0;
  std::string obstacle;   // why there are no devices; empty if there are
  std::string path;       // of the plugin that was opened
  bool expected = false;  // somebody named one, or put one beside this library
};

// Opens the plugin and asks it what is there. It is looked for, in this order:
//   1. where the environment variable QUIRE_CUDA_PLUGIN says, if it is not empty, and then nowhere else; "none": no
//      plugin is wanted;
//   2. in the folder of libquire.so, or of the program that contains this library;
//   3. where the system looks for libraries.
// Never fails: obstacle says what was found instead.
Plugin open_plugin();

// The same, once for the process. Any thread.
const Plugin& plugin();

// Why a plugin's table has no devices for us; empty if it has. n_devices: how many.
std::string find_devices(const DeviceApi& api, int& n_devices);

}  // namespace quire::cuda
