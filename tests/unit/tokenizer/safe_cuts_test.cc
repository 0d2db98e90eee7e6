#include "lib/tokenizer/safe_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "lib/support/utf8.h"
#include "tests/source_path.h"
#include "tests/unit/tokenizer/model_file.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using Model = SentencePieceModel;
using Cuts = std::vector<size_t>;

Model parsed(const std::string& bytes) {
  auto model = parse_sentencepiece_model(bytes);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

Model model_of(const std::string& name) { return parsed(tokenizer_file(name + ".model")); }

// Letters, two pieces of two letters, and what `change` makes of it: as Llama's settings are.
Cuts cuts_of(
    const std::string& text, const std::function<void(Model&)>& change = [](Model&) {}) {
  Model model;
  model.algorithm = PieceAlgorithm::kBpe;
  model.remove_extra_whitespaces = false;
  model.pieces.push_back({"<unk>", 0, PieceType::kUnknown});
  for (const char* piece : {"a", "b", "c", "ab", "\u2581c", "\u00E9"}) model.pieces.push_back({piece});
  change(model);
  EXPECT_TRUE(check_sentencepiece_model(model).ok()) << check_sentencepiece_model(model).message();
  const SafeCuts safe_cuts(model);
  Cuts cuts;
  for (size_t at = 0; (at = safe_cuts.next(text, at + 1)) < text.size();) cuts.push_back(at);
  return cuts;
}

// Rules "ab" -> "x" and "b" -> "x".
std::string rules() {
  std::vector<uint32_t> units(256, 0x80000000u);
  units[0] = 1 << 10;                                      // to 1 ^ byte
  units[1 ^ 'a'] = 'a' | ((1u ^ 'a') ^ 4u) << 10;          // to 4 ^ byte
  units[4 ^ 'b'] = 'b' | 0x100 | ((4u ^ 'b') ^ 8u) << 10;  // a rule's end, its text at 8
  units[8] = 0x80000000u;
  units[1 ^ 'b'] = 'b' | 0x100 | ((1u ^ 'b') ^ 16u) << 10;
  units[16] = 0x80000000u;
  std::string out("\0\4\0\0", 4);
  for (const uint32_t unit : units) {
    for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(unit >> shift));
  }
  return out + std::string("x\0", 2);
}

TEST(SafeCuts, BetweenCharactersThatNoPieceHoldsTogether) {
  EXPECT_THAT(cuts_of("abcab"), ElementsAre(2, 3));
  EXPECT_THAT(cuts_of("a b c"), ElementsAre(1, 2, 3));                     // " c" is a piece, written with U+2581
  EXPECT_THAT(cuts_of("b\u2581c\u00E9\u00E9a"), ElementsAre(1, 5, 7, 9));  // and no cut within a code point
  EXPECT_THAT(cuts_of("b c", [](Model& m) { m.escape_whitespaces = false; }), ElementsAre(1, 2));
  EXPECT_THAT(cuts_of(""), IsEmpty());
  EXPECT_THAT(cuts_of("a"), IsEmpty());
}

TEST(SafeCuts, UserDefinedPieces) {
  const auto add = [](const char* piece) {
    return [=](Model& m) { m.pieces.push_back({piece, 0, PieceType::kUserDefined}); };
  };
  EXPECT_THAT(cuts_of("a c b", add("#b")), ElementsAre(1, 3, 4));
  EXPECT_THAT(cuts_of("a c b", add("a\u2581")), ElementsAre(3, 4));
  EXPECT_THAT(cuts_of("a c b", add("c b")), ElementsAre(1));  // found before spaces become U+2581
}

TEST(SafeCuts, PiecesThatNoTextBecomesAllowCuts) {
  for (const PieceType type : {PieceType::kControl, PieceType::kNormal}) {
    const Cuts cuts = cuts_of("cab", [&](Model& m) { m.pieces.push_back({"ca", 0, type}); });
    EXPECT_EQ(cuts, type == PieceType::kControl ? Cuts{1} : Cuts{});
  }
}

