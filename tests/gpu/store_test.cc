// A chunk store of a device with memory of its own: what its transfers cost in launches, copies and waits. The device
// is the emulated one, which works as late as it may.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/kv/chunk_store.h"
#include "lib/kv/host_tier.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {
namespace {

using Chunks = std::vector<int64_t>;

constexpr int kLayers = 3;
constexpr KvGeometry kGeometry{2, 32, 16, ElementType::kF16};

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// What the device was asked to do for records.
struct Cost {
  int64_t n_gathers = 0, n_uploads = 0, n_downloads = 0;
  bool operator==(const Cost&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << cost.n_gathers << " gathers, " << cost.n_uploads << " uploads, " << cost.n_downloads << " downloads";
}

// The host's memory, where a write fails when a test wants it.
class FailingHostTier : public HostTier {
 public:
  using HostTier::HostTier;
  std::string name() const override { return "held"; }
  void describe(TierStats& stats) const override {
    HostTier::describe(stats);
    stats.name = name();
  }
  Result<void*> begin_write(int64_t slot) override {
    if (n_failing_ > 0 && n_failing_-- > 0) return Status(Code::kIo, "a write that is to fail");
    return HostTier::begin_write(slot);
  }
  void fail_writes(int n) { n_failing_ = n; }

 private:
  std::atomic<int> n_failing_ = 0;
};

class DeviceStore : public testing::Test {
 protected:
  DeviceStore() { emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 1}); }
  ~DeviceStore() override { emulation::set_device_faults({}); }

  // Device memory for so many records and the staging buffer.
  std::unique_ptr<ChunkStore> make(int64_t budget_records, IoThreads* io, int64_t host_records = 0) {
    tier_ = std::make_shared<FailingHostTier>(*backend_, HostTier::Options{record(), host_records * record(), nullptr},
                                              nullptr);
    auto store = ChunkStore::create(*backend_, kGeometry, kLayers,
                                    {.budget_bytes = (budget_records + 1) * record(),
                                     .tiers = {tier_},
                                     .residency = std::make_shared<Residency>(),
                                     .io = io});
    return take(std::move(store));
  }
  // With n_chunks chunks in all layers, each full of its letters. All have left once, and the last ones are in memory.
  std::unique_ptr<ChunkStore> filled(int64_t budget_records, int64_t n_chunks, IoThreads* io) {
    auto store = make(budget_records, io);
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) append(*store, chunk);
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
      pass_steps(*store);
      for (int layer = 0; layer < kLayers; ++layer) expect_letters(*store, layer, {chunk});
    }
    store->release(*queue_);
    pass_steps(*store);
    return store;
  }
  // Steps that use nothing, so that what was used longest ago leaves.
  static void pass_steps(ChunkStore& store) {
    for (int step = 0; step < 2; ++step) expect_ok(store.reserve(0, 1));
  }
  int64_t record() const { return static_cast<int64_t>(backend_->kv_record_bytes(kGeometry)); }
  static char letter(int layer, int64_t chunk, int version) {
    return static_cast<char>(1 + layer * 40 + chunk % 40 + 120 * version);
  }
  static KvRecord at(const ChunkStore& store, int layer, int64_t chunk) {
    return store.layer(layer).chunks[static_cast<size_t>(chunk)];
  }
  // The letters are queued: they are there when somebody waits for them.
  void append(ChunkStore& store, int64_t chunk, int version = 0) {
    expect_ok(store.reserve(chunk * 16, 16));
    for (int layer = 0; layer < kLayers; ++layer) write(store, layer, chunk, version);
  }
  void write(ChunkStore& store, int layer, int64_t chunk, int version = 0) {
    expect_ok(store.acquire(*queue_, layer, Chunks{chunk}, Access::kWrite));
    const std::vector<char> letters(static_cast<size_t>(record()), letter(layer, chunk, version));
    const KvRecord to = at(store, layer, chunk);
    expect_ok(backend_->upload(*queue_, letters.data(), *to.page, to.offset, letters.size()));
  }
  void expect_letters(ChunkStore& store, int layer, const Chunks& chunks, int version = 0) {
    expect_ok(store.acquire(*queue_, layer, chunks, Access::kRead));
    for (const int64_t chunk : chunks) expect_letters_there(store, layer, chunk, version);
  }
  void expect_letters_there(const ChunkStore& store, int layer, int64_t chunk, int version = 0) {
    SCOPED_TRACE("layer " + std::to_string(layer) + ", chunk " + std::to_string(chunk));
    const KvRecord from = at(store, layer, chunk);
    ASSERT_TRUE(from);
    std::vector<char> bytes(static_cast<size_t>(record()));
    expect_ok(backend_->download(*queue_, *from.page, from.offset, bytes.data(), bytes.size()));
    expect_ok(finish_queue(*backend_, *queue_));
    EXPECT_TRUE(std::ranges::all_of(bytes, [&](char c) { return c == letter(layer, chunk, version); }));
  }
  template <typename Do>
  static Cost cost_of(const Do& what) {
    const auto before = emulation::device_use();
    what();
    const auto now = emulation::device_use();
    return {now.n_gathers - before.n_gathers, now.n_uploads - before.n_uploads, now.n_downloads - before.n_downloads};
  }
  void acquire(ChunkStore& store, int layer, const Chunks& chunks) {
    expect_ok(store.acquire(*queue_, layer, chunks, Access::kRead));
  }

  Allocator allocator_;
  std::unique_ptr<Backend> backend_ = take(cuda::create_cuda_backend(allocator_, emulation::device_api(), 0));
  std::unique_ptr<Queue> queue_ = take(backend_->create_queue());
  std::shared_ptr<FailingHostTier> tier_;  // of the store made last
  IoThreads io_{1};
};

TEST_F(DeviceStore, TheRecordsOfARequestComeByOneLaunch) {
  for (IoThreads* const io : {&io_, static_cast<IoThreads*>(nullptr)}) {
    const auto store = filled(8, 12, io);
    EXPECT_EQ(cost_of([&] { acquire(*store, 0, {0, 1, 2, 3, 4}); }), (Cost{1, 0, 0}));
    for (int64_t chunk = 0; chunk < 5; ++chunk) expect_letters_there(*store, 0, chunk);
    EXPECT_EQ(cost_of([&] { acquire(*store, 0, {1, 3}); }), (Cost{0, 0, 0}));
    EXPECT_EQ(cost_of([&] { acquire(*store, 0, {1, 3, 5}); }), (Cost{1, 0, 0}));
    expect_letters_there(*store, 0, 5);
    const TierStats host = store->tier_stats()[1];
    EXPECT_EQ(host.name, "held");
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
    auto store = filled(6, 12, &io_);
    for (const int64_t chunk : {6, 7, 8}) write(*store, 1, chunk, 1);
    store->release(*queue_);
    expect_ok(finish_queue(*backend_, *queue_));
    emulation::DeviceFaults faults;
    (late ? faults.kernel : faults.launch) = 1;
    emulation::set_device_faults(faults);
    const Status failed = store->acquire(*queue_, 0, Chunks{0, 1, 2, 3, 4}, Access::kRead);
    EXPECT_EQ(failed.code(), Code::kInternal) << failed.message();
    emulation::set_device_faults({});
    EXPECT_EQ(store->resident(0), Chunks());
    store->release(*queue_);
    const auto fork = take(store->fork());
    store.reset();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int64_t chunk = 0; chunk < 12; ++chunk) {
        expect_letters(*fork, layer, {chunk}, layer == 1 && chunk >= 6 && chunk <= 8 ? 1 : 0);
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

}  // namespace
}  // namespace quire::test
