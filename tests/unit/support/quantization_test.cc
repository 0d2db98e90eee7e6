// Quantised blocks: against the gguf package (tests/data/make_quantization.py), and how well values are rounded.
#include "lib/support/quantization.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/support/element.h"
#include "tests/seed.h"
#include "tests/source_path.h"

namespace quire {
namespace {

constexpr ElementType kQuantized[] = {ElementType::kQ8_0, ElementType::kQ4_0,   ElementType::kQ4_1,
                                      ElementType::kQ5_0, ElementType::kQ5_1,   ElementType::kQ4_K,
                                      ElementType::kQ5_K, ElementType::kQ6_K,   ElementType::kQ2_K,
                                      ElementType::kQ3_K, ElementType::kIQ4_NL, ElementType::kIQ4_XS};

std::vector<uint8_t> from_hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(Dequantize, EqualsTheGgufPackageBitForBit) {
  std::ifstream file(test::source_path("tests/data/quantization/blocks.txt"));
  std::map<std::string, int> seen;
  for (std::string name, block, values; file >> name >> block >> values; ++seen[name]) {
    const auto* type = std::find_if(std::begin(kQuantized), std::end(kQuantized),
                                    [&](ElementType t) { return element_name(t) == name; });
    ASSERT_NE(type, std::end(kQuantized)) << name;
    const BlockFormat format = block_format(*type);
    const std::vector<uint8_t> bytes = from_hex(block), expected = from_hex(values);
    ASSERT_EQ(bytes.size(), format.bytes);
    std::vector<float> out(static_cast<size_t>(format.elements));
    ASSERT_EQ(expected.size(), out.size() * sizeof(float));
    dequantize(*type, bytes.data(), format.elements, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(0, std::memcmp(&out[i], &expected[i * sizeof(float)], sizeof(float)))
          << name << " block " << seen[name] << " element " << i << ": " << out[i];
    }
  }
  EXPECT_EQ(seen.size(), std::size(kQuantized));
}

// Root of the mean squared error, as a share of the values' root mean square.
double relative_error(ElementType type, const std::vector<float>& x) {
  const auto n = static_cast<int64_t>(x.size());
  std::vector<char> stored(row_bytes(type, n));
  std::vector<float> back(x.size());
  quantize(x.data(), n, type, stored.data());
  dequantize(type, stored.data(), n, back.data());
  double error = 0, magnitude = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - back[i], 2);
    magnitude += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / magnitude);
}

// Normally distributed values lose about what their bits allow: a uniform quantiser over the range of a block. The
// limits are a tenth above what the types reach.
TEST(Quantize, LosesWhatTheBitsMustLose) {
  std::mt19937 random = test::seeded_random();
  std::normal_distribution<float> distribution(0, 0.02f);
  std::vector<float> x(256 * 200);
  for (float& v : x) v = distribution(random);
  const std::map<ElementType, double> limits = {
      {ElementType::kQ8_0, 0.0060}, {ElementType::kQ4_0, 0.090},   {ElementType::kQ4_1, 0.083},
      {ElementType::kQ5_0, 0.046},  {ElementType::kQ5_1, 0.041},   {ElementType::kQ4_K, 0.085},
      {ElementType::kQ5_K, 0.042},  {ElementType::kQ6_K, 0.022},   {ElementType::kQ2_K, 0.287},
      {ElementType::kQ3_K, 0.158},  {ElementType::kIQ4_NL, 0.081}, {ElementType::kIQ4_XS, 0.082}};
  for (const auto& [type, limit] : limits) {
    const double error = relative_error(type, x);
    EXPECT_LT(error, limit) << element_name(type);
    EXPECT_GT(error, limit / 2) << element_name(type) << ": the limit says nothing";
  }
}

