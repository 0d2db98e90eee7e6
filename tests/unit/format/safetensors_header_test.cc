#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/format/safetensors.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kBegin = 1000;

auto parse(const std::string& header, int64_t data_bytes) {
  return parse_safetensors_header(header, kBegin, kBegin + data_bytes);
}

TEST(SafetensorsHeader, ReadsTensorsAndIgnoresMetadata) {
  auto tensors = parse(R"({"__metadata__": {"format": "pt"},
    "b": {"dtype": "F16", "shape": [2, 3], "data_offsets": [4, 16]},
    "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    "empty": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [16, 16]}}   )",
                       16);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 3u);
  const TensorInfo& b = tensors->at("b");
  EXPECT_EQ(b.dtype, "F16");
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.begin, kBegin + 4);
  EXPECT_EQ(b.end, kBegin + 16);
  EXPECT_TRUE(tensors->at("a").shape.empty());
  EXPECT_TRUE(parse("{}", 0).ok());
}

struct Case {
  const char* what;
  const char* header;
  int64_t data_bytes;
  const char* message;
  int64_t offset = -2;  // -2: not compared
};

TEST(SafetensorsHeader, DamageIsNamed) {
  const Case cases[] = {
      {"overlap",
       R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}, "b": {"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
       7, "tensor b: overlaps", kBegin + 3},
      {"same bytes",
       R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}, "b": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, "overlaps"},
      {"hole",
       R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}, "b": {"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
       9, "tensor b: a hole of 1 bytes", kBegin + 4},
      {"hole at the start", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, "hole of 1"},
      {"bytes left over", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 6, "2 bytes after the last",
       kBegin + 4},
      {"truncated data", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3,
       "tensor a: data_offsets [0,4] lie outside"},
      {"reversed", R"({"a": {"dtype":"U8","shape":[0],"data_offsets":[4,0]}})", 4, "lie outside"},
      {"negative", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})", 4, "expected data_offsets"},
      {"huge offset", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,9223372036854775807]}})", 4, "lie outside"},
      {"beyond int64", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615]}})", 4,
       "expected data_offsets"},
      {"fraction", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4.0]}})", 4, "expected data_offsets"},
      {"three offsets", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", 4, "expected data_offsets"},
      {"no offsets", R"({"a": {"dtype":"U8","shape":[4]}})", 4, "expected data_offsets"},
      {"shape too small", R"({"a": {"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "span 4 bytes, but its shape needs 8", kBegin},
      {"shape overflows", R"({"a": {"dtype":"F32","shape":[4611686018427387904, 4],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {"shape wraps to zero", R"({"a": {"dtype":"F32","shape":[4294967296, 4294967296],"data_offsets":[0,0]}})", 0,
       "overflows"},
      {"negative dimension", R"({"a": {"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "dimension -1"},
      {"dimension beyond int64", R"({"a": {"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}})", 4,
       "dimension"},
      {"dimension as text", R"({"a": {"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, "dimension"},
      {"shape no array", R"({"a": {"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "expected a shape"},
      {"many dimensions", R"({"a": {"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})",
       1, "at most 16"},
      {"unknown dtype", R"({"a": {"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype \"F33\""},
      {"no dtype", R"({"a": {"shape":[1],"data_offsets":[0,4]}})", 4, "no dtype"},
      {"more keys", R"({"a": {"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4, "expected only"},
      {"no object", R"({"a": 1})", 0, "tensor a: expected an object"},
      {"metadata no object", R"({"__metadata__": 1})", 0, "__metadata__"},
      {"metadata number", R"({"__metadata__": {"a": 1}})", 0, "__metadata__: a must be a string"},
      {"name twice",
       R"({"a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}, "a": {"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       0, "\"a\" occurs twice"},
      {"not JSON", R"({"a")", 0, "safetensors header"},
      {"array", "[]", 0, "must be a JSON object"},
      {"deep", R"({"a": {"shape": [[[[[[1]]]]]]}})", 0, "nested deeper"},
      {"not UTF-8", "{\"\xC0\x80\": 1}", 0, "UTF-8"},
      {"empty", "", 0, "safetensors header"},
  };
  for (const Case& c : cases) {
    const Status status = parse(c.header, c.data_bytes).status();
    EXPECT_EQ(status.code(), Code::kBadFile) << c.what;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.what;
    if (c.offset != -2) {
      EXPECT_EQ(status.offset(), c.offset) << c.what;
    }
  }
}

TEST(SafetensorsHeader, ImpossibleSizesAreRefused) {
  EXPECT_EQ(parse_safetensors_header("{}", 10, 9).status().code(), Code::kBadFile);
  EXPECT_EQ(parse_safetensors_header("{}", -1, 9).status().code(), Code::kBadFile);
  const auto at_the_edge = parse_safetensors_header(
      R"({"a": {"dtype":"U8","shape":[9223372036854775797],"data_offsets":[0,9223372036854775797]}})", 10, INT64_MAX);
  EXPECT_TRUE(at_the_edge.ok()) << at_the_edge.status().message();
}

TEST(SafetensorsHeader, TooManyTensorsAreRefused) {
  std::string header = "{";
  for (int i = 0; i <= 200'000; ++i) header += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  const Status status = parse(header + "}", 0).status();
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_THAT(status.message(), HasSubstr("the header names 200001 tensors; at most 200000"));
}

}  // namespace
}  // namespace quire
