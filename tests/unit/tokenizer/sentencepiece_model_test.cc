#include "lib/tokenizer/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tests/unit/tokenizer/model_file.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

using testing::HasSubstr;

SentencePieceModel model_of(const std::string& name) {
  auto model = parse_sentencepiece_model(tokenizer_file(name + ".model"));
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *model;
}

TEST(SentencePieceModel, ReadsAndWritesWhatMatters) {
  const SentencePieceModel model = model_of("unigram");
  EXPECT_TRUE(check_sentencepiece_model(model).ok());
  EXPECT_EQ(model.algorithm, PieceAlgorithm::kUnigram);
  EXPECT_FALSE(model.byte_fallback);
  EXPECT_TRUE(model.add_dummy_prefix && model.remove_extra_whitespaces && model.escape_whitespaces);
  EXPECT_FALSE(model.charsmap.empty());
  EXPECT_EQ(model.pieces[0].text, "<unk>");
  EXPECT_EQ(model.pieces[0].type, PieceType::kUnknown);
  EXPECT_EQ(model.pieces[1].type, PieceType::kControl);
  auto again = parse_sentencepiece_model(serialize_sentencepiece_model(model));
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(again->pieces.size(), model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    EXPECT_EQ(again->pieces[i].text, model.pieces[i].text);
    EXPECT_EQ(again->pieces[i].score, model.pieces[i].score);
    EXPECT_EQ(again->pieces[i].type, model.pieces[i].type);
  }
  EXPECT_EQ(again->charsmap, model.charsmap);
  const SentencePieceModel bpe = model_of("bpe_no_prefix");
  EXPECT_EQ(bpe.algorithm, PieceAlgorithm::kBpe);
  EXPECT_TRUE(bpe.byte_fallback);
  EXPECT_FALSE(bpe.add_dummy_prefix || bpe.remove_extra_whitespaces);
}

TEST(SentencePieceModel, NamesOfTheBeginningAndTheEnd) {
  // Fields 46 and 47 of the trainer's settings; that white space is no suffix may be said.
  auto model = parse_sentencepiece_model("\x12\x0D\xC0\x01" + std::string(1, '\0') + "\xF2\x02\x02<b\xFA\x02\x02<e");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->bos_piece, "<b");
  EXPECT_EQ(model->eos_piece, "<e");
}

