// Status and Result: how everything below the C ABI reports failure.
//
// A failure carries a code (the number that the C ABI returns), a message that says what, where and what was
// expected, and, where they mean something, a byte/column/token offset and errno. Nothing here logs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace quire {

// The numbers of quire.h (lib/abi checks that they agree).
enum class Code : int32_t {
  kOk = 0,
  kInternal = -1,
  kInvalidArgument = -2,
  kOutOfMemory = -3,
  kIo = -4,
  kNotFound = -5,
  kBadFile = -6,
  kUnsupported = -7,
  kBusy = -8,
  kClosed = -9,
  kCancelled = -10,
  kOverflow = -11,
  kBudget = -12,
  kBadStrategy = -13,
  kInvalidText = -14,
  kInvalidToken = -15,
  kNumeric = -16,
  kEmpty = -17,
  kBufferTooSmall = -18,
  kDevice = -19,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message, int64_t offset = -1, int32_t os_error = 0)
      : code_(code), os_error_(os_error), offset_(offset), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  int32_t os_error() const { return os_error_; }
  int64_t offset() const { return offset_; }
  const std::string& message() const { return message_; }

  // The same failure with "context: " before the message, as it passes upwards.
  Status with_context(const std::string& context) const {
    return ok() ? *this : Status(code_, context + ": " + message_, offset_, os_error_);
  }

 private:
  Code code_ = Code::kOk;
  int32_t os_error_ = 0;
  int64_t offset_ = -1;
  std::string message_;
};

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  T& value() { return std::get<0>(state_); }
  const T& value() const { return std::get<0>(state_); }
  T& operator*() { return value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace quire

// Returns from the current function if `expression` (a Status) failed.
#define QUIRE_TRY(expression)                                                                    \
  do {                                                                                           \
    if (::quire::Status quire_status_ = (expression); !quire_status_.ok()) return quire_status_; \
  } while (0)

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)
// QUIRE_ASSIGN(auto x, f()): declares x from a Result, or returns its Status.
#define QUIRE_ASSIGN(declaration, expression) \
  QUIRE_ASSIGN_INNER(QUIRE_CONCAT(quire_result_, __LINE__), declaration, expression)
#define QUIRE_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                               \
  if (!result.ok()) return result.status();                 \
  declaration = std::move(result.value())
