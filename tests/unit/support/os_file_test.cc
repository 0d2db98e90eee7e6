#include "lib/support/os_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace quire {
namespace {

class OsFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/os_file_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << content;
    return directory_ + "/" + name;
  }

  std::string directory_;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(OsFile, ReadsAndMapsTheSameBytes) {
  std::string content(20'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  auto file = ReadFile::open(write("a", content));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size(), 20'000);
  std::string part(5000, '\0');
  ASSERT_TRUE((*file)->read_at(12'345, std::as_writable_bytes(std::span(part.data(), part.size()))).ok());
  EXPECT_EQ(part, content.substr(12'345, 5000));
  auto map = (*file)->map();
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(text_of(*map), content);
  (*file)->drop_mapped(1, 19'000);  // pages come back from the file
  EXPECT_EQ(text_of(*map), content);
  EXPECT_EQ((*file)->map().value().data(), map.value().data());
}

TEST_F(OsFile, ReadBeyondTheEndSaysWhere) {
  auto file = ReadFile::open(write("a", "12345"));
  ASSERT_TRUE(file.ok());
  std::byte buffer[8];
  const Status status = (*file)->read_at(2, buffer);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.offset(), 5);
  EXPECT_NE(status.message().find("ends early"), std::string::npos);
}

TEST_F(OsFile, EmptyFile) {
  auto file = ReadFile::open(write("empty", ""));
  ASSERT_TRUE(file.ok());
  auto map = (*file)->map();
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(map->empty());
  (*file)->drop_mapped(0, 10);
  EXPECT_EQ(read_text_file(directory_ + "/empty", 0).value(), "");
}

TEST_F(OsFile, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(ReadFile::open(directory_).status().code(), Code::kIo);
  const Status missing = ReadFile::open(directory_ + "/no such").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_EQ(missing.os_error(), ENOENT);
  EXPECT_EQ(ReadFile::open(write("f", "x") + "/below").status().code(), Code::kNotFound);
  EXPECT_EQ(ReadFile::open(std::string("a\0b", 3)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadFile::open("").status().code(), Code::kNotFound);
}

// Opening a FIFO that nobody writes to would otherwise wait for ever.
TEST_F(OsFile, AFifoIsRefusedWithoutWaiting) {
  const std::string fifo = directory_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(ReadFile::open(fifo).status().code(), Code::kIo);
}

TEST_F(OsFile, TextFilesHaveALimit) {
  const std::string path = write("t", "12345");
  EXPECT_EQ(read_text_file(path, 5).value(), "12345");
  const Status status = read_text_file(path, 4).status();
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_NE(status.message().find("5 bytes"), std::string::npos);
}

TEST_F(OsFile, ListsNames) {
  write("b", "");
  write("a", "");
  EXPECT_EQ(list_directory(directory_).value(), (std::vector<std::string>{".", "..", "a", "b"}));
  EXPECT_EQ(list_directory(directory_ + "/a").status().code(), Code::kNotFound);
  EXPECT_EQ(list_directory(directory_ + "/x").status().code(), Code::kNotFound);
}

TEST_F(OsFile, TellsWhatIsAbsentFromWhatCannotBeLookedAt) {
  write("a", "");
  EXPECT_TRUE(path_is_directory(directory_).value());
  EXPECT_FALSE(path_is_directory(directory_ + "/a").value());
  EXPECT_TRUE(path_exists(directory_ + "/a").value());
  for (const std::string& absent : {directory_ + "/x", directory_ + "/a/below"}) {
    EXPECT_FALSE(path_exists(absent).value());
    EXPECT_FALSE(path_is_directory(absent).value());
  }
  std::filesystem::create_symlink("loop", directory_ + "/loop");
  const std::pair<std::string, int> hidden[] = {{directory_ + "/loop", ELOOP},
                                                {directory_ + "/" + std::string(300, 'n'), ENAMETOOLONG}};
  for (const auto& [path, error] : hidden) {
    for (const Status& status : {path_exists(path).status(), path_is_directory(path).status()}) {
      EXPECT_EQ(status.code(), Code::kIo);
      EXPECT_EQ(status.os_error(), error);
      EXPECT_NE(status.message().find(path), std::string::npos);
    }
  }
  EXPECT_EQ(path_exists(directory_ + std::string("/a\0b", 4)).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire
