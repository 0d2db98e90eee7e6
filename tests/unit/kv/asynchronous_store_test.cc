// A chunk store whose records come and go on an I/O thread: what goes on meanwhile, who waits, and what a failure
// costs.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/unit/kv/held_tier.h"
#include "tests/unit/kv/kv_fixture.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

using Chunks = std::vector<int64_t>;

class AsynchronousStore : public KvTest {
 protected:
  // Memory for so many records and the staging buffer.
  std::unique_ptr<ChunkStore> store(int64_t budget_records) {
    return make({.budget_bytes = (budget_records + 1) * record(), .tiers = {tier_}, .io = &io_});
  }
  // With n_chunks chunks in all layers, each full of its letters.
  std::unique_ptr<ChunkStore> filled(int64_t budget_records, int64_t n_chunks) {
    auto made = store(budget_records);
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) append(*made, chunk);
    // What the tests look at is in the tier, and nothing that they need is written later.
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
      pass_steps(*made);
      for (int layer = 0; layer < kLayers; ++layer) expect_letters(*made, layer, chunk);
    }
    pass_steps(*made);
    return made;
  }
  // Steps that use nothing, so that what was used longest ago leaves.
  static void pass_steps(ChunkStore& store) {
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(store.reserve(0, 1).ok());
  }
  static char letter(int layer, int64_t chunk, int version) {
    return static_cast<char>(1 + layer * 40 + chunk % 40 + 120 * version);
  }
  void append(ChunkStore& store, int64_t chunk, int version = 0) const {
    ASSERT_TRUE(store.reserve(chunk * 16, 16).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(acquire(store, layer, {chunk}, Access::kWrite).ok());
      std::memset(host(at(store, layer, chunk)), letter(layer, chunk, version), static_cast<size_t>(record()));
    }
  }
  static KvRecord at(const ChunkStore& store, int layer, int64_t chunk) {
    return store.layer(layer).chunks[static_cast<size_t>(chunk)];
  }
  void expect_letters_there(const ChunkStore& store, int layer, int64_t chunk, int version = 0) const {
    ASSERT_TRUE(at(store, layer, chunk)) << "layer " << layer << ", chunk " << chunk;
    const char* bytes = host(at(store, layer, chunk));
    EXPECT_TRUE(std::all_of(bytes, bytes + record(), [&](char c) { return c == letter(layer, chunk, version); }))
        << "layer " << layer << ", chunk " << chunk;
  }
  void expect_letters(ChunkStore& store, int layer, int64_t chunk, int version = 0) const {
    const Status status = acquire(store, layer, {chunk}, Access::kRead);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_letters_there(store, layer, chunk, version);
  }
  static Chunks resident(const ChunkStore& store, int layer) { return store.resident(layer); }
  static void wait_for_residents(const ChunkStore& store, int64_t n) {
    while (store.stats().n_resident != n) std::this_thread::yield();
  }

  std::shared_ptr<HeldTier> tier_ = std::make_shared<HeldTier>(record());
  IoThreads io_{1};
};

TEST_F(AsynchronousStore, ComputingGoesOnWhileARecordIsRead) {
  const auto store = filled(4, 6);
  Pause pause;
  tier_->pause_reads(&pause);
  ASSERT_EQ(resident(*store, 1), Chunks{5});
  store->prefetch(0, Chunks{0});
  pause.wait_for_arrival();
  EXPECT_EQ(resident(*store, 0), Chunks{5});  // not before all of it is there
  expect_letters(*store, 1, 5);               // while the read stands still
  EXPECT_EQ(store->stats().bytes_peak, 5 * record());
  pause.release();
  tier_->pause_reads(nullptr);
  const int reads = tier_->n_reads();
  expect_letters(*store, 0, 0);
  EXPECT_LE(tier_->n_reads(), reads + 1);  // it is not read twice
}

TEST_F(AsynchronousStore, AnAcquireWaitsForWhatIsOnItsWay) {
  const auto store = filled(4, 6);
  const TierStats before = store->tier_stats()[0];
  Pause pause;
  tier_->pause_reads(&pause);
  store->prefetch(0, Chunks{1});
  pause.wait_for_arrival();
  const int reads = tier_->n_reads();
  std::thread later([&] { pause.release(); });
  expect_letters(*store, 0, 1);
  later.join();
  EXPECT_EQ(tier_->n_reads(), reads + 1);
  const TierStats after = store->tier_stats()[0];
  // A hit only if the read was released and done before the acquire looked.
  EXPECT_EQ(after.n_hits + after.n_misses, before.n_hits + before.n_misses + 1);
  if (after.n_misses > before.n_misses) {
    EXPECT_GT(after.stall_ns, before.stall_ns);
  }
}

