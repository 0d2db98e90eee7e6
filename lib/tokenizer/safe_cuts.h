// Where a text can be cut so that its parts, one by one, become the ids that it becomes as a whole.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/tokenizer/sentencepiece_model.h"

namespace quire {

// SentencePiece needs 170 bytes of memory for a byte of text. A cut between two characters changes nothing if
// - no normalization rule and no user-defined piece can match across it. Rules: neither character occurs in any. (Then
//   both reach the pieces as they are, a space as U+2581.)
// - no piece holds the two characters side by side: BPE merges two neighbours only if the result is a piece, so none is
//   made across the cut; and the order of the merges on one side depends on that side alone, because scores order them,
//   then places.
// - none of the two is a space, where the model removes spaces at a text's ends and from runs.
// Two kinds of models have no such places. A BPE model takes its unused pieces apart in the way in which they came
// about last anywhere in the text, unless no merge leads to them, as to those that fill a vocabulary up. A unigram
// model adds scores in float from the beginning of the text, so what came before decides how near ones are rounded.
// Adjacent unknown characters become one id; who joins the parts does the same.
class SafeCuts {
 public:
  explicit SafeCuts(const SentencePieceModel& model);  // checked

  // The first place in (0, text.size()) from `from` on where the text, which is valid UTF-8, can be cut; its size if
  // there is none.
  size_t next(std::string_view text, size_t from) const;

 private:
  // A character is its UTF-8 bytes as a number.
  bool safe(uint32_t left, uint32_t right) const;
  bool touched(uint32_t character) const;  // by normalization, beyond a space's becoming U+2581
  size_t slot(uint32_t left, uint32_t right) const;

  bool none_ = false;
  bool has_rules_ = false;
  bool escape_whitespaces_ = true;
  bool remove_extra_whitespaces_ = true;
  std::bitset<256> rule_bytes_;
  // A bit for each pair's hash: of pairs with the same bit all are taken for neighbours in a piece, which costs cuts,
  // but is safe. Its size is bounded, whatever the model.
  std::vector<bool> neighbours_;
};

}  // namespace quire
