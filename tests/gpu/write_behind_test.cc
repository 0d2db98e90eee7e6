// Write-behind: records are written to the host's memory before they have to leave a device.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/device_store.h"
#include "tests/unit/kv/evict.h"
#include "tests/unit/kv/held_tier.h"

namespace quire::test {
namespace {

class WriteBehind : public DeviceStore {
 protected:
  // Of 32 records, of which one is the staging buffer, an eighth should be free or can leave at once: 4.
  static constexpr int64_t kBudget = 31;

  // The store has n_chunks chunks, which were computed a step ago, while the device works on their letters still.
  void compute(ChunkStore& store, int64_t first, int64_t n_chunks) {
    for (int64_t chunk = first; chunk < n_chunks; ++chunk) append(store, chunk);
    store.release(*queue_);
    store.computed(n_chunks * 16, 0);
  }
  // With 10 chunks, which need all but one of the places; three records are to be written: those of the first chunk.
  std::unique_ptr<ChunkStore> nearly_full(IoThreads* io, int64_t host_records = 0) {
    auto store = make(kBudget, io, host_records);
    compute(*store, 0, 10);
    return store;
  }
  // Waits until the I/O thread has done a part of each work that it had.
  void pass_io_thread() {
    struct Marker : IoWork {
      std::promise<void> passed;
      bool run_one() override {
        passed.set_value();
        return false;
      }
    };
    auto marker = std::make_unique<Marker>();
    ASSERT_TRUE(io_.add(*marker));
    marker->passed.get_future().wait();
    markers_.push_back(std::move(marker));  // run_one() is about to return
  }
  // All that was sent for is written.
  void wait_for_written(const ChunkStore& store, int64_t n) {
    while (n_written(store) < n) std::this_thread::yield();
    expect_ok(finish_queue(*backend_, *queue_));
  }
  static int64_t n_written(const ChunkStore& store) { return store.tier_stats()[0].n_written_behind; }
  static int64_t stall_ns(const ChunkStore& store) { return store.tier_stats()[0].stall_ns; }
  void expect_all(ChunkStore& store, int64_t n_chunks) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t chunk = 0; chunk < n_chunks; ++chunk) expect_letters(store, layer, {chunk});
    }
    store.release(*queue_);
  }
  // Calls what() on another thread, which is to wait for a copy that stands at `pause`.
  template <typename Do>
  static void expect_waits(Pause& pause, const Do& what) {
    std::atomic<bool> done = false;
    std::thread thread([&] {
      what();
      done = true;
    });
    for (int ms = 0; ms < 50 && !done; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(done);
    pause.release();
    thread.join();
  }

 private:
  std::vector<std::unique_ptr<IoWork>> markers_;
};

TEST_F(WriteBehind, WhatLeavesNextIsWrittenBeforeItHasTo) {
  const auto store = make(kBudget, &io_);
  EXPECT_EQ(cost_of([&] {
              compute(*store, 0, 9);
              pass_io_thread();
            }),
            (Cost{0, 27, 0}));  // letters alone: there is room
  EXPECT_EQ(cost_of([&] {
              compute(*store, 9, 10);
              wait_for_written(*store, 3);
            }),
            (Cost{0, 3, 3}));
  TierStats host = store->tier_stats()[1];
  EXPECT_EQ(host.n_records, 3);
  EXPECT_EQ(host.bytes_written, 3 * record());
  EXPECT_EQ(store->stats().n_resident, 30);
  EXPECT_EQ(cost_of([&] {
              store->computed(160, 0);
              pass_io_thread();
            }),
            (Cost{0, 0, 0}));  // they are written
  const int64_t stall = stall_ns(*store);
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 0}));
  EXPECT_EQ(stall_ns(*store), stall);
  EXPECT_EQ(store->stats().n_left, 2);
  EXPECT_EQ(store->resident(2).front(), 0);
  EXPECT_EQ(store->resident(1).front(), 1);
  expect_all(*store, 11);
}

