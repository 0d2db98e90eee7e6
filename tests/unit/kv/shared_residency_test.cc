// Several stores in one memory: what forks share, who leaves when memory is short, and what happens on many threads.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/kv/shared_stores.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

using SharedResidency = SharedStores;

TEST_F(SharedResidency, AForkOfASpillingStoreCopiesAndWritesNothing) {
  const Store first = filled(4);
  const int64_t before = used();
  const Store fork = std::move(*first->fork());
  EXPECT_EQ(used(), before);
  EXPECT_EQ(tier_->n_writes(), 0);
  EXPECT_EQ(fork->stats().n_resident, 4 * kLayers);
  for (int64_t chunk = 0; chunk < 4; ++chunk) expect_letters(*fork, *queue_, chunk);
  EXPECT_EQ(fork->tier_stats()[0].n_misses, 0);
  EXPECT_EQ(used(), before + record());  // its staging buffer
  EXPECT_EQ(fork->stats().bytes, record());
  EXPECT_EQ(tier_->n_reads(), 0);
}

// Six records one after the other, again and again, in memory for four: if the least recently used left, each would be
// gone when it is needed, and all 60 read.
TEST_F(SharedResidency, StepsThatReadMoreThanMemoryHoldsLeaveSomeOfItThere) {
  const Store store = filled(6, 0, 5 * record());
  const auto reads_of = [&](Access access) {
    const int before = tier_->n_reads();
    for (int step = 0; step < 10; ++step) {
      EXPECT_TRUE(store->reserve(95, 1).ok());
      for (const std::vector<int64_t>& window : {from_to(0, 2), from_to(2, 4), from_to(4, 6)}) {
        EXPECT_TRUE(acquire(*store, 1, window, access).ok());
      }
    }
    return tier_->n_reads() - before;
  };
  EXPECT_LE(reads_of(Access::kRead), 44);
  EXPECT_LE(reads_of(Access::kScan), 44);
  for (int64_t chunk = 0; chunk < 6; ++chunk) expect_letters(*store, *queue_, chunk);
}

// It passes by what the same request has brought, once.
TEST_F(SharedResidency, WhoLooksForRoomLooksAtFewRecordsForEachThatComes) {
  for (const Access access : {Access::kScan, Access::kRead}) {
    for (const int64_t n : {40, 160, 640}) {
      limit(2 * n * record());
      const Store store = filled(n);
      const int64_t looked_before = residency_->n_looked_at(), misses_before = store->stats().n_misses;
      for (int step = 0; step < 3; ++step) {
        ASSERT_TRUE(store->reserve(16 * n - 1, 1).ok());
        for (int layer = 0; layer < kLayers; ++layer) {
          const int64_t window = store->window(n, access);
          for (int64_t first = 0; first < n; first += window) {
            ASSERT_TRUE(acquire(*store, layer, from_to(first, std::min(n, first + window)), access).ok());
          }
        }
        store->release(*queue_);
      }
      const int64_t n_came = store->stats().n_misses - misses_before;
      EXPECT_GE(n_came, n);
      EXPECT_LE(residency_->n_looked_at() - looked_before, 4 * n_came) << n;
    }
  }
}

// One that only scans gets its share of the memory as well.
TEST_F(SharedResidency, AScanTakesFromWhoHasMost) {
  limit(14 * record());
  const Store first = filled(6);
  EXPECT_EQ(first->stats().n_resident, 13);
  const Store second = filled(6, 3);
  for (int round = 0; round < 4; ++round) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t chunk = 0; chunk < 6; ++chunk) ASSERT_TRUE(acquire(*second, layer, {chunk}, Access::kScan).ok());
    }
    second->release(*queue_);
  }
  EXPECT_EQ(second->stats().n_resident, 6);
  EXPECT_EQ(first->stats().n_resident, 6);
}

TEST_F(SharedResidency, WhatOneForkReadTheOtherFinds) {
  const Store first = filled(6, 0, 4 * record());  // three in memory, the others out
  const Store fork = std::move(*first->fork());
  const auto all = from_to(0, 6);
  for (const int64_t chunk : all) expect_letters(*fork, *queue_, chunk);
  fork->release(*queue_);
  const int reads = tier_->n_reads();
  const int64_t misses = first->stats().n_misses;
  const auto resident = first->resident(kLayers - 1);
  EXPECT_EQ(resident, fork->resident(kLayers - 1));
  ASSERT_FALSE(resident.empty());
  ASSERT_TRUE(acquire(*first, kLayers - 1, resident, Access::kRead).ok());
  EXPECT_EQ(tier_->n_reads(), reads);
  EXPECT_EQ(first->stats().n_misses, misses);
}

