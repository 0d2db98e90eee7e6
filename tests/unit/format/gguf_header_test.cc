#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/format/gguf.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Bytes of a GGUF file, one field after the other.
class File {
 public:
  template <typename T>
  File& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  File& u32(uint32_t value) { return put(value); }
  File& u64(uint64_t value) { return put(value); }
  File& text(std::string_view text) {
    u64(text.size());
    bytes_ += text;
    return *this;
  }
  File& preamble(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
    bytes_ += "GGUF";
    return u32(version).u64(n_tensors).u64(n_keys);
  }
  // dims: as in the file, the row's length first.
  File& tensor(std::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    text(name).u32(static_cast<uint32_t>(dims.size()));
    for (const uint64_t n : dims) u64(n);
    return u32(type).u64(offset);
  }
  // Zeros up to a multiple of the alignment, then n bytes.
  File& data(size_t n, size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + n);
    return *this;
  }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  const std::string& bytes() const { return bytes_; }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

Result<GgufHeader> parse(const std::string& bytes) {
  const ReadAt read = [&](int64_t offset, std::span<std::byte> out) {
    if (offset < 0 || offset + static_cast<int64_t>(out.size()) > static_cast<int64_t>(bytes.size())) {
      return Status(Code::kInternal, "read beyond the end");
    }
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return Status();
  };
  return read_gguf_header(read, static_cast<int64_t>(bytes.size()));
}
Result<GgufHeader> parse(const File& file) { return parse(file.bytes()); }

TEST(GgufHeader, ReadsValuesOfEveryType) {
  File file;
  file.preamble(0, 15, 2);
  file.text("u8").u32(0).put<uint8_t>(200);
  file.text("i8").u32(1).put<int8_t>(-100);
  file.text("u16").u32(2).put<uint16_t>(60000);
  file.text("i16").u32(3).put<int16_t>(-30000);
  file.text("u32").u32(4).u32(4000000000u);
  file.text("i32").u32(5).put<int32_t>(-2000000000);
  file.text("f32").u32(6).put(0.25f);
  file.text("bool").u32(7).put<uint8_t>(1);
  file.text("text").u32(8).text("Grüße");
  file.text("u64").u32(10).u64(uint64_t{1} << 62);
  file.text("hash").u32(10).u64(UINT64_MAX);
  file.text("i64").u32(11).put<int64_t>(-5);
  file.text("f64").u32(12).put(0.1);
  file.text("tokens").u32(9).u32(8).u64(2).text("a").text("\xff");
  file.text("scores").u32(9).u32(6).u64(2).put(1.5f).put(-2.0f);
  auto header = parse(file);
  ASSERT_TRUE(header.ok()) << header.status().message();
  const auto& values = header->metadata;
  EXPECT_EQ(header->version, 2u);
  EXPECT_EQ(*values.at("u8").integer(), 200);
  EXPECT_EQ(*values.at("i8").integer(), -100);
  EXPECT_EQ(*values.at("u16").integer(), 60000);
  EXPECT_EQ(*values.at("i16").integer(), -30000);
  EXPECT_EQ(*values.at("u32").integer(), 4000000000);
  EXPECT_EQ(*values.at("i32").integer(), -2000000000);
  EXPECT_EQ(*values.at("f32").number(), 0.25);
  EXPECT_TRUE(*values.at("bool").boolean());
  EXPECT_EQ(*values.at("text").string(), "Grüße");
  EXPECT_EQ(*values.at("u64").integer(), int64_t{1} << 62);
  EXPECT_EQ(*values.at("hash").number(), 0x1p64);
  EXPECT_EQ(values.at("hash").integer(), nullptr);
  EXPECT_EQ(*values.at("i64").integer(), -5);
  EXPECT_EQ(*values.at("f64").number(), 0.1);
  EXPECT_THAT(*values.at("tokens").strings(), ElementsAre("a", "\xff"));
  EXPECT_THAT(*values.at("scores").numbers(), ElementsAre(1.5, -2.0));
  EXPECT_EQ(values.at("u8").string(), nullptr);
}

