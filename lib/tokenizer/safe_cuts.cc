#include "lib/tokenizer/safe_cuts.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

namespace quire {
namespace {

constexpr uint32_t kSpace = ' ', kSpaceSymbol = 0xE29681;  // U+2581
constexpr size_t kMaxCheckedBytes = 64;                    // of an unused piece
constexpr size_t kMinBits = 1 << 16, kMaxBits = 1 << 23;

bool begins_character(char byte) { return (byte & 0xC0) != 0x80; }

// The character that begins at `at`; moves `at` behind it.
uint32_t take_character(std::string_view text, size_t& at) {
  uint32_t character = static_cast<uint8_t>(text[at++]);
  while (at < text.size() && !begins_character(text[at])) character = character << 8 | static_cast<uint8_t>(text[at++]);
  return character;
}

bool is_searched(PieceType type) {
  return type == PieceType::kNormal || type == PieceType::kUserDefined || type == PieceType::kUnused;
}

using Texts = std::unordered_set<std::string_view>;

// Whether merges can lead to the piece: two neighbours, each a character or a piece, make its text. A long text counts
// as such, so that the work for a byte of the model is bounded.
bool is_reachable(std::string_view text, const Texts& pieces) {
  const auto is_symbol = [&](std::string_view part) {
    size_t at = 0;
    take_character(part, at);
    return at == part.size() || pieces.contains(part);
  };
  if (text.size() > kMaxCheckedBytes) return true;
  size_t at = 0;
  take_character(text, at);
  while (at < text.size()) {
    if (is_symbol(text.substr(0, at)) && is_symbol(text.substr(at))) return true;
    take_character(text, at);
  }
  return false;
}

bool has_reachable_unused(const std::vector<SentencePieceModel::Piece>& pieces) {
  const auto is_unused = [](const auto& piece) { return piece.type == PieceType::kUnused; };
  if (std::none_of(pieces.begin(), pieces.end(), is_unused)) return false;
  Texts texts;
  for (const auto& piece : pieces) {
    if (is_searched(piece.type)) texts.insert(piece.text);
  }
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const auto& piece) { return is_unused(piece) && is_reachable(piece.text, texts); });
}

}  // namespace

SafeCuts::SafeCuts(const SentencePieceModel& model)
    : none_(model.algorithm != PieceAlgorithm::kBpe || has_reachable_unused(model.pieces)),
      has_rules_(!model.charsmap.empty()),
      escape_whitespaces_(model.escape_whitespaces),
      remove_extra_whitespaces_(model.remove_extra_whitespaces) {
  size_t n_bytes = 0;
  if (none_) return;
  for (const auto& piece : model.pieces) n_bytes += piece.text.size();
  if (has_rules_) rule_bytes_ = bytes_of_rules(model.charsmap);
  neighbours_.resize(std::clamp(std::bit_ceil(16 * n_bytes), kMinBits, kMaxBits));
  for (const auto& piece : model.pieces) {
    if (!is_searched(piece.type)) continue;
    size_t at = 0;
    for (uint32_t left = take_character(piece.text, at); at < piece.text.size();) {
      const uint32_t right = take_character(piece.text, at);
      neighbours_[slot(left, right)] = true;
      left = right;
    }
  }
}

size_t SafeCuts::slot(uint32_t left, uint32_t right) const {
  const uint64_t hash = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  return static_cast<size_t>(hash >> 32) & (neighbours_.size() - 1);
}

// A rule's text may be any bytes, so only a character of one byte can be known to occur in none.
bool SafeCuts::touched(uint32_t character) const { return has_rules_ && (character >= 0x80 || rule_bytes_[character]); }

bool SafeCuts::safe(uint32_t left, uint32_t right) const {
  if (touched(left) || touched(right)) return false;
  if (neighbours_[slot(left, right)]) return false;  // as a user-defined piece may match before normalization
  for (uint32_t* character : {&left, &right}) {
    if (remove_extra_whitespaces_ && (*character == kSpace || *character == kSpaceSymbol)) return false;
    if (escape_whitespaces_ && *character == kSpace) *character = kSpaceSymbol;
  }
  return !neighbours_[slot(left, right)];
}

size_t SafeCuts::next(std::string_view text, size_t from) const {
  if (none_ || from >= text.size()) return text.size();
  size_t at = std::max<size_t>(from, 1);
  while (at < text.size() && !begins_character(text[at])) ++at;
  if (at == text.size()) return at;
  size_t before = at - 1;
  while (!begins_character(text[before])) --before;
  uint32_t left = take_character(text, before);
  while (at < text.size()) {
    const size_t cut = at;
    const uint32_t right = take_character(text, at);
    if (safe(left, right)) return cut;
    left = right;
  }
  return text.size();
}

}  // namespace quire
