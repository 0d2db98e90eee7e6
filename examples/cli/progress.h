// A progress bar on stderr; silent unless stderr is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace cli {

bool stderr_is_terminal();

class Progress {
 public:
  explicit Progress(std::string label);
  // Removes the bar.
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws at most ten times a second, and at the end. `rate` is items a second; 0: not shown.
  void show(int64_t done, int64_t total, double rate, const char* unit);
  void clear();

 private:
  std::string label_;
  bool visible_ = false;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace cli
