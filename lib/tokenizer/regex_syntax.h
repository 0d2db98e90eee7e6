// Regular expressions of tokenizer.json, which are Oniguruma's, in PCRE2's syntax.
#pragma once

#include <string>
#include <string_view>

#include "lib/support/status.h"

namespace quire {

// The expression as PCRE2 reads it, to the same effect on any text. What the two libraries read differently, or one of
// them does not know, is refused by name. Errors: kUnsupported (offset: the byte).
Result<std::string> regex_for_pcre2(std::string_view expression);

// An expression that matches the text itself.
std::string regex_of_text(std::string_view text);

}  // namespace quire
