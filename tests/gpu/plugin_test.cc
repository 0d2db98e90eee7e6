// The plugin on a machine with or without a GPU: it is found, it says what is there, and nothing fails where nothing
// is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "lib/backend/cuda/cuda_plugin.h"
#include "lib/support/os_library.h"
#include "tests/source_path.h"

namespace quire::cuda {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

Plugin open_with(const std::string& path) {
  setenv("QUIRE_CUDA_PLUGIN", path.c_str(), 1);
  return open_plugin();
}

const DeviceApi& api() {
  static const Plugin plugin = open_with(QUIRE_PLUGIN);
  EXPECT_NE(plugin.api, nullptr) << plugin.obstacle;
  return *plugin.api;
}

TEST(Plugin, IsFoundWhereItIsSaidToBe) {
  const Plugin plugin = open_with(QUIRE_PLUGIN);
  ASSERT_NE(plugin.api, nullptr) << plugin.obstacle;
  EXPECT_EQ(plugin.path, QUIRE_PLUGIN);
  EXPECT_EQ(plugin.n_devices == 0, !plugin.obstacle.empty()) << plugin.obstacle;
}

TEST(Plugin, IsNotLookedForWhereNoneIsWanted) {
  const Plugin plugin = open_with("none");
  EXPECT_EQ(plugin.api, nullptr);
  EXPECT_EQ(plugin.n_devices, 0);
  EXPECT_THAT(plugin.obstacle, HasSubstr("QUIRE_CUDA_PLUGIN is \"none\""));
  EXPECT_FALSE(plugin.expected);
  EXPECT_FALSE(open_with("").expected);  // as if it were not set
}

TEST(Plugin, OtherFilesAreRefusedByName) {
  const Plugin missing = open_with("/nowhere/libquire-cuda.so");
  EXPECT_EQ(missing.api, nullptr);
  EXPECT_TRUE(missing.expected);
  EXPECT_THAT(missing.obstacle, HasSubstr("/nowhere/libquire-cuda.so"));
  const Plugin text = open_with(test::source_path("tests/gpu/plugin_test.cc"));
  EXPECT_EQ(text.api, nullptr);
  EXPECT_THAT(text.obstacle, HasSubstr("plugin_test.cc"));
  const Plugin other = open_with("libm.so.6");
  EXPECT_EQ(other.api, nullptr);
  EXPECT_THAT(other.obstacle, HasSubstr("libm.so.6: is no plugin of Quire's"));
}

TEST(Plugin, AnotherVersionIsRefused) {
  const Plugin plugin = open_with(QUIRE_OTHER_PLUGIN);
  EXPECT_EQ(plugin.api, nullptr);
  EXPECT_THAT(plugin.obstacle, HasSubstr("is of another version of Quire"));
}

TEST(Plugin, WithoutAPathItIsLookedForBesideTheProgram) {
  unsetenv("QUIRE_CUDA_PLUGIN");
  const Plugin plugin = open_plugin();  // beside this test there is none
  if (!plugin.api) {
    EXPECT_THAT(plugin.obstacle, HasSubstr("libquire-cuda.so"));
  }
}

TEST(Plugin, TheTableIsComplete) {
  ASSERT_EQ(api().version, kDeviceApiVersion);
  ASSERT_EQ(api().bytes, sizeof(DeviceApi));
  constexpr size_t kHead = 2 * sizeof(uint32_t);
  const auto* const functions = reinterpret_cast<const char*>(&api()) + kHead;
  for (size_t i = 0; i < (sizeof(DeviceApi) - kHead) / sizeof(void*); ++i) {
    void* function = nullptr;
    std::memcpy(&function, functions + i * sizeof(void*), sizeof function);
    EXPECT_NE(function, nullptr) << "function " << i;
  }
}

TEST(Plugin, WithoutADeviceEveryCallSaysSo) {
  Probe probe;
  ASSERT_EQ(api().probe(&probe), 0);
  EXPECT_GE(probe.runtime_version, 13000);
  EXPECT_EQ(probe.obstacle == Obstacle::kNone, probe.n_devices > 0);
  DeviceFacts facts;
  EXPECT_NE(api().describe(probe.n_devices, &facts), 0);
  EXPECT_NE(api().use_device(probe.n_devices), 0);
  int64_t free = 0;
  EXPECT_NE(api().free_memory(probe.n_devices, &free), 0);
  if (probe.n_devices > 0) GTEST_SKIP() << "this machine has a device";
  void* memory = nullptr;
  for (const int error : {api().allocate(1024, &memory), api().allocate_host(1024, &memory)}) {
    ASSERT_NE(error, 0);
    EXPECT_EQ(memory, nullptr);
    EXPECT_STRNE(api().error_text(error), "");
    EXPECT_FALSE(api().is_out_of_memory(error));
  }
  Stream stream = nullptr;
  EXPECT_NE(api().create_stream(&stream), 0);
  Event event = nullptr;
  EXPECT_NE(api().create_event(&event), 0);
  float row[4] = {1, 2, 3, 4};
  const DeviceRows rows{row, 4, ElementType::kF32};
  EXPECT_NE(api().rms_norm(nullptr, rows, row, 1e-5f, 1, 4, false, rows), 0);
  // No call left its error to the next one.
  EXPECT_EQ(api().probe(&probe), 0);
}

// CTest runs it with QUIRE_CUBLASLT=/nowhere/libcublasLt.so.
TEST(Plugin, WithoutCublasItSaysSo) {
  const char* const path = std::getenv("QUIRE_CUBLASLT");
  if (!path) GTEST_SKIP() << "QUIRE_CUBLASLT is not set";
  char why[256] = {};
  EXPECT_FALSE(api().open_blas(why, sizeof why));
  EXPECT_THAT(why, HasSubstr(path));
  char shorter[8] = {};
  EXPECT_FALSE(api().open_blas(shorter, sizeof shorter));
  EXPECT_EQ(std::string(shorter), std::string(why).substr(0, 7));
  EXPECT_FALSE(api().open_blas(nullptr, 0));
  const DeviceRows rows{};
  EXPECT_NE(api().blas_matmul(nullptr, rows, 1, DeviceMatrix{}, nullptr, false, rows, nullptr), 0);
}

// CTest runs it with the CUDA Toolkit's stub in the place of the driver.
TEST(Plugin, ADriverThatFailsIsNamed) {
  if (!std::getenv("QUIRE_STUB_DRIVER")) GTEST_SKIP() << "QUIRE_STUB_DRIVER is not set";
  int n_devices = -1;
  EXPECT_THAT(find_devices(api(), n_devices), HasSubstr("stub"));
  EXPECT_EQ(n_devices, 0);
}

// ---- what is said of a probe

Probe found;
int failed = 0;
int tell(Probe* out) {
  *out = found;
  return failed;
}
const char* text_of(int error) { return error == 46 ? "all devices are busy" : "?"; }

TEST(Devices, TheObstacleIsSaid) {
  DeviceApi fake;
  fake.probe = tell;
  fake.error_text = text_of;
  const auto said = [&](const Probe& probe, int n) {
    found = probe;
    int n_devices = -1;
    std::string obstacle = find_devices(fake, n_devices);
    EXPECT_EQ(n_devices, n);
    return obstacle;
  };
  EXPECT_EQ(said({.obstacle = Obstacle::kNone, .n_devices = 2}, 2), "");
  EXPECT_EQ(said({.obstacle = Obstacle::kNoDriver}, 0), "no NVIDIA driver is installed");
  EXPECT_EQ(said({.obstacle = Obstacle::kOldDriver, .driver_version = 12040, .runtime_version = 13000}, 0),
            "the NVIDIA driver is too old: it is made for CUDA 12.4, and this plugin needs 13.0");
  EXPECT_EQ(said({.obstacle = Obstacle::kNoDevice}, 0), "the NVIDIA driver finds no GPU");
  EXPECT_EQ(said({.obstacle = Obstacle::kOther, .error = 46}, 0), "the NVIDIA driver failed: all devices are busy");
  failed = 46;
  EXPECT_EQ(said({.obstacle = Obstacle::kNone, .n_devices = 2}, 0), "the CUDA runtime failed: all devices are busy");
  failed = 0;
}

}  // namespace
}  // namespace quire::cuda
