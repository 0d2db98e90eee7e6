// What a file says of a BPE tokenizer, as data: read from tokenizer.json or from the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tokenizer/pre_tokenizer.h"

namespace quire {

// A change of a text, or of a part of it between added tokens.
struct TextChange {
  enum class Kind {
    kNfc,
    kReplace,       // each `from` becomes `to`
    kPrefix,        // `to` is put before it, if it is not empty
    kPrefixUnless,  // the same, if it does not begin with `to`
    kPrefixFirst    // the same, if it is the beginning of the whole text besides
  };
  Kind kind = Kind::kNfc;
  std::string from = {}, to = {};
};

struct BpeDefinition {
  enum class TokenKind { kNone, kText, kByte, kAdded, kControl };
  struct Token {
    std::string text;                   // as in the file
    TokenKind kind = TokenKind::kNone;  // kNone: nobody named the id
    bool in_vocabulary = false;         // merges may lead to it
  };
  struct Added {  // is found in a text before it is cut
    int32_t id = -1;
    bool strip_left = false, strip_right = false;
    bool normalized = false;  // in the normalized text
  };

  std::vector<Token> tokens;  // by id
  // By rank, as texts; views of what the definition was read from.
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  // True: the tokens' texts spell bytes, each as a character of GPT-2's alphabet. False: the texts are as they are.
  bool byte_level = true;
  bool byte_fallback = false;  // characters without a token become byte tokens; not for byte_level
  bool ignore_merges = false;
  bool fuse_unknown = false;
  int32_t unknown = -1;

  std::vector<Added> added;
  std::vector<TextChange> normalizer;   // of parts between the added tokens that are not `normalized`
  std::vector<TextChange> before_cuts;  // of parts between all added tokens
  std::vector<Cut> cuts;
  std::string space_symbol;        // in a token's text it stands for a space; empty: none does. Not for byte_level
  bool drops_first_space = false;  // in decoding

  int32_t bos = -1;
  bool adds_bos = false;
  std::vector<int32_t> eos;
};

// GPT-2's regular expression, in PCRE2's syntax.
extern const char kGpt2Expression[];

// The bytes that a text of GPT-2's alphabet spells; false if a character is not of it.
bool bytes_of_alphabet(std::string_view text, std::string& bytes);

}  // namespace quire