TEST_F(SharedResidency, AForkWritesToACopy) {
  const Store first = filled(3);
  ASSERT_TRUE(first->reserve(48, 8).ok());
  write(*first, *queue_, 3, 1);
  first->release(*queue_);
  const Store fork = std::move(*first->fork());
  ASSERT_TRUE(fork->reserve(56, 4).ok());
  write(*fork, *queue_, 3, 2);
  ASSERT_TRUE(first->reserve(56, 2).ok());
  expect_letters(*first, *queue_, 3, 1);
  write(*first, *queue_, 3, 4);
  expect_letters(*fork, *queue_, 3, 2);
  for (int64_t chunk = 0; chunk < 3; ++chunk) {
    expect_letters(*fork, *queue_, chunk);
    expect_letters(*first, *queue_, chunk);
  }
}

TEST_F(SharedResidency, RecordsOutliveTheirOwnerAndCountForWhoUsesThem) {
  Store first = filled(4);
  const Store fork = std::move(*first->fork());
  ASSERT_TRUE(fork->reserve(64, 1).ok());
  first.reset();
  EXPECT_EQ(used(), 4 * kLayers * record());  // for nobody
  EXPECT_EQ(fork->stats().bytes, 0);
  for (int64_t chunk = 0; chunk < 2; ++chunk) expect_letters(*fork, *queue_, chunk);
  EXPECT_EQ(fork->stats().bytes, (2 * kLayers + 1) * record());
  EXPECT_EQ(used(), (4 * kLayers + 1) * record());
  EXPECT_EQ(tier_->n_reads() + tier_->n_writes(), 0);
  fork->truncate(0);
  EXPECT_EQ(used(), record());
}

// What leaves without ever having been in its slot is written, whoever pushes it out.
TEST_F(SharedResidency, WhatCountsForNobodyIsWrittenBeforeItLeaves) {
  limit(8 * record());
  Store first = filled(2);
  const Store fork = std::move(*first->fork());
  expect_letters(*fork, *queue_, 0);  // its staging buffer is there
  fork->release(*queue_);
  first.reset();
  const Store other = filled(5, 9);
  EXPECT_LE(used(), 8 * record());
  for (int64_t chunk = 0; chunk < 2; ++chunk) expect_letters(*fork, *queue_, chunk);
  fork->release(*queue_);
  for (int64_t chunk = 0; chunk < 5; ++chunk) expect_letters(*other, *queue_, chunk, 9);
}

TEST_F(SharedResidency, WhoRestsLeavesFirst) {
  limit(15 * record());
  const Store resting = filled(2), working = filled(2, 5);
  resting->rest();
  expect_letters(*working, *queue_, 0, 5);
  const Store third = filled(2, 7);  // of 12 records of the two others some have to leave
  EXPECT_EQ(working->stats().n_resident, 2 * kLayers);
  EXPECT_LT(resting->stats().n_resident, 2 * kLayers);
  EXPECT_LE(used(), 15 * record());
  for (int64_t chunk = 0; chunk < 2; ++chunk) expect_letters(*resting, *queue_, chunk);
}

TEST_F(SharedResidency, WhoHasMostLeavesFirstUntilAllHaveTheSame) {
  limit(3 * 7 * record());  // staging buffers and 18 records
  std::vector<Store> stores;
  stores.push_back(filled(6, 1));
  EXPECT_EQ(stores[0]->stats().n_resident, 18);
  for (const char version : {2, 3}) stores.push_back(filled(6, version));
  for (int round = 0; round < 3; ++round) {
    for (size_t s = 0; s < 3; ++s) {
      for (int64_t chunk = 0; chunk < 6; ++chunk) expect_letters(*stores[s], *queue_, chunk, static_cast<char>(s + 1));
      stores[s]->release(*queue_);
      ASSERT_LE(used(), 3 * 7 * record());
    }
  }
  for (const Store& store : stores) EXPECT_EQ(store->stats().n_resident, 6);
  EXPECT_EQ(stores[0]->max_resident(), 6);
  stores[1]->rest();
  EXPECT_EQ(stores[0]->max_resident(), 12);  // its own, and those of the one that rests
  stores[2]->rest();
  EXPECT_EQ(stores[0]->max_resident(), 18);
}

