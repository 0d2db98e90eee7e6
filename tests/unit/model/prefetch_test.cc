// Attention asks for records before it needs them, and the bits are those of a cache in memory.

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/model/forward_pass.h"
#include "lib/model/model_loader.h"
#include "lib/model/strategy_context.h"
#include "tests/source_path.h"
#include "tests/unit/kv/held_tier.h"

namespace quire::test {
namespace {

constexpr int64_t kTokens = 160, kBlock = 16;

class Prefetching : public testing::TestWithParam<const char*> {
 protected:
  Prefetching() {
    auto loaded = ModelLoader(*backend_, source_path("tests/golden/models/short_128"), {}).load();
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(*loaded);
    auto strategy = make_strategy(GetParam(), strategy_context(model_->config(), {}));
    EXPECT_TRUE(strategy.ok()) << strategy.status().message();
    strategy_ = std::move(*strategy);
    ropes_ = *model_->create_ropes(*strategy_);
    geometry_ = model_->kv_geometry(*strategy_, ElementType::kF16);
  }
  std::unique_ptr<ChunkStore> store(ChunkStoreOptions options) {
    options.stored_div = strategy_->stored_div();
    options.n_query_heads = model_->config().n_query_heads;
    options.selection = strategy_->selection();
    auto made = ChunkStore::create(*backend_, geometry_, model_->config().n_layers, options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(*made);
  }
  // The last logits after each block and then each of a few single tokens. before_last: is called before the last one.
  std::vector<float> logits(ChunkStore& kv, const std::function<void()>& before_last = {}) {
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < kTokens; ++t) tokens.push_back(3 + t * 7 % (model_->config().vocab_size - 3));
    const auto vocab = static_cast<size_t>(model_->config().vocab_size);
    std::vector<float> all;
    ForwardPass pass(*model_);
    for (int64_t first = 0, n = 0; first < kTokens; first += n) {
      n = first < kTokens - kBlock ? kBlock : 1;
      Sequence sequence;
      sequence.tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(n));
      sequence.first_position = first;
      sequence.strategy = strategy_.get();
      sequence.ropes = &ropes_;
      sequence.kv = &kv;
      if (before_last && first + n == kTokens) before_last();
      const Status room = kv.reserve(first, n);
      EXPECT_TRUE(room.ok()) << room.message();
      auto states = pass.forward({&sequence, 1}, nullptr);
      EXPECT_TRUE(states.ok()) << states.status().message();
      all.resize(all.size() + vocab);
      EXPECT_TRUE(pass.logits(*states, n - 1, 1, nullptr, &all[all.size() - vocab]).ok());
    }
    return all;
  }

  Allocator allocator_;
  ThreadPool pool_{2};
  std::unique_ptr<Backend> backend_ = cpu::create_cpu_backend(allocator_, pool_);
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<const Strategy> strategy_;
  Ropes ropes_;
  KvGeometry geometry_;
  IoThreads io_{1};
};

TEST_P(Prefetching, ChangesNoBit) {
  const auto whole = store({});
  const std::vector<float> expected = logits(*whole);
  const ChunkStoreStats all = whole->stats();
  for (const int64_t records : {4, 7, 12}) {
    SCOPED_TRACE(records);
    for (IoThreads* io : {&io_, static_cast<IoThreads*>(nullptr)}) {
      const auto tier = std::make_shared<HeldTier>(whole->record_bytes());
      ChunkStoreOptions options;
      options.budget_bytes =
          (records + 1) * whole->record_bytes() + (all.bytes - all.n_resident * whole->record_bytes());
      options.tiers = {tier};
      options.io = io;
      const auto kv = store(options);
      const std::vector<float> got = logits(*kv);
      ASSERT_EQ(got.size(), expected.size());
      EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)));
      const TierStats stats = kv->tier_stats()[0];
      EXPECT_LE(stats.bytes_peak, options.budget_bytes);
      EXPECT_GT(stats.n_misses, 0);
      // What a query may choose is only likely: it takes no place of what was just used, where there are no windows.
      const bool likely = strategy_->selection().count > 0 && records == 12;
      EXPECT_EQ(stats.n_prefetched > 0, io != nullptr && !likely);
    }
  }
}

// A tier that takes all that is left of a budget when it is first read from.
class TakingTier : public HeldTier {
 public:
  TakingTier(int64_t record_bytes, std::shared_ptr<TierBudget> budget)
      : HeldTier(record_bytes), budget_(std::move(budget)) {}
  Status read(int64_t slot, void* record) override {
    if (takes) taken += budget_->add(budget_->room()) ? 1 : 0;
    takes = false;
    return HeldTier::read(slot, record);
  }
  bool takes = false;
  int taken = 0;

 private:
  const std::shared_ptr<TierBudget> budget_;
};

// All records fit into memory when a layer's are asked for, and no longer when the first of them arrives.
TEST_P(Prefetching, GoesOnWithLessMemoryThanThereSeemedToBe) {
  const auto whole = store({});
  const std::vector<float> expected = logits(*whole);
  const ChunkStoreStats all = whole->stats();
  const int64_t least = 4 * whole->record_bytes() + (all.bytes - all.n_resident * whole->record_bytes());
  const auto residency = std::make_shared<Residency>(2 * all.bytes);
  TierBudget& budget = *residency->budget();
  const auto tier = std::make_shared<TakingTier>(whole->record_bytes(), residency->budget());
  ChunkStoreOptions options;
  options.residency = residency;
  options.tiers = {tier};
  const auto kv = store(options);
  const int64_t others = budget.limit() - least;
  ASSERT_TRUE(budget.add(others));
  const std::vector<float> got = logits(*kv, [&] {
    budget.remove(others);
    tier->takes = true;
  });
  EXPECT_EQ(tier->taken, 1);
  EXPECT_EQ(0, std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)));
}

INSTANTIATE_TEST_SUITE_P(Strategies, Prefetching,
                         testing::Values("full(kv_chunk=16)", "dca(kv_chunk=16)", "rerope(window=40, kv_chunk=16)",
                                         "longheads(chunk=16, chunks=4)"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('('));
                         });

}  // namespace
}  // namespace quire::test
