// Our JSON parser and another one (nlohmann's) agree on which texts are JSON and on what they say: over the corpora of
// the fuzz targets, and over random damage to them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/format/json.h"
#include "lib/support/utf8.h"
#include "tests/seed.h"
#include "tests/source_path.h"

namespace quire {
namespace {

void expect_same(const Json& ours, const nlohmann::json& theirs) {
  switch (theirs.type()) {
    case nlohmann::json::value_t::object: {
      ASSERT_TRUE(ours.object());
      ASSERT_EQ(ours.object()->size(), theirs.size());
      for (const auto& [key, value] : theirs.items()) {
        ASSERT_TRUE(ours.find(key)) << key;
        expect_same(*ours.find(key), value);
      }
      break;
    }
    case nlohmann::json::value_t::array:
      ASSERT_TRUE(ours.array());
      ASSERT_EQ(ours.array()->size(), theirs.size());
      for (size_t i = 0; i < theirs.size(); ++i) expect_same((*ours.array())[i], theirs[i]);
      break;
    case nlohmann::json::value_t::string:
      ASSERT_TRUE(ours.string());
      EXPECT_EQ(*ours.string(), theirs.get<std::string>());
      break;
    case nlohmann::json::value_t::boolean:
      EXPECT_EQ(ours.boolean(), theirs.get<bool>());
      break;
    case nlohmann::json::value_t::null:
      EXPECT_TRUE(ours.is_null());
      break;
    default:
      ASSERT_TRUE(ours.number());
      EXPECT_EQ(*ours.number(), theirs.get<double>());
      EXPECT_EQ(ours.integer().has_value(),
                theirs.is_number_integer() && !(theirs.is_number_unsigned() && theirs.get<uint64_t>() > INT64_MAX));
  }
}

// Whether a text is accepted; and what it says.
bool compare(const std::string& text) {
  if (text.find('\0') != std::string::npos) return false;  // ends the text for the other one
  const auto theirs = nlohmann::json::parse(text, nullptr, false);
  const bool accepted = theirs.is_object() && utf8_first_invalid(text) == text.size();
  const JsonLimits limits{1000, 1'000'000};
  const auto ours = parse_json_object(text, "x", limits);
  if (!ours.ok() && ours.status().message().find("occurs twice") != std::string::npos) return false;
  EXPECT_EQ(ours.ok(), accepted) << ours.status().message() << '\n' << text;
  if (ours.ok() && accepted) expect_same(ours.value(), theirs);
  return accepted;
}

std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  for (const char* target :
       {"fuzz_adapter_config", "fuzz_model_config", "fuzz_safetensors_header", "fuzz_shard_index"}) {
    std::vector<std::filesystem::path> paths;
    const std::string folder = test::source_path("tests/fuzz/corpus/") + std::string(target);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
      std::ifstream in(path, std::ios::binary);
      texts.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  }
  return texts;
}

TEST(JsonPeer, SameOverTheCorpora) {
  int n_accepted = 0;
  for (const std::string& text : corpus()) n_accepted += compare(text);
  EXPECT_GT(n_accepted, 100);
}

TEST(JsonPeer, SameOverDamage) {
  SCOPED_TRACE(test::seed_trace());
  std::mt19937 random = test::seeded_random();
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  static constexpr std::string_view kPieces[] = {"{",           "}",         "[",
                                                 "]",           ",",         ":",
                                                 "\"",          "\\",        "\\u",
                                                 "d83d",        "\\ude00",   "-",
                                                 "0",           "1",         "9",
                                                 ".",           "e",         "E",
                                                 "+",           "true",      "null",
                                                 " ",           "\n",        "\t",
                                                 "\x01",        "/",         "u00e9",
                                                 "é",           "\xFF",      "1e400",
                                                 "1e-400",      "0.0000001", "123456789012345678901234567890",
                                                 "\xEF\xBB\xBF"};
  const auto texts = corpus();
  for (int round = 0; round < 20'000; ++round) {
    std::string text = texts[below(texts.size())];
    if (text.size() > 2000) continue;
    for (size_t n = below(3) + 1; n > 0; --n) {
      const size_t at = below(text.size() + 1);
      text.replace(at, std::min(below(4), text.size() - at), kPieces[below(std::size(kPieces))]);
    }
    compare(text);
  }
}

TEST(JsonPeer, SameNumbers) {
  for (const char* number : {"0",
                             "-0",
                             "-0.0",
                             "0e5",
                             "1e308",
                             "1.7976931348623157e308",
                             "1.8e308",
                             "-1.8e308",
                             "1e400",
                             "1e-400",
                             "-1e-400",
                             "4.9e-324",
                             "2e-324",
                             "0.000001e-320",
                             "1e99999999999999999999",
                             "1e-99999999999999999999",
                             "0e99999999999999999999",
                             "0.0e-99999999999999999999",
                             "1e9223372036854775807",
                             "-1e9223372036854775807",
                             "1e-9223372036854775808",
                             "0.001e-9223372036854775808",
                             "1e4294967296",
                             "1e-4294967296",
                             "9223372036854775807",
                             "9223372036854775808",
                             "-9223372036854775808",
                             "-9223372036854775809",
                             "18446744073709551615",
                             "18446744073709551616",
                             "1.",
                             ".1",
                             "01",
                             "-",
                             "1e",
                             "1e+",
                             "--1",
                             "1.5e+3",
                             "1E-3",
                             "0.1e1",
                             "123456789012345678901234567890e-10"}) {
    compare("{\"a\":" + std::string(number) + "}");
  }
  const std::string zeros(400, '0');
  compare("{\"a\":1" + zeros + "}");
  compare("{\"a\":1" + zeros + "e-399}");
  compare("{\"a\":0." + zeros + "1}");
  compare("{\"a\":0." + zeros + "1e500}");
  compare("{\"a\":0." + zeros + "1e900}");
}

}  // namespace
}  // namespace quire
