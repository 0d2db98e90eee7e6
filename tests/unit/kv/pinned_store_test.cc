// Steps whose keys and values are all in memory: they are pinned together, and nothing is asked for.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "tests/unit/kv/shared_stores.h"

namespace quire::test {
namespace {

class PinnedStore : public SharedStores {
 protected:
  // What the backend sees without a request.
  static void expect_all_seen(const ChunkStore& store, int64_t n_chunks, char version = 0) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
        const KvRecord record = store.layer(layer).chunks[static_cast<size_t>(chunk)];
        ASSERT_TRUE(record) << layer << " " << chunk;
        const char* bytes = host(record);
        EXPECT_EQ(std::count(bytes, bytes + store.record_bytes(), letter(layer, chunk, version)), store.record_bytes())
            << layer << " " << chunk;
      }
    }
  }
  static int64_t n_seen(const ChunkStore& store) {
    int64_t n = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const KvRecord& record : store.layer(layer).chunks) n += record ? 1 : 0;
    }
    return n;
  }
  static bool pins(ChunkStore& store) {
    store.pin_all();
    return !store.moves();
  }
  // Reads a text so often that all memory that may be had is its.
  static void read_all(ChunkStore& store, Queue& queue, int64_t n_chunks, char version) {
    for (int round = 0; round < 2; ++round) {
      for (int64_t chunk = 0; chunk < n_chunks; ++chunk) expect_letters(store, queue, chunk, version);
    }
    store.release(queue);
  }
};

TEST_F(PinnedStore, SeesAllAndLosesNothingToOthers) {
  limit(40 * record());
  const Store store = filled(4);
  ASSERT_TRUE(pins(*store));
  expect_all_seen(*store, 4);
  const int64_t hits = store->stats().n_hits;
  const Store other = filled(12, 5);  // 36 records, of which 26 have a place
  read_all(*other, *queue_, 12, 5);
  EXPECT_EQ(store->stats().n_resident, 4 * kLayers);
  EXPECT_LT(other->stats().n_resident, 12 * kLayers);
  expect_all_seen(*store, 4);
  store->release(*queue_);
  EXPECT_FALSE(pins(*store));  // there is no room to spare
  EXPECT_EQ(n_seen(*store), 0);
  store->release(*queue_);
  store->rest();
  read_all(*other, *queue_, 12, 5);
  EXPECT_LT(store->stats().n_resident, 4 * kLayers);
  EXPECT_EQ(store->stats().n_hits, hits);  // those of the step that pinned them
  EXPECT_EQ(hits, 4 * kLayers);
}

TEST_F(PinnedStore, FollowsRecordsThatMoved) {
  limit(40 * record());
  const Store store = filled(4);
  ASSERT_TRUE(pins(*store));
  store->release(*queue_);
  store->rest();
  {
    const Store other = filled(12, 5);
    read_all(*other, *queue_, 12, 5);
    EXPECT_LT(store->stats().n_resident, 4 * kLayers);
    EXPECT_FALSE(pins(*store));
    EXPECT_EQ(n_seen(*store), 0);
    store->release(*queue_);
  }
  EXPECT_FALSE(pins(*store));  // there is room now, but some are out
  for (int64_t chunk = 0; chunk < 4; ++chunk) expect_letters(*store, *queue_, chunk);
  store->release(*queue_);
  ASSERT_TRUE(pins(*store));
  expect_all_seen(*store, 4);
  store->release(*queue_);
}

// Another store of the same records brings them back, to other places.
TEST_F(PinnedStore, FollowsWhatAForkMoved) {
  limit(40 * record());
  const Store store = filled(4);
  const Store fork = std::move(*store->fork());
  ASSERT_TRUE(pins(*store));
  store->release(*queue_);
  store->rest();
  fork->rest();
  {
    const Store other = filled(12, 5);
    read_all(*other, *queue_, 12, 5);
  }
  const Store between = filled(4, 3);  // has some of the places
  ASSERT_LT(fork->stats().n_resident, 4 * kLayers);
  read_all(*fork, *queue_, 4, 0);
  ASSERT_TRUE(pins(*store));
  expect_all_seen(*store, 4);
  store->release(*queue_);
}

// Of the first chunks some records are out, and there is room.
TEST_F(PinnedStore, KnowsWhatIsOutOfWhatItHolds) {
  limit(40 * record());
  const Store store = filled(4);
  store->rest();
  read_all(*filled(10, 5), *queue_, 10, 5);
  const int64_t n_out = 4 * kLayers - store->stats().n_resident;
  ASSERT_GT(n_out, 0);
  ASSERT_LE(n_out, 2 * kLayers);
  const Store fork = std::move(*store->fork());
  EXPECT_FALSE(pins(*fork));
  fork->release(*queue_);
  EXPECT_FALSE(pins(*store));
  store->release(*queue_);
  evict(*store, 0, 32);  // what is out
  EXPECT_TRUE(pins(*store));
  EXPECT_EQ(n_seen(*store), 2 * kLayers);
  store->release(*queue_);
  EXPECT_FALSE(pins(*fork));
  fork->release(*queue_);
}

