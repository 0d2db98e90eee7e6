#include "lib/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "lib/support/utf8.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

// A vocabulary of chosen byte strings; id 0 is a control token.
class Words : public Tokenizer {
 public:
  explicit Words(std::vector<std::string> words, bool dummy_prefix = false)
      : words_(std::move(words)), dummy_prefix_(dummy_prefix) {}
  Result<std::vector<int32_t>> encode(std::string_view, const EncodeOptions&, std::vector<int64_t>*) const override {
    return Status(Code::kUnsupported, "not needed here");
  }
  Status append_bytes(int32_t id, ControlText control, std::string& bytes) const override {
    if (id < 0 || id >= size()) return Status(Code::kInvalidToken, "id");
    if (id > 0 || control == ControlText::kPiece) bytes += words_[static_cast<size_t>(id)];
    return {};
  }
  bool has_dummy_prefix() const override { return dummy_prefix_; }
  int32_t size() const override { return static_cast<int32_t>(words_.size()); }
  int32_t bos() const override { return 0; }
  bool adds_bos() const override { return true; }
  bool is_control(int32_t id) const override { return id == 0; }
  int32_t find_control(std::string_view) const override { return -1; }
  TokenStrips strips(int32_t) const override { return {}; }
  std::vector<int32_t> eos() const override { return {}; }
  std::string kind() const override { return "words"; }

 private:
  std::vector<std::string> words_;
  bool dummy_prefix_;
};

using Texts = std::vector<std::string>;

// What each token gives out, and last what finish() gives.
Texts feed(Detokenizer& detokenizer, const std::vector<int32_t>& ids) {
  Texts out;
  for (const int32_t id : ids) out.push_back(detokenizer.add(id).value());
  out.push_back(detokenizer.finish());
  return out;
}

const std::string kReplacement = "\xEF\xBF\xBD";

TEST(Detokenizer, CodePointsSplitBetweenTokens) {
  const Words words({"<s>", "\xF0", "\x9F\x98", "\x80", "a\xE2",
                     "\x82\xAC"
                     "b"});
  Detokenizer detokenizer(words, {}, false);
  EXPECT_EQ(feed(detokenizer, {1, 2, 3, 4, 5}), (Texts{"", "", "\U0001F600", "a", "€b", ""}));
}

TEST(Detokenizer, BytesThatAreNoTextBecomeReplacements) {
  const Words words({"<s>", "\xF0", "a", "\x80", "\xE2\x82", "\xC0"});
  Detokenizer cut(words, {}, false);
  EXPECT_EQ(feed(cut, {1, 2, 4, 4, 2, 3, 5}),
            (Texts{"", kReplacement + "a", "", kReplacement, kReplacement + "a", kReplacement, kReplacement, ""}));
  Detokenizer unfinished(words, {}, false);
  EXPECT_EQ(feed(unfinished, {2, 4}), (Texts{"a", "", kReplacement}));
}

TEST(Detokenizer, TheDummyPrefixSpaceIsDroppedOnce) {
  const Words words({"<s>", " a", " "}, true);
  Detokenizer start(words, {}, true);
  EXPECT_EQ(feed(start, {0, 1, 1}), (Texts{"", "a", " a", ""}));
  Detokenizer spaces(words, {}, true);
  EXPECT_EQ(feed(spaces, {2, 2, 1}), (Texts{"", " ", " a", ""}));
  Detokenizer later(words, {}, false);
  EXPECT_EQ(feed(later, {0, 1}), (Texts{"", " a", ""}));
  const Words without({"<s>", " a"}, false);
  Detokenizer no_prefix(without, {}, true);
  EXPECT_EQ(feed(no_prefix, {0, 1}), (Texts{"", " a", ""}));
}

TEST(Detokenizer, StopStringsAcrossTokens) {
  const Words words({"<s>", "one ", "ST", "O", "P", " two"});
  Detokenizer detokenizer(words, {"STOP"}, false);
  EXPECT_EQ(feed(detokenizer, {1, 2, 3, 4, 5}), (Texts{"one ", "", "", "", "", ""}));
  EXPECT_EQ(detokenizer.stopped(), 0);
  Detokenizer escaped(words, {"STOP"}, false);
  EXPECT_EQ(feed(escaped, {1, 2, 3, 1, 2}), (Texts{"one ", "", "", "STOone ", "", "ST"}));
  EXPECT_EQ(escaped.stopped(), -1);
}

