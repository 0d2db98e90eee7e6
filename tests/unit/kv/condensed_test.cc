// The second kind of keys, a condensed memory, beside the text's: under one budget, in one file.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/unit/kv/kv_fixture.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr KvKind kText = KvKind::kText, kCondensed = KvKind::kCondensed;

class MemoryStream : public KvTest {
 protected:
  std::unique_ptr<ChunkStore> store(int64_t budget_records = 0) {
    return make({.budget_bytes = budget_records * record()});
  }
  // Records of a kind in memory, the same in all layers.
  static int64_t held(const ChunkStore& store, KvKind kind) {
    const auto count = [&](int layer) {
      const auto chunks = store.layer(layer, kind).chunks;
      return std::count_if(chunks.begin(), chunks.end(), [](const KvRecord& chunk) { return bool(chunk); });
    };
    for (int layer = 1; layer < kLayers; ++layer) EXPECT_EQ(count(layer), count(0));
    return count(0);
  }
};

TEST_F(MemoryStream, HasRecordsOfItsOwn) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 40).ok());
  EXPECT_EQ(store->condensed_chunks(), 0);
  ASSERT_TRUE(store->reserve_condensed(0, 5).ok());
  ASSERT_TRUE(store->reserve_condensed(5, 11).ok());
  EXPECT_EQ(store->condensed_chunks(), 1);
  ASSERT_TRUE(store->reserve_condensed(16, 20).ok());
  EXPECT_EQ(store->condensed_chunks(), 3);
  EXPECT_EQ(held(*store, kText), 3);
  EXPECT_EQ(held(*store, kCondensed), 3);
  EXPECT_NE(store->layer(1, kText).chunks[0], store->layer(1, kCondensed).chunks[0]);
  EXPECT_EQ(store->stats().n_records, 6 * kLayers);
  EXPECT_EQ(store->stats().n_resident, 6 * kLayers);
  EXPECT_EQ(store->stats().bytes, 6 * kLayers * record());
  EXPECT_EQ(memory_.blocks, 6);
}

TEST_F(MemoryStream, IsAlwaysStoredRotated) {
  const auto store = make({.stored_div = 0});
  ASSERT_TRUE(store->reserve(0, 1).ok());
  ASSERT_TRUE(store->reserve_condensed(0, 1).ok());
  EXPECT_EQ(store->layer(0, kText).stored_div, 0);
  EXPECT_EQ(store->layer(0, kCondensed).stored_div, 1);
}

TEST_F(MemoryStream, IsCutApartFromTheText) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 100).ok());
  ASSERT_TRUE(store->reserve_condensed(0, 60).ok());
  store->truncate(33, 17);
  EXPECT_EQ(held(*store, kText), 3);
  EXPECT_EQ(held(*store, kCondensed), 2);
  store->truncate(33, 16);
  EXPECT_EQ(store->condensed_chunks(), 1);
  store->truncate(33, 500);
  EXPECT_EQ(store->condensed_chunks(), 1);
  evict(*store, 0, 32);
  EXPECT_EQ(held(*store, kText), 1);
  EXPECT_EQ(held(*store, kCondensed), 1);
  EXPECT_EQ(store->stats().n_evicted, 2 * kLayers);
  store->truncate(33);
  EXPECT_EQ(store->condensed_chunks(), 0);
  EXPECT_EQ(store->stats().bytes, kLayers * record());
  EXPECT_EQ(store->stats().bytes_peak, 11 * kLayers * record());
  EXPECT_EQ(memory_.blocks, 1);
}

TEST_F(MemoryStream, SharesTheBudget) {
  const auto store = this->store(4 * kLayers);
  ASSERT_TRUE(store->reserve(0, 48).ok());
  ASSERT_TRUE(store->reserve_condensed(0, 16).ok());
  const Status refused = store->reserve_condensed(16, 17);
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_THAT(refused.message(), HasSubstr("needs " + std::to_string(6 * kLayers * record())));
  EXPECT_EQ(store->condensed_chunks(), 1);
  EXPECT_EQ(store->stats().n_records, 4 * kLayers);
  EXPECT_EQ(store->reserve(48, 1).code(), Code::kBudget);
  evict(*store, 0, 16);
  EXPECT_TRUE(store->reserve_condensed(16, 16).ok());
  EXPECT_EQ(store->stats().bytes, 4 * kLayers * record());
  EXPECT_EQ(store->stats().bytes_peak, 4 * kLayers * record());
}

TEST_F(MemoryStream, AFailingAllocatorChangesNothing) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 20).ok());
  ASSERT_TRUE(store->reserve_condensed(0, 20).ok());
  for (int64_t blocks = 0; blocks < 2; ++blocks) {
    memory_.left = blocks;
    const Status failed = store->reserve_condensed(20, 40);
    EXPECT_EQ(failed.code(), Code::kOutOfMemory);
    EXPECT_THAT(failed.message(), HasSubstr("condensed entry 20"));
    EXPECT_EQ(store->condensed_chunks(), 2);
    EXPECT_EQ(store->stats().n_records, 4 * kLayers);
    EXPECT_EQ(memory_.blocks, 4);
  }
  memory_.left = 2;
  EXPECT_TRUE(store->reserve_condensed(20, 40).ok());
  EXPECT_EQ(held(*store, kCondensed), 4);
}

