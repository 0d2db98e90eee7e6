// Types of GGUF files that are read as others: against the gguf package (tests/data/make_quantization.py), and what
// files of them give.
#include "lib/format/transcode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lib/format/gguf_files.h"
#include "lib/support/element.h"
#include "lib/support/quantization.h"
#include "tests/gguf_model.h"
#include "tests/seed.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Access = TensorFiles::Access;

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> values_of(const Transcoding& transcoding, std::span<const std::byte> stored) {
  const std::vector<std::byte> blocks = transcoded(transcoding, stored);
  std::vector<float> values(stored.size() / static_cast<size_t>(transcoding.stored_bytes) *
                            static_cast<size_t>(transcoding.elements));
  dequantize(transcoding.type, blocks.data(), static_cast<int64_t>(values.size()), values.data());
  return values;
}

void put_f16(std::vector<std::byte>& bytes, size_t at, float x) {
  const uint16_t h = to_f16(x);
  std::memcpy(&bytes[at], &h, sizeof h);
}

float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// The error that transcode.h allows a block of Q2_K, and what f16 and f32 round.
void expect_close(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  const float in_block = largest_of(expected) / 7800 + 0x1p-25f;
  for (size_t i = 0; i < values.size(); ++i) {
    const float in_group = largest_of(std::span(expected).subspan(i / 16 * 16, 16)) / 62;
    ASSERT_LE(std::fabs(values[i] - expected[i]), in_group * 1.0001f + in_block)
        << "element " << i << " is " << values[i] << ", not " << expected[i];
  }
}

TEST(Transcode, GivesTheValuesOfTheGgufPackage) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/data/quantization/transcoded.txt");
  std::map<std::string, int> seen;
  for (std::string name, block, text; file >> name >> block >> text; ++seen[name]) {
    SCOPED_TRACE(name + " block " + std::to_string(seen[name]));
    std::string dtype = name;
    std::ranges::transform(dtype, dtype.begin(), [](unsigned char c) { return std::toupper(c); });
    const Transcoding* transcoding = find_transcoding(dtype);
    ASSERT_TRUE(transcoding);
    const std::vector<std::byte> stored = from_hex(block), bytes = from_hex(text);
    ASSERT_EQ(static_cast<int64_t>(stored.size()), transcoding->stored_bytes);
    std::vector<float> expected(bytes.size() / sizeof(float));
    std::memcpy(expected.data(), bytes.data(), bytes.size());
    const std::vector<float> values = values_of(*transcoding, stored);
    ASSERT_EQ(values.size(), expected.size());
    if (name == "q2_k") {
      expect_close(values, expected);
    } else if (name == "iq4_xs") {
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(std::fabs(values[i] - expected[i]), 0x1p-11f * std::fabs(expected[i])) << i;
      }
    } else {
      EXPECT_EQ(values, expected);
    }
  }
  EXPECT_EQ(seen.size(), 4u);
}

// By the definition of the type: scales of 4 bits, then codes of 2, then two f16 numbers.
std::vector<float> definition_of_q2_k(const std::vector<std::byte>& block) {
  const auto byte = [&](size_t at) { return std::to_integer<int>(block[at]); };
  const float d = load_element(ElementType::kF16, block.data() + 80, 0);
  const float e = load_element(ElementType::kF16, block.data() + 82, 0);
  std::vector<float> values;
  for (size_t i = 0; i < 256; ++i) {
    const int scales = byte(i / 16), code = byte(16 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    values.push_back(d * static_cast<float>(scales & 15) * static_cast<float>(code) -
                     e * static_cast<float>(scales >> 4));
  }
  return values;
}

// Groups of zeros and of one value are among them, and blocks whose scale f16 hardly holds.
TEST(Transcode, RoundsGroupsOfEverySize) {
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> block(84);
    for (std::byte& b : block) b = static_cast<std::byte>(random());
    for (size_t g = 0; g < 16; ++g) {
      if (random() % 4 == 0) block[g] = {};
      if (random() % 4 == 0) block[16 + 4 * g] = block[17 + 4 * g] = block[18 + 4 * g] = block[19 + 4 * g] = {};
    }
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 24) - 18);
    put_f16(block, 80, size), put_f16(block, 82, random() % 3 == 0 ? 0 : size / 2);
    const std::vector<float> expected = definition_of_q2_k(block);
    expect_close(values_of(*find_transcoding("Q2_K"), block), expected);
  }
}