TEST_F(AsynchronousStore, WhatWasPrefetchedIsAHit) {
  const auto store = filled(4, 6);
  store->prefetch(0, Chunks{1, 2});
  while (resident(*store, 0) != Chunks({1, 2})) std::this_thread::yield();
  const TierStats before = store->tier_stats()[0];
  const int reads = tier_->n_reads();
  ASSERT_TRUE(acquire(*store, 0, {1, 2}, Access::kRead).ok());
  expect_letters_there(*store, 0, 1);
  expect_letters_there(*store, 0, 2);
  EXPECT_EQ(store->tier_stats()[0].n_hits, before.n_hits + 2);
  EXPECT_EQ(tier_->n_reads(), reads);
}

// No other thread is woken for what the caller waits for anyway.
TEST_F(AsynchronousStore, WhatIsAcquiredIsReadByWhoWaits) {
  const auto store = filled(4, 6);
  expect_letters(*store, 0, 0);
  EXPECT_EQ(tier_->reader(), std::this_thread::get_id());
  store->prefetch(0, Chunks{1});
  while (resident(*store, 0) != Chunks({0, 1})) std::this_thread::yield();
  EXPECT_NE(tier_->reader(), std::this_thread::get_id());
}

TEST_F(AsynchronousStore, WhatIsOnlyLikelyTakesNoPlaceOfWhatIsAsLikely) {
  const auto store = filled(4, 6);
  const auto step = [&](int layer, const Chunks& chunks) {
    ASSERT_TRUE(store->reserve(95, 1).ok());
    ASSERT_TRUE(acquire(*store, layer, chunks, Access::kRead).ok());
  };
  step(2, {0, 1, 2, 3});
  step(0, {0});
  EXPECT_EQ(resident(*store, 2), Chunks({1, 2, 3}));
  const int reads = tier_->n_reads();
  store->prefetch(1, Chunks{0, 1}, Access::kLikely);
  EXPECT_EQ(store->stats().n_resident, 4);
  EXPECT_EQ(resident(*store, 2), Chunks({1, 2, 3}));
  EXPECT_EQ(tier_->n_reads(), reads);
  step(0, {0});  // nobody has used the others since the step before it began
  store->prefetch(1, Chunks{0, 1}, Access::kLikely);
  while (resident(*store, 1) != Chunks({0, 1})) std::this_thread::yield();
  EXPECT_EQ(resident(*store, 2), Chunks({3}));
}

// Of what the last step used, a layer that is over needs nothing in this step.
TEST_F(AsynchronousStore, WhatIsLikelyTakesThePlaceOfWhatALayerBeforeDidNotWantAgain) {
  const auto store = filled(4, 6);
  for (const Chunks& chunks : {Chunks{0, 1, 2, 3}, Chunks{0}}) {
    ASSERT_TRUE(store->reserve(95, 1).ok());
    ASSERT_TRUE(acquire(*store, 0, chunks, Access::kRead).ok());
  }
  store->prefetch(1, Chunks{0, 1}, Access::kLikely);
  while (resident(*store, 1) != Chunks({0, 1})) std::this_thread::yield();
  EXPECT_EQ(resident(*store, 0), Chunks({0, 3}));
}

TEST_F(AsynchronousStore, ATierKnowsWhatWillBeRead) {
  const auto store = filled(24, 20);
  Pause first, second;
  tier_->pause_reads(&first);
  store->prefetch(0, Chunks{0});
  first.wait_for_arrival();
  ASSERT_TRUE(tier_->announced().empty());
  store->prefetch(0, Chunks{1, 2, 3, 4, 5, 6, 7, 8, 9});
  tier_->pause_reads(&second);
  const int reads = tier_->n_reads();
  first.release();
  second.wait_for_arrival();  // the one read that began meanwhile
  EXPECT_EQ(tier_->n_reads(), reads + 1);
  const auto announced = tier_->announced();
  EXPECT_EQ(announced.size(), 8u);
  second.release();
  tier_->pause_reads(nullptr);
  for (int64_t chunk = 0; chunk < 10; ++chunk) expect_letters(*store, 0, chunk);
  EXPECT_EQ(tier_->announced(), announced);  // each once
}

TEST_F(AsynchronousStore, AFailingPrefetchIsNoFailure) {
  const auto store = filled(4, 6);
  tier_->fail_reads(1);
  store->prefetch(0, Chunks{2});
  expect_letters(*store, 0, 2);  // read again
  tier_->fail_reads(2);          // the prefetch, and the acquire after it
  store->prefetch(0, Chunks{3});
  const Status failed = acquire(*store, 0, {3}, Access::kRead);
  EXPECT_EQ(failed.code(), Code::kIo);
  EXPECT_EQ(failed.message(), "held read");
  for (int64_t chunk = 0; chunk < 6; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, chunk);
  }
}

