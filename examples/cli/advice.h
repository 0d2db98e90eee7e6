// What to do about an error that a person can do something about.
#pragma once

#include <string>

#include "quire_handles.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace cli {

// What is wrong with a command line, and which word may have been meant.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

// A line that says which options help that were not given, or "".
const char* advice_for(const CLI::App& app, const QuireFailure& failure);

}  // namespace cli
