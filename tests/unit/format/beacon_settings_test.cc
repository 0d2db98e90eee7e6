#include "lib/format/beacon_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lib/format/json.h"
#include "tests/source_path.h"

namespace quire {
namespace {

using Value = nlohmann::json;

using testing::ElementsAre;
using testing::HasSubstr;

Result<BeaconSettings> read(const Value& config) {
  QUIRE_ASSIGN(const Json json, parse_json_object(config.dump(), "config.json"));
  return read_beacon_settings(json, JsonReader(json, "config.json"));
}

void expect_refused(const Value& patch, Code code, const std::string& part) {
  Value config = {{"hidden_size", 64}, {"beacon_window", 64}};
  config.update(patch);
  auto settings = read(config);
  EXPECT_EQ(settings.status().code(), code) << patch.dump() << settings.status().message();
  EXPECT_THAT(settings.status().message(), HasSubstr(part));
  EXPECT_THAT(settings.status().message(), HasSubstr("config.json"));
}

TEST(BeaconSettings, WithoutKeysThereAreNone) { EXPECT_EQ(read({{"hidden_size", 64}})->window, 0); }

TEST(BeaconSettings, DefaultsOfAbsentKeys) {
  auto settings = read({{"beacon_window", 1024}});
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->window, 1024);
  EXPECT_EQ(settings->stride, 1024);
  EXPECT_EQ(settings->attention, BeaconSettings::Attention::kStepExpansion);
  EXPECT_THAT(settings->ratios, ElementsAre(0, 2, 4, 8, 16, 32, 64, 128));
  EXPECT_EQ(settings->mix, BeaconSettings::Mix::kAdapt);
  EXPECT_EQ(settings->reserve, 1024);
  EXPECT_TRUE(settings->q && settings->k && settings->v && settings->o);
  EXPECT_FALSE(settings->mlp);
  EXPECT_EQ(read({{"beacon_param", {"q"}}})->window, 1024);
}

TEST(BeaconSettings, EveryKeyIsRead) {
  auto settings = read({{"beacon_window", 96},
                        {"beacon_stride", {32}},
                        {"beacon_stride_mix", "step-random"},
                        {"beacon_attn", "full-coverage"},
                        {"beacon_attend_previous", true},
                        {"beacon_ratio", {0, 2, 32}},
                        {"beacon_ratio_mix", "adapt-7"},
                        {"beacon_param", {"mlp", "v"}}});
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->window, 96);
  EXPECT_EQ(settings->stride, 32);
  EXPECT_EQ(settings->attention, BeaconSettings::Attention::kFullCoverage);
  EXPECT_THAT(settings->ratios, ElementsAre(0, 2, 32));
  EXPECT_EQ(settings->reserve, 7);
  EXPECT_TRUE(settings->v && settings->mlp);
  EXPECT_FALSE(settings->q || settings->k || settings->o);
  EXPECT_EQ(read({{"beacon_attn", "segmentation"}})->attention, BeaconSettings::Attention::kSegmentation);
}

TEST(BeaconSettings, WaysToMixRatios) {
  EXPECT_EQ(read({{"beacon_ratio_mix", "sequence"}})->mix, BeaconSettings::Mix::kSequence);
  for (const char* mix : {"step-random", "instance-random", "adapt-1024"}) {
    auto settings = read({{"beacon_ratio_mix", mix}});
    ASSERT_TRUE(settings.ok()) << mix;
    EXPECT_EQ(settings->mix, BeaconSettings::Mix::kAdapt) << mix;
    EXPECT_EQ(settings->reserve, 1024) << mix;
  }
}

TEST(BeaconSettings, RatiosThatDoNotDivideTheStrideAreLeftOut) {
  EXPECT_THAT(read({{"beacon_window", 48}})->ratios, ElementsAre(0, 2, 4, 8, 16));
  EXPECT_THAT(read({{"beacon_window", 48}, {"beacon_stride", {12}}, {"beacon_ratio", {8, 24, 3, 12}}})->ratios,
              ElementsAre(3, 12));
  // But from a sequence none can be left out: each is a window's.
  const Value sequence = {{"beacon_window", 48}, {"beacon_ratio", {2, 32, 4}}, {"beacon_ratio_mix", "sequence"}};
  expect_refused(sequence, Code::kBadFile, "beacon_ratio");
}

TEST(BeaconSettings, OtherVariantsAreRefusedByName) {
  expect_refused({{"beacon_sink_size", 1}}, Code::kUnsupported, "beacon_sink_size");
  expect_refused({{"beacon_pos", "interleave"}}, Code::kUnsupported, "beacon_pos");
  expect_refused({{"beacon_stride", 64}}, Code::kUnsupported, "beacon_stride");
  expect_refused({{"retrieval_method", "bm25"}}, Code::kUnsupported, "bm25");
  expect_refused({{"beacon_attend_previous", false}}, Code::kUnsupported, "beacon_attend_previous");
  EXPECT_TRUE(read({{"beacon_window", 64}, {"retrieval_method", nullptr}}).ok());
  // Without beacons it means nothing here.
  EXPECT_TRUE(read({{"retrieval_method", "bm25"}}).ok());
}

TEST(BeaconSettings, WrongValuesAreRefusedByKey) {
  for (const Value& window : {Value(0), Value(-1), Value(1.5), Value("64"), Value((1 << 24) + 1), Value(1ull << 63)}) {
    expect_refused({{"beacon_window", window}}, Code::kBadFile, "beacon_window");
  }
  for (const Value& stride :
       {Value::array(), Value::array({1, 2}), Value::array({0}), Value::array({65}), Value::array({1.5}),
        Value::array({"8"}), Value::object(), Value("64"), Value::array({1ull << 63})}) {
    expect_refused({{"beacon_stride", stride}}, Code::kBadFile, "beacon_stride");
  }
  expect_refused({{"beacon_attn", "none"}}, Code::kBadFile, "beacon_attn");
  expect_refused({{"beacon_attn", 1}}, Code::kBadFile, "beacon_attn");
  expect_refused({{"beacon_attend_previous", 1}}, Code::kBadFile, "beacon_attend_previous");
  for (const Value& ratio : {Value(2), Value::array(), Value::array({-1}), Value::array({2.5}), Value::array({"2"}),
                             Value::array({1ull << 63}), Value(std::vector<int>(65, 2)), Value::array({3, 128})}) {
    expect_refused({{"beacon_ratio", ratio}}, Code::kBadFile, "beacon_ratio");
  }
  for (const char* mix : {"adapt-", "adapt-x", "adapt--1", "adapt-1x", "adapt-99999999999999999999",
                          "adapt-9223372036854775807", "random", ""}) {
    expect_refused({{"beacon_ratio_mix", mix}}, Code::kBadFile, "beacon_ratio_mix");
  }
  expect_refused({{"beacon_ratio_mix", 3}}, Code::kBadFile, "beacon_ratio_mix");
  expect_refused({{"beacon_param", "q"}}, Code::kBadFile, "beacon_param");
  expect_refused({{"beacon_param", {"gate"}}}, Code::kBadFile, "beacon_param");
  expect_refused({{"beacon_param", {1}}}, Code::kBadFile, "beacon_param");
}

TEST(BeaconSettings, APlugInIsADirectoryWithThem) {
  const std::string golden = test::source_path("tests/golden/");
  EXPECT_EQ(load_beacon_settings(golden + "beacon/plugin")->window, 32);
  EXPECT_EQ(load_beacon_settings(golden + "models/text_256").status().code(), Code::kBadFile);
  EXPECT_EQ(load_beacon_settings(golden + "nothing").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace quire
