// Stores that find equal texts, and never take one for another.

#include "lib/kv/prefix_table.h"

#include <cstring>

#include "tests/unit/kv/held_tier.h"
#include "tests/unit/kv/kv_fixture.h"

namespace quire::test {
namespace {

using Ids = std::vector<int32_t>;

// Three chunks of text in a store, as [a, b, c] with tokens that differ from chunk to chunk.
class Prefixes : public KvTest {
 protected:
  ChunkStoreOptions options(PrefixHash root = {}) const {
    ChunkStoreOptions o;
    o.residency = residency_;
    o.prefixes = table_;
    o.prefix_root = root;
    return o;
  }
  static ChunkStore::ChunkIds ids(Ids first_of_chunk) {
    return [=](int64_t chunk) { return Ids(16, first_of_chunk[static_cast<size_t>(chunk)]); };
  }
  // Holds these chunks, and lets others share them.
  std::unique_ptr<ChunkStore> with_text(const Ids& text) {
    auto store = make(options());
    const auto n = static_cast<int64_t>(text.size());
    EXPECT_TRUE(store->reserve(0, 16 * n).ok());
    store->enter_prefixes(0, n, ids(text));
    return store;
  }
  int64_t adopt(ChunkStore& store, const Ids& text) {
    const auto adopted = store.adopt(static_cast<int64_t>(text.size()), ids(text));
    EXPECT_TRUE(adopted.ok()) << adopted.status().message();
    return adopted.ok() ? adopted.value().n_chunks : -1;
  }

  std::shared_ptr<Residency> residency_ = std::make_shared<Residency>();
  std::shared_ptr<PrefixTable> table_ = std::make_shared<PrefixTable>();
};

TEST_F(Prefixes, AreFoundByTextAndRoot) {
  const auto first = with_text({1, 2, 3});
  EXPECT_EQ(adopt(*make(options()), {1, 2, 3, 4}), 3);
  EXPECT_EQ(adopt(*make(options()), {1, 2, 5}), 2);
  EXPECT_EQ(adopt(*make(options()), {2, 2, 3}), 0);  // what comes before counts
  EXPECT_EQ(adopt(*make(options({std::byte{1}})), {1, 2, 3}), 0);
  EXPECT_EQ(table_->size(), 3);
}

// All texts have one hash: what is stored last is found by nobody, and nothing is mistaken for it.
TEST_F(Prefixes, AreNotMixedUpByTheirHashes) {
  table_ = std::make_shared<PrefixTable>([](const PrefixHash&, std::span<const int32_t>) { return PrefixHash{}; });
  const auto first = with_text({1}), second = with_text({2});
  EXPECT_EQ(first->n_prefixes(), 1);
  EXPECT_EQ(second->n_prefixes(), 0);
  EXPECT_EQ(adopt(*make(options()), {2}), 0);
  EXPECT_EQ(adopt(*make(options()), {1, 1}), 1);
}

TEST_F(Prefixes, GoWithTheLastWhoHoldsThem) {
  auto first = with_text({1, 2, 3}), second = make(options());
  EXPECT_EQ(adopt(*second, {1, 2}), 2);
  first.reset();
  EXPECT_EQ(adopt(*make(options()), {1, 2, 3}), 2);
  second->truncate(20);
  EXPECT_EQ(adopt(*make(options()), {1, 2}), 1);
  auto fork = std::move(*second->fork());
  second.reset();
  EXPECT_EQ(adopt(*make(options()), {1, 2}), 1);
  evict(*fork, 0, 16);
  EXPECT_EQ(adopt(*make(options()), {1, 2}), 0);
  fork.reset();
  EXPECT_EQ(table_->size(), 0);
  EXPECT_EQ(residency_->budget()->used(), 0);
}

// Whoever writes to a chunk that others hold copies it, and only then.
TEST_F(Prefixes, AreWrittenToByWhoHoldsThemAlone) {
  const auto first = with_text({1, 2}), second = make(options());
  EXPECT_EQ(adopt(*second, {1, 2}), 2);
  const auto address = [](ChunkStore& store) { return host(store.layer(0).chunks[1]); };
  char* const shared = address(*first);
  EXPECT_EQ(address(*second), shared);
  second->truncate(20);
  EXPECT_TRUE(second->reserve(20, 3).ok());
  EXPECT_NE(address(*second), shared);
  EXPECT_EQ(adopt(*make(options()), {1, 2}), 2);
  first->truncate(20);
  EXPECT_TRUE(first->reserve(20, 3).ok());
  EXPECT_EQ(address(*first), shared);
  EXPECT_EQ(adopt(*make(options()), {1, 2}), 1);
}

// A store whose records can leave memory copies those that cannot; where that fails, it has what it copied before.
TEST_F(Prefixes, AreCopiedWhereTheyCouldNotLeave) {
  auto fixed = with_text({1, 2, 3});
  for (int64_t chunk = 0; chunk < 3; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer) {
      std::memset(host(fixed->layer(layer).chunks[static_cast<size_t>(chunk)]), static_cast<int>(10 * chunk + layer),
                  static_cast<size_t>(record()));
    }
  }
  const auto tier = std::make_shared<HeldTier>(record());
  ChunkStoreOptions spilling = options();
  spilling.tiers = {tier};
  const auto store = make(spilling);
  tier->fail_writes(1);
  const auto refused = store->adopt(3, ids({1, 2, 3}));
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused.value().n_chunks, 0);
  EXPECT_EQ(refused.value().end, ChunkStore::AdoptEnd::kNoRoom);
  EXPECT_EQ(adopt(*store, {1, 2}), 2);
  const auto small = std::make_shared<HeldTier>(record(), 2 * kLayers + 1);
  spilling.tiers = {small};
  EXPECT_EQ(adopt(*make(spilling), {1, 2, 3}), 2);
  EXPECT_EQ(adopt(*store, {1, 2, 3}), 1);  // the third one
  // They are its own, in the tier alone, and others find only those of the store that computed them.
  EXPECT_EQ(store->stats().n_resident, 0);
  fixed.reset();
  EXPECT_EQ(adopt(*make(options()), {1}), 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(acquire(*store, layer, {0, 1, 2}, Access::kRead).ok());
    for (size_t chunk = 0; chunk < 3; ++chunk) {
      const std::vector<char> expected(static_cast<size_t>(record()), static_cast<char>(10 * chunk + layer));
      EXPECT_EQ(std::memcmp(host(store->layer(layer).chunks[chunk]), expected.data(), expected.size()), 0);
    }
  }
}

TEST_F(Prefixes, AreOnlyForStoresThatHaveRoom) {
  const auto fixed = with_text({1, 2});
  ChunkStoreOptions small = options();
  small.budget_bytes = 2 * kLayers * record();  // the chunk that comes next needs room too
  const auto bounded = make(small);
  EXPECT_EQ(adopt(*bounded, {1, 2}), 1);
  EXPECT_TRUE(bounded->reserve(16, 16).ok());
}

}  // namespace
}  // namespace quire::test