// One scale after the other, with numbers from `low` on: the scale of the least error, and the first of those.
float best_scale(const float* x, int low) {
  const int high = -low - 1;
  const auto nearest = [&](float v) {
    if (!(v > static_cast<float>(low))) return static_cast<float>(low);
    return v < static_cast<float>(high) ? std::nearbyint(v) : static_cast<float>(high);
  };
  const auto inverse_of = [](float scale) { return scale == 0 ? 0 : 1 / scale; };
  float extreme = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  float best = 0, least = std::numeric_limits<float>::infinity();
  const auto consider = [&](float scale) {
    const float stored = from_f16(to_f16(scale));
    float error = 0;
    for (int i = 0; i < 32; ++i) {
      const float difference = x[i] - stored * nearest(x[i] * inverse_of(stored));
      error += difference * difference;
    }
    if (error < least) best = stored, least = error;
  };
  consider(extreme / static_cast<float>(low));
  for (int i = 0; i < 18; ++i) {
    const float reach = static_cast<float>(-low) - 1.5f + 0.25f * static_cast<float>(i % 9);
    const float scale = (i < 9 ? -extreme : extreme) / reach;
    consider(scale);
    float products = 0, squares = 0;
    for (int j = 0; j < 32; ++j) {
      const float q = nearest(x[j] * inverse_of(scale));
      products += x[j] * q;
      squares += q * q;
    }
    consider(squares > 0 ? products / squares : scale);
  }
  return best;
}

TEST(Quantize, TriesScalesAsIfOneAfterTheOther) {
  std::mt19937 random = test::seeded_random(2);
  std::normal_distribution<float> distribution;
  for (const float magnitude : {1.0f, 0.02f, 1e-5f, 1e-7f, 1e4f}) {
    for (int i = 0; i < 200; ++i) {
      std::vector<float> x(32);
      for (float& v : x)
        v = i % 4 == 0 ? std::round(4 * distribution(random)) * magnitude : distribution(random) * magnitude;
      for (const auto& [type, low] : {std::pair{ElementType::kQ4_0, -8}, {ElementType::kQ5_0, -16}}) {
        std::vector<char> stored(row_bytes(type, 32));
        quantize(x.data(), 32, type, stored.data());
        uint16_t scale;
        std::memcpy(&scale, stored.data(), sizeof scale);
        ASSERT_EQ(from_f16(scale), best_scale(x.data(), low))
            << element_name(type) << ", " << magnitude << ", block " << i;
      }
    }
  }
}

// What a type can hold exactly comes back exactly.
TEST(Quantize, KeepsWhatItCanHold) {
  for (const ElementType type : kQuantized) {
    const int64_t n = 512;
    std::vector<float> zeros(static_cast<size_t>(n)), back(zeros.size(), 1);
    std::vector<char> stored(row_bytes(type, n));
    quantize(zeros.data(), n, type, stored.data());
    dequantize(type, stored.data(), n, back.data());
    EXPECT_EQ(back, zeros) << element_name(type);
  }
  // A grid of as many steps as the type has numbers.
  for (const auto& [type, steps] : {std::pair{ElementType::kQ4_0, 16},
                                    {ElementType::kQ4_1, 16},
                                    {ElementType::kQ5_0, 32},
                                    {ElementType::kQ5_1, 32}}) {
    std::vector<float> grid(256), back(256);
    for (size_t i = 0; i < grid.size(); ++i) {
      grid[i] = 0.25f * static_cast<float>(static_cast<int>(i) % steps - steps / 2);
    }
    std::vector<char> stored(row_bytes(type, 256));
    quantize(grid.data(), 256, type, stored.data());
    dequantize(type, stored.data(), 256, back.data());
    EXPECT_EQ(back, grid) << element_name(type);
  }
}

