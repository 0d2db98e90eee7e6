// tokenizer.json: ids and texts as the `tokenizers` package's, and what is refused.
#include "lib/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/support/utf8.h"
#include "lib/tokenizer/detokenizer.h"
#include "tests/unit/tokenizer/bpe_data.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

class JsonGolden : public testing::TestWithParam<const char*> {};

TEST_P(JsonGolden, SameIdsAndTextsAsTokenizers) {
  auto made = make_json(bpe_configuration(GetParam()));
  ASSERT_TRUE(made.ok()) << made.status().message();
  const Tokenizer& tokenizer = **made;
  const auto& expected = bpe_golden()["configurations"][GetParam()];
  const auto& texts = bpe_golden()["texts"];
  ASSERT_GT(texts.size(), 40u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    SCOPED_TRACE(text);
    const auto with_special = expected["ids"][i].get<Ids>();
    const auto plain = expected["plain"][i].is_null() ? with_special : expected["plain"][i].get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, {.add_bos = false, .parse_special = true}).value(), with_special);
    std::vector<int64_t> starts;
    EXPECT_EQ(tokenizer.encode(text, {.add_bos = false}, &starts).value(), plain);
    EXPECT_EQ(tokenizer.encode(text, {.add_bos = false, .part_bytes = 1}).value(), plain);
    EXPECT_TRUE(starts.size() == plain.size() && std::is_sorted(starts.begin(), starts.end()));
    EXPECT_TRUE(starts.empty() || (starts.front() == 0 && starts.back() <= static_cast<int64_t>(text.size())));
    const auto decoded = expected["decoded"][i].is_null() ? text : expected["decoded"][i].get<std::string>();
    EXPECT_EQ(decode(tokenizer, plain, ControlText::kNone).value(), decoded);
    Detokenizer detokenizer(tokenizer, {}, true);
    std::string streamed;
    for (const int32_t id : plain) {
      const std::string part = detokenizer.add(id).value();
      EXPECT_EQ(utf8_first_invalid(part), part.size());
      streamed += part;
    }
    EXPECT_EQ(streamed + detokenizer.finish(), decoded);
  }
}

TEST_P(JsonGolden, CancelledEncoding) {
  auto made = make_json(bpe_configuration(GetParam()));
  ASSERT_TRUE(made.ok()) << made.status().message();
  CancelToken cancel;
  const EncodeOptions options{.cancel = &cancel};
  EXPECT_EQ((*made)->encode("the grass", options).value(), (*made)->encode("the grass", {}).value());
  cancel.cancel();
  EXPECT_EQ((*made)->encode("the grass", options).status().code(), Code::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(Configurations, JsonGolden,
                         testing::Values("gpt2", "prefix", "smollm", "llama3", "qwen2", "tekken", "mistral",
                                         "mistral_newer", "metaspace_always", "metaspace_never", "no_bytes",
                                         "no_bytes_apart"),
                         [](const auto& info) { return std::string(info.param); });

std::unique_ptr<const Tokenizer> good(const json& file, const std::string& config = "", int32_t vocab_size = 500) {
  auto made = make_json(file, config, vocab_size);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return std::move(*made);
}

TEST(JsonTokenizer, NamesOfTokens) {
  const auto tokenizer = good(bpe_file("byte_level"), R"({"bos_token": "<|end|>", "eos_token": "<|endoftext|>"})");
  EXPECT_EQ(tokenizer->kind(), "byte-level-bpe");
  EXPECT_EQ(tokenizer->size(), 484);
  EXPECT_EQ(tokenizer->bos(), 480);  // the template's
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->eos(), Ids{0});
  EXPECT_TRUE(tokenizer->is_control(481));
  EXPECT_FALSE(tokenizer->is_control(482));
  EXPECT_EQ(tokenizer->find_control("<|end|>"), 481);
  EXPECT_EQ(tokenizer->find_control("<|tool|>"), 482);
  EXPECT_EQ(tokenizer->find_control("the"), -1);
  EXPECT_EQ(tokenizer->encode("", {}).value(), Ids{480});
  EXPECT_EQ(tokenizer->encode("", {.first_segment = false}).value(), Ids{});
  json file = bpe_file("byte_level");
  file["post_processor"] = nullptr;
  EXPECT_FALSE(good(file, R"({"bos_token": "<|end|>"})")->adds_bos());
  EXPECT_EQ(good(file, R"({"bos_token": "<|end|>"})")->bos(), 481);
}

// The classes of Llama and Gemma replace the post-processor by what tokenizer_config.json says.
TEST(JsonTokenizer, AddBosTokenDecidesForLlamaAndGemma) {
  const auto config = [](const json& add_bos, const char* tokenizer_class, const json& bos_token = "<|end|>") {
    return json{{"add_bos_token", add_bos}, {"tokenizer_class", tokenizer_class}, {"bos_token", bos_token}}.dump();
  };
  const auto begin = [](const json& file, const std::string& settings) {
    return good(file, settings)->encode("", {}).value();
  };
  const json with = bpe_file("byte_level");  // <|start|>, 480
  json without = with;
  without["post_processor"] = {{"type", "ByteLevel"}};
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizerFast", "GemmaTokenizer"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(begin(without, config(true, name)), Ids{481});
    EXPECT_EQ(begin(with, config(true, name)), Ids{481});
    EXPECT_EQ(begin(with, config(false, name)), Ids{});
    EXPECT_EQ(begin(with, config(nullptr, name)), Ids{480});
    EXPECT_EQ(begin(without, config(nullptr, name)), Ids{});
    EXPECT_EQ(begin(without, config(true, name, nullptr)), Ids{});
    EXPECT_EQ(begin(with, config(true, name, nullptr)), Ids{480});
  }
  EXPECT_EQ(begin(without, config(true, "PreTrainedTokenizerFast")), Ids{});
  EXPECT_EQ(begin(with, config(false, "PreTrainedTokenizerFast")), Ids{480});
}

