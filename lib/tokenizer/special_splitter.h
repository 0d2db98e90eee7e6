// Finds control and added tokens that are written out in a text.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tokenizer/added_tokens.h"

namespace quire {

class SpecialSplitter {
 public:
  struct Part {
    std::string_view text;  // of the text: what is ordinary, or how the token is written there
    int32_t id = -1;        // -1: ordinary text
  };

  // The first of two tokens with one text counts.
  void add(int32_t id, const AddedToken& token);

  // Scans from left to right and takes the longest token that begins at each place. Parts of ordinary text are not
  // empty. White space that a token claims for itself (lstrip, rstrip) is dropped; ASCII white space only.
  std::vector<Part> split(std::string_view text) const;

 private:
  struct Token {
    int32_t id;
    bool strip_left, strip_right;
  };
  const Token* match(std::string_view text, size_t at, size_t& length) const;

  std::map<std::string, Token, std::less<>> tokens_;
  std::array<std::vector<size_t>, 256> lengths_;  // by first byte: the lengths that occur, longest first
};

}  // namespace quire
