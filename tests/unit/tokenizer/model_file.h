// Writing a SentencePiece model file: protobuf's wire format, with the field numbers of sentencepiece_model.proto.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "lib/tokenizer/sentencepiece_model.h"
#include "lib/tokenizer/wire.h"

namespace quire::wire {

inline void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

inline void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3 | static_cast<uint32_t>(Type::kVarint));
  put_varint(out, value);
}

inline void put_float(std::string& out, uint32_t field, float value) {
  put_varint(out, field << 3 | static_cast<uint32_t>(Type::kFixed32));
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(bits >> shift));
}

inline void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_varint(out, field << 3 | static_cast<uint32_t>(Type::kBytes));
  put_varint(out, bytes.size());
  out.append(bytes);
}

}  // namespace quire::wire

namespace quire {

inline std::string serialize_piece(const SentencePieceModel::Piece& piece) {
  std::string out;
  wire::put_bytes(out, 1, piece.text);
  wire::put_float(out, 2, piece.score);
  wire::put_number(out, 3, static_cast<uint64_t>(piece.type));
  return out;
}

inline std::string serialize_sentencepiece_model(const SentencePieceModel& model) {
  std::string out, trainer, normalizer;
  for (const auto& piece : model.pieces) wire::put_bytes(out, 1, serialize_piece(piece));
  wire::put_number(trainer, 3, static_cast<uint64_t>(model.algorithm));
  wire::put_number(trainer, 35, model.byte_fallback);
  wire::put_bytes(out, 2, trainer);
  wire::put_bytes(normalizer, 2, model.charsmap);
  wire::put_number(normalizer, 3, model.add_dummy_prefix);
  wire::put_number(normalizer, 4, model.remove_extra_whitespaces);
  wire::put_number(normalizer, 5, model.escape_whitespaces);
  wire::put_bytes(out, 3, normalizer);
  return out;
}

}  // namespace quire
