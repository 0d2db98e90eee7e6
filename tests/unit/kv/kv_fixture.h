// A backend whose memory can run out, and small records.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/kv/chunk_store.h"
#include "tests/unit/kv/evict.h"

namespace quire::test {

constexpr int kLayers = 3;
constexpr KvGeometry kGeometry{2, 32, 16, ElementType::kF16};
// A choice of chunks by vectors of their queries and keys.
constexpr ChunkSelection kByVectors{.chunk = 16, .count = 4};

// Memory that runs out after `left` blocks, and knows whether all of it counts.
struct Memory {
  std::atomic<int64_t> left = INT64_MAX;
  std::atomic<int64_t> blocks = 0;
  std::vector<std::shared_ptr<TierBudget>> budgets;  // set while nothing is allocated or released
  // What is in `bytes` counts in a budget before it is allocated, and until release() has returned: so while the mutex
  // is held, the budgets have all of it, whatever other threads add and remove.
  std::mutex mutex;
  int64_t bytes = 0;
  int64_t most_uncounted = 0;  // bytes that were there and counted in none of the budgets

  void look() {
    if (budgets.empty()) return;  // no store was made
    int64_t uncounted = bytes;
    for (const auto& budget : budgets) uncounted -= budget->used();
    most_uncounted = std::max(most_uncounted, uncounted);
  }

  static void* allocate(void* user, size_t size, size_t alignment) {
    auto& self = *static_cast<Memory*>(user);
    if (self.left <= 0) return nullptr;
    --self.left, ++self.blocks;
    const std::lock_guard lock(self.mutex);
    self.bytes += static_cast<int64_t>(size);
    self.look();
    return std::aligned_alloc(alignment, static_cast<size_t>(round_up(static_cast<int64_t>(size), 64)));
  }
  static void release(void* user, void* memory, size_t size, size_t) {
    auto& self = *static_cast<Memory*>(user);
    --self.blocks;
    {
      const std::lock_guard lock(self.mutex);
      self.look();
      self.bytes -= static_cast<int64_t>(size);
    }
    std::free(memory);
  }
};

class KvTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(memory_.most_uncounted, 0); }

  std::unique_ptr<ChunkStore> make(ChunkStoreOptions options) {
    if (!options.residency) options.residency = std::make_shared<Residency>();
    const auto& budget = options.residency->budget();
    if (std::ranges::find(memory_.budgets, budget) == memory_.budgets.end()) memory_.budgets.push_back(budget);
    auto store = ChunkStore::create(*backend_, kGeometry, kLayers, options);
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(*store);
  }
  Status acquire(ChunkStore& store, int layer, std::vector<int64_t> chunks, Access access,
                 KvKind kind = KvKind::kText) const {
    return store.acquire(*queue_, layer, chunks, access, kind);
  }
  static char* host(const KvRecord& record) { return reinterpret_cast<char*>(cpu::record_ptr(record)); }
  int64_t record() const { return static_cast<int64_t>(backend_->kv_record_bytes(kGeometry)); }

  Memory memory_;
  Allocator allocator_{Memory::allocate, Memory::release, &memory_};
  ThreadPool pool_{1};
  std::unique_ptr<Backend> backend_ = cpu::create_cpu_backend(allocator_, pool_);
  std::unique_ptr<Queue> queue_ = std::move(*backend_->create_queue());
};

}  // namespace quire::test
