#include "lib/tokenizer/sentencepiece_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <unordered_set>

#include "lib/support/utf8.h"
#include "lib/tokenizer/wire.h"

namespace quire {
namespace {

using wire::Field;
using wire::Reader;
using wire::Type;

// The field numbers of sentencepiece_model.proto.
enum ModelField : uint32_t { kPieces = 1, kTrainerSpec = 2, kNormalizerSpec = 3, kDenormalizerSpec = 5 };
enum PieceField : uint32_t { kPieceText = 1, kPieceScore = 2, kPieceType = 3 };
enum TrainerField : uint32_t {
  kModelType = 3,
  kWhitespaceAsSuffix = 24,
  kByteFallback = 35,
  kUnkSurface = 44,
  kBosPiece = 46,
  kEosPiece = 47
};
enum NormalizerField : uint32_t {
  kCharsmap = 2,
  kAddDummyPrefix = 3,
  kRemoveExtraWhitespaces = 4,
  kEscapeWhitespaces = 5
};

constexpr size_t kMaxPieces = 1 << 24;
constexpr size_t kMaxPieceBytes = 4096;
constexpr float kMaxScore = 1e9f;

Status expect(const Field& field, Type type, int64_t at) {
  if (field.type == type) return {};
  return Status(Code::kBadFile, "field " + std::to_string(field.number) + " has another type than expected", at);
}

Status read_bool(const Field& field, int64_t at, bool& out) {
  QUIRE_TRY(expect(field, Type::kVarint, at));
  out = field.value != 0;
  return {};
}

Status read_text(const Field& field, int64_t at, std::string& out) {
  QUIRE_TRY(expect(field, Type::kBytes, at));
  out = field.bytes;
  return {};
}

// Calls read(field, offset) for every field of the message.
template <typename ReadField>
Status for_each_field(std::string_view message, int64_t at, ReadField&& read) {
  Reader reader(message, at);
  while (!reader.done()) {
    const int64_t field_at = reader.offset();
    QUIRE_ASSIGN(const Field field, reader.next());
    QUIRE_TRY(read(field, field_at));
  }
  return {};
}

Status parse_piece(const Field& message, SentencePieceModel& model) {
  SentencePieceModel::Piece piece;
  QUIRE_TRY(for_each_field(message.bytes, message.bytes_at, [&](const Field& field, int64_t at) -> Status {
    switch (field.number) {
      case kPieceText:
        return read_text(field, at, piece.text);
      case kPieceScore:
        QUIRE_TRY(expect(field, Type::kFixed32, at));
        piece.score = field.as_float();
        return {};
      case kPieceType:
        QUIRE_TRY(expect(field, Type::kVarint, at));
        if (field.value < 1 || field.value > static_cast<uint64_t>(PieceType::kByte)) {
          return Status(Code::kBadFile, "piece of unknown type " + std::to_string(field.value), at);
        }
        piece.type = static_cast<PieceType>(field.value);
        return {};
      default:
        return {};
    }
  }));
  if (model.pieces.size() >= kMaxPieces) return Status(Code::kBadFile, "too many pieces", message.bytes_at);
  model.pieces.push_back(std::move(piece));
  return {};
}

Status parse_trainer(const Field& message, SentencePieceModel& model) {
  return for_each_field(message.bytes, message.bytes_at, [&](const Field& field, int64_t at) -> Status {
    switch (field.number) {
      case kModelType:
        QUIRE_TRY(expect(field, Type::kVarint, at));
        if (field.value != static_cast<uint64_t>(PieceAlgorithm::kUnigram) &&
            field.value != static_cast<uint64_t>(PieceAlgorithm::kBpe)) {
          return Status(Code::kUnsupported,
                        "model type " + std::to_string(field.value) + "; only unigram and BPE are supported", at);
        }
        model.algorithm = static_cast<PieceAlgorithm>(field.value);
        return {};
      case kWhitespaceAsSuffix:
        QUIRE_TRY(expect(field, Type::kVarint, at));
        if (field.value != 0) return Status(Code::kUnsupported, "treat_whitespace_as_suffix", at);
        return {};
      case kByteFallback:
        return read_bool(field, at, model.byte_fallback);
      case kUnkSurface:
        return read_text(field, at, model.unk_surface);
      case kBosPiece:
        return read_text(field, at, model.bos_piece);
      case kEosPiece:
        return read_text(field, at, model.eos_piece);
      default:
        return {};
    }
  });
}

Status parse_normalizer(const Field& message, SentencePieceModel& model) {
  return for_each_field(message.bytes, message.bytes_at, [&](const Field& field, int64_t at) -> Status {
    switch (field.number) {
      case kCharsmap:
        return read_text(field, at, model.charsmap);
      case kAddDummyPrefix:
        return read_bool(field, at, model.add_dummy_prefix);
      case kRemoveExtraWhitespaces:
        return read_bool(field, at, model.remove_extra_whitespaces);
      case kEscapeWhitespaces:
        return read_bool(field, at, model.escape_whitespaces);
      default:
        return {};
    }
  });
}

Status refuse_denormalizer(const Field& message) {
  return for_each_field(message.bytes, message.bytes_at, [&](const Field& field, int64_t at) -> Status {
    if (field.number == kCharsmap && !field.bytes.empty()) {
      return Status(Code::kUnsupported, "denormalization rules", at);
    }
    return {};
  });
}

Status bad_piece(size_t id, const std::string& what) {
  return Status(Code::kBadFile, "piece " + std::to_string(id) + " " + what);
}

Status check_piece(const SentencePieceModel& model, size_t id) {
  const auto& piece = model.pieces[id];
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes) {
    return bad_piece(
        id, "has " + std::to_string(piece.text.size()) + " bytes; expected 1 to " + std::to_string(kMaxPieceBytes));
  }
  if (piece.text.find('\0') != std::string::npos) return bad_piece(id, "has a NUL byte");
  if (utf8_first_invalid(piece.text) != piece.text.size()) return bad_piece(id, "is not UTF-8");
  if (!(std::abs(piece.score) <= kMaxScore)) return bad_piece(id, "has a score that is no useful number");
  if (piece.type == PieceType::kByte) {
    if (!model.byte_fallback) return bad_piece(id, "stands for a byte, in a model without byte fallback");
    if (byte_of_piece(piece.text) < 0) return bad_piece(id, "stands for a byte, but is not of the form <0xXX>");
  }
  return {};
}

// SentencePiece matches user-defined pieces with room for 64 that begin at one place.
Status check_user_defined(const SentencePieceModel& model) {
  std::vector<std::string_view> texts;
  for (const auto& piece : model.pieces) {
    if (piece.type == PieceType::kUserDefined) texts.push_back(piece.text);
  }
  std::sort(texts.begin(), texts.end());
  std::vector<std::string_view> prefixes;  // of the current text, each a prefix of the next
  for (const std::string_view text : texts) {
    while (!prefixes.empty() && !text.starts_with(prefixes.back())) prefixes.pop_back();
    prefixes.push_back(text);
    if (prefixes.size() > 64) {
      return Status(Code::kBadFile, "more than 64 user-defined pieces begin one another");
    }
  }
  return {};
}

}  // namespace

