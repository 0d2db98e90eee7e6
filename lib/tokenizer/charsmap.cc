#include <algorithm>

#include "lib/support/utf8.h"
#include "lib/tokenizer/sentencepiece_model.h"

namespace quire {
namespace {

// A unit of a Darts-clone double array, 32 bits. A state is an index; from state s, byte c leads to index
// s ^ offset(s) ^ c if the unit there carries label c. A state with has_leaf has a value at index s ^ offset(s).
struct Unit {
  uint32_t bits;
  bool has_leaf() const { return bits >> 8 & 1; }
  uint32_t offset() const { return (bits >> 10) << ((bits & 0x200) >> 6); }
  uint32_t label() const { return bits & 0x800000FF; }  // the high bit marks values, which match no byte
  uint32_t value() const { return bits & 0x7FFFFFFF; }
};

uint32_t read_u32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

Status bad(const std::string& what) { return Status(Code::kBadFile, "normalization rules: " + what); }

// Walks every state that some input can reach, depth first.
class TrieCheck {
 public:
  TrieCheck(std::string_view units, std::string_view texts)
      : units_(units), texts_(texts), n_(static_cast<uint32_t>(units.size() / 4)), matches_(n_, kUnseen) {}

  Status run() {
    path_.push_back({0, 0, 0});
    QUIRE_TRY(enter(0));
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.next_byte > 0xFF) {
        leave();
        continue;
      }
      const uint32_t byte = step.next_byte++;
      const uint32_t child = base(step.state) ^ byte;
      if (unit(child).label() != byte) continue;
      bytes_.set(byte);
      if (matches_[child] == kOpen) return bad("the trie has a cycle");
      if (matches_[child] != kUnseen) {
        step.deepest = std::max<int>(step.deepest, matches_[child]);
        continue;
      }
      path_.push_back({child, 0, 0});
      QUIRE_TRY(enter(child));
    }
    if (matches_[0] > kMostMatches) return bad("too many rules for one text");
    return {};
  }

  const std::bitset<256>& bytes() const { return bytes_; }  // that led from one state to another

 private:
  static constexpr int kUnseen = -1, kOpen = -2;
  static constexpr int kMostMatches = 32;  // SentencePiece's room for the rules that match at one place

  struct Step {
    uint32_t state;
    uint32_t next_byte;
    int deepest;  // most matches on a way below
  };

  Unit unit(uint32_t index) const { return Unit{read_u32(units_, size_t{index} * 4)}; }
  uint32_t base(uint32_t state) const { return state ^ unit(state).offset(); }

  Status enter(uint32_t state) {
    matches_[state] = kOpen;
    // The 256 indexes base ^ 0 .. base ^ 255 fill one aligned block.
    if ((base(state) | 0xFF) >= n_) return bad("the trie points outside itself");
    if (unit(state).has_leaf()) {
      const uint32_t value = unit(base(state)).value();
      if (value >= texts_.size()) return bad("a replacement text lies outside the rules");
      if ((texts_[value] & 0xC0) == 0x80) return bad("a replacement text begins within a code point");
    }
    return {};
  }

  void leave() {
    const Step step = path_.back();
    path_.pop_back();
    const int matches = std::min(step.deepest + (unit(step.state).has_leaf() ? 1 : 0), kMostMatches + 1);
    matches_[step.state] = matches;
    if (!path_.empty()) path_.back().deepest = std::max(path_.back().deepest, matches);
  }

  std::string_view units_;
  std::string_view texts_;
  uint32_t n_;
  std::vector<int> matches_;  // per state, with itself; or kUnseen, kOpen
  std::vector<Step> path_;
  std::bitset<256> bytes_;
};

TrieCheck trie_check(std::string_view charsmap) {
  const size_t trie_bytes = read_u32(charsmap, 0);
  return TrieCheck(charsmap.substr(4, trie_bytes), charsmap.substr(4 + trie_bytes));
}

}  // namespace

Status check_charsmap(std::string_view charsmap) {
  if (charsmap.empty()) return {};
  if (charsmap.size() < 4) return bad("cut short");
  const size_t trie_bytes = read_u32(charsmap, 0);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= charsmap.size() - 4) {
    return bad("a trie of " + std::to_string(trie_bytes) + " bytes in " + std::to_string(charsmap.size()));
  }
  const std::string_view texts = charsmap.substr(4 + trie_bytes);
  if (texts.back() != '\0') return bad("the last replacement text does not end");
  if (utf8_first_invalid(texts) != texts.size()) return bad("the replacement texts are not UTF-8");
  return trie_check(charsmap).run();
}

std::bitset<256> bytes_of_rules(std::string_view charsmap) {
  if (charsmap.empty()) return {};
  TrieCheck walk = trie_check(charsmap);
  (void)walk.run().ok();
  return walk.bytes();
}

size_t longest_replacement(std::string_view charsmap) {
  if (charsmap.empty()) return 1;
  size_t longest = 1, length = 0;
  for (const char c : charsmap.substr(4 + read_u32(charsmap, 0))) {
    length = c == '\0' ? 0 : length + 1;
    longest = std::max(longest, length);
  }
  return longest;
}

}  // namespace quire