// A text becomes control tokens only if it may; added tokens that are none are part of the vocabulary.
TEST(JsonTokenizer, ControlAndAddedTokens) {
  const auto tokenizer = good(bpe_file("byte_level"));
  const std::string text = "<|tool|><|end|>";
  EXPECT_EQ(tokenizer->encode(text, {.add_bos = false, .parse_special = true}).value(), (Ids{482, 481}));
  const Ids plain = tokenizer->encode(text, {.add_bos = false}).value();
  EXPECT_EQ(plain.front(), 482);
  for (const int32_t id : plain) EXPECT_FALSE(tokenizer->is_control(id));
  EXPECT_EQ(decode(*tokenizer, {480, 482, 481}, ControlText::kNone).value(), "<|tool|>");
  EXPECT_EQ(decode(*tokenizer, {480, 482, 481}, ControlText::kPiece).value(), "<|start|><|tool|><|end|>");
}

// Merges and whole words that lead to a control token are left out.
TEST(JsonTokenizer, NoMergeMakesAControlToken) {
  json file = bpe_file("byte_level");
  const std::string text = "es";
  ASSERT_TRUE(file["model"]["vocab"].contains(text));
  ASSERT_EQ(good(file)->encode(text, {.add_bos = false}).value().size(), 1u);
  file["added_tokens"].push_back({{"id", file["model"]["vocab"][text]}, {"content", text}, {"special", true}});
  for (const bool ignore_merges : {false, true}) {
    file["model"]["ignore_merges"] = ignore_merges;
    const auto tokenizer = good(file);
    const Ids ids = tokenizer->encode(text, {.add_bos = false}).value();
    for (const int32_t id : ids) EXPECT_FALSE(tokenizer->is_control(id));
    EXPECT_EQ(tokenizer->encode(text, {.add_bos = false, .parse_special = true}).value().size(), 1u);
  }
}

TEST(JsonTokenizer, TheUnknownTokenIsNoControlToken) {
  const auto tokenizer = good(bpe_configuration("no_bytes"), "", 600);
  const Ids ids = tokenizer->encode("\xE6\x97\xA5", {.add_bos = false}).value();
  EXPECT_EQ(ids.back(), 0);
  EXPECT_FALSE(tokenizer->is_control(0));
  EXPECT_TRUE(tokenizer->is_control(1));
  EXPECT_EQ(tokenizer->find_control("<unk>"), 0);
  EXPECT_EQ(decode(*tokenizer, {0}, ControlText::kPiece).value(), "<unk>");
}