TEST(Transcode, KeepsWhatIsNotFiniteVisible) {
  for (const char* dtype : {"Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS"}) {
    const Transcoding& transcoding = *find_transcoding(dtype);
    const size_t at = transcoding.dtype == "Q2_K" ? 80 : transcoding.dtype == "Q3_K" ? 108 : 0;
    for (const float scale : {NAN, INFINITY, -INFINITY}) {
      std::vector<std::byte> block(static_cast<size_t>(transcoding.stored_bytes), std::byte{0x5a});
      put_f16(block, at, scale);
      const std::vector<float> values = values_of(transcoding, block);
      EXPECT_TRUE(std::ranges::none_of(values, [](float v) { return std::isfinite(v); })) << dtype << " " << scale;
    }
    // Whatever the bytes are, nothing is out of range on the way.
    std::mt19937_64 random(test::seed());
    for (int round = 0; round < 500; ++round) {
      std::vector<std::byte> block(static_cast<size_t>(transcoding.stored_bytes));
      for (std::byte& b : block) b = static_cast<std::byte>(random());
      values_of(transcoding, block);
    }
  }
}

class TranscodedFile : public testing::TestWithParam<Access> {
 protected:
  TranscodedFile() {
    test::GgufModel model;
    model.set("general.architecture", "llama");
    model.add_tensor("a", {256, 5000}, 23);
    model.add_tensor("b", {256, 6}, 11);
    path_ = folder_.file("m.gguf");
    std::ofstream(path_, std::ios::binary) << model.file();
  }
  std::unique_ptr<TensorFiles> open() const {
    auto model = open_gguf(path_);
    EXPECT_TRUE(model.ok()) << model.status().message();
    auto files = gguf_tensor_files(std::move(*model), 64, GetParam());
    EXPECT_TRUE(files.ok());
    return std::move(*files);
  }

  const test::TemporaryFolder folder_;
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Access, TranscodedFile, testing::Values(Access::kMap, Access::kRead));

TEST_P(TranscodedFile, IsReadFromAnyByteToAnyOther) {
  const auto files = open();
  auto view = files->view("a", std::array<int64_t, 2>{5000, 256});
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->type, ElementType::kQ8_0);
  EXPECT_EQ(view->bytes, 5000 * 272);
  EXPECT_EQ(view->mapped, nullptr);
  std::vector<std::byte> stored(5000 * 136);
  ASSERT_TRUE(files->files()[0]->read_at(files->find("a")->begin, stored).ok());
  const std::vector<std::byte> expected = transcoded(*find_transcoding("IQ4_XS"), stored);
  std::mt19937_64 random(test::seed());
  for (int round = 0; round < 40; ++round) {
    const size_t begin = random() % expected.size();
    const size_t n = random() % (round % 2 == 0 ? 700 : expected.size() - begin + 1);
    std::vector<std::byte> part(std::min(n, expected.size() - begin));
    ASSERT_TRUE(files->read("a", static_cast<int64_t>(begin), part).ok());
    ASSERT_TRUE(std::ranges::equal(part, std::span(expected).subspan(begin, part.size()))) << begin << " " << n;
  }
  std::vector<std::byte> beyond(2);
  EXPECT_EQ(files->read("a", view->bytes - 1, beyond).code(), Code::kInvalidArgument);
}

// Who reads the pieces adds them to the hash, and an adapter's copy of a tensor is compared by it.
TEST_P(TranscodedFile, HasTheHashOfWhatIsRead) {
  const auto files = open();
  for (const auto& [name, rows] : {std::pair("a", 5000), std::pair("b", 6)}) {
    auto view = files->view(name, std::array<int64_t, 2>{rows, 256});
    ASSERT_TRUE(view.ok());
    std::vector<std::byte> bytes(static_cast<size_t>(view->bytes));
    ASSERT_TRUE(files->read(name, 0, bytes).ok());
    auto begun = files->start_hash(name);
    ASSERT_TRUE(begun.ok());
    ContentHash hash = std::move(*begun);
    hash.add(bytes);
    EXPECT_EQ(*files->content_hash(name), hash.hex()) << name;
  }
}

}  // namespace
}  // namespace quire
