#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace cli {

bool stderr_is_terminal() {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal;
}

Progress::Progress(std::string label) : label_(std::move(label)) {}

void Progress::show(int64_t done, int64_t total, double rate, const char* unit) {
  if (!stderr_is_terminal() || total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (done < total && now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;

  constexpr int kWidth = 24;
  const double fraction = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int filled = static_cast<int>(fraction * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '-');
  std::fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %lld/%lld %s", label_.c_str(), bar.c_str(), 100 * fraction,
               static_cast<long long>(done), static_cast<long long>(total), unit);
  if (rate > 0) std::fprintf(stderr, "  %.0f/s", rate);
  std::fflush(stderr);
  visible_ = true;
}

void Progress::clear() {
  if (!visible_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  visible_ = false;
}

}  // namespace cli