TEST(SentencePieceModel, DamagedBytes) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "empty"},
      {"\x0A", "ends within a number"},                  // no length
      {"\x0A\x05\x0A", "reaches beyond"},                // a length beyond the file
      {"\x0A\x03\x0A\x09x", "reaches beyond"},           // a length beyond its message
      {std::string("\x00\x00", 2), "field number"},      // field 0
      {"\x0B", "wire type"},                             // a group
      {"\x08\x01", "another type"},                      // pieces as a number
      {"\x0A\x02\x08\x01", "another type"},              // the text of a piece as a number
      {"\x0A\x02\x18\x07", "unknown type 7"},            // a piece type that does not exist
      {"\x0A\x03\x15\x01\x02", "ends within a number"},  // a score of two bytes
      {std::string(11, '\xFF'), "more than 64 bits"},
      {"\x12\x02\x18\x03", "model type 3"},  // a word model
      {"\x12\x03\xC0\x01\x01", "treat_whitespace_as_suffix"},
      {"\x2A\x03\x12\x01x", "denormalization rules"},
  };
  for (const auto& [bytes, message] : cases) {
    const Status status = parse_sentencepiece_model(bytes).status();
    EXPECT_FALSE(status.ok()) << message;
    EXPECT_GE(status.offset(), 0) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

TEST(SentencePieceModel, BrokenInvariantsAreNamed) {
  using Break = std::function<void(SentencePieceModel&)>;
  const std::pair<Break, const char*> cases[] = {
      {[](auto& m) { m.pieces.clear(); }, "no pieces"},
      {[](auto& m) { m.pieces[300].text.clear(); }, "piece 300 has 0 bytes"},
      {[](auto& m) { m.pieces[300].text = std::string(5000, 'x'); }, "piece 300 has 5000 bytes"},
      {[](auto& m) { m.pieces[300].text = std::string("a\0b", 3); }, "NUL"},
      {[](auto& m) { m.pieces[300].text = "\xE2\x96"; }, "not UTF-8"},
      {[](auto& m) { m.pieces[300].text = m.pieces[301].text; }, "piece 301 occurs twice"},
      {[](auto& m) { m.pieces[300].score = std::numeric_limits<float>::quiet_NaN(); }, "score"},
      {[](auto& m) { m.pieces[300].score = -std::numeric_limits<float>::infinity(); }, "score"},
      {[](auto& m) { m.pieces[0].type = PieceType::kNormal; }, "there are 0"},
      {[](auto& m) { m.pieces[300].type = PieceType::kUnknown; }, "there are 2"},
      {[](auto& m) { m.byte_fallback = false; }, "without byte fallback"},
      {[](auto& m) { m.pieces[10].text = "<0xzz>"; }, "form <0xXX>"},
      {[](auto& m) { m.pieces[10].type = PieceType::kNormal; }, "256 byte pieces"},
      {[](auto& m) { m.unk_surface = "\xFF"; }, "unk_surface"},
      {[](auto& m) { m.charsmap = "abc"; }, "normalization rules"},
      {[](auto& m) {
         for (int n = 1; n <= 65; ++n) {
           m.pieces.push_back({std::string(static_cast<size_t>(n), '#'), 0, PieceType::kUserDefined});
         }
       },
       "more than 64 user-defined"},
  };
  for (const auto& [damage, message] : cases) {
    SentencePieceModel model = model_of("bpe_bytes");
    ASSERT_TRUE(check_sentencepiece_model(model).ok());
    damage(model);
    const Status status = check_sentencepiece_model(model);
    EXPECT_EQ(status.code(), Code::kBadFile) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

TEST(SentencePieceModel, SixtyFourUserDefinedPiecesInOneAnotherAreFine) {
  SentencePieceModel model = model_of("bpe_bytes");
  for (int n = 1; n <= 64; ++n) {
    model.pieces.push_back({std::string(static_cast<size_t>(n), '#'), 0, PieceType::kUserDefined});
  }
  ASSERT_TRUE(check_sentencepiece_model(model).ok());
  auto tokenizer = make_sentencepiece_tokenizer(serialize_sentencepiece_model(model), "", "", 1000);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT((*tokenizer)->encode(std::string(65, '#'), {.first_segment = false}).value(),
              testing::ElementsAre(480 + 63, 480));
}

// The library takes a piece's type by its text; a control piece of one letter would come out of any text.
TEST(SentencePieceModel, AControlPieceOfOneLetterDoesNotComeFromText) {
  for (const char* name : {"bpe_bytes", "unigram"}) {
    SentencePieceModel model = model_of(name);
    const auto id = static_cast<int32_t>(model.pieces.size());
    model.pieces.push_back({"#", 0, PieceType::kControl});
    auto tokenizer = make_sentencepiece_tokenizer(serialize_sentencepiece_model(model), "", "", 1000);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_THAT((*tokenizer)->encode("a # b", {}).value(), testing::Not(testing::Contains(id))) << name;
    EXPECT_THAT((*tokenizer)->encode("a#b", {.parse_special = true}).value(), testing::Contains(id)) << name;
  }
}

TEST(SentencePieceModel, BytePieces) {
  EXPECT_EQ(byte_of_piece("<0x00>"), 0);
  EXPECT_EQ(byte_of_piece("<0xFF>"), 255);
  EXPECT_EQ(byte_of_piece("<0x4a>"), -1);
  EXPECT_EQ(byte_of_piece("<0x4A"), -1);
  EXPECT_EQ(byte_of_piece("a"), -1);
}

// Damage at every place: whatever still loads must encode without harm.
TEST(SentencePieceModel, EveryFlippedBitIsHarmless) {
  const std::string whole = tokenizer_file("unigram.model");
  int n_loaded = 0;
  for (size_t at = 0; at < whole.size(); at += 3) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    auto tokenizer = make_sentencepiece_tokenizer(bytes, "", "", 1000);
    if (!tokenizer.ok()) continue;
    ++n_loaded;
    ASSERT_TRUE((*tokenizer)->encode("the \xEF\xBC\xA6 ceu\xCC\x81 book\xC2\xAD", {}).ok()) << at;
  }
  EXPECT_GT(n_loaded, 10);  // scores and letters change without being noticed
  for (size_t n = 0; n < whole.size(); n += 7) {
    (void)make_sentencepiece_tokenizer(whole.substr(0, n), "", "", 1000).ok();
  }
}

}  // namespace
}  // namespace quire
