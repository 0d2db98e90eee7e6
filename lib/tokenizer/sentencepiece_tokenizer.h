// A tokenizer of a SentencePiece model that was read from another file than tokenizer.model.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/support/status.h"
#include "lib/tokenizer/added_tokens.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {

// Checks the model. Errors: kBadFile.
Result<std::unique_ptr<const Tokenizer>> make_sentencepiece_tokenizer(SentencePieceModel model,
                                                                      const TokenizerSettings& settings,
                                                                      int32_t vocab_size);

}  // namespace quire
