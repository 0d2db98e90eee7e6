// The host's log sink. Silent unless the host gave one.
#pragma once

#include <cstdint>
#include <string_view>

namespace quire {

enum class LogLevel : int32_t { kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };  // the numbers of QUIRE_LOG_*

class Log {
 public:
  using Callback = void (*)(void* user, int32_t level, const char* message, size_t length);

  Log() = default;
  Log(Callback callback, void* user, LogLevel most) : callback_(callback), user_(user), most_(most) {}

  // Any thread.
  void write(LogLevel level, std::string_view message) const {
    if (callback_ && level <= most_) callback_(user_, static_cast<int32_t>(level), message.data(), message.size());
  }

 private:
  Callback callback_ = nullptr;
  void* user_ = nullptr;
  LogLevel most_ = LogLevel::kWarning;
};

}  // namespace quire
