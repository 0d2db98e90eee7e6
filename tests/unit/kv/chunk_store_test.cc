// The chunk store: room, budget, truncation, eviction and what is counted.

#include "lib/kv/chunk_store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"

namespace quire {
namespace {

constexpr int kLayers = 3;
constexpr KvGeometry kGeometry{2, 32, 16, ElementType::kF16};

// Memory that runs out after `left` blocks.
struct Memory {
  int64_t left = INT64_MAX;
  int64_t blocks = 0;

  static void* allocate(void* user, size_t size, size_t alignment) {
    auto& self = *static_cast<Memory*>(user);
    if (self.left <= 0) return nullptr;
    --self.left, ++self.blocks;
    return std::aligned_alloc(alignment, static_cast<size_t>(round_up(static_cast<int64_t>(size), 64)));
  }
  static void release(void* user, void* memory, size_t, size_t) {
    --static_cast<Memory*>(user)->blocks;
    std::free(memory);
  }
};

class ChunkStoreTest : public testing::Test {
 protected:
  std::unique_ptr<ChunkStore> make(const ChunkStoreOptions& options) {
    auto store = ChunkStore::create(*backend_, kGeometry, kLayers, options);
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(*store);
  }
  std::unique_ptr<ChunkStore> store(int64_t budget_records = 0) {
    return make({.budget_bytes = budget_records * record()});
  }
  int64_t record() const { return static_cast<int64_t>(backend_->kv_record_bytes(kGeometry)); }

  // One letter a chunk of layer 0: '#' held, '.' dropped. All layers must agree.
  static std::string held(const ChunkStore& store) {
    std::string all;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::string chunks;
      for (const auto& chunk : store.layer(layer).chunks) chunks += chunk ? '#' : '.';
      if (layer > 0 && chunks != all) return "layers differ: " + all + " " + chunks;
      all = chunks;
    }
    return all;
  }
  // The counters agree with what is there.
  void check(const ChunkStore& store) const {
    int64_t records = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const auto& chunk : store.layer(layer).chunks) records += chunk ? 1 : 0;
    }
    const ChunkStoreStats stats = store.stats();
    EXPECT_EQ(stats.n_records, records);
    EXPECT_EQ(stats.n_resident, records);
    EXPECT_EQ(stats.bytes, records * record());
    EXPECT_GE(stats.bytes_peak, stats.bytes);
    EXPECT_EQ(memory_.blocks, records);
  }

  Memory memory_;
  Allocator allocator_{Memory::allocate, Memory::release, &memory_};
  ThreadPool pool_{1};
  std::unique_ptr<Backend> backend_ = cpu::create_cpu_backend(allocator_, pool_);
};

TEST_F(ChunkStoreTest, ReservesWholeChunksInAllLayers) {
  const auto store = this->store();
  EXPECT_EQ(store->stats().bytes, 0);
  ASSERT_TRUE(store->reserve(0, 1).ok());
  EXPECT_EQ(held(*store), "#");
  ASSERT_TRUE(store->reserve(1, 15).ok());
  EXPECT_EQ(held(*store), "#");
  ASSERT_TRUE(store->reserve(16, 17).ok());
  EXPECT_EQ(held(*store), "###");
  EXPECT_EQ(store->stats().n_records, 3 * kLayers);
  check(*store);
}

TEST_F(ChunkStoreTest, KeepsRecordsWhereTheyAre) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 20).ok());
  const void* before = store->layer(1).chunks[1]->host();
  ASSERT_TRUE(store->reserve(20, 500).ok());
  EXPECT_EQ(store->layer(1).chunks[1]->host(), before);
  check(*store);
}

TEST_F(ChunkStoreTest, TruncatesToTheChunkOfTheLastToken) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 100).ok());
  EXPECT_EQ(held(*store), "#######");
  store->truncate(33);
  EXPECT_EQ(held(*store), "###");
  store->truncate(32);
  EXPECT_EQ(held(*store), "##");
  store->truncate(500);
  EXPECT_EQ(held(*store), "##");
  check(*store);
  store->truncate(0);
  EXPECT_EQ(held(*store), "");
  EXPECT_EQ(store->stats().bytes_peak, 7 * kLayers * record());
  EXPECT_EQ(store->stats().n_evicted, 0);
  check(*store);
}

