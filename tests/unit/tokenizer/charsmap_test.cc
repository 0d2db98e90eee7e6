#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "lib/tokenizer/sentencepiece_model.h"
#include "tests/unit/tokenizer/model_file.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using testing::HasSubstr;

// A double array by hand: units of one block, the root's children at 0x00..0xFF ^ base.
class Trie {
 public:
  explicit Trie(size_t n_units = 256) : units_(n_units, kNoMatch) {}

  // From state `from` with base `base`, byte `label` leads to index base ^ label. Returns that index.
  uint32_t child(uint32_t base, uint8_t label) {
    units_[base ^ label] = label;
    return base ^ label;
  }
  void set_base(uint32_t state, uint32_t base, bool leaf = false) {
    const uint32_t offset = state ^ base;  // small ones only: they are kept in the bits from 10 on
    units_[state] = (units_[state] & 0xFF) | offset << 10 | (leaf ? 0x100u : 0u);
  }
  void set_value(uint32_t base, uint32_t value) { units_[base] = value | 0x80000000u; }
  std::vector<uint32_t>& units() { return units_; }

  std::string charsmap(const std::string& texts) const {
    std::string out;
    put(out, static_cast<uint32_t>(units_.size() * 4));
    for (const uint32_t unit : units_) put(out, unit);
    return out + texts;
  }

 private:
  static constexpr uint32_t kNoMatch = 0x80000000u;
  static void put(std::string& out, uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
  }
  std::vector<uint32_t> units_;
};

// "a" -> the text at 0, "ab" -> the text at 2.
Trie small_trie() {
  Trie trie;
  trie.units()[0] = 0;
  trie.set_base(0, 1);
  const uint32_t a = trie.child(1, 'a');
  trie.set_base(a, 4, true);
  trie.set_value(4, 0);
  const uint32_t ab = trie.child(4, 'b');
  trie.set_base(ab, 8, true);
  trie.set_value(8, 2);
  return trie;
}

const std::string kTexts("x\0yz\0", 5);

std::string message(const Trie& trie, const std::string& texts = kTexts) {
  return check_charsmap(trie.charsmap(texts)).message();
}

TEST(Charsmap, AGoodMapPassesAndDoesWhatItSays) {
  EXPECT_EQ(message(small_trie()), "");
  EXPECT_EQ(longest_replacement(small_trie().charsmap(kTexts)), 2u);
  EXPECT_TRUE(check_charsmap("").ok());
  EXPECT_EQ(longest_replacement(""), 1u);
  // The map that was checked is the map the library uses: "a" becomes "x", "ab" becomes "yz".
  SentencePieceModel model = parse_sentencepiece_model(tokenizer_file("bpe_bytes.model")).value();
  model.charsmap = small_trie().charsmap(kTexts);
  auto mapped = make_sentencepiece_tokenizer(serialize_sentencepiece_model(model), "", "", 1000);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  const auto plain = test_tokenizer("bpe_bytes");
  EXPECT_EQ((*mapped)->encode("ab cab a", {}).value(), plain->encode("yz cyz x", {}).value());
}

TEST(Charsmap, Framing) {
  const std::string good = small_trie().charsmap(kTexts);
  EXPECT_THAT(check_charsmap(good.substr(0, 3)).message(), HasSubstr("cut short"));
  EXPECT_THAT(check_charsmap(good.substr(0, 100)).message(), HasSubstr("a trie of 1024 bytes in 100"));
  EXPECT_THAT(check_charsmap(good.substr(0, 4 + 1024)).message(), HasSubstr("a trie of 1024 bytes"));
  EXPECT_THAT(check_charsmap(std::string(8, '\0')).message(), HasSubstr("a trie of 0 bytes"));
  EXPECT_THAT(message(small_trie(), "xyz"), HasSubstr("does not end"));
  EXPECT_THAT(message(small_trie(), std::string("x\0\xC3\0", 4)), HasSubstr("not UTF-8"));
}

TEST(Charsmap, ATrieThatLeadsAstrayIsRefused) {
  Trie outside = small_trie();
  outside.set_base(4 ^ 'b', 256);
  EXPECT_THAT(message(outside), HasSubstr("points outside itself"));

  Trie value = small_trie();
  value.set_value(8, 5);
  EXPECT_THAT(message(value), HasSubstr("outside the rules"));
  value.set_value(8, 0x7FFFFFFF);
  EXPECT_THAT(message(value), HasSubstr("outside the rules"));

  Trie inside_code_point = small_trie();
  inside_code_point.set_value(8, 1);
  EXPECT_THAT(message(inside_code_point, "\xC3\xA4" + std::string(1, '\0')), HasSubstr("within a code point"));

  Trie cycle = small_trie();
  cycle.set_base(4 ^ 'b', 1);  // "ab", then on as if after nothing: "abababab..."
  EXPECT_THAT(message(cycle), HasSubstr("cycle"));

  Trie unaligned(100);  // less than a block
  unaligned.units()[0] = 0;
  unaligned.set_base(0, 1);
  EXPECT_THAT(message(unaligned), HasSubstr("points outside itself"));
}

// The library has room for 32 rules that match at one place; more would be written beyond its array.
TEST(Charsmap, TooManyRulesAtOnePlace) {
  for (const int n_rules : {32, 33}) {
    Trie trie(256 * 64);
    trie.units()[0] = 0;
    uint32_t state = 0;
    for (int i = 0; i < n_rules; ++i) {
      const uint32_t base = static_cast<uint32_t>(i + 1) * 256;
      trie.set_base(state, base, i > 0);
      if (i > 0) trie.set_value(base, 0);
      state = trie.child(base, 'a');
    }
    trie.set_base(state, 256 * 40, true);
    trie.set_value(256 * 40, 0);
    EXPECT_EQ(message(trie).empty(), n_rules == 32) << n_rules << message(trie);
  }
}

TEST(Charsmap, SharedStatesAreFine) {
  Trie trie = small_trie();  // "c" leads to where "a" leads
  const uint32_t c = trie.child(1, 'c');
  trie.set_base(c, 4, true);
  EXPECT_EQ(message(trie), "");
}

}  // namespace
}  // namespace quire
