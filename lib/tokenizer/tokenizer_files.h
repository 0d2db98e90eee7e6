// The files of a model directory that say what its tokenizer is.
#pragma once

#include <string>

#include "lib/support/status.h"

namespace quire {

// Texts; empty: the file is not there, or not looked at.
struct TokenizerFiles {
  std::string model;             // tokenizer.model, SentencePiece's
  std::string json;              // tokenizer.json, if there is no tokenizer.model
  std::string tokenizer_config;  // tokenizer_config.json
  std::string added_tokens;      // added_tokens.json, beside tokenizer.model
};

// Errors: kNotFound (neither tokenizer.model nor tokenizer.json), kIo, kBadFile (too large).
Result<TokenizerFiles> read_tokenizer_files(const std::string& directory);

// tokenizer.model and tokenizer.json alone.
constexpr int64_t kMaxTokenizerModelBytes = 64 << 20;
constexpr int64_t kMaxTokenizerJsonBytes = 128 << 20;

}  // namespace quire
