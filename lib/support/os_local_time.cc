#include "lib/support/os_local_time.h"

#include <ctime>

namespace quire {

LocalDay local_day() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  if (!localtime_r(&now, &parts)) return {};
  return {parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday};
}

}  // namespace quire