TEST(SafeCuts, SpacesThatAreRemovedAllowNoCutBesideThem) {
  const auto remove = [](Model& m) { m.remove_extra_whitespaces = true; };
  EXPECT_THAT(cuts_of("aa b\u2581\u00E9c", remove), ElementsAre(1, 9));
}

TEST(SafeCuts, NormalizationRules) {
  const auto with_rules = [](Model& m) { m.charsmap = rules(); };
  EXPECT_EQ(bytes_of_rules(rules()), (std::bitset<256>().set('a').set('b')));
  EXPECT_TRUE(bytes_of_rules("").none());
  EXPECT_THAT(cuts_of("cca cc\u00E9\u00E9 .c", with_rules), ElementsAre(1, 5, 11, 12));
}

TEST(SafeCuts, ModelsWithoutSafePlaces) {
  EXPECT_THAT(cuts_of("a b c", [](Model& m) { m.algorithm = PieceAlgorithm::kUnigram; }), IsEmpty());
  EXPECT_THAT(cuts_of("a b c", [](Model& m) { m.pieces.push_back({"abc", 0, PieceType::kUnused}); }), IsEmpty());
}

TEST(SafeCuts, UnusedPiecesThatNoMergeLeadsToAllowCuts) {
  const auto cuts = [](const char* unused) {
    return cuts_of("a b c", [&](Model& m) { m.pieces.push_back({unused, 0, PieceType::kUnused}); });
  };
  for (const char* unused : {"[PAD7]", "d", "abcab", "xyz"}) EXPECT_THAT(cuts(unused), ElementsAre(1, 2, 3)) << unused;
  for (const char* unused : {"xy", "abx", "xab", "éè", "abab"}) EXPECT_THAT(cuts(unused), IsEmpty()) << unused;
  EXPECT_THAT(cuts(std::string(65, 'x').c_str()), IsEmpty());
}

// A vocabulary with more pairs than the table has bits for.
TEST(SafeCuts, ALargeVocabularyOnlyCostsCuts) {
  const auto add = [](Model& m) {
    for (uint32_t i = 0; i < 200'000; ++i) {
      std::string piece;
      for (const uint32_t c : {0x4E00 + i % 20'000, 0x4E00 + i / 20'000, 0x4E00 + i % 19'997}) {
        piece += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
                  static_cast<char>(0x80 | (c & 0x3F))};
      }
      m.pieces.push_back({piece});
    }
  };
  EXPECT_THAT(cuts_of("cb. ", add), Contains(1));
  EXPECT_THAT(cuts_of("cabc", add), Not(Contains(2)));
}

// Texts of all that the encoder has to treat alike, at every place.
std::string random_text(std::mt19937& random, size_t n_words) {
  static constexpr std::string_view kWords =  // each behind a '~'
      "~the~book~reader~ ~ ~ ~  ~     ~\n~\n\n~\t~1~4096~.~, "
      "~\"~\u2581~\u2581the~e\u0301~\u0301~\u00E9~\uFF26~\uFF35\uFF2C~\uFB01"
      "~\u00AD~\u3000~\u00A0~\U0001F600~\u200D~\u65E5\u672C~\u0427\u0438~\uFFFD"
      "~<s>~</s>~<unk>~<0x41>~<|user|>~<|user|>\n~<|us~|>~xq~aaaa~zz~#~##~. e\u0301~page\u2581s~page s~wei\u00DF~\x7F";
  std::string text;
  for (size_t i = 0; i < n_words; ++i) {
    if (random() % 6 == 0) {
      text += static_cast<char>(random() % 128);
    } else {
      const size_t at = kWords.find('~', random() % (kWords.rfind('~') + 1)) + 1;
      text += kWords.substr(at, kWords.find('~', at) - at);
    }
  }
  return text;
}

struct Named {
  std::string name;
  std::string bytes;
  bool has_cuts = true;
};

