#include "lib/format/rope_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

using testing::HasSubstr;

Result<RopeSettings> read(const std::string& text) {
  QUIRE_ASSIGN(const Json config, parse_json_object(text, "config.json"));
  return read_rope_settings(JsonReader(config, "config.json"), 4096, 4);
}

std::string term(const std::string& settings) {
  auto rope = read(R"({"rope_scaling": )" + settings + "}");
  return rope.ok() ? rope->term : rope.status().message();
}

TEST(RopeScaling, TermsOfTheSupportedTypes) {
  EXPECT_EQ(term("null"), "");
  EXPECT_EQ(term(R"({"rope_type": "default"})"), "");
  EXPECT_EQ(term(R"({"type": "linear", "factor": 4.0})"), "pi(factor=4)");
  EXPECT_EQ(term(R"({"type": "linear", "factor": 2.5, "original_max_position_embeddings": 2048})"), "pi(factor=2.5)");
  EXPECT_EQ(term(R"({"type": "vanilla_ntk", "factor": 8})"), "ntk(factor=8)");
  EXPECT_EQ(term(R"({"type": "yarn", "factor": 16, "original_max_position_embeddings": 2048, "finetuned": true})"),
            "yarn(factor=16, original=2048)");
  EXPECT_EQ(term(R"({"rope_type": "yarn", "factor": 4})"), "yarn(factor=4, original=4096)");
  EXPECT_EQ(term(R"({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 1024})"),
            "yarn(factor=4, original=1024)");
  EXPECT_EQ(term(R"({"rope_type": "yarn", "factor": 4, "beta_fast": 16, "beta_slow": 0.5, "attention_factor": 1.25,
                     "truncate": false})"),
            "yarn(factor=4, original=4096, beta_fast=16, beta_slow=0.5, attention_factor=1.25, truncate=0)");
  EXPECT_EQ(term(R"({"rope_type": "yarn", "factor": 4, "mscale": 0.7, "mscale_all_dim": 0.7})"),
            "yarn(factor=4, original=4096, attention_factor=1)");
  const std::string multiplied = R"({"rope_type": "yarn", "factor": 4, "attn_factor": 0.8782488562869419)";
  EXPECT_EQ(term(multiplied + "}"), "yarn(factor=4, original=4096, attention_factor=1)");
  EXPECT_EQ(term(multiplied + R"(, "attention_factor": 1.25})"),
            "yarn(factor=4, original=4096, attention_factor=1.25)");
  EXPECT_EQ(term(R"({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192})"),
            "llama3(factor=32, low=1, high=4, original=8192)");
  EXPECT_EQ(term(R"({"type": "dynamic", "factor": 2.0})"), "dynamic_ntk(factor=2)");
  // max_position_embeddings counts, as in transformers.
  EXPECT_EQ(term(R"({"rope_type": "dynamic", "factor": 1, "original_max_position_embeddings": 512})"),
            "dynamic_ntk(factor=1)");
}

TEST(RopeScaling, SaysTheLengthBeforeTheExtension) {
  EXPECT_EQ(read(R"({"rope_scaling": {"type": "linear", "factor": 8}})")->original, 0);
  EXPECT_EQ(read(R"({"rope_scaling": {"type": "vanilla_ntk", "factor": 8, "original_max_position_embeddings": 512}})")
                ->original,
            512);
  EXPECT_EQ(read(R"({"original_max_position_embeddings": 256, "rope_parameters":
                     {"rope_type": "linear", "factor": 8, "original_max_position_embeddings": 512}})")
                ->original,
            256);
}

TEST(RopeScaling, LongRopeBringsItsLists) {
  auto rope = read(R"({"original_max_position_embeddings": 1024, "rope_scaling":
                       {"type": "su", "short_factor": [1, 1.5], "long_factor": [2.5, 64]}})");
  ASSERT_TRUE(rope.ok()) << rope.status().message();
  EXPECT_EQ(rope->type, "longrope");
  EXPECT_THAT(rope->longrope.short_factors, testing::ElementsAre(1, 1.5));
  EXPECT_THAT(rope->longrope.long_factors, testing::ElementsAre(2.5, 64));
  EXPECT_EQ(rope->longrope.original, 1024);
  EXPECT_NEAR(rope->longrope.attention_factor, std::sqrt(1.2), 1e-12);  // 1 + ln 4 / ln 1024
  EXPECT_THAT(rope->term, testing::StartsWith("longrope(original=1024, attention_factor=1.09544"));
  EXPECT_EQ(term(R"({"rope_type": "longrope", "factor": 64, "original_max_position_embeddings": 64,
                     "short_factor": [1, 1], "long_factor": [1, 1], "attention_factor": 1.25})"),
            "longrope(original=64, attention_factor=1.25)");
  EXPECT_EQ(term(R"({"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1, 1]})"),
            "longrope(original=4096, attention_factor=1)");
}

