// The device of a test: the emulated one, or the machine's first GPU where QUIRE_TEST_DEVICE is "cuda".
//
// On a machine without a GPU a test program that wants one ends with status 77, which CTest takes for "skipped"; with
// QUIRE_REQUIRE_GPU=1 it fails (device_main.cc).
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/cuda/device_api.h"

namespace quire::test {

bool wants_gpu();
// Of the GPU, or of the emulation. Any thread.
const cuda::DeviceApi& test_device();
// A stream of it, for one thread.
cuda::Stream test_stream();

// Memory that a kernel and the test can both touch at one address.
template <typename T>
struct SharedMemory {
  using value_type = T;
  SharedMemory() = default;
  template <typename Other>
  SharedMemory(const SharedMemory<Other>&) {}
  T* allocate(size_t n) {
    void* memory = nullptr;
    if (test_device().allocate_host(n * sizeof(T), &memory) != 0) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { test_device().release_host(memory); }
  bool operator==(const SharedMemory&) const { return true; }
};
template <typename T>
using Shared = std::vector<T, SharedMemory<T>>;

// Calls a function of the table, and waits for its kernels. 0, or what failed.
template <typename... Parameters>
int run(int (*cuda::DeviceApi::*function)(cuda::Stream, Parameters...), std::type_identity_t<Parameters>... arguments) {
  const int queued = (test_device().*function)(test_stream(), arguments...);
  return queued != 0 ? queued : test_device().finish_stream(test_stream());
}

}  // namespace quire::test
