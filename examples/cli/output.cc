#include "output.h"

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

}  // namespace

void prepare_output() { std::signal(SIGPIPE, SIG_IGN); }

void print(const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  const int n = std::vprintf(format, arguments);
  va_end(arguments);
  check(n >= 0);
}

void print_text(std::string_view text) { check(std::fwrite(text.data(), 1, text.size(), stdout) == text.size()); }

void flush_output() { check(std::fflush(stdout) == 0); }

void close_output() {
  flush_output();
  check(std::fclose(stdout) == 0);
}

}  // namespace cli
