// BPE tokenizers that are not SentencePiece models: byte-level ones, and those of tokenizer.json that begin with
// characters.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/support/status.h"
#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {

// Errors: kBadFile (ids beyond vocab_size, merges of unknown tokens), kUnsupported (regular expressions).
Result<std::unique_ptr<const Tokenizer>> make_bpe_tokenizer(const BpeDefinition& definition, int32_t vocab_size);

}  // namespace quire
