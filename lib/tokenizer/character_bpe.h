// The BPE of characters of a tokenizer.json as the SentencePiece model that it was made of.
#pragma once

#include "lib/support/status.h"
#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/sentencepiece_model.h"

namespace quire {

// SentencePiece joins the neighbours whose piece has the best score; tokenizer.json lists the pairs in the order in
// which they are joined. Scores are made of that order where it is one of pieces: for each piece of the vocabulary all
// pairs of tokens that spell it are listed, one behind the other. Control tokens and tokens added as such have these
// types. Errors: kUnsupported (a definition that no such model gives; the message says why).
Result<SentencePieceModel> as_sentencepiece_model(const BpeDefinition& definition);

}  // namespace quire
