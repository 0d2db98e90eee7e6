// Cutting white space off the ends of a text as Python's str methods do, which Jinja programs call.
#pragma once

#include <string>
#include <string_view>

namespace quire {

// White space is what str.isspace() says, beyond ASCII too. The texts are valid UTF-8.
std::string_view strip(std::string_view text);
std::string_view strip_front(std::string_view text);
std::string_view strip_end(std::string_view text);
// Newlines alone.
std::string_view strip_newlines(std::string_view text);
std::string_view strip_newlines_front(std::string_view text);
std::string_view strip_newlines_end(std::string_view text);

// The text without any `part`, sought from left to right.
std::string without(std::string_view text, std::string_view part);

}  // namespace quire
