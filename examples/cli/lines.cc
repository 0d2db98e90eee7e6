#include "lines.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "interrupt.h"
#include "quire_handles.h"

namespace cli {
namespace {

constexpr size_t kTerminalLine = 4095;  // bytes of a line that a terminal hands on; it drops those behind them

bool more_comes() {
  constexpr int kPollMs = 50;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, kPollMs) > 0;
}

}  // namespace

std::optional<std::string> Lines::next() {
  size_t searched = 0;  // bytes that have no newline
  for (;;) {
    if (const size_t end = buffer_.find('\n', searched); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (ended_) return buffer_.empty() ? std::nullopt : std::optional(std::exchange(buffer_, ""));
    while (!more_comes()) {
      if (interrupted()) throw Interrupted();
    }
    searched = buffer_.size();
    read_more();
  }
}

std::string Lines::with_pasted(std::string text) {
  bool cut = text.size() >= kTerminalLine;
  while (buffer_.find('\n') != std::string::npos || (!ended_ && more_comes())) {
    const std::optional<std::string> line = next();
    if (!line) break;
    cut = cut || line->size() >= kTerminalLine;
    text += "\n" + *line;
  }
  if (!cut) return text;
  throw UsageError("not sent: a terminal cuts lines behind " + std::to_string(kTerminalLine) +
                   " bytes; put the text into a file, and name it with /file");
}

void Lines::read_more() {
  char block[1 << 16];
  const ssize_t n = read(STDIN_FILENO, block, sizeof block);
  if (n > 0) buffer_.append(block, static_cast<size_t>(n));
  if (n < 0 && errno != EINTR) throw std::runtime_error(std::string("cannot read stdin: ") + std::strerror(errno));
  ended_ = n == 0;
}

std::string typed_path(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  std::string path = text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
  const char mark = path.front();
  if (path.size() > 2 && (mark == '"' || mark == '\'') && path.back() == mark) path = path.substr(1, path.size() - 2);
  const char* home = std::getenv("HOME");
  if (home != nullptr && path.starts_with("~/")) path.replace(0, 1, home);
  return path;
}

}  // namespace cli