// What was not said to be complete is written when it leaves, and who needs its memory waits.
TEST_F(WriteBehind, WhatMayChangeIsNotWritten) {
  const auto store = make(kBudget, &io_);
  for (int64_t chunk = 0; chunk < 10; ++chunk) append(*store, chunk);
  store->release(*queue_);
  EXPECT_EQ(cost_of([&] {
              store->computed(15, 0);
              pass_io_thread();
            }),
            (Cost{0, 0, 0}));
  expect_ok(finish_queue(*backend_, *queue_));
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 2}));
  EXPECT_EQ(n_written(*store), 0);
  EXPECT_GT(stall_ns(*store), 0);
  expect_all(*store, 11);
}

TEST_F(WriteBehind, WithoutAnIoThreadNothingIsWritten) {
  EXPECT_EQ(cost_of([&] { nearly_full(nullptr); }), (Cost{0, 30, 0}));
}

TEST_F(WriteBehind, ARecordIsReadWhileItIsWritten) {
  auto store = make(kBudget, &io_);
  Pause before, behind;
  for (Pause* const pause : {&before, &behind}) {
    tier_->pause(pause == &before ? pause : nullptr, pause == &behind ? pause : nullptr);
    compute(*store, 0, 10);
    pause->wait_for_arrival();
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(cost_of([&] { expect_letters(*store, layer, {0}); }), (Cost{0, 0, 1}));  // this test's own download
    }
    EXPECT_EQ(n_written(*store), 0);
    pause->release();
    wait_for_written(*store, 3);
    tier_->pause(nullptr, nullptr);
    store = make(kBudget, &io_);
  }
}

// What is being written does not leave: others do, or it is waited for.
TEST_F(WriteBehind, WhatIsBeingWrittenStays) {
  const auto store = make(kBudget, &io_);
  Pause pause;
  tier_->pause(&pause, nullptr);
  compute(*store, 0, 10);
  pause.wait_for_arrival();
  tier_->pause(nullptr, nullptr);
  expect_ok(finish_queue(*backend_, *queue_));
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 2}));
  EXPECT_EQ(store->resident(0).front(), 0);
  EXPECT_EQ(store->resident(1).front(), 0);
  store->release(*queue_);
  pause.release();
  wait_for_written(*store, 3);
  expect_all(*store, 11);
}

TEST_F(WriteBehind, AChangeWaitsAndMakesTheSlotOld) {
  for (const bool copied : {false, true}) {
    SCOPED_TRACE(copied);
    const auto store = make(kBudget, &io_);
    Pause pause;
    tier_->pause(copied ? nullptr : &pause, copied ? &pause : nullptr);
    compute(*store, 0, 10);
    pause.wait_for_arrival();
    tier_->pause(nullptr, nullptr);
    store->truncate(8);
    expect_ok(store->reserve(8, 8));
    expect_waits(pause, [&] { write(*store, 0, 0, 1); });
    for (int layer = 1; layer < kLayers; ++layer) write(*store, layer, 0, 1);
    // It is written again before it leaves.
    compute(*store, 1, 10);
    wait_for_written(*store, 6);
    EXPECT_EQ(cost_of([&] { compute(*store, 10, 11); }).n_uploads, 3);
    EXPECT_EQ(store->resident(0).front(), 1);
    EXPECT_EQ(store->resident(1).front(), 1);
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, {0}, 1);
  }
}

TEST_F(WriteBehind, WhatIsDroppedIsWaitedFor) {
  enum class How { kTruncate, kEvict, kClose };
  for (const How how : {How::kTruncate, How::kEvict, How::kClose}) {
    auto store = make(kBudget, &io_);
    Pause pause;
    tier_->pause(&pause, nullptr);
    compute(*store, 0, 10);
    pause.wait_for_arrival();
    tier_->pause(nullptr, nullptr);
    expect_waits(pause, [&] {
      if (how == How::kTruncate) store->truncate(0);
      if (how == How::kEvict) evict(*store, 0, 16);
      if (how == How::kClose) store.reset();
    });
    TierStats host;
    tier_->HostTier::describe(host);
    EXPECT_EQ(host.n_records, 0);  // its slots are free
    EXPECT_EQ(store ? store->stats().n_records : 0, how == How::kEvict ? 27 : 0);
  }
}

