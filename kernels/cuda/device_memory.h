// The device's memory, of which pieces of some MiB come from a pool.
//
// Records of keys and values are such pieces, and come and go all the time. The driver gives memory by pages of 2 MiB,
// so that a record of a little more takes twice its size, and waits for the whole device when some is given back; a
// pool cuts large blocks into pieces, and waits for nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cuda {

// Says which device is the thread's, for the functions below: whatever fails then, memory goes back where it came from.
void set_thread_device(int device);
// DeviceApi::allocate and release, on the thread's device.
int allocate_memory(size_t bytes, void** out);
int release_memory(void* memory, size_t bytes);
// Bytes of the memory of the thread's device that its pool has beside those in use: allocate_memory() finds them,
// although the driver says that they are taken.
int64_t unused_in_pool();

}  // namespace quire::cuda
