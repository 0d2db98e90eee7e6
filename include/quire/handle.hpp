// SPDX-License-Identifier: MIT
//
// What all classes of quire.hpp are made of: views of arrays, owners of C's handles, and the ways
// in which C is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/result.hpp"

namespace quire {
inline namespace v0 {

// Consecutive elements that somebody else owns: std::span for C++17. Made from anything with data()
// and size(), or from a list in braces, which lives as long as the call that it is an argument of.
template <typename T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, std::size_t size) : data_(data), size_(size) {}
  constexpr Span(std::initializer_list<std::remove_const_t<T>> list)
      : Span(std::data(list), list.size()) {}
  template <typename Range,
            typename Element = std::remove_pointer_t<decltype(std::data(std::declval<Range&>()))>,
            typename = std::enable_if_t<std::is_convertible_v<Element (*)[], T (*)[]>>>
  constexpr Span(Range&& range) : Span(std::data(range), std::size(range)) {}

  constexpr T* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }
  constexpr T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// One reference to a handle of C, dropped by the destructor. A copy is another reference to the
// same thing, as with std::shared_ptr. Handles keep their parents alive and may go in any order, on
// any thread.
template <typename Raw, void (*Retain)(Raw*), void (*Release)(Raw*)>
class Handle {
 public:
  Handle() = default;
  // Takes over a reference that the caller has.
  explicit Handle(Raw* raw) : raw_(raw) {}
  Handle(const Handle& other) : raw_(other.raw_) { Retain(raw_); }
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() { Release(raw_); }

  // C's handle, which stays this object's; null after a move.
  Raw* get() const { return raw_; }
  explicit operator bool() const { return raw_ != nullptr; }
  // Gives the reference to the caller.
  [[nodiscard]] Raw* detach() { return std::exchange(raw_, nullptr); }
  // Drops the reference now.
  void drop() { *this = Handle(); }
  friend bool operator==(const Handle& a, const Handle& b) { return a.raw_ == b.raw_; }
  friend bool operator!=(const Handle& a, const Handle& b) { return a.raw_ != b.raw_; }

 private:
  Raw* raw_ = nullptr;
};

namespace detail {

// A struct of quire.h, zeroed, with its struct_size set by `init`.
template <typename T>
T initialised(void (*init)(T*, std::size_t)) {
  T value;
  init(&value, sizeof value);
  return value;
}

// Below, `function` is one of quire.h, called with `args` and with what it has last.

// ..., quire_error*.
template <typename Function, typename... Args>
Result<void> call(Function* function, const Args&... args) {
  quire_error error;
  if (function(args..., &error) < 0) return Error(error);
  return {};
}

// ..., a handle that is made, quire_error*.
template <typename T, typename Function, typename... Args>
Result<T> made(Function* function, const Args&... args) {
  quire_error error;
  decltype(std::declval<T&>().get()) raw = nullptr;
  if (function(args..., &raw, &error) < 0) return Error(error);
  return T(raw);
}

// ..., a struct that begins with its size and is filled, quire_error*.
template <typename T, typename Function, typename... Args>
Result<T> filled(Function* function, const Args&... args) {
  quire_error error;
  T value{};
  value.struct_size = sizeof value;
  if (function(args..., &value, &error) < 0) return Error(error);
  return value;
}

// Whether there is memory for so many elements. Without exceptions the program ends otherwise.
template <typename Container>
bool resized(Container& all, std::size_t n) {
#if QUIRE_CPP_EXCEPTIONS
  try {
    all.resize(n);
  } catch (const std::exception&) {  // std::bad_alloc, std::length_error
    return false;
  }
#else
  all.resize(n);
#endif
  return true;
}

// ..., buf, cap, &needed, quire_error*: text or an array, which may grow between the question for
// its length and that for itself. Where there are no more than `guess` elements, one call is
// enough.
template <typename Container, typename Function, typename... Args>
Result<Container> guessed(std::size_t guess, Function* function, const Args&... args) {
  quire_error error;
  Container all;
  std::size_t needed = guess;
  while (true) {
    if (!resized(all, needed)) {
      return Error(Status::kOutOfMemory,
                   "no memory for a result of " + std::to_string(needed) + " elements");
    }
    auto* buffer = all.empty() ? nullptr : all.data();
    const quire_status status = function(args..., buffer, all.size(), &needed, &error);
    if (status < 0 && status != QUIRE_ERROR_BUFFER_TOO_SMALL) return Error(error);
    if (status >= 0 && needed <= all.size()) {
      all.resize(needed);
      return all;
    }
  }
}
template <typename Container, typename Function, typename... Args>
Result<Container> copied(Function* function, const Args&... args) {
  return guessed<Container>(0, function, args...);
}

// Runs a callback's body. What it throws does not reach C: caught(exception) gets it.
template <typename Body, typename Caught>
void contain(const Body& body, const Caught& caught) noexcept {
#if QUIRE_CPP_EXCEPTIONS
  try {
    body();
  } catch (...) {
    caught(std::current_exception());
  }
#else
  (void)caught;
  body();
#endif
}

// What an exception says of itself.
inline std::string what(const std::exception_ptr& exception) {
#if QUIRE_CPP_EXCEPTIONS
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
  }
#endif
  (void)exception;
  return "an exception";
}

// Pointers for an options struct: NULL where there is nothing.
template <typename T>
const T* data_or_null(const std::vector<T>& all) {
  return all.empty() ? nullptr : all.data();
}
inline const char* data_or_null(const std::string& text) {
  return text.empty() ? nullptr : text.data();
}

inline std::vector<quire_text> texts(const std::vector<std::string>& strings) {
  std::vector<quire_text> all;
  all.reserve(strings.size());
  for (const std::string& text : strings) all.push_back({text.data(), text.size()});
  return all;
}

}  // namespace detail
}  // namespace v0
}  // namespace quire
