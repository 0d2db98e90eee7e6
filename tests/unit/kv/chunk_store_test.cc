// The chunk store: room, budget, truncation, eviction and what is counted.

#include <vector>

#include "tests/unit/kv/kv_fixture.h"

namespace quire::test {
namespace {

class ChunkStoreTest : public KvTest {
 protected:
  std::unique_ptr<ChunkStore> store(int64_t budget_records = 0) {
    return make({.budget_bytes = budget_records * record()});
  }
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
    EXPECT_EQ(memory_.blocks, records / kLayers);  // a page a chunk
  }
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
  const KvRecord before = store->layer(1).chunks[1];
  ASSERT_TRUE(store->reserve(20, 500).ok());
  EXPECT_EQ(store->layer(1).chunks[1], before);
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
  evict(*store, 4, 15);
  EXPECT_EQ(held(*store), "##########");
  evict(*store, 4, 31);
  EXPECT_EQ(held(*store), "##########");
  evict(*store, 4, 32);
  EXPECT_EQ(held(*store), "#.########");
  evict(*store, 4, 70);
  EXPECT_EQ(held(*store), "#...######");
  evict(*store, 4, 70);
  EXPECT_EQ(store->stats().n_evicted, 3 * kLayers);
  check(*store);
  evict(*store, 0, 150);
  EXPECT_EQ(held(*store), ".........#");
  EXPECT_EQ(store->stats().n_evicted, 9 * kLayers);
  check(*store);
}

TEST_F(ChunkStoreTest, AfterTruncationAndNewTokensEvictsAgain) {
  const auto store = this->store();
  ASSERT_TRUE(store->reserve(0, 96).ok());
  evict(*store, 16, 64);
  EXPECT_EQ(held(*store), "#...##");
  store->truncate(16);
  EXPECT_EQ(held(*store), "#");
  ASSERT_TRUE(store->reserve(16, 80).ok());
  EXPECT_EQ(held(*store), "######");
  evict(*store, 16, 64);
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
  evict(*store, 0, 16);
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
  for (int64_t blocks = 0; blocks < 2; ++blocks) {
    memory_.left = blocks;
    const Status failed = store->reserve(20, 40);
    EXPECT_EQ(failed.code(), Code::kOutOfMemory);
    EXPECT_EQ(store->stats().n_records, 2 * kLayers);
    check(*store);
  }
  memory_.left = 2;
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

// Queries of the chunk in progress are kept while something of the chunk is still to come, and for the next one.
TEST_F(ChunkStoreTest, KnowsWhereATextCanBeCutExactly) {
  const auto plain = store();
  ASSERT_TRUE(plain->reserve(0, 40).ok());
  EXPECT_EQ(plain->exact_boundary(39), 39);
  EXPECT_EQ(plain->exact_boundary(5), 5);

  const auto selecting = make({.n_query_heads = 4, .selection = kByVectors});
  const auto boundaries = [&](std::vector<int64_t> tokens) {
    for (int64_t& n : tokens) n = selecting->exact_boundary(n);
    return tokens;
  };
  ASSERT_TRUE(selecting->reserve(0, 10).ok());
  EXPECT_EQ(boundaries({0, 3, 10}), (std::vector<int64_t>{0, 3, 10}));
  ASSERT_TRUE(selecting->reserve(10, 20).ok());  // completes chunk 0, begins chunk 1
  EXPECT_EQ(boundaries({5, 15, 16, 17, 30}), (std::vector<int64_t>{5, 15, 16, 17, 30}));
  ASSERT_TRUE(selecting->reserve(30, 70).ok());  // completes chunk 1, holds 2 to 5 whole, begins chunk 6
  EXPECT_EQ(boundaries({9, 31, 40, 64, 95, 96, 100}), (std::vector<int64_t>{0, 31, 32, 64, 80, 96, 100}));
  selecting->truncate(98);
  EXPECT_EQ(boundaries({98, 31}), (std::vector<int64_t>{98, 16}));
  ASSERT_TRUE(selecting->reserve(98, 14).ok());  // to the end of chunk 6
  EXPECT_EQ(boundaries({111, 112}), (std::vector<int64_t>{111, 112}));
  ASSERT_TRUE(selecting->reserve(112, 16).ok());  // chunk 7 at once: its queries are not kept
  EXPECT_EQ(boundaries({111, 120, 127, 128}), (std::vector<int64_t>{96, 112, 112, 128}));
  ASSERT_TRUE(selecting->reserve(128, 24).ok());  // the same with chunk 8, and the beginning of 9
  EXPECT_EQ(boundaries({130, 143, 144, 150}), (std::vector<int64_t>{128, 128, 144, 150}));
  selecting->truncate(144);
  EXPECT_EQ(boundaries({150}), (std::vector<int64_t>{144}));
  selecting->truncate(0);
  EXPECT_EQ(boundaries({0, 5}), (std::vector<int64_t>{0, 0}));
}

// Bounds are made of a chunk's keys, wherever the text was cut.
TEST_F(ChunkStoreTest, BoundsNeedNoQueries) {
  const auto page = static_cast<int64_t>(
      backend_->representation_page_bytes(2 * kGeometry.n_kv_heads, kGeometry.head_dim, kGeometry.type));
  ChunkSelection by_bounds = kByVectors;
  by_bounds.representation = ChunkSelection::Representation::kBounds;
  const auto bounds = make({.n_query_heads = 4, .selection = by_bounds});
  ASSERT_TRUE(bounds->reserve(0, 100).ok());
  for (const int64_t n : {5, 16, 95, 100}) EXPECT_EQ(bounds->exact_boundary(n), n);
  EXPECT_EQ(bounds->queries_in_progress(0, 6).buffer, nullptr);
  EXPECT_EQ(bounds->stats().bytes, 7 * kLayers * record() + kLayers * page);
}

// Representations come in pages, and queries in one block: counted in the budget, and given back.
TEST_F(ChunkStoreTest, CountsWhatSelectionNeeds) {
  const auto page = static_cast<int64_t>(backend_->representation_page_bytes(4, kGeometry.head_dim, ElementType::kF32));
  const int64_t queries = 2 * kLayers * kGeometry.chunk * 4 * kGeometry.head_dim * 4;
  const int64_t needed = 65 * kLayers * record() + 2 * kLayers * page + queries;
  const auto tight = make({.budget_bytes = needed - 1, .n_query_heads = 4, .selection = kByVectors});
  const Status refused = tight->reserve(0, 65 * 16);
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_NE(refused.message().find(std::to_string(needed)), std::string::npos) << refused.message();
  EXPECT_EQ(tight->stats().bytes, 0);
  const auto enough = make({.budget_bytes = needed, .n_query_heads = 4, .selection = kByVectors});
  ASSERT_TRUE(enough->reserve(0, 65 * 16).ok());
  EXPECT_EQ(enough->stats().bytes, needed);
  EXPECT_EQ(enough->stats().representation_bytes, 2 * kLayers * page);
  enough->truncate(64 * 16);
  EXPECT_EQ(enough->stats().representation_bytes, kLayers * page);
  EXPECT_EQ(enough->stats().bytes, needed - kLayers * (page + record()));
  EXPECT_EQ(allocator_.bytes(), enough->stats().bytes);
}

}  // namespace
}  // namespace quire::test
