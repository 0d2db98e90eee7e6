// Packed weights that are kept in a file: later loads map it, and what is wrong with it changes no answer.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/seed.h"
#include "tests/source_path.h"
#include "tests/unit/model/beacon_directory.h"
#include "tests/unit/model/file_bytes.h"
#include "tests/unit/model/loaded_model.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/model/watched_backend.h"

namespace quire {
namespace {

using test::kModels;
using test::Loaded;
using test::read_file;
using test::TemporaryFolder;
using test::write_file;

class PackedWeightsTest : public testing::Test {
 protected:
  ModelLoader::Options options() const {
    ModelLoader::Options o;
    o.packed_directory = folder_.file("packed");
    return o;
  }
  // A copy of a golden model, which may be changed.
  std::string copied_model(const std::string& name) const {
    std::filesystem::copy(kModels + name, folder_.file(name));
    return folder_.file(name);
  }
  std::vector<std::string> kept() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("packed"))) {
      names.push_back(entry.path().string());
    }
    return names;
  }
  // How often a load packs rows.
  int64_t packing_calls(const std::string& model, ModelLoader::Options o) const {
    Allocator allocator;
    ThreadPool pool(2);
    const auto real = cpu::create_cpu_backend(allocator, pool);
    test::WatchedBackend backend(*real);
    ModelLoader loader(backend, model, std::move(o));
    const auto loaded = loader.load();
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return backend.n_row_loads;
  }

  TemporaryFolder folder_;
};

void expect_same(Loaded& a, Loaded& b) {
  ASSERT_TRUE(a.status().ok()) << a.status().message();
  ASSERT_TRUE(b.status().ok()) << b.status().message();
  const auto x = a.logits(), y = b.logits();
  ASSERT_EQ(x.size(), y.size());
  EXPECT_EQ(0, std::memcmp(x.data(), y.data(), x.size() * sizeof(float)));
  EXPECT_EQ(a.model().weights().tensor_hashes, b.model().weights().tensor_hashes);
  EXPECT_EQ(a.model().weights().n_parameters, b.model().weights().n_parameters);
  EXPECT_EQ(a.model().weights().bytes, b.model().weights().bytes);
}

TEST_F(PackedWeightsTest, EveryModelIsMappedFromTheSecondLoadOn) {
  for (const std::string& name : test::model_names()) {
    SCOPED_TRACE(name);
    Loaded plain(kModels + name), first(kModels + name, options()), second(kModels + name, options());
    expect_same(plain, first);
    expect_same(plain, second);
    ASSERT_TRUE(first.packed_file().ok()) << first.packed_file().status().message();
    EXPECT_EQ(first.packed_file().value(), second.packed_file().value());
    EXPECT_LT(second.bytes(), plain.bytes());
    EXPECT_EQ(first.bytes(), second.bytes());  // the first load lets its own memory go
    EXPECT_GT(packing_calls(kModels + name, {}), 0);
    EXPECT_EQ(packing_calls(kModels + name, options()), 0);
  }
  EXPECT_EQ(kept().size(), test::model_names().size());
}

TEST_F(PackedWeightsTest, TypesHaveFilesOfTheirOwn) {
  for (const ElementType type : {ElementType::kF32, ElementType::kF16, ElementType::kBF16}) {
    ModelLoader::Options wanted;
    wanted.weight_type = static_cast<int32_t>(type);
    ModelLoader::Options with = options();
    with.weight_type = wanted.weight_type;
    Loaded plain(kModels + "mha_default", wanted), first(kModels + "mha_default", with);
    Loaded second(kModels + "mha_default", with);
    expect_same(plain, second);
  }
  EXPECT_EQ(kept().size(), 3u);
}

TEST_F(PackedWeightsTest, BeaconsAreKeptWithTheirModel) {
  const std::string base = test::BeaconDirectory::model();
  ModelLoader::Options with = options(), without = options(), plain;
  with.beacon_directory = plain.beacon_directory = test::BeaconDirectory::plugin();
  Loaded unkept(base, plain), first(base, with), alone(base, without);
  expect_same(unkept, first);
  EXPECT_EQ(packing_calls(base, with), 0);
  EXPECT_EQ(packing_calls(base, without), 0);
  EXPECT_EQ(kept().size(), 2u);
}

TEST_F(PackedWeightsTest, ProgressAndParametersAreThoseOfAnyLoad) {
  Loaded first(kModels + "mha_default", options());
  std::vector<int64_t> seen;
  int64_t whole = 0;
  ModelLoader::Options o = options();
  o.control.progress = [&](int64_t done, int64_t total) { seen.push_back(done), whole = total; };
  Loaded second(kModels + "mha_default", o);
  ASSERT_GT(seen.size(), 5u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), whole);
}