// The store that has begun to write goes, and a fork has the records.
TEST_F(WriteBehind, AForkGoesOnWithWhatIsBeingWritten) {
  auto store = make(kBudget, &io_);
  Pause pause;
  tier_->pause(nullptr, &pause);
  compute(*store, 0, 10);
  pause.wait_for_arrival();
  tier_->pause(nullptr, nullptr);
  const auto fork = take(store->fork());
  expect_waits(pause, [&] { store.reset(); });
  TierStats host;
  tier_->HostTier::describe(host);
  EXPECT_EQ(host.n_records, 3);
  EXPECT_EQ(fork->stats().n_resident, 30);
  expect_all(*fork, 10);
  // Of the three that leave next now one is written: that of the first chunk.
  EXPECT_EQ(cost_of([&] {
              fork->computed(160, 0);
              wait_for_written(*fork, 2);
            }),
            (Cost{0, 0, 2}));
  EXPECT_EQ(cost_of([&] { append(*fork, 10); }), (Cost{0, 3, 0}));
  expect_all(*fork, 11);
}

TEST_F(WriteBehind, WhatFailsIsWrittenWhenItLeaves) {
  const auto store = make(kBudget, &io_);
  tier_->fail_writes(1);
  compute(*store, 0, 10);
  wait_for_written(*store, 2);
  EXPECT_EQ(store->stats().n_resident, 30);
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 1}));
  EXPECT_EQ(store->stats().n_left, 2);
  expect_all(*store, 11);
}

TEST_F(WriteBehind, AFailingQueueCostsNothingElse) {
  const auto store = make(kBudget, &io_);
  compute(*store, 0, 9);
  append(*store, 9);
  store->release(*queue_);
  expect_ok(finish_queue(*backend_, *queue_));
  emulation::set_device_faults({.download = 1});
  const int64_t n_refused = emulation::device_use().n_refused;
  EXPECT_EQ(cost_of([&] {
              store->computed(160, 0);
              while (emulation::device_use().n_refused == n_refused) std::this_thread::yield();
            }),
            (Cost{0, 0, 1}));
  emulation::set_device_faults({});
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 2}));
  expect_all(*store, 11);
  EXPECT_EQ(n_written(*store), 0);
}

// As much as the host has room for, and no more is refused than without it.
TEST_F(WriteBehind, AFullHostIsNoFailure) {
  const auto store = nearly_full(&io_, 2);
  wait_for_written(*store, 2);
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 0}));
  store->release(*queue_);
  EXPECT_EQ(n_written(*store), 2);
  expect_ok(store->reserve(11 * 16, 16));
  EXPECT_EQ(store->acquire(*queue_, 0, Chunks{11}, Access::kWrite).code(), Code::kBudget);
  store->truncate(11 * 16);
  for (int64_t chunk = 1; chunk < 11; ++chunk) expect_letters(*store, 0, {chunk});
}

// Nothing in the host's memory gives way for what need not leave the device yet, though it was sent for when there was
// room: but for the one that had begun.
TEST_F(WriteBehind, AFullHostGivesNothingOn) {
  auto file = std::make_unique<HeldTier>(record());
  const HeldTier& behind = *file;
  const auto store = make(kBudget, &io_, 2, std::make_shared<Residency>(), std::move(file));
  Pause pause;
  tier_->pause(&pause, nullptr);
  compute(*store, 0, 10);
  pause.wait_for_arrival();
  tier_->pause(nullptr, nullptr);
  expect_ok(finish_queue(*backend_, *queue_));
  EXPECT_EQ(cost_of([&] { append(*store, 10); }), (Cost{0, 3, 2}));  // they take the host's room
  EXPECT_EQ(behind.n_writes(), 0);
  pause.release();
  pass_io_thread();
  EXPECT_EQ(n_written(*store), 1);
  EXPECT_EQ(behind.n_writes(), 1);
  expect_all(*store, 11);
}

// Where the runtime's budget is what does not suffice, those leave first whose sessions rest.
TEST_F(WriteBehind, WhatRestsIsWrittenForOthers) {
  const auto residency = std::make_shared<Residency>(32 * record());
  const auto resting = make(0, &io_, 0, residency);
  compute(*resting, 0, 5);
  resting->rest();
  const auto store = make(0, &io_, 0, residency);
  compute(*store, 0, 4);
  expect_ok(finish_queue(*backend_, *queue_));
  EXPECT_EQ(residency->budget()->shortage(), record());
  wait_for_written(*resting, 1);
  compute(*store, 4, 5);
  wait_for_written(*resting, 4);
  EXPECT_EQ(n_written(*store), 0);
  EXPECT_EQ(cost_of([&] { append(*store, 5); }), (Cost{0, 3, 0}));
  EXPECT_EQ(resting->stats().n_left, 3);
  expect_all(*store, 6);
  expect_all(*resting, 5);
}

