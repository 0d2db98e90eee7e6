// A chunk store of a device with memory of its own: what its transfers cost in launches, copies and waits.

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/gpu/device_store.h"

namespace quire::test {
namespace {

TEST_F(DeviceStore, TheRecordsOfARequestComeByOneLaunch) {
  for (IoThreads* const io : {&io_, static_cast<IoThreads*>(nullptr)}) {
    const auto store = filled(8, 12, io);
    EXPECT_EQ(cost_of([&] { acquire(*store, 0, {0, 1, 2, 3, 4}); }), (Cost{1, 0, 0}));
    for (int64_t chunk = 0; chunk < 5; ++chunk) expect_letters_there(*store, 0, chunk);
    EXPECT_EQ(cost_of([&] { acquire(*store, 0, {1, 3}); }), (Cost{0, 0, 0}));
    EXPECT_EQ(cost_of([&] { acquire(*store, 0, {1, 3, 5}); }), (Cost{1, 0, 0}));
    expect_letters_there(*store, 0, 5);
    const TierStats host = store->tier_stats()[1];
    EXPECT_EQ(host.name, "held host");
    EXPECT_EQ(host.bytes_read, host.n_hits * record());
  }
}

// More of them than one launch takes: 128, which have less than 16 MiB.
TEST_F(DeviceStore, ALongRequestComesByAFewLaunches) {
  const auto store = filled(160, 200, &io_);
  Chunks all(140);
  ASSERT_FALSE(std::ranges::any_of(store->resident(0), [](int64_t chunk) { return chunk < 140; }));
  for (size_t c = 0; c < all.size(); ++c) all[c] = static_cast<int64_t>(c);
  EXPECT_EQ(cost_of([&] { acquire(*store, 0, all); }), (Cost{2, 0, 0}));
  for (const int64_t chunk : all) expect_letters_there(*store, 0, chunk);
}

TEST_F(DeviceStore, APrefetchIsOneLaunch) {
  const auto store = filled(12, 12, &io_);
  acquire(*store, 2, {11});
  EXPECT_EQ(cost_of([&] {
              store->prefetch(0, Chunks{0, 1, 2, 3, 4});
              while (store->tier_stats()[0].n_prefetched < 5) std::this_thread::yield();
            }),
            (Cost{1, 0, 0}));
  EXPECT_EQ(cost_of([&] { acquire(*store, 0, {0, 1, 2, 3, 4}); }), (Cost{0, 0, 0}));
  for (int64_t chunk = 0; chunk < 5; ++chunk) expect_letters_there(*store, 0, chunk);
}

// What has changed is written before its memory is another record's: one copy for each, and one launch.
TEST_F(DeviceStore, WhatHasChangedLeavesFirst) {
  const auto store = filled(4, 12, &io_);
  for (const int64_t chunk : {6, 7, 8, 9}) write(*store, 1, chunk, 1);
  EXPECT_EQ(cost_of([&] { acquire(*store, 0, {0, 1, 2, 3}); }), (Cost{1, 0, 4}));
  for (const int64_t chunk : {0, 1, 2, 3}) expect_letters_there(*store, 0, chunk);
  expect_letters(*store, 1, {6, 7, 8, 9}, 1);
}

// A tier that refuses one record does not keep the others.
TEST_F(DeviceStore, WhatFailsAloneIsTheFailureOfOneTransfer) {
  const auto store = filled(4, 12, &io_);
  for (const int64_t chunk : {6, 7, 8, 9}) write(*store, 1, chunk, 1);
  tier_->fail_writes(1);
  Status failed;
  EXPECT_EQ(cost_of([&] { failed = store->acquire(*queue_, 0, Chunks{0, 1, 2, 3}, Access::kRead); }), (Cost{1, 0, 3}));
  EXPECT_EQ(failed.code(), Code::kIo);
  EXPECT_EQ(store->resident(0), Chunks({1, 2, 3}));
  EXPECT_EQ(store->resident(1), Chunks({6}));
  for (const int64_t chunk : {0, 1, 2, 3}) expect_letters(*store, 0, {chunk});
  expect_letters(*store, 1, {6, 7, 8, 9}, 1);
}

// A launch that fails is the failure of all that were to come by it, and no record is lost: another store can read
// them, for the queue of this one is good for nothing.
TEST_F(DeviceStore, AFailingLaunchLosesNoRecord) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const auto store = filled(6, 12, &io_);
    for (const int64_t chunk : {6, 7, 8}) write(*store, 1, chunk, 1);
    store->release(*queue_);
    expect_ok(finish_queue(*backend_, *queue_));
    emulation::DeviceFaults faults;
    (late ? faults.kernel : faults.launch) = 1;
    emulation::set_device_faults(faults);
    const Status failed = store->acquire(*queue_, 0, Chunks{0, 1, 2, 3, 4}, Access::kRead);
    EXPECT_EQ(failed.code(), Code::kDevice) << failed.message();
    emulation::set_device_faults({});
    EXPECT_EQ(store->resident(0), Chunks());
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t chunk = 0; chunk < 12; ++chunk) {
        expect_letters(*store, layer, {chunk}, layer == 1 && chunk >= 6 && chunk <= 8 ? 1 : 0);
      }
    }
  }
}

