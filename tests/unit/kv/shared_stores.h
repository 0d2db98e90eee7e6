// Several stores in one memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/unit/kv/held_tier.h"
#include "tests/unit/kv/kv_fixture.h"

namespace quire::test {

using Store = std::unique_ptr<ChunkStore>;

inline std::vector<int64_t> from_to(int64_t first, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t n = first; n < end; ++n) all.push_back(n);
  return all;
}

// Stores of one residency and one tier, whose records are full of letters.
class SharedStores : public KvTest {
 protected:
  void limit(int64_t bytes) { residency_ = std::make_shared<Residency>(bytes); }
  Store store(int64_t budget_bytes = 0) {
    return make({.budget_bytes = budget_bytes, .tiers = {tier_}, .residency = residency_});
  }
  static char letter(int layer, int64_t chunk, char version) {
    return static_cast<char>(version + 3 * layer + 11 * (chunk % 8));
  }
  static void write(ChunkStore& store, Queue& queue, int64_t chunk, char version) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const Status status = store.acquire(queue, layer, {&chunk, 1}, Access::kWrite);
      ASSERT_TRUE(status.ok()) << status.message();
      const KvRecord record = store.layer(layer).chunks[static_cast<size_t>(chunk)];
      std::memset(host(record), letter(layer, chunk, version), static_cast<size_t>(store.record_bytes()));
    }
  }
  static void append(ChunkStore& store, Queue& queue, int64_t chunk, char version = 0) {
    const Status status = store.reserve(chunk * 16, 16);
    ASSERT_TRUE(status.ok()) << status.message();
    write(store, queue, chunk, version);
  }
  static void expect_letters(ChunkStore& store, Queue& queue, int64_t chunk, char version = 0) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const Status status = store.acquire(queue, layer, {&chunk, 1}, Access::kRead);
      ASSERT_TRUE(status.ok()) << status.message();
      const char* bytes = host(store.layer(layer).chunks[static_cast<size_t>(chunk)]);
      EXPECT_TRUE(
          std::all_of(bytes, bytes + store.record_bytes(), [&](char c) { return c == letter(layer, chunk, version); }))
          << "layer " << layer << ", chunk " << chunk;
    }
  }
  // A store with n chunks, whose step is over.
  Store filled(int64_t n, char version = 0, int64_t budget_bytes = 0) {
    Store made = store(budget_bytes);
    for (int64_t chunk = 0; chunk < n; ++chunk) append(*made, *queue_, chunk, version);
    made->release(*queue_);
    return made;
  }
  int64_t used() const { return residency_->budget()->used(); }

  std::shared_ptr<HeldTier> tier_ = std::make_shared<HeldTier>(record());
  std::shared_ptr<Residency> residency_ = std::make_shared<Residency>();
};

}  // namespace quire::test