// A scan's own records leave at once, but for what the scan reads next: those behind them in the list are written.
TEST_F(WriteBehind, WhatCameForAScanDoesNotCount) {
  const auto store = nearly_full(&io_);
  wait_for_written(*store, 3);
  compute(*store, 10, 11);  // two of the first chunk's records leave; then the second one's are to be written
  wait_for_written(*store, 6);
  EXPECT_EQ(cost_of([&] { expect_ok(store->acquire(*queue_, 0, Chunks{0}, Access::kScan)); }), (Cost{1, 0, 0}));
  store->release(*queue_);
  EXPECT_EQ(cost_of([&] {
              store->computed(176, 0);
              pass_io_thread();
            }),
            (Cost{0, 0, 1}));
  EXPECT_EQ(n_written(*store), 7);
  expect_all(*store, 11);
}

// A store that writes another one's records goes when what has begun is done.
TEST_F(WriteBehind, WhoWritesForOthersMayClose) {
  const auto residency = std::make_shared<Residency>(32 * record());
  const auto resting = make(0, &io_, 0, residency);
  compute(*resting, 0, 5);
  resting->rest();
  Pause pause;
  tier_->pause(&pause, nullptr);
  auto store = make(0, &io_, 0, residency);
  compute(*store, 0, 5);
  pause.wait_for_arrival();
  expect_waits(pause, [&] { store.reset(); });
  EXPECT_EQ(n_written(*resting), 1);  // what had not begun was taken back
  expect_all(*resting, 5);
}

// Whatever comes in whatever order: the bytes are those that were written.
TEST_F(WriteBehind, AnyOrderOfCallsGivesTheBytesThatWereWritten) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    uint32_t state = seed;
    const auto random = [&](int64_t n) {
      state = state * 1664525 + 1013904223;
      return static_cast<int64_t>(state >> 8) % n;
    };
    const auto store = make(16 + random(16), &io_, random(2) * 80);
    std::vector<int> versions;  // by chunk
    for (int call = 0; call < 300 && !HasFailure(); ++call) {
      const auto n = static_cast<int64_t>(versions.size());
      const int64_t what = random(8);
      if (n == 0 || (what < 3 && n < 24)) {
        versions.push_back(static_cast<int>(random(2)));
        append(*store, n, versions.back());
        store->release(*queue_);
        store->computed((n + 1) * 16, 0);
      } else if (what == 3) {
        versions.resize(static_cast<size_t>(random(n)) + 1);
        const auto last = static_cast<int64_t>(versions.size()) - 1;
        store->truncate(last * 16 + 8);  // and the last chunk gets other letters
        expect_ok(store->reserve(last * 16 + 8, 8));
        versions.back() = 1 - versions.back();
        for (int layer = 0; layer < kLayers; ++layer) write(*store, layer, last, versions.back());
        store->release(*queue_);
        store->computed((last + 1) * 16, 0);
      } else if (what == 4) {
        tier_->fail_writes(static_cast<int>(random(3)));
        store->computed(n * 16, 0);
        expect_ok(finish_queue(*backend_, *queue_));
        (void)store->acquire(*queue_, 0, Chunks{random(n)}, Access::kRead);
        tier_->fail_writes(0);
      } else {
        const int64_t chunk = random(n);
        expect_letters(*store, static_cast<int>(random(kLayers)), {chunk}, versions[static_cast<size_t>(chunk)]);
      }
    }
    for (size_t c = 0; c < versions.size(); ++c) {
      for (int layer = 0; layer < kLayers; ++layer) {
        expect_letters(*store, layer, {static_cast<int64_t>(c)}, versions[c]);
      }
    }
    EXPECT_GT(n_written(*store), 0);
  }
}

}  // namespace
}  // namespace quire::test
