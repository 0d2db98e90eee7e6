#include "lib/tokenizer/character_bpe.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lib/format/json.h"

namespace quire {
namespace {

using TokenKind = BpeDefinition::TokenKind;

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

Status unlike(const std::string& what) {
  return Status(Code::kUnsupported,
                "tokenizer.json is a BPE of characters unlike those made of SentencePiece's, whose "
                "form GGUF has: " +
                    what);
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// What is done to a text before it is joined: spaces become U+2581, and one may be put before it.
Status check_changes(const BpeDefinition& definition, bool& add_dummy_prefix) {
  std::vector<TextChange> changes = definition.normalizer;
  changes.insert(changes.end(), definition.before_cuts.begin(), definition.before_cuts.end());
  int n_replaced = 0, n_prefixes = 0;
  for (const TextChange& change : changes) {
    switch (change.kind) {
      case TextChange::Kind::kReplace:
        if (change.from != " " || change.to != kSpaceSymbol) return unlike("it replaces " + json_excerpt(change.from));
        ++n_replaced;
        break;
      case TextChange::Kind::kPrefix:
      case TextChange::Kind::kPrefixUnless:
      case TextChange::Kind::kPrefixFirst:
        if (change.to != kSpaceSymbol) return unlike("it puts " + json_excerpt(change.to) + " before a text");
        ++n_prefixes;
        break;
      case TextChange::Kind::kNfc:
        return unlike("it normalises texts to NFC");
    }
  }
  if (n_replaced != 1 || n_prefixes > 1) return unlike("it does not replace spaces once by U+2581");
  if (!definition.cuts.empty()) return unlike("it cuts texts by regular expressions");
  if (definition.ignore_merges) return unlike("it takes whole words before it joins pairs");
  if (definition.unknown < 0) return unlike("it has no unknown token");
  if (!definition.byte_fallback && !definition.fuse_unknown) return unlike("it has several unknown tokens in a row");
  add_dummy_prefix = n_prefixes == 1;
  return {};
}

// Each listed pair, and the place of each piece that pairs spell among those pieces.
class Merges {
 public:
  Status read(const BpeDefinition& definition) {
    pairs_.reserve(definition.merges.size());
    std::string last;
    for (const auto& [left, right] : definition.merges) {
      std::string piece = std::string(left) + std::string(right);
      pairs_.insert(std::string(left) + '\0' + std::string(right));
      if (piece == last) continue;
      if (!places_.emplace(piece, places_.size()).second) {
        return unlike("the pairs that spell " + json_excerpt(piece) + " are not listed together");
      }
      last = std::move(piece);
    }
    return {};
  }

  bool has(std::string_view left, std::string_view right) const {
    return pairs_.contains(std::string(left) + '\0' + std::string(right));
  }

  // -1: no pair spells it.
  int64_t place(const std::string& piece) const {
    const auto at = places_.find(piece);
    return at == places_.end() ? -1 : static_cast<int64_t>(at->second);
  }

 private:
  std::unordered_set<std::string> pairs_;
  std::unordered_map<std::string, size_t> places_;
};

// That whatever SentencePiece would join to this piece is listed: its characters are tokens, and all pairs of tokens
// that spell it are merges.
Status check_piece(const std::string& piece, const std::unordered_set<std::string_view>& texts, const Merges& merges) {
  const std::string_view whole = piece;
  size_t character = 0;
  for (size_t at = 1; at <= whole.size(); ++at) {
    if (at < whole.size() && !begins_character(whole[at])) continue;
    if (!texts.contains(whole.substr(character, at - character))) {
      return unlike("a character of the token " + json_excerpt(piece) + " is no token");
    }
    character = at;
    if (at == whole.size()) break;
    const std::string_view left = whole.substr(0, at), right = whole.substr(at);
    if (texts.contains(left) && texts.contains(right) && !merges.has(left, right)) {
      return unlike("no merge joins " + json_excerpt(left) + " and " + json_excerpt(right) + ", which spell a token");
    }
  }
  return {};
}

}  // namespace

Result<SentencePieceModel> as_sentencepiece_model(const BpeDefinition& definition) {
  SentencePieceModel model;
  model.algorithm = PieceAlgorithm::kBpe;
  model.remove_extra_whitespaces = false;
  model.byte_fallback = definition.byte_fallback;
  QUIRE_TRY(check_changes(definition, model.add_dummy_prefix));
  Merges merges;
  QUIRE_TRY(merges.read(definition));

  std::unordered_set<std::string_view> texts;  // of the pieces that ordinary text becomes
  model.pieces.resize(definition.tokens.size());
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const BpeDefinition::Token& token = definition.tokens[id];
    SentencePieceModel::Piece& piece = model.pieces[id];
    piece.text = token.text;
    if (static_cast<int32_t>(id) == definition.unknown) {
      piece.type = PieceType::kUnknown;
    } else if (token.kind == TokenKind::kControl) {
      piece.type = PieceType::kControl;
    } else if (token.kind == TokenKind::kAdded) {
      piece.type = PieceType::kUserDefined;
    } else if (token.kind == TokenKind::kNone) {
      piece.type = PieceType::kUnused;
    } else if (definition.byte_fallback && byte_of_piece(token.text) >= 0) {
      piece.type = PieceType::kByte;
    } else {
      texts.insert(piece.text);
    }
  }
  // What no pair spells is never joined, so its score has no use.
  const auto least = -static_cast<float>(definition.merges.size());
  for (SentencePieceModel::Piece& piece : model.pieces) {
    if (piece.type != PieceType::kNormal) continue;
    QUIRE_TRY(check_piece(piece.text, texts, merges));
    const int64_t place = merges.place(piece.text);
    piece.score = place < 0 ? least : -static_cast<float>(place);
  }
  return model;
}

}  // namespace quire
