// Owners for Quire's C handles, and the exception that carries its errors through the command.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "quire/quire.h"

namespace cli {

template <auto release>
struct Releaser {
  template <typename T>
  void operator()(T* handle) const {
    release(handle);
  }
};

using Runtime = std::unique_ptr<quire_runtime, Releaser<quire_runtime_release>>;
using Cancel = std::unique_ptr<quire_cancel, Releaser<quire_cancel_release>>;
using Model = std::unique_ptr<quire_model, Releaser<quire_model_release>>;
using Adapter = std::unique_ptr<quire_adapter, Releaser<quire_adapter_release>>;
using Tokenizer = std::unique_ptr<quire_tokenizer, Releaser<quire_tokenizer_release>>;
using Session = std::unique_ptr<quire_session, Releaser<quire_session_release>>;
using Store = std::unique_ptr<quire_store, Releaser<quire_store_release>>;
using Stream = std::unique_ptr<quire_stream, Releaser<quire_stream_release>>;

// A call of the library failed.
class QuireFailure : public std::runtime_error {
 public:
  QuireFailure(quire_status status, const std::string& what, bool is_usage = false)
      : std::runtime_error(what), status_(status), is_usage_(is_usage) {}
  quire_status status() const { return status_; }
  // What was wrong is the value of an option: exit status 2.
  bool is_usage() const { return is_usage_; }

 private:
  quire_status status_;
  bool is_usage_;
};

// The same of a store of documents, whose budget is another one than a session's.
class StoreFailure : public QuireFailure {
  using QuireFailure::QuireFailure;
};

// The command line asks for something that makes no sense: exit status 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The user pressed Ctrl-C: exit status 130.
class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

// A quire_error ready for use: pass get() to a call and its status to check().
class Error {
 public:
  quire_error* get() { return &error_; }
  // Of a call that failed.
  std::string message() const { return *error_.message ? error_.message : quire_get_status_name(error_.code); }

  // Returns a status that is no failure; throws QuireFailure "doing: message" otherwise.
  quire_status check(quire_status status, std::string_view doing) const {
    // A strategy expression that does not parse is always a mistake in the command line.
    return check(status, doing, status == QUIRE_ERROR_BAD_STRATEGY);
  }
  // The same after a call whose arguments are values of options: an invalid one is a mistake in the command line.
  quire_status check_options(quire_status status, std::string_view doing) const {
    return check(status, doing, status == QUIRE_ERROR_BAD_STRATEGY || status == QUIRE_ERROR_INVALID_ARGUMENT);
  }

 private:
  quire_status check(quire_status status, std::string_view doing, bool is_usage) const {
    if (status >= 0) return status;
    throw QuireFailure(status, std::string(doing) + ": " + message(), is_usage);
  }

  quire_error error_{};
};

// A struct of quire.h, zeroed, with its struct_size set by `init`.
template <typename T>
T initialised(void (*init)(T*, size_t)) {
  T value;
  init(&value, sizeof value);
  return value;
}

// Text from a `buf, cap, *needed` function: call(buf, cap, &needed, err).
template <typename Call>
std::string get_text(Call call, std::string_view doing) {
  Error error;
  size_t needed = 0;
  error.check(call(nullptr, 0, &needed, error.get()), doing);
  std::string text(needed, '\0');
  if (needed > 0) error.check(call(text.data(), text.size(), &needed, error.get()), doing);
  return text;
}

}  // namespace cli