int byte_of_piece(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const size_t high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return -1;
  return static_cast<int>(high * 16 + low);
}

Result<SentencePieceModel> parse_sentencepiece_model(std::string_view file) {
  if (file.empty()) return Status(Code::kBadFile, "the file is empty", 0);
  SentencePieceModel model;
  QUIRE_TRY(for_each_field(file, 0, [&](const Field& field, int64_t at) -> Status {
    switch (field.number) {
      case kPieces:
        QUIRE_TRY(expect(field, Type::kBytes, at));
        return parse_piece(field, model);
      case kTrainerSpec:
        QUIRE_TRY(expect(field, Type::kBytes, at));
        return parse_trainer(field, model);
      case kNormalizerSpec:
        QUIRE_TRY(expect(field, Type::kBytes, at));
        return parse_normalizer(field, model);
      case kDenormalizerSpec:
        QUIRE_TRY(expect(field, Type::kBytes, at));
        return refuse_denormalizer(field);
      default:
        return {};  // the self-test samples among them
    }
  }));
  return model;
}

Status check_sentencepiece_model(const SentencePieceModel& model) {
  std::unordered_set<std::string_view> texts;
  std::array<bool, 256> bytes{};
  int n_unknown = 0, n_normal = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    QUIRE_TRY(check_piece(model, id));
    const auto& piece = model.pieces[id];
    if (!texts.insert(piece.text).second) return bad_piece(id, "occurs twice");
    n_unknown += piece.type == PieceType::kUnknown;
    n_normal += piece.type == PieceType::kNormal;
    if (piece.type == PieceType::kByte) bytes[static_cast<size_t>(byte_of_piece(piece.text))] = true;
  }
  if (n_normal == 0) return Status(Code::kBadFile, "there are no pieces");
  if (n_unknown != 1) {
    return Status(Code::kBadFile, "expected one unknown piece, but there are " + std::to_string(n_unknown));
  }
  if (model.byte_fallback && std::count(bytes.begin(), bytes.end(), true) != 256) {
    return Status(Code::kBadFile, "byte fallback needs 256 byte pieces");
  }
  if (utf8_first_invalid(model.unk_surface) != model.unk_surface.size() || model.unk_surface.size() > kMaxPieceBytes) {
    return Status(Code::kBadFile, "unk_surface is no short UTF-8 text");
  }
  QUIRE_TRY(check_user_defined(model));
  return check_charsmap(model.charsmap);
}

}  // namespace quire
