#include "lib/format/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::HasSubstr;

Status failure(const std::string& text, const JsonLimits& limits = {}) {
  return parse_json_object(text, "x.json", limits).status();
}

std::string excerpt(const std::string& value) {
  auto json = parse_json_object("{\"x\":" + value + "}", "x.json");
  return json.ok() ? json_excerpt(*json->find("x")) : json.status().message();
}

TEST(Json, ReadsAnObject) {
  auto json =
      parse_json_object(R"( {"a": [1, -2, 2.5, true, null, {"b": "ü\u0000\ud83d\ude00"}], "c": {}} )", "x.json");
  ASSERT_TRUE(json.ok()) << json.status().message();
  const Json::Array& a = *json->find("a")->array();
  ASSERT_EQ(a.size(), 6u);
  EXPECT_EQ(a[0].integer(), 1);
  EXPECT_EQ(a[1].integer(), -2);
  EXPECT_EQ(a[2].number(), 2.5);
  EXPECT_EQ(a[3].boolean(), true);
  EXPECT_TRUE(a[4].is_null());
  EXPECT_EQ(*a[5].find("b")->string(), std::string("ü\0😀", 7));
  EXPECT_TRUE(json->find("c")->object()->empty());
  EXPECT_EQ(json->find("d"), nullptr);
}

TEST(Json, NestingHasALimit) {
  auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<size_t>(depth - 1), '[') +
           std::string(static_cast<size_t>(depth - 1), ']') + "}";
  };
  EXPECT_TRUE(failure(nested(32)).ok());
  EXPECT_EQ(failure(nested(33)).code(), Code::kBadFile);
  EXPECT_THAT(failure(nested(33)).message(), HasSubstr("nested deeper than 32"));
  // Deep enough to end any recursion on the stack; unfinished, as an attacker would not bother to close them.
  EXPECT_EQ(failure("{\"a\":" + std::string(2'000'000, '[')).code(), Code::kBadFile);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(failure(objects).code(), Code::kBadFile);
}

TEST(Json, TheNumberOfValuesHasALimit) {
  EXPECT_TRUE(failure(R"({"a":[1,2]})", {32, 4}).ok());
  EXPECT_THAT(failure(R"({"a":[1,2,3]})", {32, 4}).message(), HasSubstr("more than 4 values"));
  EXPECT_THAT(failure(R"({"a":[[],[],[]]})", {32, 4}).message(), HasSubstr("more than 4 values"));
}

TEST(Json, NumbersMustBeFinite) {
  for (const char* number : {"NaN", "nan", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "01", "+1", ".5"}) {
    EXPECT_EQ(failure("{\"a\":" + std::string(number) + "}").code(), Code::kBadFile) << number;
  }
}

TEST(Json, KeysMustBeUnique) {
  EXPECT_THAT(failure(R"({"a":1,"b":{"c":1,"c":2}})").message(), HasSubstr("\"c\" occurs twice"));
  EXPECT_TRUE(failure(R"({"a":{"c":1},"b":{"c":2}})").ok());
}