TEST(JsonTokenizer, PlacesOfTokensInTheText) {
  std::vector<int64_t> starts;
  const auto nfc = good(bpe_configuration("qwen2"));
  // e and an accent become one character of two bytes, which are two tokens here.
  const std::string text = "ae\xCC\x81 \xE6\x97\xA5";
  const Ids ids = nfc->encode(text, {.add_bos = false}, &starts).value();
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 1, 4, 5, 6, 7})) << testing::PrintToString(ids);
  // The prefix is in front of the text; a space is three bytes of the normalized text.
  const auto mistral = good(bpe_file("characters"), "", 600);
  (void)mistral->encode("\xE6\x97\xA5 \xE6\x97\xA5", {.add_bos = false}, &starts).value();
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 0, 1, 2, 3, 4, 5, 6}));
}

TEST(JsonTokenizer, ALaterSegmentHasNoPrefix) {
  for (const char* name : {"mistral", "mistral_newer", "metaspace_always", "prefix"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = good(bpe_configuration(name), "", 600);
    const Ids later = tokenizer->encode("the", {.first_segment = false}).value();
    std::string bytes;
    EXPECT_TRUE(tokenizer->append_bytes(later.front(), ControlText::kNone, bytes).ok());
    EXPECT_EQ(bytes.front(), 't');
    EXPECT_NE(later, tokenizer->encode("the", {.add_bos = false}).value());
  }
}

TEST(JsonTokenizer, InvalidTextAndIds) {
  const auto tokenizer = good(bpe_file("byte_level"));
  const Status status = tokenizer->encode("ab\xFF", {}).status();
  EXPECT_EQ(status.code(), Code::kInvalidText);
  EXPECT_EQ(status.offset(), 2);
  std::string bytes;
  EXPECT_TRUE(tokenizer->append_bytes(499, ControlText::kNone, bytes).ok());
  EXPECT_EQ(tokenizer->append_bytes(500, ControlText::kNone, bytes).code(), Code::kInvalidToken);
  EXPECT_EQ(tokenizer->append_bytes(-1, ControlText::kNone, bytes).code(), Code::kInvalidToken);
}

// The end of the work is near the end of the text, whatever it is: no time is measured, but a quadratic way would take
// hours.
TEST(JsonTokenizer, LongRuns) {
  for (const char* name : {"gpt2", "llama3", "tekken", "mistral"}) {
    const auto tokenizer = good(bpe_configuration(name), "", 600);
    for (const std::string unit : {" ", "a", "1", "\n", "\xCC\x81", "A", ".", "\xE6\x97\xA5"}) {
      std::string text;
      for (size_t i = 0; i < 30'000; ++i) text += unit;
      const auto ids = tokenizer->encode(text, {.add_bos = false});
      ASSERT_TRUE(ids.ok()) << name << " " << unit << ": " << ids.status().message();
      EXPECT_EQ(decode(*tokenizer, ids.value(), ControlText::kNone).value(), text) << name << " " << unit;
    }
  }
}

struct Refused {
  const char* name;
  std::function<void(json&)> change;
  Code code;
  const char* message;
};

class JsonRefused : public testing::TestWithParam<Refused> {};

TEST_P(JsonRefused, SaysWhat) {
  json file = bpe_file("byte_level");
  GetParam().change(file);
  const Status status = make_json(file, "", 500).status();
  EXPECT_EQ(status.code(), GetParam().code) << status.message();
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

json split(const std::string& expression) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}

json byte_level() { return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}; }

json sequence(const json& first) { return {{"type", "Sequence"}, {"pretokenizers", {first, byte_level()}}}; }

INSTANTIATE_TEST_SUITE_P(
    Files, JsonRefused,
    testing::Values(
        Refused{"NoModel", [](json& f) { f.erase("model"); }, Code::kBadFile, "model"},
        Refused{"Unigram", [](json& f) { f["model"]["type"] = "Unigram"; }, Code::kUnsupported, "Unigram"},
        Refused{"WordPiece", [](json& f) { f["model"]["type"] = "WordPiece"; }, Code::kUnsupported, "WordPiece"},
        Refused{"Dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, Code::kUnsupported, "dropout"},
        Refused{"Suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, Code::kUnsupported, "</w>"},
        Refused{"IdBeyondVocabulary", [](json& f) { f["model"]["vocab"]["zz"] = 500; }, Code::kBadFile,
                "vocab_size is 500"},
        Refused{"AddedBeyondVocabulary",
                [](json& f) {
                  f["added_tokens"].push_back({{"id", 500}, {"content", "<x>"}});
                },
                Code::kBadFile, "vocab_size is 500"},
        Refused{"HugeId", [](json& f) { f["model"]["vocab"]["zz"] = 1'000'000'000'000; }, Code::kBadFile, "zz"},
        Refused{"NegativeId", [](json& f) { f["model"]["vocab"]["zz"] = -1; }, Code::kBadFile, "zz"},
        Refused{"TwoOfOneId", [](json& f) { f["model"]["vocab"]["zz"] = 5; }, Code::kBadFile, "one id"},
        Refused{"MergeOfUnknown",
                [](json& f) {
                  f["model"]["merges"].push_back({"zz", "a"});
                },
                Code::kBadFile, "\"zz\" is not in the vocabulary"},
        Refused{"MergeToUnknown",
                [](json& f) {
                  f["model"]["merges"].push_back({"e", "\""});
                },
                Code::kBadFile, "what they become is not in the vocabulary"},
        Refused{"MergeOfThree", [](json& f) { f["model"]["merges"].push_back("a b c"); }, Code::kBadFile, "two tokens"},
        Refused{"UnknownToken", [](json& f) { f["model"]["unk_token"] = "<unk>"; }, Code::kBadFile, "unk_token"},
        Refused{"AddedElsewhere", [](json& f) { f["added_tokens"][0]["id"] = 7; }, Code::kBadFile, "but elsewhere"},
        Refused{"SingleWord", [](json& f) { f["added_tokens"][0]["single_word"] = true; }, Code::kUnsupported,
                "single_word"},
        Refused{"EmptyAdded",
                [](json& f) {
                  f["added_tokens"].push_back({{"id", 490}, {"content", ""}});
                },
                Code::kBadFile, "has 0 bytes"},
        Refused{"Normalizer",
                [](json& f) {
                  f["normalizer"] = {{"type", "NFKC"}};
                },
                Code::kUnsupported, "NFKC"},
        Refused{"PreTokenizer",
                [](json& f) {
                  f["pre_tokenizer"] = {{"type", "Whitespace"}};
                },
                Code::kUnsupported, "Whitespace"},
        Refused{"Decoder",
                [](json& f) {
                  f["decoder"] = {{"type", "CTC"}};
                },
                Code::kUnsupported, "CTC"},
        Refused{"NoDecoder", [](json& f) { f["decoder"] = nullptr; }, Code::kUnsupported, "ByteLevel"},
        Refused{"NoByteLevel", [](json& f) { f["pre_tokenizer"] = f["decoder"] = nullptr; }, Code::kUnsupported,
                "ByteLevel"},
        Refused{"PostProcessor",
                [](json& f) {
                  f["post_processor"] = {{"type", "BertProcessing"}};
                },
                Code::kUnsupported, "BertProcessing"},
        Refused{"TemplateOfUnknown", [](json& f) { f["post_processor"]["special_tokens"]["<|start|>"]["ids"] = {499}; },
                Code::kBadFile, "no token has"},
        Refused{"InvalidExpression", [](json& f) { f["pre_tokenizer"] = sequence(split("a(")); }, Code::kBadFile, "a("},
        Refused{"OtherSyntax", [](json& f) { f["pre_tokenizer"] = sequence(split(R"([\p{L}&&[^a]])")); },
                Code::kUnsupported, "&&"},
        Refused{"RunsAway", [](json& f) { f["pre_tokenizer"] = sequence(split("(a+)+[bc]")); }, Code::kUnsupported,
                "too much work"},
        Refused{"LongExpression", [](json& f) { f["pre_tokenizer"] = sequence(split(std::string(20'000, 'a'))); },
                Code::kUnsupported, "20000 bytes"}),
    [](const auto& info) { return std::string(info.param.name); });

// Every text that is cut short, and every one in which a piece is missing.
TEST(JsonTokenizer, Damaged) {
  const std::string whole = tokenizer_file("byte_level.json");
  for (size_t n = 0; n < whole.size() - 1; n += 97) {
    const Status status = make_json_tokenizer(whole.substr(0, n), "", 500).status();
    EXPECT_EQ(status.code(), Code::kBadFile) << n;
    const auto made = make_json_tokenizer(whole.substr(0, n) + whole.substr(n + 5), "", 500);
    if (!made.ok()) {
      EXPECT_TRUE(made.status().code() == Code::kBadFile || made.status().code() == Code::kUnsupported) << n;
    }
  }
}

}  // namespace
}  // namespace quire
