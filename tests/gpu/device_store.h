// A chunk store of a device with memory of its own, over the emulated device, which works as late as it may; and what
// its transfers cost in launches and copies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/kv/chunk_store.h"
#include "lib/kv/host_tier.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/unit/backend/backend_fixture.h"
#include "tests/unit/pause.h"

namespace quire::test {

using Chunks = std::vector<int64_t>;

inline constexpr int kLayers = 3;
inline constexpr KvGeometry kGeometry{2, 32, 16, ElementType::kF16};

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// What the device was asked to do for records.
struct Cost {
  int64_t n_gathers = 0, n_uploads = 0, n_downloads = 0;
  bool operator==(const Cost&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << cost.n_gathers << " gathers, " << cost.n_uploads << " uploads, " << cost.n_downloads << " downloads";
}

// How reads of a tier fail: kThrow, as one whose place in the host's memory cannot be looked up.
enum class FailingReads { kNone, kFail, kThrow };

// The host's memory, where reads and writes fail, or writes wait, when a test wants it.
class HeldHostTier : public HostTier {
 public:
  using HostTier::HostTier;
  std::string name() const override { return "held host"; }
  void describe(TierStats& stats) const override {
    HostTier::describe(stats);
    stats.name = name();
  }
  Result<void*> begin_write(int64_t slot) override {
    if (Pause* const pause = before_) pause->here();
    if (n_failing_ > 0 && n_failing_-- > 0) return Status(Code::kIo, "a write that is to fail");
    return HostTier::begin_write(slot);
  }
  void end_write(int64_t slot, bool written) override {
    if (Pause* const pause = behind_) pause->here();
    HostTier::end_write(slot, written);
  }
  StagedRecord begin_read(int64_t slot) override {
    if (failing_reads_ == FailingReads::kThrow) throw std::bad_alloc();
    return failing_reads_ == FailingReads::kFail ? StagedRecord{} : HostTier::begin_read(slot);
  }
  Status read(int64_t slot, void* record) override {
    return failing_reads_ == FailingReads::kNone ? HostTier::read(slot, record) : Status(Code::kIo, "a failing read");
  }
  void fail_writes(int n) { n_failing_ = n; }
  void fail_reads(FailingReads how) { failing_reads_ = how; }
  // Writes stop before the copy from now on, or behind it; null: they do not.
  void pause(Pause* before, Pause* behind) { before_ = before, behind_ = behind; }

 private:
  std::atomic<int> n_failing_ = 0;
  std::atomic<FailingReads> failing_reads_ = FailingReads::kNone;
  std::atomic<Pause*> before_ = nullptr, behind_ = nullptr;
};

class DeviceStore : public testing::Test {
 protected:
  DeviceStore() { emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 1}); }
  ~DeviceStore() override {
    emulation::set_device_faults({});
    emulation::set_late_answers(0);
  }

  // Device memory for so many records and the staging buffer; 0: no limit.
  std::unique_ptr<ChunkStore> make(int64_t budget_records, IoThreads* io, int64_t host_records = 0,
                                   std::shared_ptr<Residency> residency = std::make_shared<Residency>(),
                                   std::unique_ptr<Tier> behind_host = nullptr) {
    tier_ = std::make_shared<HeldHostTier>(*backend_, HostTier::Options{record(), host_records * record(), nullptr},
                                           std::move(behind_host));
    auto store = ChunkStore::create(*backend_, kGeometry, kLayers,
                                    {.budget_bytes = budget_records > 0 ? (budget_records + 1) * record() : 0,
                                     .tiers = {tier_},
                                     .residency = std::move(residency),
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
  std::shared_ptr<HeldHostTier> tier_;  // of the store made last
  IoThreads io_{1};
};

}  // namespace quire::test
