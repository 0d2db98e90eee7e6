#include "lib/support/os_output_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/unit/model/temporary_folder.h"

namespace quire {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t entries(const test::TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

// The longest that a file may have.
TEST(OutputFile, HasALongName) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file(std::string(255, 'x')), other = folder.file(std::string(254, 'x'));
  auto file = OutputFile::create(path), second = OutputFile::create(other);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  ASSERT_TRUE((*file)->write(bytes("contents")).ok());
  ASSERT_TRUE((*file)->commit().ok());
  ASSERT_TRUE((*second)->commit().ok());
  EXPECT_EQ(contents(path), "contents");
  EXPECT_EQ(contents(other), "");
  EXPECT_EQ(entries(folder), 2u);
}

// What a process that was killed left behind goes, but nothing that somebody still writes, and no other file.
TEST(OutputFile, RemovesWhatWasLeftBehind) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("out");
  const auto make = [&](const char* name) { std::ofstream(folder.file(name)) << "left"; };
  const auto is_there = [&](const char* name) { return std::filesystem::exists(folder.file(name)); };
  for (const char* name :
       {"out.123-0.tmp", "out.7-12.tmp", "out.7.tmp", "out.7-12.tmp.kept", "out.7-x.tmp", "output"}) {
    make(name);
  }
  std::filesystem::create_symlink(folder.file("output"), folder.file("out.8-1.tmp"));
  auto file = OutputFile::create(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_FALSE(is_there("out.123-0.tmp"));
  EXPECT_FALSE(is_there("out.7-12.tmp"));
  for (const char* name : {"out.7.tmp", "out.7-12.tmp.kept", "out.7-x.tmp", "output", "out.8-1.tmp"}) {
    EXPECT_TRUE(is_there(name)) << name;
  }
  auto second = OutputFile::create(path);  // while the first one is being written
  ASSERT_TRUE(second.ok()) << second.status().message();
  ASSERT_TRUE((*file)->write(bytes("first")).ok());
  ASSERT_TRUE((*file)->commit().ok());
  EXPECT_EQ(contents(path), "first");
  ASSERT_TRUE((*second)->write(bytes("second")).ok());
  ASSERT_TRUE((*second)->commit().ok());
  EXPECT_EQ(contents(path), "second");
}

TEST(OutputFile, AppearsWithTheCommit) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("out");
  std::ofstream(path) << "old";
  {
    auto file = OutputFile::create(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->write(bytes("new ")).ok());
    ASSERT_TRUE((*file)->write(bytes("contents")).ok());
    EXPECT_EQ(contents(path), "old");
    ASSERT_TRUE((*file)->commit().ok());
    EXPECT_EQ(contents(path), "new contents");
  }
  EXPECT_EQ(contents(path), "new contents");
  EXPECT_EQ(entries(folder), 1u);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
}

TEST(OutputFile, LeavesNothingWithoutACommit) {
  const test::TemporaryFolder folder;
  {
    auto file = OutputFile::create(folder.file("out"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->write(bytes("half")).ok());
    EXPECT_EQ(entries(folder), 1u);
  }
  EXPECT_EQ(entries(folder), 0u);
}

// A temporary file that another process left, or writes, is not touched.
TEST(OutputFile, TwoMayWriteTheSamePath) {
  const test::TemporaryFolder folder;
  auto first = OutputFile::create(folder.file("out")), second = OutputFile::create(folder.file("out"));
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*first)->write(bytes("first")).ok());
  ASSERT_TRUE((*second)->write(bytes("second")).ok());
  ASSERT_TRUE((*second)->commit().ok());
  ASSERT_TRUE((*first)->commit().ok());
  EXPECT_EQ(contents(folder.file("out")), "first");
}

TEST(OutputFile, SaysWhyItCannot) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(OutputFile::create(folder.file("none/out")).status().code(), Code::kNotFound);
  EXPECT_EQ(OutputFile::create(folder.path()).status().code(), Code::kIo);
  EXPECT_EQ(OutputFile::create(std::string("a\0b", 3)).status().code(), Code::kInvalidArgument);

  auto file = OutputFile::create(folder.file("out"));
  ASSERT_TRUE(file.ok());
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = (*file)->write(bytes(std::string(2000, 'x')));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("RLIMIT_FSIZE) is 1000 bytes"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace quire
