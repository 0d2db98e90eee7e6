// A progress bar on stderr: one line that is redrawn. Silent unless stderr is a terminal, and after --quiet.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cli {

// Whether a person watches: stderr is a terminal, and --quiet was not given.
bool progress_wanted();
void set_quiet();

class Progress {
 public:
  // `unit` names what is counted: "tokens".
  Progress(std::string label, std::string unit);
  // Removes the bar.
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws at most ten times a second, and at the end: percent, units a second since the bar was made, time left.
  void show(int64_t done, int64_t total);
  void clear();

 private:
  double seconds_left(int64_t done, int64_t total, double seconds);

  const std::string label_;
  const std::string unit_;
  bool visible_ = false;
  std::vector<std::pair<int64_t, double>> seen_;  // what was done after how many seconds, rising
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace cli
