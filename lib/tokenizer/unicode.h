// What Unicode says of characters, as far as tokenizers ask: NFC, and stand-ins for characters that PCRE2 does not
// know. Texts are valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/tokenizer/origins.h"

namespace quire {

// The character that begins at `at`; moves `at` behind it.
uint32_t take_code_point(std::string_view text, size_t& at);
void append_code_point(uint32_t code_point, std::string& text);

// True if the text is in Normalization Form C as the `tokenizers` library makes it, for sure. False: it may be.
bool is_surely_nfc(std::string_view text);

// The text in that form. `origins`, if given, is what it says of an empty Origins.
std::string to_nfc(std::string_view text, Origins* origins);

// PCRE2's Unicode is older than that of `tokenizers`. In a text for it, a newer character is replaced by an older one
// of the same category and length. Empty: no such character is in the text.
std::string with_stand_ins(std::string_view text);

}  // namespace quire