TEST(RopeScaling, NumbersReadBackAsTheSameDouble) {
  EXPECT_EQ(term(R"({"type": "linear", "factor": 1.1})"), "pi(factor=1.1)");
  EXPECT_EQ(term(R"({"type": "linear", "factor": 3.0000000000000004})"), "pi(factor=3.0000000000000004)");
  EXPECT_EQ(term(R"({"type": "linear", "factor": 1000000})"), "pi(factor=1000000)");
  EXPECT_EQ(term(R"({"rope_type": "yarn", "factor": 4, "attention_factor": 1.5e-6})"),
            "yarn(factor=4, original=4096, attention_factor=0.0000015)");  // no exponent, no sign
}

TEST(RopeScaling, NewerFormIsReadToo) {
  auto rope = read(R"({"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 1000000.0}})");
  ASSERT_TRUE(rope.ok()) << rope.status().message();
  EXPECT_EQ(rope->term, "pi(factor=4)");
  EXPECT_EQ(rope->theta, 1e6);
  EXPECT_EQ(rope->type, "linear");
  EXPECT_EQ(read(R"({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5})")->theta, 5e5);
  EXPECT_EQ(read(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 5e5})")->theta, 5e5);
  EXPECT_EQ(read("{}")->theta, 10000);
  // The outer original length counts, as in transformers.
  EXPECT_EQ(read(R"({"original_max_position_embeddings": 512, "rope_parameters":
                     {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}})")
                ->term,
            "yarn(factor=4, original=512)");
}

TEST(RopeScaling, ContradictionsAreRefused) {
  for (
      const char* text : {
          R"({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4})",
          R"({"rope_parameters": {"rope_type": "linear", "factor": 4}, "rope_scaling": {"type": "linear", "factor": 2}})",
          R"({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4}})",
      }) {
    EXPECT_EQ(read(text).status().code(), Code::kBadFile) << text;
  }
}

TEST(RopeScaling, BadValuesAreRefusedByKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "linear"})", "factor is missing"},
      {R"({"type": "linear", "factor": 0.5})", "factor is 0.5"},
      {R"({"type": "linear", "factor": "4"})", "factor is \"4\""},
      {R"({"type": "linear", "factor": 1e300})", "factor is 1e+300"},
      {R"({"type": 4})", "type is 4"},
      {R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 0})",
       "original_max_position_embeddings is 0"},
      {R"({"type": "yarn", "factor": 4, "beta_fast": -1})", "beta_fast"},
      {R"({"type": "yarn", "factor": 4, "truncate": 1})", "truncate"},
      {R"({"type": "llama3", "factor": 4, "low_freq_factor": 4, "high_freq_factor": 4})", "high_freq_factor"},
      {R"({"type": "llama3", "factor": 4, "low_freq_factor": 1})", "high_freq_factor is missing"},
      {R"({"type": "dynamic", "factor": 0.5})", "factor is 0.5"},
      {R"({"type": "dynamic"})", "factor is missing"},
      {R"({"type": "su", "long_factor": [1, 1]})", "short_factor is missing"},
      {R"({"type": "su", "short_factor": [1, 1], "long_factor": [1]})", "long_factor is [1]; expected 2 numbers"},
      {R"({"type": "su", "short_factor": [1, 0], "long_factor": [1, 1]})", "short_factor is [1,0]"},
      {R"({"type": "su", "short_factor": [1, "1"], "long_factor": [1, 1]})", "short_factor"},
      {R"({"type": "su", "short_factor": [1, 1], "long_factor": 2})", "long_factor is 2"},
      {R"([1])", "expected an object"},
  };
  for (const auto& [settings, expected] : cases) {
    const Status status = read(R"({"rope_scaling": )" + std::string(settings) + "}").status();
    EXPECT_EQ(status.code(), Code::kBadFile) << settings;
    EXPECT_THAT(status.message(), HasSubstr(expected)) << settings;
  }
}

TEST(RopeScaling, TheUnsupportedIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "dynamic", "factor": 2, "alpha": 3})", "alpha"},
      {R"({"type": "su", "short_factor": [1, 1], "long_factor": [1, 1], "short_mscale": 1.1})", "short_mscale"},
      {R"({"type": "proportional"})", "proportional"},
      {R"({"type": "linear", "factor": 2, "low_freq_factor": 1})", "low_freq_factor"},
      {R"({"full_attention": {"rope_type": "default"}})", "full_attention"},
  };
  for (const auto& [settings, expected] : cases) {
    const Status status = read(R"({"rope_scaling": )" + std::string(settings) + "}").status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << settings;
    EXPECT_THAT(status.message(), HasSubstr(expected)) << settings;
  }
}

}  // namespace
}  // namespace quire
