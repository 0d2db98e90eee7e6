// What tokenizer_config.json and added_tokens.json say beside the SentencePiece model.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/status.h"

namespace quire {

struct AddedToken {
  std::string text;
  bool special = false;
  bool strip_left = false;  // white space beside it belongs to it, when it is found in a text
  bool strip_right = false;
};

struct TokenizerSettings {
  std::string tokenizer_class;           // transformers' name
  std::optional<bool> add_bos;           // absent: as tokenizer.json says; of a SentencePiece model: true
  bool add_prefix_space = true;          // false: no dummy prefix, whatever the SentencePiece model says
  std::optional<std::string> bos_token;  // absent: the SentencePiece model's own; empty: none
  std::optional<std::string> eos_token;
  std::map<int32_t, AddedToken> added;  // by id
  std::vector<int32_t> eos;             // where ids are known, instead of eos_token
};

// Either text may be empty. Ids must be below vocab_size. Errors: kBadFile.
Result<TokenizerSettings> parse_tokenizer_settings(std::string_view tokenizer_config, std::string_view added_tokens,
                                                   int32_t vocab_size);

}  // namespace quire
