#include "lib/model/describe_files.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <limits>

#include "lib/format/gguf_writer.h"
#include "lib/format/json.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire {
namespace {

// Whatever a file holds, and however it is called, what is said of it is JSON.
TEST(DescribeFiles, WhatJsonDoesNotHave) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  GgufWriter writer;
  writer.add("general.architecture", "llama");
  writer.add("number", kNan);
  writer.add("numbers", std::array<float, 2>{1, -kInfinity});
  writer.add("text", "a\xFF\x01");
  writer.add("texts", std::array<std::string, 2>{"\xC3", "b"});
  writer.add_tensor("t", std::array<int64_t, 1>{8}, ElementType::kF32);
  const test::TemporaryFolder folder;
  const std::string path = folder.file("n\xFE.gguf");
  std::ofstream(path, std::ios::binary) << writer.header() << std::string(32, '\0');

  const auto described = describe_files(path);
  ASSERT_TRUE(described.ok()) << described.status().message();
  auto parsed = parse_json_object(described.value(), "description");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message() << described.value();
  EXPECT_EQ(*parsed->find("files")->array()->front().string(), folder.file("n\uFFFD.gguf"));
  const Json* metadata = parsed->find("metadata");
  EXPECT_TRUE(metadata->find("number")->is_null());
  EXPECT_EQ(metadata->find("numbers")->array()->at(0).number(), 1);
  EXPECT_TRUE(metadata->find("numbers")->array()->at(1).is_null());
  EXPECT_EQ(*metadata->find("text")->string(), "a\uFFFD\x01");
  EXPECT_EQ(*metadata->find("texts")->array()->at(0).string(), "\uFFFD");
}

}  // namespace
}  // namespace quire