TEST(Detokenizer, OnlyWhatCanStillBecomeAStopStringIsHeld) {
  const Words words({"<s>", "aab", "a", "b"});
  Detokenizer detokenizer(words, {"aabaac"}, false);
  EXPECT_EQ(feed(detokenizer, {2, 1, 1, 2}), (Texts{"", "a", "aab", "", "aaba"}));
}

TEST(Detokenizer, TheFirstToBeginCountsThenTheLongest) {
  const Words words({"<s>", "xabcy", "ab", "c"});
  Detokenizer first(words, {"bc", "abc", "ab", "c"}, false);
  EXPECT_EQ(feed(first, {1}), (Texts{"x", ""}));
  EXPECT_EQ(first.stopped(), 1);
  // "ab" ends with the first token already: what would come later does not count.
  Detokenizer sooner(words, {"bc", "abc", "ab"}, false);
  EXPECT_EQ(feed(sooner, {2, 3}), (Texts{"", "", ""}));
  EXPECT_EQ(sooner.stopped(), 2);
}

TEST(Detokenizer, StopStringsSeeTheTextThatIsGivenOut) {
  const Words words({"<s>", "a\xE2", "\x82", "\xAC", "z"});
  Detokenizer whole(words, {"€"}, false);
  EXPECT_EQ(feed(whole, {1, 2, 3}), (Texts{"a", "", "", ""}));
  EXPECT_EQ(whole.stopped(), 0);
  Detokenizer replaced(words, {kReplacement}, false);
  EXPECT_EQ(feed(replaced, {1, 2, 4}), (Texts{"a", "", "", ""}));
  EXPECT_EQ(replaced.stopped(), 0);
  // A stop string that is no text itself cannot cut a code point.
  Detokenizer invalid(words, {"\x82"}, false);
  EXPECT_EQ(feed(invalid, {1, 2, 3}), (Texts{"a", "", "€", ""}));
}

TEST(Detokenizer, TheEndOfTheTextMayCompleteAStopString) {
  const Words words({"<s>", "ab", "\xE2\x82"});
  Detokenizer unfinished(words, {"x", "b" + kReplacement}, false);
  EXPECT_EQ(feed(unfinished, {1, 2}), (Texts{"a", "", ""}));
  EXPECT_EQ(unfinished.stopped(), 1);
  Detokenizer added(words, {"abc"}, false);
  EXPECT_EQ(added.add(1).value(), "");
  added.add_stop_strings({"b"});
  EXPECT_EQ(added.finish(), "a");
  EXPECT_EQ(added.stopped(), 1);
}

TEST(Detokenizer, NothingAfterAStop) {
  const Words words({"<s>", "a", "\xE2"});
  Detokenizer detokenizer(words, {"a"}, false);
  EXPECT_EQ(feed(detokenizer, {2, 1, 1, 2}), (Texts{"", kReplacement, "", "", ""}));
  EXPECT_EQ(detokenizer.stopped(), 0);
}

TEST(Detokenizer, UnknownIdsAreRefusedAndChangeNothing) {
  const Words words({"<s>", "\xE2\x82", "\xAC"});
  Detokenizer detokenizer(words, {}, false);
  EXPECT_EQ(detokenizer.add(1).value(), "");
  EXPECT_EQ(detokenizer.add(3).status().code(), Code::kInvalidToken);
  EXPECT_EQ(detokenizer.add(-1).status().code(), Code::kInvalidToken);
  EXPECT_EQ(detokenizer.add(2).value(), "€");
}

// Whatever the split into tokens: the parts are whole code points, and joined they are the text up to the stop.
TEST(Detokenizer, AgreesWithTheWholeText) {
  std::mt19937 random(7);
  const std::vector<std::string> words_list = {"<s>",  "a",    "b",    "ab",       "ba",     "\xE2",
                                               "\x82", "\xAC", "\xF0", "\x9F\x98", "\x80 a", "€"};
  const Words words(words_list);
  const Texts stops = {"abba", "aab€", kReplacement + "b", "ba" + kReplacement};
  for (int round = 0; round < 20'000; ++round) {
    Detokenizer detokenizer(words, stops, false);
    std::vector<int32_t> ids;
    std::string given;
    for (int i = 0; i < 12 && detokenizer.stopped() < 0; ++i) {
      const auto id = static_cast<int32_t>(random() % words_list.size());
      ids.push_back(id);
      const std::string part = detokenizer.add(id).value();
      ASSERT_EQ(utf8_first_invalid(part), part.size());
      given += part;
    }
    given += detokenizer.finish();
    const std::string expected = decode(words, ids, ControlText::kNone).value();
    size_t stop = std::string::npos;
    for (const std::string& s : stops) stop = std::min(stop, expected.find(s));
    ASSERT_EQ(detokenizer.stopped() < 0, stop == std::string::npos);
    ASSERT_EQ(given, expected.substr(0, stop));
  }
}