// The host's memory cannot be had: what would have left stays, and the request fails.
TEST_F(DeviceStore, WhatTheHostHasNoRoomForStays) {
  const auto store = make(6, &io_, 3);
  append(*store, 0);
  append(*store, 1);
  expect_ok(store->reserve(32, 16));
  for (int layer = 0; layer < kLayers; ++layer) write(*store, layer, 2);
  store->release(*queue_);
  EXPECT_EQ(store->stats().n_resident, 6);
  const Status refused = store->acquire(*queue_, 0, Chunks{0, 1, 2}, Access::kRead);
  EXPECT_EQ(refused.code(), Code::kBudget);
  for (const int64_t chunk : {1, 2}) {
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, {chunk});
  }
}

// Two are to leave, and the host has room for one of them: in place of the other one leaves what the host has already.
TEST_F(DeviceStore, WhereTheHostHasRoomForOneOthersLeave) {
  for (IoThreads* const io : {&io_, static_cast<IoThreads*>(nullptr)}) {
    const auto store = make(6, io, 5);
    for (int64_t chunk = 0; chunk < 9; ++chunk) {
      expect_ok(store->reserve(chunk * 16, 16));
      write(*store, 0, chunk);
    }
    acquire(*store, 0, {0});
    store->release(*queue_);
    pass_steps(*store);
    EXPECT_EQ(store->resident(0), Chunks({0, 4, 5, 6, 7, 8}));
    acquire(*store, 0, {1, 2});
    for (const int64_t chunk : {1, 2}) expect_letters_there(*store, 0, chunk);
    EXPECT_EQ(store->resident(0), Chunks({1, 2, 5, 6, 7, 8}));
    for (int64_t chunk = 0; chunk < 9; ++chunk) expect_letters(*store, 0, {chunk});
  }
}

