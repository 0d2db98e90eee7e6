// What a person types or pastes, or a pipe brings, line by line.
#pragma once

#include <optional>
#include <string>

namespace cli {

// Lines of stdin, without their ends, which are newlines or carriage returns with one. Nothing is read ahead of a
// newline that is not given out, and Ctrl-C is seen while waiting.
class Lines {
 public:
  // Nothing: the end of input. Throws Interrupted.
  std::optional<std::string> next();
  // Of a terminal: the line, and those that come at once behind it, as they do where they were pasted together. Throws
  // UsageError where the terminal may have cut one.
  std::string with_pasted(std::string line);

 private:
  void read_more();

  std::string buffer_;
  bool ended_ = false;
};

// A path as people type and paste it: with blanks around it, in quotation marks, from ~ on. Empty: there is none.
std::string typed_path(const std::string& text);

}  // namespace cli
