// A chunk store with a file: who leaves memory, what is written when, and what a failure costs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/unit/kv/kv_fixture.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

class SpillingStore : public KvTest {
 protected:
  std::unique_ptr<ChunkStore> store(int64_t budget_records, int64_t file_records = 0) {
    return make({.budget_bytes = (budget_records + 1) * record(),  // and the staging buffer
                 .spill_directory = directory_.path(),
                 .spill_budget_bytes = file_records * record()});
  }

  static char letter(int layer, int64_t chunk, int version) {
    return static_cast<char>(1 + layer * 40 + chunk % 40 + 120 * version);
  }
  void fill(ChunkStore& store, int layer, int64_t chunk, int version = 0) const {
    ASSERT_TRUE(acquire(store, layer, {chunk}, Access::kWrite).ok());
    std::memset(host(store.layer(layer).chunks[static_cast<size_t>(chunk)]), letter(layer, chunk, version),
                static_cast<size_t>(record()));
  }
  // Room for the next chunk, as a step of 16 tokens makes it, and letters in it.
  void append(ChunkStore& store, int64_t chunk, int version = 0) const {
    ASSERT_TRUE(store.reserve(chunk * 16, 16).ok());
    for (int layer = 0; layer < kLayers; ++layer) fill(store, layer, chunk, version);
  }
  void expect_letters(ChunkStore& store, int layer, int64_t chunk, int version = 0) const {
    ASSERT_TRUE(acquire(store, layer, {chunk}, Access::kRead).ok());
    const auto* bytes = host(store.layer(layer).chunks[static_cast<size_t>(chunk)]);
    EXPECT_TRUE(std::all_of(bytes, bytes + record(), [&](char c) { return c == letter(layer, chunk, version); }))
        << "layer " << layer << ", chunk " << chunk;
  }
  // Resident chunks of a layer.
  static std::vector<int64_t> resident(const ChunkStore& store, int layer) { return store.resident(layer); }
  using Chunks = std::vector<int64_t>;

  SpillDirectory directory_;
};

TEST_F(SpillingStore, ReservingTakesSpaceInTheFileAlone) {
  const auto store = this->store(4);
  ASSERT_TRUE(store->reserve(0, 64).ok());
  EXPECT_TRUE(store->spills());
  EXPECT_EQ(store->stats().n_records, 4 * kLayers);
  EXPECT_EQ(store->stats().n_resident, 0);
  EXPECT_EQ(store->stats().bytes, 0);
  EXPECT_GE(store->stats().file_bytes, 4 * kLayers * record());
  EXPECT_TRUE(store->holds(0, 64));
  EXPECT_EQ(store->max_resident(), 4);
}

TEST_F(SpillingStore, GivesBackTheBytesThatWereWritten) {
  const auto store = this->store(4);
  for (int64_t chunk = 0; chunk < 10; ++chunk) append(*store, chunk);
  EXPECT_EQ(store->stats().n_resident, 4);
  EXPECT_EQ(store->stats().bytes_peak, 5 * record());
  for (int64_t chunk = 9; chunk >= 0; --chunk) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, chunk);
  }
  EXPECT_EQ(store->stats().bytes_peak, 5 * record());
  EXPECT_EQ(memory_.blocks, 5);
  EXPECT_EQ(directory_.n_names(), 0);
}

TEST_F(SpillingStore, TheLeastRecentlyUsedLeave) {
  const auto store = this->store(4);
  ASSERT_TRUE(store->reserve(0, 64).ok());
  for (const int64_t chunk : {0, 1, 2, 3}) fill(*store, 0, chunk);
  EXPECT_EQ(resident(*store, 0), (Chunks{0, 1, 2, 3}));
  expect_letters(*store, 0, 0);  // used again
  fill(*store, 1, 0);
  EXPECT_EQ(resident(*store, 0), (Chunks{0, 2, 3}));
  EXPECT_EQ(resident(*store, 1), (Chunks{0}));
  // What is asked for and here is used first: it cannot be pushed out by the others that are asked for.
  ASSERT_TRUE(acquire(*store, 0, Chunks{1, 2}, Access::kRead).ok());
  EXPECT_EQ(resident(*store, 0), (Chunks{0, 1, 2}));
  ASSERT_TRUE(acquire(*store, 0, Chunks{0, 1, 2, 3}, Access::kRead).ok());
  EXPECT_EQ(resident(*store, 0), (Chunks{0, 1, 2, 3}));
  EXPECT_EQ(resident(*store, 1), Chunks{});
}

TEST_F(SpillingStore, WritesARecordOnceAndAgainOnlyAfterAChange) {
  const auto store = this->store(1);
  append(*store, 0);  // of three layers, so two were pushed out
  EXPECT_EQ(store->stats().n_written, 2);
  EXPECT_EQ(store->stats().n_read, 0);
  for (int round = 0; round < 3; ++round) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, 0);
  }
  EXPECT_EQ(store->stats().n_written, 3);  // the third when it left, and none of them again
  EXPECT_EQ(store->stats().n_read, 9);
  fill(*store, 1, 0, 1);
  expect_letters(*store, 0, 0);
  EXPECT_EQ(store->stats().n_written, 4);
  expect_letters(*store, 1, 0, 1);
  expect_letters(*store, 2, 0);
  EXPECT_EQ(store->stats().n_written, 4);
}

TEST_F(SpillingStore, ARecordThatWasNeverWrittenToIsNotRead) {
  const auto store = this->store(2);
  append(*store, 0);
  append(*store, 1);
  EXPECT_EQ(store->stats().n_read, 0);
}