// A session that offloads is always short of room. Its steps ask the device ten times a second at most.
TEST_F(DeviceStore, StepsSeldomAskWhatIsFree) {
  const auto store = make(0, nullptr, 0, std::make_shared<Residency>(9 * record()));
  for (int64_t chunk = 0; chunk < 12; ++chunk) append(*store, chunk);
  store->release(*queue_);
  const auto begin = std::chrono::steady_clock::now();
  const int64_t before = emulation::device_use().n_asked_free;
  for (int step = 0; step < 100; ++step) pass_steps(*store);
  const int64_t n_asked = emulation::device_use().n_asked_free - before;
  EXPECT_LE(n_asked, 1 + (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(100));
}

// Before a request is refused for what the device has left, that is asked again.
TEST_F(DeviceStore, WhatTheDeviceHasGotBackIsThereAtOnce) {
  const int64_t left = backend_->device_bytes_for_work() + 6 * record();
  emulation::set_device_faults({.memory_bytes = emulation::device_use().bytes + left});
  const auto store = make(0, nullptr);
  EXPECT_EQ(store->reserve(0, 12 * 16).code(), Code::kBudget);
  emulation::set_device_faults({});
  expect_ok(store->reserve(0, 12 * 16));
}

// Work that is queued on records, here copies to the host, and not done until somebody waits for it.
class QueuedReads : public DeviceStore {
 protected:
  void queue_reads(ChunkStore& store, Queue& queue, int layer, const Chunks& chunks) {
    emulation::set_late_answers(1 << 20);
    expect_ok(store.acquire(queue, layer, chunks, Access::kRead));
    for (const int64_t chunk : chunks) {
      reads_.push_back({layer, chunk, std::vector<char>(static_cast<size_t>(record()))});
      const KvRecord from = at(store, layer, chunk);
      std::vector<char>& to = reads_.back().bytes;
      expect_ok(backend_->download(queue, *from.page, from.offset, to.data(), to.size()));
    }
  }
  void expect_read(Queue& queue) {
    expect_ok(finish_queue(*backend_, queue));
    for (const Read& read : reads_) {
      EXPECT_TRUE(std::ranges::all_of(read.bytes, [&](char c) { return c == letter(read.layer, read.chunk, 0); }))
          << "layer " << read.layer << ", chunk " << read.chunk;
    }
    reads_.clear();
  }
  // Until so many records' memory less is held.
  void wait_for_less(int64_t before, int64_t n_records) const {
    while (emulation::device_use().bytes > before - n_records * record()) std::this_thread::yield();
  }

 private:
  struct Read {
    int layer;
    int64_t chunk;
    std::vector<char> bytes;
  };
  std::vector<Read> reads_;
};

// A prefetch takes the memory of records that a step is still to read, and fails before its own copy.
TEST_F(QueuedReads, AFailingPrefetchFreesNoMemoryThatIsStillRead) {
  for (const FailingReads how : {FailingReads::kFail, FailingReads::kThrow}) {
    SCOPED_TRACE(static_cast<int>(how));
    const auto store = filled(8, 12, &io_);
    queue_reads(*store, *queue_, 0, {0, 1, 2, 3, 4, 5, 6, 7});
    store->release(*queue_);
    pass_steps(*store);
    const int64_t before = emulation::device_use().bytes;
    tier_->fail_reads(how);
    store->prefetch(1, Chunks{0, 1, 2, 3});
    wait_for_less(before, 4);
    tier_->fail_reads(FailingReads::kNone);
    expect_read(*queue_);
    emulation::set_late_answers(0);
    for (int64_t chunk = 0; chunk < 12; ++chunk) expect_letters(*store, 1, {chunk});
  }
}

// A store closes before the transfers begin that took the memory of another store's records.
TEST_F(QueuedReads, AClosedStoreFreesNoMemoryThatIsStillRead) {
  const auto residency = std::make_shared<Residency>(23 * record());
  auto closing = make(0, &io_, 0, residency);
  append(*closing, 0);
  for (int layer = 0; layer < kLayers; ++layer) expect_letters(*closing, layer, {0});
  closing->release(*queue_);
  closing->rest();
  const auto store = make(0, &io_, 0, residency);
  for (int64_t chunk = 0; chunk < 14; ++chunk) append(*store, chunk);
  for (int64_t chunk = 0; chunk < 14; ++chunk) {
    pass_steps(*store);
    for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, {chunk});
  }
  for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, {0, 1, 2, 3, 4, 5, 6});
  store->release(*queue_);
  pass_steps(*store);
  ASSERT_EQ(closing->stats().n_resident, 0);
  const auto queue = take(backend_->create_queue());
  for (int layer = 0; layer < kLayers; ++layer) queue_reads(*store, *queue, layer, store->resident(layer));
  store->release(*queue);
  struct Busy : IoWork {
    std::promise<void> begun, end;
    bool run_one() override {
      begun.set_value();
      end.get_future().wait();
      return false;
    }
  } busy;
  ASSERT_TRUE(io_.add(busy));
  busy.begun.get_future().wait();
  const int64_t n_resident = store->stats().n_resident, before = emulation::device_use().bytes;
  for (int layer = 0; layer < kLayers; ++layer) closing->prefetch(layer, Chunks{0});
  const int64_t n_taken = n_resident - store->stats().n_resident;
  EXPECT_EQ(n_taken, kLayers);
  std::thread closer([&] { closing.reset(); });
  wait_for_less(before, n_taken);
  busy.end.set_value();
  closer.join();
  expect_read(*queue);
}

}  // namespace
}  // namespace quire::test
