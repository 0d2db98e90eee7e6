#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/format/safetensors.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using Access = TensorFiles::Access;

std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(header.size() >> shift));
  return bytes + header + data;
}

// Data of one tensor "a": 64 bytes that are counted up.
std::string counted(size_t n = 64) {
  std::string data(n, '\0');
  for (size_t i = 0; i < n; ++i) data[i] = static_cast<char>(i);
  return data;
}

// Eight spaces of padding at most, so that the data begin at a multiple of 8, as writers arrange it.
std::string one_tensor(const std::string& name = "a", const std::string& dtype = "F32", int misalign = 0) {
  const int elements = dtype == "F32" ? 16 : dtype == "I64" ? 8 : 32;
  std::string header = "{\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[2," + std::to_string(elements / 2) +
                       "],\"data_offsets\":[0,64]}}";
  while (header.size() % 8 != 0) header += ' ';
  return file_bytes(header + std::string(static_cast<size_t>(misalign), ' '), counted());
}

class TensorFilesTest : public testing::TestWithParam<Access> {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/tensor_files_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << bytes;
  }
  auto open() { return open_safetensors(directory_, GetParam()); }
  Status failure() { return open().status(); }

  std::string directory_;
};

TEST_P(TensorFilesTest, OneFile) {
  write("model.safetensors", one_tensor());
  auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ((*files)->access(), GetParam());
  EXPECT_THAT((*files)->names(), ElementsAre("a"));
  EXPECT_EQ((*files)->find("b"), nullptr);
  ASSERT_NE((*files)->find("a"), nullptr);

  const int64_t shape[] = {2, 8};
  auto view = (*files)->view("a", shape);
  ASSERT_TRUE(view.ok()) << view.status().message();
  EXPECT_EQ(view->type, ElementType::kF32);
  EXPECT_EQ(view->bytes, 64);
  EXPECT_EQ(view->mapped != nullptr, GetParam() == Access::kMap);
  if (view->mapped) {
    EXPECT_EQ(std::memcmp(view->mapped, counted().data(), 64), 0);
  }

  std::string part(10, '\0');
  const auto out = std::as_writable_bytes(std::span(part.data(), part.size()));
  ASSERT_TRUE((*files)->read("a", 54, out).ok());
  EXPECT_EQ(part, counted().substr(54));
  EXPECT_TRUE((*files)->read("a", 64, {}).ok());
  for (const int64_t offset : {int64_t{55}, int64_t{-1}, int64_t{65}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ((*files)->read("a", offset, out).code(), Code::kInvalidArgument) << offset;
  }
  EXPECT_EQ((*files)->read("b", 0, out).code(), Code::kBadFile);
  (*files)->drop("a");
  (*files)->drop("b");
  ASSERT_TRUE((*files)->read("a", 0, out).ok());
  EXPECT_EQ(part, counted().substr(0, 10));
}

// A text model that is part of a larger one: other names stay as they are.
TEST_P(TensorFilesTest, NamesWithoutTheirPrefix) {
  write("model-00001-of-00002.safetensors", one_tensor("part.a"));
  write("model-00002-of-00002.safetensors", one_tensor("other.a"));
  write(
      "model.safetensors.index.json",
      R"({"weight_map": {"part.a": "model-00001-of-00002.safetensors", "other.a": "model-00002-of-00002.safetensors"}})");
  EXPECT_THAT(open().value()->names(), ElementsAre("other.a", "part.a"));
  auto files = open_safetensors(directory_, GetParam(), nullptr, "part.");
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_THAT((*files)->names(), ElementsAre("a", "other.a"));
  const int64_t shape[] = {2, 8};
  EXPECT_TRUE((*files)->view("a", shape).ok());

  write("model-00002-of-00002.safetensors", one_tensor("a"));
  write("model.safetensors.index.json",
        R"({"weight_map": {"part.a": "model-00001-of-00002.safetensors", "a": "model-00002-of-00002.safetensors"}})");
  EXPECT_EQ(open_safetensors(directory_, GetParam(), nullptr, "part.").status().code(), Code::kBadFile);
}

TEST_P(TensorFilesTest, ThePrefixMayStandBehindModel) {
  EXPECT_EQ(without_model_prefix("model.part.norm", "part."), "model.norm");
  EXPECT_EQ(without_model_prefix("part.model.norm", "part."), "model.norm");
  for (const char* other : {"head", "other.part.norm", "model.other.part.norm"}) {
    EXPECT_EQ(without_model_prefix(other, "part."), other);
  }
  write("model.safetensors", one_tensor("model.part.a"));
  EXPECT_THAT(open_safetensors(directory_, GetParam(), nullptr, "part.").value()->names(), ElementsAre("model.a"));
}

TEST_P(TensorFilesTest, AskedForAnotherShapeOrType) {
  write("model.safetensors", one_tensor("a", "I64"));
  auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  const int64_t shape[] = {2, 4}, flat[] = {8}, other[] = {2, 5};
  EXPECT_EQ((*files)->view("a", shape).status().code(), Code::kUnsupported);
  EXPECT_THAT((*files)->view("a", shape).status().message(), HasSubstr("dtype I64"));
  for (const std::span<const int64_t> wrong : {std::span<const int64_t>(flat), std::span<const int64_t>(other)}) {
    const Status status = (*files)->view("a", wrong).status();
    EXPECT_EQ(status.code(), Code::kBadFile);
    EXPECT_THAT(status.message(), HasSubstr("[2, 4]"));
  }
  EXPECT_THAT((*files)->view("a", other).status().message(), HasSubstr("[2, 5]"));
  EXPECT_EQ((*files)->view("model.norm.weight", shape).status().code(), Code::kBadFile);
  EXPECT_THAT((*files)->view("model.norm.weight", shape).status().message(),
              EndsWith("/model.safetensors: missing tensor model.norm.weight"));
}

TEST_P(TensorFilesTest, HalfTypes) {
  for (const auto& [dtype, type] : {std::pair("F16", ElementType::kF16), std::pair("BF16", ElementType::kBF16)}) {
    write("model.safetensors", one_tensor("a", dtype));
    const int64_t shape[] = {2, 16};
    EXPECT_EQ(open().value()->view("a", shape)->type, type);
  }
}

TEST_P(TensorFilesTest, MisalignedDataIsNotHandedOutMapped) {
  write("model.safetensors", one_tensor("a", "F32", 2));
  auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  const int64_t shape[] = {2, 8};
  EXPECT_EQ((*files)->view("a", shape)->mapped, nullptr);
  std::byte first[4];
  ASSERT_TRUE((*files)->read("a", 4, first).ok());
  EXPECT_EQ(std::to_integer<int>(first[3]), 7);
}

TEST_P(TensorFilesTest, Shards) {
  write("model-00001-of-00002.safetensors", one_tensor("a"));
  write("model-00002-of-00002.safetensors", one_tensor("b"));
  write("model.safetensors.index.json", R"({"metadata": {"total_size": 128}, "weight_map":
    {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  auto files = open();
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_THAT((*files)->names(), ElementsAre("a", "b"));
  std::byte first[2];
  EXPECT_TRUE((*files)->read("b", 62, first).ok());
  EXPECT_EQ(std::to_integer<int>(first[1]), 63);
}

TEST_P(TensorFilesTest, BadIndexes) {
  write("s.safetensors", one_tensor("a"));
  const std::pair<const char*, const char*> cases[] = {
      {R"({"weight_map": {"b": "s.safetensors"}})", "no tensor b"},
      {R"({"weight_map": {"a": "../s.safetensors"}})", "no .safetensors file of this directory"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "no .safetensors file of this directory"},
      {R"({"weight_map": {"a": "s.bin"}})", "no .safetensors file of this directory"},
      {R"({"weight_map": {"a": "s\u0000.safetensors"}})", "no .safetensors file of this directory"},
      {R"({"weight_map": {"a": 1}})", "the file of tensor a is 1"},
      {R"({"weight_map": []})", "weight_map"},
      {R"({"weight_map": {}})", "weight_map is {}"},
      {R"({})", "weight_map is missing"},
      {R"({"weight_map": {"a": "s.safetensors", "a": "s.safetensors"}})", "\"a\" occurs twice"},
  };
  for (const auto& [index, message] : cases) {
    write("model.safetensors.index.json", index);
    EXPECT_EQ(failure().code(), Code::kBadFile) << index;
    EXPECT_THAT(failure().message(), HasSubstr(message)) << index;
  }
  write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  EXPECT_EQ(failure().code(), Code::kNotFound);
  EXPECT_THAT(failure().message(), HasSubstr("gone.safetensors"));
}

TEST_P(TensorFilesTest, TruncatedAtEveryByte) {
  const std::string whole = one_tensor();
  for (size_t n = 0; n < whole.size(); ++n) {
    write("model.safetensors", whole.substr(0, n));
    const Status status = failure();
    ASSERT_EQ(status.code(), Code::kBadFile) << n;
    ASSERT_THAT(status.message(), HasSubstr("model.safetensors")) << n;
  }
  write("model.safetensors", whole + "x");
  EXPECT_THAT(failure().message(), HasSubstr("1 bytes after the last tensor"));
}

TEST_P(TensorFilesTest, HugeHeaderLengthsAllocateNothing) {
  for (const uint64_t length : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 40, uint64_t{200}}) {
    std::string bytes = one_tensor();
    std::memcpy(bytes.data(), &length, sizeof length);
    write("model.safetensors", bytes);
    EXPECT_EQ(failure().code(), Code::kBadFile);
    EXPECT_THAT(failure().message(), HasSubstr("says its header has " + std::to_string(length)));
  }
}

// What is refused by its size is not read: the files are holes.
TEST_P(TensorFilesTest, TheHeadersOfAllShardsShareALimit) {
  constexpr uint64_t kMost = 100'000'000;
  const std::string first = one_tensor("a");
  uint64_t first_header = 0;
  std::memcpy(&first_header, first.data(), sizeof first_header);
  write("1.safetensors", first);
  const auto with_second = [&](uint64_t header) {
    write("2.safetensors", std::string(reinterpret_cast<const char*>(&header), sizeof header));
    std::filesystem::resize_file(directory_ + "/2.safetensors", header + 8);
    write("model.safetensors.index.json", R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
    return failure();
  };
  EXPECT_THAT(with_second(kMost + 1).message(), HasSubstr("says its header has 100000001 bytes; at most 100000000"));
  const Status together = with_second(kMost - first_header + 1);
  EXPECT_EQ(together.code(), Code::kBadFile);
  EXPECT_THAT(together.message(), HasSubstr("2.safetensors: its header and those of the files before it have "
                                            "100000001 bytes together; at most 100000000"));
  EXPECT_THAT(with_second(1000).message(), HasSubstr("safetensors header"));  // read: no JSON
}

TEST_P(TensorFilesTest, HugeIndexesAreRefused) {
  write("model.safetensors.index.json", "{}");
  std::filesystem::resize_file(directory_ + "/model.safetensors.index.json", uint64_t{1} << 40);
  EXPECT_EQ(failure().code(), Code::kBadFile);
  EXPECT_THAT(failure().message(), HasSubstr("model.safetensors.index.json has 1099511627776 bytes; at most 67108864"));
}

TEST(ShardIndex, NamesSoManyFiles) {
  std::string text = R"({"weight_map": {"t": "s.safetensors")";
  for (int i = 1; i < 4096; ++i) text += ",\"t" + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  const auto most = parse_shard_index(text + "}}", "index.json");
  ASSERT_TRUE(most.ok()) << most.status().message();
  EXPECT_EQ(most.value().size(), 4096u);
  const Status more = parse_shard_index(text + R"(,"x":"x.safetensors"}})", "index.json").status();
  EXPECT_EQ(more.code(), Code::kBadFile);
  EXPECT_THAT(more.message(), HasSubstr("index.json names 4097 files; at most 4096"));
}

TEST_P(TensorFilesTest, OtherFormatsAreRefusedByName) {
  EXPECT_EQ(failure().code(), Code::kNotFound);
  EXPECT_THAT(failure().message(), HasSubstr("model.safetensors.index.json"));
  write("model-q4.gguf", "GGUF");
  EXPECT_EQ(failure().code(), Code::kUnsupported);
  EXPECT_THAT(failure().message(), HasSubstr("model-q4.gguf"));
  std::filesystem::remove(directory_ + "/model-q4.gguf");
  write("pytorch_model-00001-of-00002.bin", "PK");
  EXPECT_EQ(failure().code(), Code::kUnsupported);
  EXPECT_THAT(failure().message(), HasSubstr("pytorch_model-00001-of-00002.bin"));
  write("model.safetensors", one_tensor());
  EXPECT_TRUE(open().ok());  // beside weights that we can read they do not matter
  directory_ += "/none";
  EXPECT_EQ(failure().code(), Code::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(Access, TensorFilesTest, testing::Values(Access::kMap, Access::kRead),
                         [](const auto& info) { return info.param == Access::kMap ? "Map" : "Read"; });

}  // namespace
}  // namespace quire