TEST(Quantize, KeepsLevelsAndFewIntegers) {
  std::vector<float> levels(256), eighths(256), back(256);
  for (size_t i = 0; i < 256; ++i) {
    levels[i] = 0.25f * static_cast<float>(kLevels[i * 7 % 16]);
    eighths[i] = 0.25f * static_cast<float>(static_cast<int>(i * 3 % 8) - 4);
  }
  const auto rounded = [&](ElementType type, const std::vector<float>& x) {
    std::vector<char> stored(row_bytes(type, 256));
    quantize(x.data(), 256, type, stored.data());
    dequantize(type, stored.data(), 256, back.data());
    return back;
  };
  EXPECT_EQ(rounded(ElementType::kIQ4_NL, levels), levels);
  EXPECT_EQ(rounded(ElementType::kIQ4_XS, levels), levels);
  EXPECT_EQ(rounded(ElementType::kQ3_K, eighths), eighths);
}

// The levels are the nearest ones, as plain loops find that ask all of them; and scales nearby are not much better.
TEST(Quantize, TakesTheNearestLevels) {
  std::mt19937 random = test::seeded_random(3);
  std::normal_distribution<float> distribution(0, 0.02f);
  for (int block = 0; block < 200; ++block) {
    std::vector<float> x(32), back(32);
    for (float& v : x) v = distribution(random);
    std::vector<char> stored(row_bytes(ElementType::kIQ4_NL, 32));
    quantize(x.data(), 32, ElementType::kIQ4_NL, stored.data());
    dequantize(ElementType::kIQ4_NL, stored.data(), 32, back.data());
    uint16_t scale;
    std::memcpy(&scale, stored.data(), sizeof scale);
    const auto least_error = [&](float of, float* value, float v) {
      double least = std::numeric_limits<double>::infinity();
      for (const int8_t level : kLevels) {
        const double error = std::fabs(static_cast<double>(of) * level - v);
        if (error < least) least = error, *value = of * static_cast<float>(level);
      }
      return least * least;
    };
    const float d = from_f16(scale);
    double error = 0;
    for (size_t i = 0; i < 32; ++i) {
      float nearest = 0;
      least_error(d, &nearest, x[i]);
      // Where the values are as near as rounding of the quotient can tell, either is right.
      ASSERT_NEAR(std::fabs(back[i] - x[i]), std::fabs(nearest - x[i]), 1e-5 * std::fabs(x[i])) << block << " " << i;
      error += std::pow(static_cast<double>(back[i]) - x[i], 2);
    }
    for (const float by : {0.97f, 0.99f, 1.01f, 1.03f}) {
      double other = 0;
      float ignored = 0;
      for (const float v : x) other += least_error(d * by, &ignored, v);
      EXPECT_GT(other, 0.9 * error) << block << " " << by;
    }
  }
}

TEST(Quantize, ABlockDependsOnItsOwnValuesOnly) {
  std::mt19937 random = test::seeded_random(1);
  std::normal_distribution<float> distribution;
  std::vector<float> x(512);
  for (float& v : x) v = distribution(random);
  for (const ElementType type : kQuantized) {
    const BlockFormat format = block_format(type);
    std::vector<char> all(row_bytes(type, 512)), one(format.bytes);
    quantize(x.data(), 512, type, all.data());
    for (int64_t i = 0; i < 512 / format.elements; ++i) {
      quantize(x.data() + i * format.elements, format.elements, type, one.data());
      ASSERT_EQ(0, std::memcmp(one.data(), all.data() + static_cast<size_t>(i) * format.bytes, format.bytes))
          << element_name(type) << " block " << i;
    }
  }
}

// What cannot be held is not turned into a plausible number.
TEST(Quantize, ShowsValuesThatAreNotFinite) {
  for (const ElementType type : kQuantized) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
      for (const size_t at : {0, 17, 255}) {
        std::vector<float> x(256, 0.5f), back(256);
        x[at] = bad;
        std::vector<char> stored(row_bytes(type, 256));
        quantize(x.data(), 256, type, stored.data());
        dequantize(type, stored.data(), 256, back.data());
        EXPECT_TRUE(std::any_of(back.begin(), back.end(), [](float v) { return !std::isfinite(v); }))
            << element_name(type) << ": " << bad << " at " << at;
      }
    }
  }
}

}  // namespace
}  // namespace quire
