#include "lib/abi/boundary.h"

#include <cstddef>
#include <limits>

namespace quire::abi {

static_assert(sizeof(quire_error) == 24 + QUIRE_ERROR_MESSAGE_BYTES, "quire_error has its final size");
static_assert(static_cast<int32_t>(Code::kOk) == QUIRE_OK);
static_assert(static_cast<int32_t>(Code::kInternal) == QUIRE_ERROR_INTERNAL);
static_assert(static_cast<int32_t>(Code::kInvalidArgument) == QUIRE_ERROR_INVALID_ARGUMENT);
static_assert(static_cast<int32_t>(Code::kOutOfMemory) == QUIRE_ERROR_OUT_OF_MEMORY);
static_assert(static_cast<int32_t>(Code::kIo) == QUIRE_ERROR_IO);
static_assert(static_cast<int32_t>(Code::kNotFound) == QUIRE_ERROR_NOT_FOUND);
static_assert(static_cast<int32_t>(Code::kBadFile) == QUIRE_ERROR_BAD_FILE);
static_assert(static_cast<int32_t>(Code::kUnsupported) == QUIRE_ERROR_UNSUPPORTED);
static_assert(static_cast<int32_t>(Code::kBusy) == QUIRE_ERROR_BUSY);
static_assert(static_cast<int32_t>(Code::kClosed) == QUIRE_ERROR_CLOSED);
static_assert(static_cast<int32_t>(Code::kCancelled) == QUIRE_ERROR_CANCELLED);
static_assert(static_cast<int32_t>(Code::kOverflow) == QUIRE_ERROR_OVERFLOW);
static_assert(static_cast<int32_t>(Code::kBudget) == QUIRE_ERROR_BUDGET);
static_assert(static_cast<int32_t>(Code::kBadStrategy) == QUIRE_ERROR_BAD_STRATEGY);
static_assert(static_cast<int32_t>(Code::kInvalidText) == QUIRE_ERROR_INVALID_TEXT);
static_assert(static_cast<int32_t>(Code::kInvalidToken) == QUIRE_ERROR_INVALID_TOKEN);
static_assert(static_cast<int32_t>(Code::kNumeric) == QUIRE_ERROR_NUMERIC);
static_assert(static_cast<int32_t>(Code::kEmpty) == QUIRE_ERROR_EMPTY);
static_assert(static_cast<int32_t>(Code::kBufferTooSmall) == QUIRE_ERROR_BUFFER_TOO_SMALL);
static_assert(static_cast<int32_t>(Code::kDevice) == QUIRE_ERROR_DEVICE);

int32_t report(const Status& status, quire_error* err) noexcept {
  const auto code = static_cast<int32_t>(status.code());
  if (!err) return code;
  // Without memory for a message there is still its name.
  std::string_view message = status.message();
  if (message.empty() && code != QUIRE_OK) message = quire_get_status_name(code);
  err->code = code;
  err->os_error = status.os_error();
  err->offset = status.offset();
  err->reserved = 0;
  copy_text(message, err->message);
  return code;
}

Status read_text(const char* data, size_t size, const char* name, std::string_view* out) {
  if (!data && size > 0) return invalid(std::string(name) + " is NULL but its length is " + std::to_string(size));
  if (size > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max())) {
    return invalid(std::string(name) + " has a length of " + std::to_string(size) + "; no text has so many bytes");
  }
  *out = data ? std::string_view(data, size) : std::string_view();
  return {};
}

Status read_path(const char* path, size_t path_len, const char* name, std::string* out) {
  std::string_view text;
  QUIRE_TRY(read_text(path, path_len, name, &text));
  if (text.empty()) return invalid(std::string(name) + " is empty");
  *out = std::string(text);
  return {};
}

Status check_range(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid(std::string(name) + " is " + std::to_string(value) + "; expected " + std::to_string(least) + " to " +
                 std::to_string(most));
}

}  // namespace quire::abi