TEST_F(SharedResidency, StoresWithoutATierTakeWhatTheOthersCanGiveBack) {
  limit(20 * record());
  const Store spilling = filled(6);
  EXPECT_EQ(spilling->stats().n_resident, 18);
  const Store fixed = make({.residency = residency_});
  ASSERT_TRUE(fixed->reserve(0, 5 * 16).ok());
  EXPECT_LE(used(), 20 * record());
  EXPECT_EQ(fixed->stats().n_resident, 15);
  EXPECT_LE(spilling->stats().n_resident, 4);
  const Status refused = fixed->reserve(80, 32);
  EXPECT_EQ(refused.code(), Code::kBudget);
  for (int64_t chunk = 0; chunk < 6; ++chunk) expect_letters(*spilling, *queue_, chunk);
}

TEST_F(SharedResidency, RecordsOfOtherSizesMakeRoomToo) {
  limit(12 * record());
  const Store small = filled(3);
  constexpr KvGeometry kWide{2, 64, 32, ElementType::kF16};
  const auto wide_bytes = static_cast<int64_t>(backend_->kv_record_bytes(kWide));
  ASSERT_GT(wide_bytes, 2 * record());
  const auto tier = std::make_shared<HeldTier>(wide_bytes);
  const Store wide =
      std::move(*ChunkStore::create(*backend_, kWide, kLayers, {.tiers = {tier}, .residency = residency_}));
  for (int64_t chunk = 0; chunk < 3; ++chunk) {
    ASSERT_TRUE(wide->reserve(chunk * 32, 32).ok());
    write(*wide, *queue_, chunk, 4);
  }
  wide->release(*queue_);
  EXPECT_LE(used(), 12 * record());
  for (int64_t chunk = 0; chunk < 3; ++chunk) expect_letters(*small, *queue_, chunk);
  small->release(*queue_);
  for (int64_t chunk = 0; chunk < 3; ++chunk) expect_letters(*wide, *queue_, chunk, 4);
  EXPECT_LE(used(), 12 * record());
}

TEST_F(SharedResidency, AFullTierBelowIsAnErrorAndNothingIsLost) {
  limit(9 * record());
  const Store first = filled(2);
  tier_->fail_writes(1000);
  const Store second = store();
  ASSERT_TRUE(second->reserve(0, 16).ok());
  ASSERT_TRUE(acquire(*second, 0, {0}, Access::kWrite).ok());  // the last free places: staging and one record
  const Status failed = acquire(*second, 1, {0}, Access::kWrite);
  EXPECT_EQ(failed.code(), Code::kIo) << failed.message();
  EXPECT_EQ(failed.message(), "held write");
  tier_->fail_writes(0);
  for (int64_t chunk = 0; chunk < 2; ++chunk) expect_letters(*first, *queue_, chunk);
}

// One thread computes, as the engine does; others fork what it has, read and end forks, and open stores of their own.
TEST_F(SharedResidency, GoesOnOnManyThreads) {
  limit(40 * record());
  IoThreads io{2};
  const auto document = [&](char version) {
    Store made = make({.tiers = {tier_}, .residency = residency_, .io = &io});
    for (int64_t chunk = 0; chunk < 8; ++chunk) append(*made, *queue_, chunk, version);
    made->release(*queue_);
    return made;
  };
  const Store first = document(0);
  std::vector<Store> forks;
  for (int t = 0; t < 7; ++t) forks.push_back(std::move(*first->fork()));
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 7; ++t) {
    threads.emplace_back([&, t] {
      Store store = std::move(forks[static_cast<size_t>(t)]);
      const auto queue = std::move(*backend_->create_queue());
      std::vector<std::byte> bytes(static_cast<size_t>(record()));
      for (int round = 0; round < 30 || !ends; ++round) {
        Store fork = std::move(*store->fork());
        if (round % 3 == 0) fork->truncate(64 - 16 * (round % 4));
        if (round % 5 == 0) fork->rest();
        if (round % 7 == 0) store = std::move(fork);
        (void)store->stats();
        if (round % 11 == 0) {
          const Store own = make({.residency = residency_});
          (void)own->reserve(0, 16);  // it may be refused
        }
        if (store->holds(0, 16)) continue;
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    first->pin_all();  // mostly in vain
    for (int64_t chunk = 0; chunk < 8; ++chunk) {
      first->prefetch((round + 1) % kLayers, from_to(chunk, 8));
      expect_letters(*first, *queue_, chunk);
      ASSERT_LE(used(), 40 * record());
    }
    first->release(*queue_);
  }
  ends = true;
  for (auto& thread : threads) thread.join();
  EXPECT_LE(used(), 40 * record());
}

}  // namespace
}  // namespace quire::test