TEST(GgufHeader, PlacesTensors) {
  File file;
  file.preamble(4, 1).text("general.alignment").u32(4).u32(64);
  file.tensor("b", {64, 3}, 8, 192)
      .tensor("a", {5, 2, 4}, 1, 0)
      .tensor("scalar", {}, 0, 448)
      .tensor("none", {0}, 0, 64);
  file.data(452, 64);
  auto header = parse(file);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->alignment, 64);
  EXPECT_EQ(header->data_begin, file.size() - 452);
  const GgufTensor& a = header->tensors.at("a");
  EXPECT_THAT(a.shape, ElementsAre(4, 2, 5));
  EXPECT_STREQ(a.type->name, "F16");
  EXPECT_EQ(a.begin, header->data_begin);
  EXPECT_EQ(a.end, a.begin + 80);
  const GgufTensor& b = header->tensors.at("b");
  EXPECT_THAT(b.shape, ElementsAre(3, 64));
  EXPECT_STREQ(b.type->name, "Q8_0");
  EXPECT_EQ(b.end - b.begin, 3 * 2 * 34);
  EXPECT_EQ(header->tensors.at("scalar").end, file.size());
}

// Longer than what is read at a time, at every distance from its end.
TEST(GgufHeader, ReadsAcrossItsBuffer) {
  for (size_t before = 65460; before < 65560; before += 3) {
    File file;
    file.preamble(0, 3);
    file.text("filler").u32(8).text(std::string(before, 'x'));
    file.text("ids").u32(9).u32(5).u64(40000);
    for (int32_t i = 0; i < 40000; ++i) file.put(-i);
    file.text("end").u32(8).text("of it");
    auto header = parse(file);
    ASSERT_TRUE(header.ok()) << header.status().message();
    const auto& ids = *header->metadata.at("ids").integers();
    ASSERT_EQ(ids.size(), 40000u);
    for (int64_t i = 0; i < 40000; ++i) ASSERT_EQ(ids[static_cast<size_t>(i)], -i);
    EXPECT_EQ(header->metadata.at("filler").string()->size(), before);
    EXPECT_EQ(*header->metadata.at("end").string(), "of it");
  }
}