// As when the runtime closes: who still moves records does it on its own thread.
TEST_F(AsynchronousStore, StoppedIoThreadsLoseNothing) {
  const auto store = filled(4, 6);
  io_.stop();
  for (int64_t chunk = 0; chunk < 6; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, chunk);
  }
}

TEST_F(AsynchronousStore, ARecordWhoseWriteFailsStaysAndIsWrittenLater) {
  const auto store = filled(4, 6);
  for (const int64_t chunk : {0, 1, 2, 3}) {  // they fill the memory, and none is written
    ASSERT_TRUE(acquire(*store, 1, {chunk}, Access::kWrite).ok());
    std::memset(host(at(*store, 1, chunk)), letter(1, chunk, 1), static_cast<size_t>(record()));
  }
  tier_->fail_writes(1);
  store->prefetch(2, Chunks{0});  // its failure is no failure
  expect_letters(*store, 2, 0);
  pass_steps(*store);
  tier_->fail_writes(1);
  const Status failed = acquire(*store, 0, {0}, Access::kRead);
  EXPECT_EQ(failed.code(), Code::kIo);
  EXPECT_EQ(failed.message(), "held write");
  for (const int64_t chunk : {0, 1, 2, 3}) expect_letters(*store, 1, chunk, 1);
  expect_letters(*store, 0, 0);
  for (const int64_t chunk : {0, 1, 2, 3}) expect_letters(*store, 1, chunk, 1);
}

// A prefetch takes half of the memory at most, and never the place of what the last acquire asked for.
TEST_F(AsynchronousStore, APrefetchLeavesWhatIsNeeded) {
  const auto store = filled(4, 6);
  ASSERT_TRUE(acquire(*store, 0, {0, 1, 2}, Access::kRead).ok());
  store->prefetch(1, Chunks{0, 1, 2, 3});
  wait_for_residents(*store, 4);
  EXPECT_EQ(resident(*store, 0), (Chunks{0, 1, 2}));
  for (const int64_t chunk : {0, 1, 2}) expect_letters_there(*store, 0, chunk);
  ASSERT_TRUE(acquire(*store, 0, {0}, Access::kRead).ok());
  Pause pause;
  tier_->pause_reads(&pause);
  const int reads = tier_->n_reads();
  store->prefetch(2, Chunks{0, 1, 2, 3});
  pause.wait_for_arrival();
  // Two of the four places are on their way; the only others that may leave are not pinned and not on their way.
  EXPECT_EQ(store->stats().n_resident, 2);
  EXPECT_TRUE(at(*store, 0, 0));
  std::thread later([&] { pause.release(); });
  ASSERT_TRUE(acquire(*store, 0, {0, 1, 2, 3}, Access::kRead).ok());  // takes all places in the end, theirs too
  later.join();
  for (const int64_t chunk : {0, 1, 2, 3}) expect_letters_there(*store, 0, chunk);
  EXPECT_GE(tier_->n_reads(), reads + 2);
}

TEST_F(AsynchronousStore, ClosingWaitsForTheReadThatRunsAlone) {
  auto store = filled(4, 6);
  Pause pause;
  tier_->pause_reads(&pause);
  const int reads = tier_->n_reads();
  store->prefetch(0, Chunks{0, 1});
  pause.wait_for_arrival();
  std::thread later([&] { pause.release(); });
  store.reset();
  later.join();
  EXPECT_LE(tier_->n_reads(), reads + 2);
  EXPECT_GE(tier_->n_reads(), reads + 1);
  EXPECT_EQ(memory_.blocks, 0);
}

TEST_F(AsynchronousStore, WhatIsOnItsWayCanBeForgotten) {
  const auto store = filled(4, 6);
  for (const bool evicts : {false, true}) {
    Pause pause;
    tier_->pause_reads(&pause);
    store->prefetch(0, evicts ? Chunks{1} : Chunks{4});
    pause.wait_for_arrival();
    std::thread later([&] { pause.release(); });
    if (evicts) {
      evict(*store, 16, 32);
    } else {
      store->truncate(64);
    }
    later.join();
    tier_->pause_reads(nullptr);
    if (!evicts) {
      for (const int64_t chunk : {4, 5}) append(*store, chunk, 1);
    }
    for (const int64_t chunk : {0, 2, 3}) expect_letters(*store, 0, chunk);
    for (const int64_t chunk : {4, 5}) expect_letters(*store, 0, chunk, 1);
    EXPECT_EQ(store->holds(16, 32), !evicts);
  }
}