TEST(Detokenizer, AControlTokenEndsACharacter) {
  const Words words({"<s>", "\xD6", "\x8F", "a\xE2\x82", "\xAC"});
  const std::vector<int32_t> ids = {1, 0, 2, 3, 0, 0, 4, 1, 2};
  Detokenizer detokenizer(words, {}, false);
  EXPECT_EQ(feed(detokenizer, ids),
            (Texts{"", kReplacement, kReplacement, "a", kReplacement, "", kReplacement, "", "\u058F", ""}));
  EXPECT_EQ(decode(words, ids, ControlText::kNone).value(),
            kReplacement + kReplacement + "a" + kReplacement + kReplacement + "\u058F");
  // Where it is written out, its own text stands between them.
  EXPECT_EQ(decode(words, {1, 0, 2}, ControlText::kPiece).value(), kReplacement + "<s>" + kReplacement);
}

TEST(Detokenizer, StopStringsGoOnBehindAControlToken) {
  const Words words({"<s>", "xST", "OP", "\xE2"});
  Detokenizer detokenizer(words, {"STOP"}, false);
  EXPECT_EQ(feed(detokenizer, {1, 0, 2}), (Texts{"x", "", "", ""}));
  EXPECT_EQ(detokenizer.stopped(), 0);
  // The replacement that a control token makes of an incomplete character completes a stop string.
  Detokenizer replaced(words, {"ST" + kReplacement}, false);
  EXPECT_EQ(feed(replaced, {1, 3, 0}), (Texts{"x", "", "", ""}));
  EXPECT_EQ(replaced.stopped(), 0);
}

// Bytes, pieces, control tokens and ids that the tokenizer does not know, of real tokenizers with and without a dummy
// prefix: the parts joined are the whole.
TEST(Detokenizer, RandomIdsGiveWhatDecodeGives) {
  std::mt19937 random(11);
  for (const char* name : {"bpe_bytes", "unigram_bytes_no_prefix"}) {
    const auto tokenizer = test_tokenizer(name);
    const int32_t first_byte = 3;
    for (int round = 0; round < 5'000; ++round) {
      std::vector<int32_t> ids;
      for (int i = 0; i < 16; ++i) {
        switch (random() % 4) {
          case 0:
            ids.push_back(static_cast<int32_t>(random() % 1000));  // some beyond the tokenizer
            break;
          case 1:
            ids.push_back(static_cast<int32_t>(1 + random() % 2));  // <s>, </s>
            break;
          default:
            ids.push_back(first_byte + static_cast<uint8_t>("\xD6\x8F\xE2\x82\xAC\xF0\x9F\x98 "[random() % 9]));
        }
      }
      Detokenizer detokenizer(*tokenizer, {}, true);
      std::string text;
      for (const std::string& part : feed(detokenizer, ids)) text += part;
      ASSERT_EQ(text, decode(*tokenizer, ids, ControlText::kNone).value())
          << name << " " << testing::PrintToString(ids);
      // What decode() should give: the runs between ids without bytes, each for itself.
      std::string bytes, expected;
      bool at_start = tokenizer->has_dummy_prefix();
      for (const int32_t id : ids) {
        std::string own;
        ASSERT_TRUE(tokenizer->append_bytes(id, ControlText::kNone, own).ok());
        if (own.empty()) {
          expected += utf8_sanitize(bytes);
          bytes.clear();
          continue;
        }
        bytes += at_start && own[0] == ' ' ? own.substr(1) : own;
        at_start = false;
      }
      ASSERT_EQ(text, expected + utf8_sanitize(bytes)) << name << " " << testing::PrintToString(ids);
    }
  }
}

TEST(Detokenizer, TokenByTokenGivesWhatDecodeGives) {
  for (const char* name : {"bpe_bytes", "unigram", "unigram_bytes_no_prefix"}) {
    const auto tokenizer = test_tokenizer(name);
    for (const auto& c : golden()[name]["cases"]) {
      const auto ids = c["first"].get<std::vector<int32_t>>();
      Detokenizer detokenizer(*tokenizer, {}, true);
      std::string text;
      for (const std::string& part : feed(detokenizer, ids)) text += part;
      EXPECT_EQ(text, c["decoded"].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace quire