class SpillingMemoryStream : public KvTest {
 protected:
  std::unique_ptr<ChunkStore> store(int64_t budget_records, int64_t file_records = 0) {
    return make({.budget_bytes = (budget_records + 1) * record(),  // and the staging buffer
                 .spill_directory = directory_.path(),
                 .spill_budget_bytes = file_records * record()});
  }
  static char letter(int layer, KvKind kind, int64_t chunk) {
    return static_cast<char>(1 + layer * 40 + chunk + (kind == kCondensed ? 20 : 0));
  }
  std::span<char> bytes(ChunkStore& store, int layer, KvKind kind, int64_t chunk, Access access) const {
    EXPECT_TRUE(acquire(store, layer, {chunk}, access, kind).ok());
    return {host(store.layer(layer, kind).chunks[static_cast<size_t>(chunk)]), static_cast<size_t>(record())};
  }
  void fill(ChunkStore& store, KvKind kind, int64_t chunk) const {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto all = bytes(store, layer, kind, chunk, Access::kWrite);
      std::memset(all.data(), letter(layer, kind, chunk), all.size());
    }
  }
  void expect_letters(ChunkStore& store, KvKind kind, int64_t chunk) const {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto all = bytes(store, layer, kind, chunk, Access::kRead);
      EXPECT_TRUE(std::all_of(all.begin(), all.end(), [&](char c) { return c == letter(layer, kind, chunk); }))
          << "layer " << layer << ", chunk " << chunk;
    }
  }

  SpillDirectory directory_;
};

TEST_F(SpillingMemoryStream, GivesBackTheBytesOfBoth) {
  const auto store = this->store(5);
  for (int64_t chunk = 0; chunk < 8; ++chunk) {
    ASSERT_TRUE(store->reserve(chunk * 16, 16).ok());
    fill(*store, kText, chunk);
    if (chunk >= 4) continue;
    ASSERT_TRUE(store->reserve_condensed(chunk * 16, 16).ok());
    fill(*store, kCondensed, chunk);
  }
  EXPECT_EQ(store->stats().n_records, 12 * kLayers);
  for (int64_t chunk = 7; chunk >= 0; --chunk) {
    expect_letters(*store, kText, chunk);
    if (chunk < 4) expect_letters(*store, kCondensed, chunk);
  }
  EXPECT_EQ(store->stats().bytes_peak, 6 * record());
  EXPECT_EQ(memory_.blocks, 6);
  EXPECT_GE(store->stats().file_bytes, 12 * kLayers * record());
  EXPECT_GT(store->stats().n_read, 0);
  EXPECT_GE(store->stats().n_written, 12 * kLayers - 5);
}

// A step has all of a layer's memory at hand: what is left is the text's.
TEST_F(SpillingMemoryStream, LeavesTheRestOfTheBudgetToTheText) {
  const auto store = this->store(5);
  EXPECT_EQ(store->max_resident(), 5);
  ASSERT_TRUE(store->reserve_condensed(0, 40).ok());
  EXPECT_EQ(store->max_resident(), 2);
  EXPECT_TRUE(store->reserve(0, 32).ok());
  const Status text = store->reserve(32, 33);  // three chunks
  EXPECT_EQ(text.code(), Code::kBudget);
  EXPECT_THAT(text.message(), HasSubstr("needs " + std::to_string(7 * record())));
  ASSERT_TRUE(store->reserve_condensed(40, 24).ok());
  const Status memory = store->reserve_condensed(64, 1);  // a fifth, and one of text
  EXPECT_EQ(memory.code(), Code::kBudget);
  EXPECT_THAT(memory.message(), HasSubstr("needs " + std::to_string(7 * record())));
  EXPECT_EQ(store->condensed_chunks(), 4);
  EXPECT_EQ(store->max_resident(), 1);
  const std::vector<int64_t> all{0, 1, 2, 3};
  ASSERT_TRUE(acquire(*store, 1, std::vector<int64_t>{1}, Access::kRead, kText).ok());
  ASSERT_TRUE(acquire(*store, 1, all, Access::kRead, kCondensed).ok());
  EXPECT_EQ(store->stats().n_resident, 5);
  for (const auto& chunk : store->layer(1, kCondensed).chunks) EXPECT_TRUE(chunk);
}

TEST_F(SpillingMemoryStream, SharesTheFile) {
  const auto store = this->store(4, 3 * kLayers);
  ASSERT_TRUE(store->reserve(0, 32).ok());
  ASSERT_TRUE(store->reserve_condensed(0, 16).ok());
  EXPECT_EQ(store->reserve_condensed(16, 1).code(), Code::kBudget);
  EXPECT_EQ(store->condensed_chunks(), 1);
  EXPECT_EQ(store->reserve(32, 1).code(), Code::kBudget);
  store->truncate(32, 0);
  EXPECT_TRUE(store->reserve(32, 16).ok());
  EXPECT_LE(store->stats().file_bytes, 3 * kLayers * record());
}

}  // namespace
}  // namespace quire::test