TEST_F(SpillingStore, TruncationAndEvictionFreeTheFile) {
  const auto store = this->store(2, 4 * kLayers);
  for (int64_t chunk = 0; chunk < 4; ++chunk) append(*store, chunk);
  const Status refused = store->reserve(64, 16);
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_EQ(store->stats().n_records, 4 * kLayers);
  EXPECT_TRUE(store->holds(0, 64));
  store->truncate(40);
  EXPECT_EQ(store->stats().n_records, 3 * kLayers);
  append(*store, 3, 1);
  evict(*store, 16, 48);
  EXPECT_EQ(store->stats().n_records, 2 * kLayers);
  EXPECT_EQ(store->stats().n_evicted, 2 * kLayers);
  EXPECT_FALSE(store->holds(0, 64));
  EXPECT_TRUE(store->holds(48, 64));
  append(*store, 4);
  append(*store, 5);
  EXPECT_EQ(store->reserve(96, 1).code(), Code::kBudget);
  EXPECT_LE(store->stats().file_bytes, 4 * kLayers * record());
  for (int layer = 0; layer < kLayers; ++layer) {
    expect_letters(*store, layer, 0);
    expect_letters(*store, layer, 3, 1);
    expect_letters(*store, layer, 4);
    expect_letters(*store, layer, 5);
  }
  store->truncate(0);
  EXPECT_EQ(memory_.blocks, 1);  // staging
  for (int64_t chunk = 0; chunk < 4; ++chunk) append(*store, chunk);
}

TEST_F(SpillingStore, AFailingAllocatorLosesNothing) {
  const auto store = this->store(4);
  memory_.left = 0;
  ASSERT_TRUE(store->reserve(0, 64).ok());
  ASSERT_TRUE(store->reserve(64, 16).ok());
  EXPECT_EQ(acquire(*store, 1, Chunks{0}, Access::kWrite).code(), Code::kOutOfMemory);
  memory_.left = 4;  // the staging buffer and three records
  for (const int64_t chunk : {0, 1, 2}) fill(*store, 1, chunk);
  EXPECT_EQ(acquire(*store, 1, Chunks{0, 3}, Access::kWrite).code(), Code::kOutOfMemory);
  memory_.left = INT64_MAX;
  EXPECT_TRUE(store->holds(0, 80));
  EXPECT_EQ(store->stats().n_records, 5 * kLayers);
  for (const int64_t chunk : {0, 1, 2}) expect_letters(*store, 1, chunk);
  for (int64_t chunk = 0; chunk < 5; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer) fill(*store, layer, chunk);
  }
  memory_.left = 0;  // nothing is allocated any more: records take each other's places
  for (int64_t chunk = 0; chunk < 5; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, chunk);
  }
}

TEST_F(SpillingStore, AFullDiskIsNoticedWhileReserving) {
  const auto store = this->store(2);
  append(*store, 0);
  const int64_t room = store->stats().file_bytes / record() / kLayers * 16;  // tokens
  const FullDisk full(store->stats().file_bytes);
  const ChunkStoreStats before = store->stats();
  int64_t end = 16;
  Status status;
  while ((status = store->reserve(end, 32)).ok()) end += 32;
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_GE(end, room - 32);
  EXPECT_EQ(store->stats().n_records, end / 16 * kLayers);
  EXPECT_EQ(store->stats().file_bytes, before.file_bytes);
  for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, 0);
}

TEST_F(SpillingStore, ABudgetBelowAStepNamesWhatAStepNeeds) {
  const auto store = this->store(2);
  const Status refused = store->reserve(8, 40);  // three chunks of a layer
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find(std::to_string(4 * record())), std::string::npos) << refused.message();
  EXPECT_EQ(store->stats().n_records, 0);
  EXPECT_TRUE(store->reserve(0, 32).ok());
}

TEST_F(SpillingStore, WithoutABudgetEverythingStaysInMemory) {
  const auto store = make({.spill_directory = directory_.path()});
  for (int64_t chunk = 0; chunk < 40; ++chunk) append(*store, chunk);
  EXPECT_EQ(store->max_resident(), kNoLimit);
  EXPECT_EQ(store->window(40), 40);
  EXPECT_EQ(store->stats().n_resident, 40 * kLayers);
  EXPECT_EQ(store->stats().n_written, 0);
  for (int64_t chunk = 0; chunk < 40; ++chunk) expect_letters(*store, 0, chunk);
}

// Pages of representations stay in memory: records make room for them.
TEST_F(SpillingStore, RepresentationsPushRecordsOut) {
  const auto page = static_cast<int64_t>(backend_->representation_page_bytes(2, kGeometry.head_dim, ElementType::kF32));
  const int64_t queries = 2 * kLayers * 16 * 2 * kGeometry.head_dim * 4;
  const int64_t budget = 2 * kLayers * page + queries + 3 * record();
  const auto store =
      make({.budget_bytes = budget, .spill_directory = directory_.path(), .n_query_heads = 2, .selection = kByVectors});
  for (int64_t chunk = 0; chunk < 66; ++chunk) {
    append(*store, chunk);
    ASSERT_LE(store->stats().bytes_peak, budget);
    ASSERT_EQ(allocator_.bytes(), store->stats().bytes);
  }
  EXPECT_EQ(store->max_resident(), 2);
  EXPECT_EQ(store->stats().representation_bytes, 2 * kLayers * page);
  for (const int64_t chunk : {0, 30, 65}) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, chunk);
  }
}

}  // namespace
}  // namespace quire::test