TEST(Json, DamageIsReportedWithItsPlace) {
  for (const char* text : {R"({"a":"\ud800\u0041"})",
                           R"({"a":"\ud800\uXYZW"})",
                           R"({"a":"\ud800x"})",
                           R"({"a":"\udc00"})",
                           R"({"a":"\u12"})",
                           R"({"a":"\x"})",
                           "{\"a\":\"\\",
                           "{\"a\":-}",
                           "",
                           " ",
                           "{",
                           "{\"a\"",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{\"a\":1}}",
                           "{a:1}",
                           "[1]",
                           "1",
                           "null",
                           "{\"a\":\"\\ud800\"}",
                           "{\"a\":\"\n\"}",
                           "{\"a\":1} x",
                           "// c\n{}"}) {
    const Status status = failure(text);
    EXPECT_EQ(status.code(), Code::kBadFile) << text;
    EXPECT_THAT(status.message(), HasSubstr("x.json"));
    EXPECT_THAT(status.message(), testing::Not(HasSubstr("json.exception")));
  }
  EXPECT_EQ(failure("{\"a\":\"\xFF\"}").offset(), 6);
  const Status status = failure("{\n  \"a\": 1,\n  \"b\" 2\n}");
  EXPECT_EQ(status.message(), "x.json: line 3, column 7: expected :, found \"2\"");
  EXPECT_EQ(status.offset(), 18);
  EXPECT_EQ(failure("{\"a\":tru}").offset(), 5);
  EXPECT_EQ(failure("{\"a\":1").message(), "x.json: line 1, column 7: expected , or }, found the end");
  EXPECT_EQ(failure("{\"a\":1e999}").message(), "x.json: line 1, column 6: a number beyond the range of double");
  EXPECT_EQ(failure("{\"a\":1,\"a\":2}").offset(), 7);
  EXPECT_EQ(failure("{\"a\":1} x").message(), "x.json: line 1, column 9: expected the end of the text, found \"x\"");
  EXPECT_EQ(failure("{\"a\":\"b").message(), "x.json: line 1, column 8: expected \" to end a string, found the end");
  EXPECT_EQ(failure("{\"a\":\"b\nc\"}").message(),
            "x.json: line 1, column 8: expected an escape for a control character, found \"\\n\"");
  EXPECT_EQ(failure(std::string("{\"a\":\0}", 7)).offset(), 5);
}

// Columns are characters, offsets bytes; a byte order mark has no column.
TEST(Json, PlacesAreThoseOfAnEditor) {
  const Status wide = failure("{\"ü€😀\":x}");
  EXPECT_EQ(wide.message(), "x.json: line 1, column 8: expected a value, found \"x\"");
  EXPECT_EQ(wide.offset(), 13);
  const Status marked = failure("\xEF\xBB\xBF{x}");
  EXPECT_EQ(marked.message(), "x.json: line 1, column 2: expected a key, found \"x\"");
  EXPECT_EQ(marked.offset(), 4);
  EXPECT_EQ(failure("\xEF\xBB\xBF{\n x}").message(), "x.json: line 2, column 2: expected a key, found \"x\"");
  EXPECT_TRUE(failure("\xEF\xBB\xBF{}").ok());
  EXPECT_EQ(failure("{}\xEF\xBB\xBF").offset(), 2);  // no mark but at the beginning
  EXPECT_EQ(failure(" \xEF\xBB\xBF{}").offset(), 1);
}

TEST(Json, TextMustBeUtf8) {
  for (const std::string bytes :
       {"\xFF", "\x80", "\xC0\xAF", "\xED\xA0\xBD\xED\xB8\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    const Status status = failure("{\"a\":\n\"ü" + bytes + "\"}");
    EXPECT_EQ(status.message(), "x.json: line 2, column 3: invalid UTF-8");
    EXPECT_EQ(status.offset(), 9);
  }
  EXPECT_EQ(failure("\xFE\xFF").message(), "x.json: line 1, column 1: invalid UTF-8");  // UTF-16
}

TEST(Json, SurrogatesComeInPairs) {
  const auto text = [](const std::string& escapes) {
    auto json = parse_json_object("{\"a\":\"" + escapes + "\"}", "x.json");
    return json.ok() ? *json->find("a")->string() : json.status().message();
  };
  EXPECT_EQ(text(R"(\uD83D\uDE00)"), "😀");
  EXPECT_EQ(text(R"(\udbff\udfff)"), "\xF4\x8F\xBF\xBF");
  EXPECT_EQ(text(R"(\ud800\udc00)"), "\xF0\x90\x80\x80");
  EXPECT_EQ(text(R"(\ud7ff\ue000\uffff)"), "\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF");
  const std::string alone = "x.json: line 1, column 7: half of a surrogate pair stands alone";
  for (const char* escapes : {R"(\udc00)", R"(\udfff)", R"(\ud800\ud800)", R"(\ud800\u0041)", R"(\ude00\ud83d)"}) {
    EXPECT_EQ(text(escapes), alone) << escapes;
  }
  const std::string second = "x.json: line 1, column 13: expected the second half of a surrogate pair, found ";
  EXPECT_EQ(text(R"(\ud800)"), second + R"("\"")");
  EXPECT_EQ(text(R"(\ud800x)"), second + R"("x")");
  EXPECT_EQ(text(R"(\ud800\n)"), second + R"("\\")");
  EXPECT_EQ(text(R"(\ud800\\udc00)"), second + R"("\\")");
  EXPECT_EQ(text(R"(\ud800\uXYZW)"), "x.json: line 1, column 15: expected a hex digit, found \"X\"");
}

TEST(Json, KeysAreEqualAsTheyAreMeant) {
  EXPECT_EQ(failure(R"({"a":1,"\u0061":2})").message(), "x.json: line 1, column 8: key \"a\" occurs twice");
  EXPECT_TRUE(failure(R"({"a":1,"A":2,"":3,"\u0000":4})").ok());
  EXPECT_EQ(failure(R"({"":1,"":2})").message(), "x.json: line 1, column 7: key \"\" occurs twice");
}

TEST(Json, OnlyFourBytesAreSpace) {
  EXPECT_TRUE(failure(" \t\r\n{ \t\r\n\"a\" : [ ] , \"b\" : { } }\r\n").ok());
  for (const char* space : {"\v", "\f", "\xC2\xA0", "\xE2\x80\xA8", "/**/", "#\n"}) {
    EXPECT_EQ(failure("{" + std::string(space) + "}").offset(), 1) << space;
  }
}

TEST(JsonReader, ChecksTypeAndRange) {
  const auto object = parse_json_object(
      R"({"i":7,"neg":-1,"f":7.0,"big":18446744073709551615,"s":"7","t":true,"n":null,"tiny":1e-300})", "");
  const JsonReader reader(object.value(), "x.json");
  EXPECT_EQ(reader.integer("i", 1, 7).value(), 7);
  EXPECT_EQ(reader.integer("none", 1, 7, 3).value(), 3);
  EXPECT_EQ(reader.integer("n", 1, 7, 3).value(), 3);
  for (const char* key : {"neg", "f", "big", "s", "t", "n", "none"}) {
    const Status status = reader.integer(key, 0, INT64_MAX).status();
    EXPECT_EQ(status.code(), Code::kBadFile) << key;
    EXPECT_THAT(status.message(), HasSubstr(std::string("x.json: ") + key));
  }
  EXPECT_EQ(reader.integer("i", 1, 6).status().message(), "x.json: i is 7; expected an integer from 1 to 6");
  EXPECT_EQ(reader.number("f", 0, 10).value(), 7.0);
  EXPECT_EQ(reader.number("i", 0, 10).value(), 7.0);
  EXPECT_FALSE(reader.number("tiny", 1e-12, 1).ok());
  EXPECT_FALSE(reader.number("s", 0, 10).ok());
  EXPECT_TRUE(reader.boolean("t", false).value());
  EXPECT_FALSE(reader.boolean("i", false).ok());
  EXPECT_EQ(reader.string("s", "").value(), "7");
  EXPECT_FALSE(reader.string("i", "").ok());
}

TEST(Json, ExcerptsAreShortAndWhole) {
  EXPECT_EQ(json_excerpt("a"), "\"a\"");
  EXPECT_EQ(json_excerpt(Json(Json::Array(100))), "an array of 100");
  EXPECT_EQ(excerpt(R"({"b":[1,-2,2.0,1e-300,1e300,0.1,-0.0],"a":null})"),
            R"({"a":null,"b":[1,-2,2.0,1e-300,1e+300,0.1,-0.0]})");
  EXPECT_EQ(excerpt(R"([true,false,18446744073709551615,"\"\\\b\f\n\r\t\u0001/"])"),
            R"([true,false,18446744073709551615,"\"\\\b\f\n\r\t\u0001/"])");
  EXPECT_EQ(excerpt(R"({"a":0,"b":1,"c":2,"d":3,"e":4,"f":5,"g":6,"h":7,"i":8})"), "an object of 9");
  std::string text;
  for (int i = 0; i < 100; ++i) text += "ü";
  EXPECT_LE(json_excerpt(text).size(), 63u);
  EXPECT_THAT(json_excerpt(text), testing::EndsWith("ü..."));
}

}  // namespace
}  // namespace quire