TEST(GgufHeader, DamageIsNamed) {
  const auto key = [](uint32_t type) { return File().preamble(0, 1).text("k").u32(type); };
  const auto one = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset, size_t data) {
    return File().preamble(1, 0).tensor("t", std::move(dims), type, offset).data(data);
  };
  const uint64_t huge = uint64_t{1} << 62;
  const struct {
    File file;
    const char* message;
  } cases[] = {
      {File(), "the file ends at byte 0"},
      {File().u32(1).u64(0).u64(0).u64(0), "does not begin with \"GGUF\""},
      {File().preamble(0, 0, 1), "GGUF version 1; expected 2 or 3"},
      {File().preamble(0, 0, 3u << 24), "big-endian"},
      {File().preamble(5, 0), "5 tensors; at most 0 are possible here"},
      {File().preamble(0, huge), "metadata keys; at most 0"},
      {File().preamble(0, 2).text("k").u32(0).put<uint8_t>(1).text("k").u32(0).put<uint8_t>(2).u64(0),
       "metadata k, byte 38: it is there twice"},
      {File().preamble(0, 1).text("\xff").u32(0).put<uint8_t>(0), "a metadata key is not UTF-8"},
      {key(13).u64(0), "metadata k, byte 33: value type 13 is unknown"},
      {key(7).put<uint8_t>(2), "a truth value of 2"},
      {key(9).u32(10).u64(1).u64(UINT64_MAX), "18446744073709551615 is beyond 64 bits with a sign"},
      {key(8).u64(5).u32(0), "5 bytes of text; at most 4 are possible here"},
      {key(4).put<uint16_t>(0), "the file ends at byte 39"},
      {key(9).u32(9).u64(0), "elements of type 9; expected numbers or strings"},
      {key(9).u32(99).u64(0), "elements of type 99"},
      {key(9).u32(6).u64(3).u64(0), "3 elements; at most 2 are possible here"},
      {key(9).u32(8).u64(huge).u64(0), "elements; at most 1 are possible here"},
      {File().preamble(0, 1).text("general.alignment").u32(4).u32(48), "general.alignment is no power of two"},
      {File().preamble(0, 1).text("general.alignment").u32(4).u32(1 << 21), "general.alignment is no power of two"},
      {File().preamble(0, 1).text("general.alignment").u32(8).text("32"), "general.alignment is no power of two"},
      {one({1, 1, 1, 1, 1}, 0, 0, 4), "tensor t, byte 33: 5 dimensions; at most 4"},
      {one({huge, 8}, 0, 0, 64), "its shape overflows"},
      {one({UINT64_MAX}, 0, 0, 64), "its shape overflows"},
      {one({0, huge, 8}, 0, 0, 64), "its shape overflows"},
      {one({huge}, 0, 0, 64), "its size overflows"},
      {one({8}, 4, 0, 64), "tensor type 4 is unknown"},
      {one({33}, 2, 0, 64), "rows of 33 elements; Q4_0 has blocks of 32"},
      {one({8}, 0, 16, 64), "offset 16 is no multiple of 32"},
      {one({8}, 0, 64, 64), "tensor t, byte 64: it ends 96 bytes behind byte 64; the file has 128 bytes"},
      {File().preamble(2, 0).tensor("t", {8}, 0, 0).tensor("t", {8}, 0, 32).data(64),
       "tensor t, byte 57: it is there twice"},
      {File().preamble(2, 0).tensor("t", {9}, 0, 0).tensor("u", {8}, 0, 32).data(64),
       "it overlaps the tensor before it"},
      {File().preamble(2, 0).tensor("t", {8}, 0, 0).tensor("u", {8}, 0, 0).data(64),
       "it overlaps the tensor before it"},
  };
  for (const auto& c : cases) {
    auto header = parse(c.file);
    ASSERT_FALSE(header.ok()) << c.message;
    EXPECT_THAT(header.status().message(), HasSubstr(c.message));
    const bool version = std::string_view(c.message).find("endian") != std::string_view::npos ||
                         std::string_view(c.message).starts_with("GGUF version");
    EXPECT_EQ(header.status().code(), version ? Code::kUnsupported : Code::kBadFile) << c.message;
    EXPECT_GE(header.status().offset(), 0) << c.message;
  }
}

TEST(GgufHeader, EveryShorterFileIsRefused) {
  File file;
  file.preamble(2, 3)
      .text("general.architecture")
      .u32(8)
      .text("llama")
      .text("list")
      .u32(9)
      .u32(8)
      .u64(2)
      .text("a")
      .text("b");
  file.text("n").u32(4).u32(7).tensor("t", {32, 2}, 2, 0).tensor("u", {8}, 0, 64).data(96);
  ASSERT_TRUE(parse(file).ok()) << parse(file).status().message();
  for (size_t n = 0; n < file.bytes().size(); ++n) {
    auto header = parse(file.bytes().substr(0, n));
    ASSERT_FALSE(header.ok()) << n;
    EXPECT_EQ(header.status().code(), Code::kBadFile) << n;
  }
}

TEST(GgufHeader, PassesOnWhatReadingCameTo) {
  File file;
  file.preamble(0, 0);
  int left = 1;
  const ReadAt read = [&](int64_t, std::span<std::byte> out) {
    if (left-- > 0) return Status(Code::kIo, "the disk is gone");
    std::memcpy(out.data(), file.bytes().data(), out.size());
    return Status();
  };
  EXPECT_EQ(read_gguf_header(read, file.size()).status().code(), Code::kIo);
  EXPECT_TRUE(read_gguf_header(read, file.size()).ok());
}

TEST(GgufHeader, TypesHaveTheirBlocks) {
  EXPECT_EQ(find_gguf_type(4), nullptr);
  EXPECT_EQ(find_gguf_type(1000), nullptr);
  const GgufType* q6 = find_gguf_type(14);
  ASSERT_NE(q6, nullptr);
  EXPECT_STREQ(q6->name, "Q6_K");
  EXPECT_EQ(q6->block_elements, 256);
  EXPECT_EQ(q6->block_bytes, 128 + 64 + 16 + 2);
}

}  // namespace
}  // namespace quire