// Another content behind the same name, as after an upgrade.
TEST_F(PackedWeightsTest, AnotherModelAtThePathIsPackedAnew) {
  const std::string model = copied_model("mha_default");
  Loaded before(model, options());
  const std::string file = model + "/model.safetensors";
  std::string bytes = read_file(file);
  for (size_t i = bytes.size() - 4096; i < bytes.size(); i += 4) bytes[i] = static_cast<char>(bytes[i] ^ 0x40);
  const auto time = std::filesystem::last_write_time(file);
  write_file(file, bytes);
  std::filesystem::last_write_time(file, time + std::chrono::nanoseconds(1));
  Loaded changed(model), packed(model, options()), mapped(model, options());
  expect_same(changed, packed);
  expect_same(changed, mapped);
  EXPECT_NE(before.model().weights().tensor_hashes, mapped.model().weights().tensor_hashes);
  EXPECT_EQ(kept().size(), 1u);
}

// The same file by another way needs no file of its own.
TEST_F(PackedWeightsTest, LinksLeadToTheSameFile) {
  std::filesystem::create_directory_symlink(kModels + "mha_default", folder_.file("link"));
  Loaded first(kModels + "mha_default", options());
  EXPECT_EQ(packing_calls(folder_.file("link"), options()), 0);
  EXPECT_EQ(packing_calls(folder_.file("link") + "/", options()), 0);
  EXPECT_EQ(kept().size(), 1u);
}

// Bytes that are wrong anywhere, and a file that ends anywhere: the answers are the same, and the file is good again.
TEST_F(PackedWeightsTest, DamageIsFoundAndMended) {
  Loaded plain(kModels + "mha_default"), first(kModels + "mha_default", options());
  const std::string path = first.packed_file().value(), whole = read_file(path);
  auto random = test::seeded_random();
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(test::seed_trace());
    std::string bytes = whole;
    if (round % 3 == 0) {
      bytes.resize(std::uniform_int_distribution<size_t>(0, whole.size() - 1)(random));
    } else {
      // Every second time in the header, the index or the footer, every second time anywhere.
      const size_t from = round % 2 == 0 ? 0 : whole.size() - 2000;
      bytes[std::uniform_int_distribution<size_t>(from, whole.size() - 1)(random)] ^= 0x10;
    }
    std::filesystem::remove(path);  // never changed in place: models may have it mapped
    write_file(path, bytes);
    Loaded again(kModels + "mha_default", options());
    expect_same(plain, again);
    ASSERT_TRUE(again.packed_file().ok());
    EXPECT_EQ(read_file(path), whole);
    Loaded after(kModels + "mha_default", options());
    expect_same(plain, after);
  }
}

// A file of another layout, or of something else, is no error.
TEST_F(PackedWeightsTest, ForeignFilesAreReplaced) {
  Loaded plain(kModels + "mha_default"), first(kModels + "mha_default", options());
  Loaded other(kModels + "qwen3", options());
  ASSERT_TRUE(other.packed_file().ok()) << other.packed_file().status().message();
  const std::string path = first.packed_file().value(), whole = read_file(path);
  for (const std::string& content : {read_file(other.packed_file().value()), std::string(), std::string("no")}) {
    std::filesystem::remove(path);
    write_file(path, content);
    Loaded again(kModels + "mha_default", options());
    expect_same(plain, again);
    EXPECT_EQ(read_file(path), whole);
  }
}

TEST_F(PackedWeightsTest, WhatCannotBeWrittenIsSaidAndNoError) {
  ModelLoader::Options nowhere;
  nowhere.packed_directory = folder_.file("none/packed");
  Loaded plain(kModels + "mha_default"), without_parent(kModels + "mha_default", nowhere);
  expect_same(plain, without_parent);
  EXPECT_EQ(without_parent.packed_file().status().code(), Code::kNotFound);
  EXPECT_EQ(without_parent.bytes(), plain.bytes());

  write_file(folder_.file("file"), "");
  nowhere.packed_directory = folder_.file("file");
  Loaded in_a_file(kModels + "mha_default", nowhere);
  expect_same(plain, in_a_file);
  EXPECT_EQ(in_a_file.packed_file().status().code(), Code::kNotFound);

  // Something that is no file has the name.
  Loaded first(kModels + "mha_default", options());
  const std::string path = first.packed_file().value();
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  Loaded beside(kModels + "mha_default", options());
  expect_same(plain, beside);
  EXPECT_EQ(beside.packed_file().status().code(), Code::kIo);
  EXPECT_EQ(kept().size(), 1u);
}

TEST_F(PackedWeightsTest, ACancelEndsTheLoadAndLeavesNoFile) {
  CancelToken cancel;
  ModelLoader::Options o = options();
  o.control.cancel = &cancel;
  o.control.progress = [&](int64_t done, int64_t total) {
    if (done == total) cancel.cancel();  // all was read, and nothing was written yet
  };
  EXPECT_EQ(Loaded(kModels + "mha_default", o).status().code(), Code::kCancelled);
  EXPECT_TRUE(!std::filesystem::exists(folder_.file("packed")) || kept().empty());
}

TEST_F(PackedWeightsTest, MergedModelsAreNotKept) {
  ModelLoader::Options o = options();
  o.merge.push_back({test::source_path("tests/golden/adapters/attention"), 1.0});
  Loaded merged(kModels + "text_256", o);
  ASSERT_TRUE(merged.status().ok()) << merged.status().message();
  EXPECT_EQ(merged.packed_file().status().code(), Code::kUnsupported);
  EXPECT_FALSE(std::filesystem::exists(folder_.file("packed")));
}

}  // namespace
}  // namespace quire
