// The device of a test: the emulated one, or the machine's first GPU where QUIRE_TEST_DEVICE is "cuda".
//
// On a machine without a GPU a test program that wants one ends with status 77, which CTest takes for "skipped"; with
// QUIRE_REQUIRE_GPU=1 it fails (device_main.cc).
#pragma once

#include "kernels/cuda/device_api.h"

namespace quire::test {

bool wants_gpu();
// Of the GPU, or of the emulation. Any thread.
const cuda::DeviceApi& test_device();

}  // namespace quire::test
