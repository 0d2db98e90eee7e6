#include "output.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace cli {
namespace {

void check(bool written) {
  const int reason = errno;
  if (written) return;
  throw std::runtime_error(std::string("cannot write to standard output: ") + std::strerror(reason));
}

// Ctrl-C interrupts a write to a terminal, which then goes on where it was.
bool goes_on() {
  if (errno != EINTR) return false;
  std::clearerr(stdout);
  return true;
}

}  // namespace

void prepare_output() {
  for (const int of_failed_writes : {SIGPIPE, SIGXFSZ}) std::signal(of_failed_writes, SIG_IGN);
  // What is opened next would have the number of a standard descriptor that is closed, and what is printed. Reading and
  // writing fail as before. The lowest free number is taken, so they come in order.
  for (const int standard : {0, 1, 2}) {
    if (fcntl(standard, F_GETFD) < 0) (void)open("/dev/null", standard == 0 ? O_WRONLY : O_RDONLY);
  }
}

void print(const char* format, ...) {
  std::va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int n = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string text(static_cast<size_t>(std::max(n, 0)) + 1, '\0');
  check(std::vsnprintf(text.data(), text.size(), format, again) >= 0);
  va_end(again);
  text.pop_back();
  print_text(text);
}

void print_text(std::string_view text) {
  while (!text.empty()) {
    const size_t n = std::fwrite(text.data(), 1, text.size(), stdout);
    text.remove_prefix(n);
    check(text.empty() || goes_on());
  }
}

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

void flush_output() {
  while (std::fflush(stdout) != 0) check(goes_on());
}

void close_output() {
  flush_output();
  check(std::fclose(stdout) == 0);
}

}  // namespace cli
