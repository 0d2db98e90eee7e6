// A backend that is as unlike the CPU as the contract allows: a device for tests, without one.
//
// Device memory has no host address. An operation is queued and runs on another thread, at the last moment: when
// somebody waits for a fence behind it, asks whether one is done, or destroys the queue. So the source of an upload is
// read late, and whatever must live until an operation is done had better be there. Memory that is freed is overwritten
// at once with bytes that are NaN as numbers and far out of range as indexes, and is given back only when nothing is
// queued any more; under AddressSanitizer an access to it is reported.
#pragma once

#include <memory>

#include "lib/backend/backend.h"

namespace quire::test {

// Computes with `real`, whose device memory the host can touch.
std::unique_ptr<Backend> create_deferred_backend(std::unique_ptr<Backend> real);

}  // namespace quire::test
