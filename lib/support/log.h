// The log: to the host's function, and kept for a host that asks for it. Silent unless the host wants one of the two.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lib/support/log_lines.h"
#include "lib/support/utf8.h"

namespace quire {

enum class LogLevel : int32_t { kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };  // the numbers of QUIRE_LOG_*

class Log {
 public:
  using Callback = void (*)(void* user, int32_t level, const char* message, size_t length);

  Log() = default;
  // n_kept: how many lines are kept until they are taken.
  Log(Callback callback, void* user, LogLevel most, size_t n_kept = 0)
      : callback_(callback),
        user_(user),
        most_(most),
        kept_(n_kept > 0 ? std::make_shared<LogLines>(n_kept) : nullptr) {}

  // Any thread. message is not empty.
  void write(LogLevel level, std::string_view message) const {
    if (level > most_) return;
    std::string valid;  // names of files may be anything
    if (utf8_first_invalid(message) < message.size()) message = valid = utf8_sanitize(message);
    if (kept_) kept_->add(static_cast<int32_t>(level), message);
    if (callback_) callback_(user_, static_cast<int32_t>(level), message.data(), message.size());
  }

  // Null: none are kept.
  LogLines* kept() const { return kept_.get(); }

 private:
  Callback callback_ = nullptr;
  void* user_ = nullptr;
  LogLevel most_ = LogLevel::kWarning;
  std::shared_ptr<LogLines> kept_;
};

}  // namespace quire
