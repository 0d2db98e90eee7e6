// The contents of a SentencePiece model file: read and checked by ourselves.
//
// SentencePiece takes its model on trust: it follows the character map's double array wherever that points. So it never
// sees a file from outside. We read the parts that matter, check all that it relies on, and hand it the checked values.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/status.h"

namespace quire {

enum class PieceType : uint32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum class PieceAlgorithm : uint32_t { kUnigram = 1, kBpe = 2 };  // word and char models are refused

struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  std::vector<Piece> pieces;
  PieceAlgorithm algorithm = PieceAlgorithm::kUnigram;
  bool byte_fallback = false;
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string unk_surface = " \xE2\x81\x87 ";  // the text an unknown token stands for
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  std::string charsmap;  // compiled normalization rules; empty: none
};

// Reads the file. Errors: kBadFile with a byte offset; kUnsupported for what Quire does not do.
Result<SentencePieceModel> parse_sentencepiece_model(std::string_view file);

// All that SentencePiece relies on, the character map included.
Status check_sentencepiece_model(const SentencePieceModel& model);

// The byte that a byte piece "<0xXX>" stands for, or -1.
int byte_of_piece(std::string_view text);

// Checks a compiled character map, [u32 trie bytes][double array of u32 units][NUL-terminated replacement texts]: no
// input may lead a search outside the array or through more matches than SentencePiece has room for, and every
// replacement must be a UTF-8 text inside the map.
Status check_charsmap(std::string_view charsmap);

// The bytes that occur in the texts which the map's rules replace; the map must have been checked.
std::bitset<256> bytes_of_rules(std::string_view charsmap);

// The most bytes by which one byte of text can be replaced; the map must have been checked.
size_t longest_replacement(std::string_view charsmap);

}  // namespace quire
