// Exceptions become a Status here: at the C boundary, and on the engine thread, where one would end the process.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "lib/support/status.h"

namespace quire {

// Runs body() -> Status. A failure to allocate has no message: there may be no memory for one.
template <typename Body>
Status contain(const Body& body) noexcept {
  try {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return Status(Code::kOutOfMemory, {});
    } catch (const std::exception& e) {
      return Status(Code::kInternal, std::string("unexpected: ") + e.what());
    }
  } catch (...) {
    return Status(Code::kInternal, {});
  }
}

}  // namespace quire
