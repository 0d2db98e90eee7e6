// Standard output. A write that fails is an exception: an answer that nobody gets is no success.
#pragma once

#include <string>
#include <string_view>

namespace cli {

// To be called first: a pipe whose reader has gone, and a limit for the size of a file, then make a write fail, and
// send no signal that would end the program on the spot and leave its files behind; and no file takes the place of a
// standard output that is closed.
void prepare_output();
// As printf. Throws std::runtime_error with the system's reason where a write fails, of this text or of earlier text.
[[gnu::format(printf, 1, 2)]] void print(const char* format, ...);
void print_text(std::string_view text);
// The text on one line, without control characters.
std::string printable(std::string text);
// Hands over all text so far, so that a reader sees it and a failure is seen here. Throws as print does.
void flush_output();
// The same at the end of the program: nothing is printed afterwards. Some systems say only here what failed.
void close_output();

}  // namespace cli