std::vector<Named> models() {
  std::vector<Named> models;
  for (const char* name : {"bpe_bytes", "bpe_no_prefix"}) {
    const std::string file = tokenizer_file(std::string(name) + ".model");
    models.push_back({name, file});
    const auto change = [&](const char* what, const std::function<void(Model&)>& apply, bool has_cuts = true) {
      Model model = parsed(file);
      apply(model);
      models.push_back({std::string(name) + what, serialize_sentencepiece_model(model), has_cuts});
    };
    change(" with rules", [](Model& m) { m.charsmap = model_of("unigram").charsmap; });
    change(" removing spaces", [](Model& m) { m.remove_extra_whitespaces = true; });
    change(" removing spaces with rules", [](Model& m) {
      m.remove_extra_whitespaces = true;
      m.charsmap = model_of("unigram").charsmap;
    });
    change(" with spaces as they are", [](Model& m) { m.escape_whitespaces = false; });
    change(" with user-defined pieces", [](Model& m) {
      for (const char* piece : {"page s", "e\u2581", "##", "xq", "\uFF26\uFF35", "o b"}) {
        m.pieces.push_back({piece, 0, PieceType::kUserDefined});
      }
    });
    change(" with a user-defined piece that rules would change", [](Model& m) {
      m.charsmap = model_of("unigram").charsmap;
      m.pieces.push_back({". e\u0301", 0, PieceType::kUserDefined});
    });
    change(" without byte fallback", [](Model& m) {
      m.byte_fallback = false;
      for (auto& piece : m.pieces) {
        if (piece.type == PieceType::kByte) piece.type = PieceType::kControl;
      }
    });
    change(" with unused pieces that no merge leads to", [](Model& m) {
      for (const char* piece : {"[PAD1]", "[PAD2]", "the#book", "~"}) {
        m.pieces.push_back({piece, 0, PieceType::kUnused});
      }
    });
    change(
        " with unused pieces",
        [](Model& m) {
          for (size_t id = 300; id < 340; ++id) m.pieces[id].type = PieceType::kUnused;
        },
        false);
  }
  for (const char* name : {"unigram", "unigram_bytes_no_prefix"}) {
    models.push_back({name, tokenizer_file(std::string(name) + ".model"), false});
  }
  for (const char* path : {"tests/golden/models/mha_default", "examples/embedded_model/model"}) {
    models.push_back({path, read_text_file(test::source_path(path) + "/tokenizer.model", 1 << 20).value()});
  }
  return models;
}

TEST(SafeCuts, PartsBecomeTheIdsOfTheWhole) {
  std::mt19937 random(23);
  for (const auto& [name, bytes, has_cuts] : models()) {
    auto tokenizer = make_sentencepiece_tokenizer(bytes, "", R"({"<|x|>": 40000, "##": 40001})", 50000);
    ASSERT_TRUE(tokenizer.ok()) << name << tokenizer.status().message();
    const SafeCuts safe_cuts(parsed(bytes));
    size_t n_cuts = 0;
    for (int round = 0; round < 300; ++round) {
      const std::string text = random_text(random, 1 + random() % 60);
      ASSERT_EQ(utf8_first_invalid(text), text.size());
      for (size_t at = 0; (at = safe_cuts.next(text, at + 1)) < text.size();) ++n_cuts;
      for (const bool first_segment : {true, false}) {
        EncodeOptions options{.first_segment = first_segment, .parse_special = round % 2 == 0, .part_bytes = SIZE_MAX};
        std::vector<int64_t> starts, part_starts;
        const auto whole = (*tokenizer)->encode(text, options, &starts).value();
        ASSERT_EQ((*tokenizer)->encode(text, options).value(), whole);
        for (const size_t part_bytes : {0, 1, 20}) {
          options.part_bytes = part_bytes;
          ASSERT_EQ((*tokenizer)->encode(text, options).value(), whole) << name << ": " << text;
          ASSERT_EQ((*tokenizer)->encode(text, options, &part_starts).value(), whole) << name << ": " << text;
          ASSERT_EQ(part_starts, starts) << name << ": " << text;
        }
      }
    }
    EXPECT_EQ(n_cuts > 300, has_cuts) << name << n_cuts;
  }
}

}  // namespace
}  // namespace quire