TEST_F(ChunkStoreTest, EvictsOnlyWholeChunks) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 160).ok());
  store->evict(4, 15);
  EXPECT_EQ(held(*store), "##########");
  store->evict(4, 31);
  EXPECT_EQ(held(*store), "##########");
  store->evict(4, 32);
  EXPECT_EQ(held(*store), "#.########");
  store->evict(4, 70);
  EXPECT_EQ(held(*store), "#...######");
  store->evict(4, 70);
  EXPECT_EQ(store->stats().n_evicted, 3 * kLayers);
  check(*store);
  store->evict(0, 160);  // what lies before an earlier range is not looked at again
  EXPECT_EQ(held(*store), "#.........");
  EXPECT_EQ(store->stats().n_evicted, 9 * kLayers);
  check(*store);
}

TEST_F(ChunkStoreTest, AfterTruncationAndNewTokensEvictsAgain) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 96).ok());
  store->evict(16, 64);
  EXPECT_EQ(held(*store), "#...##");
  store->truncate(16);
  EXPECT_EQ(held(*store), "#");
  ASSERT_TRUE(store->reserve(16, 80).ok());
  EXPECT_EQ(held(*store), "######");
  store->evict(16, 64);
  EXPECT_EQ(held(*store), "#...##");
  check(*store);
}

TEST_F(ChunkStoreTest, BudgetIsExactAndARefusalChangesNothing) {
  const auto store = this->store(4 * kLayers);
  ASSERT_TRUE(store->reserve(0, 48).ok());
  const Status refused = store->reserve(48, 17);  // two more chunks: one too many
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find(std::to_string(5 * kLayers * record())), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find(std::to_string(4 * kLayers * record())), std::string::npos) << refused.message();
  EXPECT_EQ(store->stats().n_records, 3 * kLayers);
  EXPECT_EQ(store->stats().bytes_peak, 3 * kLayers * record());
  check(*store);
  EXPECT_TRUE(store->reserve(48, 16).ok());  // exactly the budget
  EXPECT_EQ(store->stats().bytes, 4 * kLayers * record());
  EXPECT_EQ(store->reserve(64, 1).code(), Code::kBudget);
  store->evict(0, 16);
  EXPECT_TRUE(store->reserve(64, 1).ok());
  EXPECT_EQ(store->stats().bytes, 4 * kLayers * record());
  check(*store);
}

TEST_F(ChunkStoreTest, ABudgetOneByteShortIsRefused) {
  const auto store = make({.budget_bytes = kLayers * record() - 1});
  EXPECT_EQ(store->reserve(0, 1).code(), Code::kBudget);
  EXPECT_EQ(store->stats().bytes, 0);
  check(*store);
}

TEST_F(ChunkStoreTest, AFailingAllocatorChangesNothing) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 20).ok());
  for (int64_t blocks = 0; blocks < 2 * kLayers; ++blocks) {
    memory_.left = blocks;
    const Status failed = store->reserve(20, 40);
    EXPECT_EQ(failed.code(), Code::kOutOfMemory);
    EXPECT_EQ(store->stats().n_records, 2 * kLayers);
    check(*store);
  }
  memory_.left = 2 * kLayers;
  EXPECT_TRUE(store->reserve(20, 40).ok());
  EXPECT_EQ(held(*store), "####");
  check(*store);
}

TEST_F(ChunkStoreTest, GivesItsMemoryBack) {
  {
    const auto store = this->store();
    ASSERT_TRUE(store->reserve(0, 1000).ok());
    EXPECT_GT(allocator_.bytes(), 0);
  }
  EXPECT_EQ(allocator_.bytes(), 0);
  EXPECT_EQ(memory_.blocks, 0);
}

}  // namespace
}  // namespace quire
