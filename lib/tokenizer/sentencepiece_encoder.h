// Ordinary text to the ids of a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/support/cancel.h"
#include "lib/support/status.h"
#include "lib/tokenizer/sentencepiece_model.h"

namespace quire {

// Immutable after creation: any thread.
class SentencePieceEncoder {
 public:
  // The model must have been checked (check_sentencepiece_model). Its control pieces are found in no text.
  // Errors: kBadFile.
  static Result<std::unique_ptr<const SentencePieceEncoder>> make(const SentencePieceModel& model);
  ~SentencePieceEncoder();

  // Appends the ids of a valid UTF-8 text, with a space before it if `dummy_prefix`; to `starts`, if given, text_begin
  // plus the byte of the text at which each token begins. Several unknown characters in a row are one unknown id,
  // unless the model spells them as bytes. cancel: may be null. Errors: kInternal; then the ids of a part of the text
  // may have been appended; kCancelled.
  Status encode(std::string_view text, bool dummy_prefix, int64_t text_begin, const CancelToken* cancel,
                std::vector<int32_t>& ids, std::vector<int64_t>* starts) const;

 private:
  struct Parts;  // of SentencePiece's types
  explicit SentencePieceEncoder(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace quire