TEST_F(AsynchronousStore, WithoutAnIoThreadAPrefetchDoesNothing) {
  const auto store = make({.budget_bytes = 5 * record(), .tiers = {tier_}});
  for (int64_t chunk = 0; chunk < 6; ++chunk) append(*store, chunk);
  const int reads = tier_->n_reads();
  store->prefetch(0, Chunks{0, 1});
  EXPECT_EQ(tier_->n_reads(), reads);
  EXPECT_EQ(resident(*store, 0), Chunks{5});
  EXPECT_EQ(store->window(6), 4);  // nothing can arrive beside a smaller one
}

TEST_F(AsynchronousStore, WindowsLeaveHalfOfTheMemoryToWhatArrives) {
  const auto store = filled(4, 6);
  EXPECT_EQ(store->window(4), 4);
  EXPECT_EQ(store->window(5), 2);
}

TEST_F(AsynchronousStore, RecordsThatANearTierCannotHoldGoToTheFile) {
  const SpillDirectory directory;
  const auto near = std::make_shared<HeldTier>(record(), 2 * kLayers);
  const auto store =
      make({.budget_bytes = 3 * record(), .spill_directory = directory.path(), .tiers = {near}, .io = &io_});
  for (int64_t chunk = 0; chunk < 5; ++chunk) append(*store, chunk);
  for (int64_t chunk = 0; chunk < 5; ++chunk) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, chunk);
  }
  const std::vector<TierStats> tiers = store->tier_stats();
  ASSERT_EQ(tiers.size(), 3u);
  EXPECT_EQ(tiers[0].name, "device");
  EXPECT_EQ(tiers[1].name, "held");
  EXPECT_EQ(tiers[2].name, "file");
  EXPECT_EQ(tiers[0].bytes_peak, 3 * record());
  EXPECT_EQ(tiers[1].n_records, 2 * kLayers);
  EXPECT_EQ(tiers[2].n_records, 3 * kLayers);
  EXPECT_EQ(tiers[1].bytes_read, near->n_reads() * record());
  EXPECT_EQ(tiers[1].bytes_written, near->n_writes() * record());
  EXPECT_GT(tiers[2].bytes_read, 0);
  store->truncate(16);
  EXPECT_EQ(store->tier_stats()[1].n_records, kLayers);
  EXPECT_EQ(store->tier_stats()[2].n_records, 0);
}

// Whatever is asked for in whatever order, and fails: the bytes are those that were written.
TEST_F(AsynchronousStore, AnyOrderOfRequestsGivesTheBytesThatWereWritten) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    uint32_t state = seed;
    const auto random = [&](int64_t n) {
      state = state * 1664525 + 1013904223;
      return static_cast<int64_t>(state >> 8) % n;
    };
    const auto store = this->store(2 + random(5));
    std::vector<int> versions;  // by chunk
    for (int step = 0; step < 400; ++step) {
      const auto n = static_cast<int64_t>(versions.size());
      const int64_t what = random(10);
      const int layer = static_cast<int>(random(kLayers));
      if (n == 0 || what == 0) {
        versions.push_back(static_cast<int>(random(2)));
        append(*store, n, versions.back());
      } else if (what == 1) {
        versions.resize(static_cast<size_t>(random(n) + 1));
        store->truncate(static_cast<int64_t>(versions.size()) * 16);
      } else if (what < 5) {
        Chunks chunks;
        for (int64_t c = random(n); c < n && chunks.size() < 4; c += 1 + random(2)) chunks.push_back(c);
        store->prefetch(layer, chunks);
      } else if (what == 5) {
        const int64_t chunk = random(n);
        tier_->fail_reads(static_cast<int>(random(2)));
        tier_->fail_writes(static_cast<int>(random(2)));
        if (acquire(*store, layer, {chunk}, Access::kRead).ok()) {
          expect_letters_there(*store, layer, chunk, versions[static_cast<size_t>(chunk)]);
        }
        tier_->fail_reads(0);
        tier_->fail_writes(0);
      } else {
        const int64_t chunk = random(n);
        expect_letters(*store, layer, chunk, versions[static_cast<size_t>(chunk)]);
      }
      if (HasFailure()) return;
      ASSERT_LE(store->stats().bytes_peak, 7 * record());
    }
    for (size_t c = 0; c < versions.size(); ++c) {
      for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, static_cast<int64_t>(c), versions[c]);
    }
  }
}

}  // namespace
}  // namespace quire::test
