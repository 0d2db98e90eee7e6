// SPDX-License-Identifier: MIT
//
// What calls return: a value, or the error that says why there is none.
//
// Nothing here throws but Result::value(), whose caller asks for it, and what the standard library
// throws where the host has no memory left (std::bad_alloc) for anything but a result of C, which
// is an Error with kOutOfMemory. With -fno-exceptions value() ends the
// program instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "quire/constants.hpp"

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
#define QUIRE_CPP_EXCEPTIONS 1
#else
#define QUIRE_CPP_EXCEPTIONS 0
#endif

namespace quire {
inline namespace v0 {

// The loaded library's version: major * 10000 + minor * 100 + patch; and as text, "0.1.0".
inline std::int32_t version() { return quire_get_version(); }
inline std::string_view version_string() { return quire_get_version_string(); }

// The status's name in C without its prefix, "BAD_FILE"; "UNKNOWN" for one of a later library.
inline std::string_view name(Status status) {
  return quire_get_status_name(static_cast<quire_status>(status));
}

// The name of an enum's value in lower case, "max_tokens"; empty for one of a later library.
template <typename E>
constexpr std::string_view name(E value) {
  for (const auto& entry : detail::Names<E>::all) {
    if (entry.value == value) return entry.name;
  }
  return {};
}

// The value of that name, if there is one: from_name<Type>("bf16").
template <typename E>
constexpr std::optional<E> from_name(std::string_view name) {
  for (const auto& entry : detail::Names<E>::all) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

// Why a call failed.
class Error {
 public:
  explicit Error(const quire_error& error)
      : status_(static_cast<Status>(error.code)),
        os_error_(error.os_error),
        offset_(error.offset),
        message_(error.message) {}
  // For callbacks that fail: what the call that uses them shall report.
  Error(Status status, std::string message, std::int32_t os_error = 0)
      : status_(status), os_error_(os_error), message_(std::move(message)) {}

  Status status() const { return status_; }
  // For a person.
  const std::string& message() const { return message_; }
  // errno where the system was the cause, else 0.
  std::int32_t os_error() const { return os_error_; }
  // The byte, column or token index that the message speaks of; -1 where there is none.
  std::int64_t offset() const { return offset_; }
  // The exception of a callback that this call ended with; null where there is none.
  const std::exception_ptr& cause() const { return cause_; }
  void set_cause(std::exception_ptr cause) { cause_ = std::move(cause); }

 private:
  Status status_;
  std::int32_t os_error_ = 0;
  std::int64_t offset_ = -1;
  std::string message_;
  std::exception_ptr cause_;
};

// What Result::value() throws, if no callback's own exception was the cause.
class Exception : public std::runtime_error {
 public:
  explicit Exception(Error error)
      : std::runtime_error(std::string(name(error.status())) + ": " + error.message()),
        error_(std::move(error)) {}
  const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

namespace detail {

[[noreturn]] inline void raise(const Error& error) {
#if QUIRE_CPP_EXCEPTIONS
  if (error.cause()) std::rethrow_exception(error.cause());
  throw Exception(error);
#else
  (void)error;
  std::terminate();
#endif
}

}  // namespace detail

// A value or an Error, as std::expected<T, Error>: `if (result) use(*result);`. Without a value
// * and -> must not be used, and error() only without one.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  using error_type = Error;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  const Error& error() const noexcept { return *std::get_if<1>(&state_); }
  Error& error() noexcept { return *std::get_if<1>(&state_); }

  // The value; throws without one: the exception of the callback that made the call fail, else
  // Exception.
  T& value() & {
    check();
    return **this;
  }
  const T& value() const& {
    check();
    return **this;
  }
  T value() && {
    check();
    return std::move(**this);
  }
  template <typename U>
  T value_or(U&& other) && {
    return has_value() ? std::move(**this) : static_cast<T>(std::forward<U>(other));
  }

 private:
  void check() const {
    if (!has_value()) detail::raise(error());
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  using error_type = Error;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return !error_; }
  explicit operator bool() const noexcept { return has_value(); }
  const Error& error() const noexcept { return *error_; }
  Error& error() noexcept { return *error_; }
  void value() const {
    if (error_) detail::raise(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace v0
}  // namespace quire
