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

// A token that sees the text before it costs more the later it comes: the time for d units is taken to be a d + b d^2,
// which the time at half of what is done tells apart.
double Progress::seconds_left(int64_t done, int64_t total, double seconds) {
  if (seen_.empty() || seen_.back().first < done) seen_.emplace_back(done, seconds);
  const auto half = std::lower_bound(seen_.begin(), seen_.end(), std::pair(done / 2, 0.0));
  const auto d = static_cast<double>(done), all = static_cast<double>(total), mean = seconds / d;
  double b = 0;
  if (half != seen_.end() && half->first > 0 && half->first < done) {
    const auto d1 = static_cast<double>(half->first);
    const double later = (seconds - half->second) / (d - d1);
    b = std::clamp((later - half->second / d1) / d, 0.0, mean / d);
  }
  const double a = mean - b * d;
  return a * (all - d) + b * (all * all - d * d);
}

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
    line += "  ETA " + duration(seconds_left(done, total, seconds));
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
