#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace cli {
namespace {

bool quiet = false;

// "42s", "3m05s", "2h07m".
std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::min(seconds, 1e9) + 0.5);
  char text[32];
  if (s < 60) {
    std::snprintf(text, sizeof text, "%llds", s);
  } else if (s < 3600) {
    std::snprintf(text, sizeof text, "%lldm%02llds", s / 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%lldh%02lldm", s / 3600, s / 60 % 60);
  }
  return text;
}

// A line longer than the terminal's would wrap, and could not be redrawn.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

bool progress_wanted() {
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal && !quiet;
}

void set_quiet() { quiet = true; }

Progress::Progress(std::string label, std::string unit) : label_(std::move(label)), unit_(std::move(unit)) {}

void Progress::show(int64_t done, int64_t total) {
  if (!progress_wanted() || total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (done < total && now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;

  constexpr int kWidth = 24;
  const double fraction = std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0);
  const int filled = static_cast<int>(fraction * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '-');
  char percent[8];
  std::snprintf(percent, sizeof percent, "%3.0f%%", 100 * fraction);
  std::string line =
      label_ + " [" + bar + "] " + percent + "  " + std::to_string(done) + "/" + std::to_string(total) + " " + unit_;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  if (done > 0 && seconds > 0) {
    char rate[32];
    const double per_second = static_cast<double>(done) / seconds;
    std::snprintf(rate, sizeof rate, per_second < 10 ? "  %.1f/s" : "  %.0f/s", per_second);
    line += rate;
    line += "  ETA " + duration(static_cast<double>(total - done) / per_second);
  }
  line.resize(std::min(line.size(), terminal_columns() - 1));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
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