TEST_F(PinnedStore, LeavesAnEighthOfEachBudgetFree) {
  // 12 records and the staging buffer.
  for (const int64_t records : {14, 15}) {
    const bool fits = records == 15;  // 13/14 are more than seven eighths, 13/15 are less
    limit(records * record());
    EXPECT_EQ(pins(*filled(4)), fits);
    limit(0);
    EXPECT_EQ(pins(*filled(4, 0, records * record())), fits);
  }
}

TEST_F(PinnedStore, WhatIsWrittenThenIsWhatComesBack) {
  limit(40 * record());
  const Store store = filled(4);
  {  // all are written to the tier, and come back
    const Store other = filled(12, 5);
    store->rest();
    read_all(*other, *queue_, 12, 5);
  }
  for (int64_t chunk = 0; chunk < 4; ++chunk) expect_letters(*store, *queue_, chunk);
  store->release(*queue_);
  ASSERT_TRUE(store->reserve(63, 1).ok());  // the last chunk goes on
  ASSERT_TRUE(pins(*store));
  write(*store, *queue_, 3, 9);
  store->release(*queue_);
  store->rest();
  const Store other = filled(12, 5);
  read_all(*other, *queue_, 12, 5);
  EXPECT_LT(store->stats().n_resident, 4 * kLayers);
  expect_letters(*store, *queue_, 3, 9);
  expect_letters(*store, *queue_, 0);
}

TEST_F(PinnedStore, PinsWhatItSharesToo) {
  limit(40 * record());
  const Store store = filled(4);
  const Store fork = std::move(*store->fork());
  ASSERT_TRUE(pins(*fork));
  expect_all_seen(*fork, 4);
  store->rest();
  {
    const Store other = filled(12, 5);
    read_all(*other, *queue_, 12, 5);
    EXPECT_EQ(store->stats().n_resident, 4 * kLayers);
    expect_all_seen(*fork, 4);
  }
  fork->release(*queue_);
  fork->truncate(32);
  append(*fork, *queue_, 2, 7);
  fork->release(*queue_);
  ASSERT_TRUE(pins(*fork));
  expect_all_seen(*fork, 2);
  expect_letters(*fork, *queue_, 0);  // as before
  EXPECT_EQ(*host(fork->layer(1).chunks[2]), letter(1, 2, 7));
  fork->release(*queue_);
  ASSERT_TRUE(pins(*store));
  expect_all_seen(*store, 4);
  store->release(*queue_);
}

TEST_F(PinnedStore, HasPlacesForNewTokens) {
  limit(40 * record());
  const Store store = filled(4);
  ASSERT_TRUE(store->reserve(64, 32).ok());
  ASSERT_TRUE(pins(*store));
  EXPECT_EQ(n_seen(*store), 6 * kLayers);
  for (const int64_t chunk : {4, 5}) write(*store, *queue_, chunk, 0);
  expect_all_seen(*store, 6);
  store->release(*queue_);
  ASSERT_TRUE(store->reserve(96, 16 * 8).ok());
  EXPECT_FALSE(pins(*store));  // with 42 records there is not enough
  EXPECT_EQ(n_seen(*store), 0);
  EXPECT_LE(used(), 40 * record());
  store->release(*queue_);
  for (int64_t chunk = 0; chunk < 6; ++chunk) expect_letters(*store, *queue_, chunk);
}

// Who waits for room, and does not compute, goes on when the step is over.
TEST_F(PinnedStore, OthersWaitForTheEndOfTheStep) {
  limit(32 * record());
  const Store store = filled(8);  // 24 records
  ASSERT_TRUE(pins(*store));
  Store other = make({.residency = residency_});  // without a tier
  EXPECT_TRUE(other->reserve(0, 16).ok());
  std::atomic<bool> done{false};
  std::thread later([&] {
    EXPECT_TRUE(other->reserve(16, 5 * 16).ok());  // 15 records more
    done = true;
  });
  for (int i = 0; i < 100; ++i) {
    std::this_thread::yield();
    EXPECT_FALSE(done);
    EXPECT_EQ(store->stats().n_resident, 8 * kLayers);
  }
  store->release(*queue_);
  later.join();
  EXPECT_LT(store->stats().n_resident, 8 * kLayers);
  other.reset();
  EXPECT_FALSE(pins(*store));  // some are out
  store->release(*queue_);
  for (int64_t chunk = 0; chunk < 8; ++chunk) expect_letters(*store, *queue_, chunk);
}

}  // namespace
}  // namespace quire::test
