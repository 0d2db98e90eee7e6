// Which device is chosen, and what is said of the others, on machines with all kinds of GPUs.
#include "lib/backend/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kBroken = 101, kFull = 2;

// The machine of the test: what describe() says of each GPU.
std::vector<cuda::DeviceFacts> machine;

cuda::DeviceFacts gpu(const char* name, int major, bool usable) {
  cuda::DeviceFacts facts;
  std::strncpy(facts.name, name, sizeof facts.name - 1);
  facts.major = major;
  facts.usable = usable;
  facts.memory_bytes = int64_t{16} << 30;
  return facts;
}

int describe(int device, cuda::DeviceFacts* out) {
  if (machine[static_cast<size_t>(device)].major == 0) return kBroken;
  *out = machine[static_cast<size_t>(device)];
  return 0;
}
const char* error_text(int error) { return error == kFull ? "out of memory" : "the device is broken"; }
bool is_out_of_memory(int error) { return error == kFull; }
int use_device(int) { return kFull; }  // its context does not fit any more

// Of GPUs that none can be opened.
class DevicesTest : public ::testing::Test {
 protected:
  void expect_gpus(std::vector<cuda::DeviceFacts> gpus) {
    machine = std::move(gpus);
    api_.describe = describe;
    api_.error_text = error_text;
    api_.is_out_of_memory = is_out_of_memory;
    api_.use_device = use_device;
    plugin_.api = &api_;
    plugin_.n_devices = static_cast<int>(machine.size());
  }
  std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const Device& device : devices_.list()) all.push_back(device.name);
    return all;
  }
  std::string failure(std::string_view name, Code code) {
    const auto opened = devices_.open(name);
    EXPECT_FALSE(opened.ok());
    if (opened.ok()) return {};
    EXPECT_EQ(opened.status().code(), code) << opened.status().message();
    return opened.status().message();
  }

  cuda::DeviceApi api_;
  cuda::Plugin plugin_;
  Allocator allocator_{nullptr, nullptr, nullptr};
  ThreadPool pool_{1};
  Devices devices_{allocator_, pool_, {}, [this]() -> const cuda::Plugin& { return plugin_; }};
};

TEST_F(DevicesTest, WithoutAPluginNobodyHearsOfGpusUnlessTheyAsk) {
  plugin_.obstacle = "libquire-cuda.so: cannot open shared object file";
  EXPECT_THAT(names(), ElementsAre("cpu"));
  auto chosen = devices_.open("auto");
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->reason, "chosen because it is the only usable device");
  EXPECT_EQ(failure("cuda", Code::kUnsupported),
            "cuda: libquire-cuda.so: cannot open shared object file; there is: auto, cpu");
  EXPECT_THAT(failure("cuda:3", Code::kUnsupported), HasSubstr("cuda:3: libquire-cuda.so"));
  EXPECT_THAT(failure("gpu", Code::kInvalidArgument), HasSubstr("auto, cpu"));
}

TEST_F(DevicesTest, APluginThatCannotBeUsedIsNoSecret) {
  plugin_.obstacle = "libquire-cuda.so: is of another version of Quire";
  plugin_.expected = true;
  auto chosen = devices_.open("auto");
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->reason, "chosen because it is the only usable device; no GPU: " + plugin_.obstacle);
}

TEST_F(DevicesTest, WithAPluginTheReasonSaysWhyThereIsNoGpu) {
  expect_gpus({});
  plugin_.obstacle = "no NVIDIA driver is installed";
  auto chosen = devices_.open("");
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->name, "cpu");
  EXPECT_EQ(chosen->reason, "chosen because it is the only usable device; no GPU: no NVIDIA driver is installed");
}

TEST_F(DevicesTest, WhoAsksForTheCpuLooksForNoPlugin) {
  Devices devices(allocator_, pool_, {}, []() -> const cuda::Plugin& {
    ADD_FAILURE() << "a plugin was looked for";
    static const cuda::Plugin none;
    return none;
  });
  auto chosen = devices.open("cpu");
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->name, "cpu");
  EXPECT_EQ(chosen->reason, "asked for");
}

TEST_F(DevicesTest, GpusComeFirstAndUnusableOnesLast) {
  expect_gpus({gpu("Old One", 7, false), gpu("New One", 9, true), cuda::DeviceFacts{}});
  EXPECT_THAT(names(), ElementsAre("cuda:1", "cpu", "cuda:0", "cuda:2"));
  const std::vector<Device> all = devices_.list();
  EXPECT_EQ(all[0].kind, Device::Kind::kCuda);
  EXPECT_EQ(all[0].description, "New One, compute capability 9.0");
  EXPECT_EQ(all[0].memory_bytes, int64_t{16} << 30);
  EXPECT_EQ(all[2].obstacle, "the plugin has no code for compute capability 7.0");
  EXPECT_EQ(all[3].obstacle, "the NVIDIA driver failed: the device is broken");
  EXPECT_THAT(failure("cuda:0", Code::kUnsupported), HasSubstr("cuda:0: the plugin has no code for"));
  EXPECT_THAT(failure("cuda", Code::kUnsupported), HasSubstr("cuda:0: the plugin has no code for"));
  EXPECT_THAT(failure("cuda:7", Code::kUnsupported),
              HasSubstr("cuda:7: this machine has no such GPU; there is: auto, cuda:1, cpu, cuda:0, cuda:2"));
}

TEST_F(DevicesTest, WhereAGpuIsFullAutoGoesOnAndSaysWhy) {
  expect_gpus({gpu("Full One", 9, true)});
  EXPECT_THAT(failure("cuda:0", Code::kOutOfMemory), HasSubstr("out of memory"));
  auto chosen = devices_.open("auto");
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->name, "cpu");
  EXPECT_THAT(chosen->reason, HasSubstr("chosen because it is the first usable device; "));
  EXPECT_THAT(chosen->reason, HasSubstr("out of memory"));
}

}  // namespace
}  // namespace quire
