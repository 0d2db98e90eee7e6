// The main() of tests that run over the emulated device and on a GPU.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string_view>

#include "lib/backend/cuda/cuda_plugin.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/test_device.h"

namespace quire::test {
namespace {

bool is_set(const char* variable, std::string_view value) {
  const char* const found = std::getenv(variable);
  return found != nullptr && found == value;
}

}  // namespace

bool wants_gpu() {
  static const bool wanted = is_set("QUIRE_TEST_DEVICE", "cuda");
  return wanted;
}

const cuda::DeviceApi& test_device() { return wants_gpu() ? *cuda::plugin().api : emulation::device_api(); }

cuda::Stream test_stream() {
  static const cuda::Stream only = [] {
    cuda::Stream stream = nullptr;
    if (test_device().create_stream(&stream) != 0) throw std::bad_alloc();
    return stream;
  }();
  return only;
}

}  // namespace quire::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (quire::test::wants_gpu() && quire::cuda::plugin().n_devices == 0) {
    std::printf("no GPU: %s\n", quire::cuda::plugin().obstacle.c_str());
    constexpr int kSkipped = 77;
    return quire::test::is_set("QUIRE_REQUIRE_GPU", "1") ? 1 : kSkipped;
  }
  return RUN_ALL_TESTS();
}
