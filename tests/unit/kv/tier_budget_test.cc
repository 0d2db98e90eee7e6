// What the stores of a runtime may hold together, beside each one's own budget.

#include "lib/kv/tier_budget.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/kv/kv_fixture.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

TEST(TierBudget, CountsUpToItsLimitFromAnyThread) {
  TierBudget budget(1000);
  std::atomic<int> granted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) granted += budget.add(7) ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(granted, 142);
  EXPECT_EQ(budget.used(), 994);
  EXPECT_EQ(budget.room(), 6);
  EXPECT_FALSE(budget.add(7));
  EXPECT_TRUE(budget.add(6));
  budget.remove(1000);
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(TierBudget(0).room(), kNoLimit);
}

// An eighth of a budget should be free: what is missing to it, of the one that lacks most.
TEST(TierBudget, SaysWhatIsMissingToTheSpareBytes) {
  const auto runtime = std::make_shared<TierBudget>(8000);
  const auto session = std::make_shared<TierBudget>(1600, runtime);
  TierAccount account("of memory", 800, session), unlimited("of memory", 0, session);
  ASSERT_TRUE(account.add(700).ok());
  EXPECT_EQ(account.own_shortage(), 0);
  ASSERT_TRUE(account.add(1).ok());
  EXPECT_EQ(account.own_shortage(), 1);
  ASSERT_TRUE(account.add(99).ok());
  EXPECT_EQ(account.own_shortage(), 100);
  EXPECT_EQ(session->shortage(), 0);
  ASSERT_TRUE(unlimited.add(650).ok());
  EXPECT_EQ(unlimited.own_shortage(), 0);
  EXPECT_EQ(session->shortage(), 50);
  EXPECT_EQ(runtime->shortage(), 0);
  ASSERT_TRUE(runtime->add(6000));
  EXPECT_EQ(runtime->shortage(), 450);
  EXPECT_EQ(session->shortage(), 450);  // the runtime's is the greater one
  runtime->set_ceiling(7450);
  EXPECT_EQ(runtime->shortage(), 7450 / 8);
  runtime->set_ceiling(kNoLimit);
  runtime->remove(6000);
  EXPECT_EQ(TierBudget(0).shortage(), 0);
}

// What a device has left is a limit beside the budget's: the smaller one counts, and what is held stays.
TEST(TierBudget, ACeilingBoundsWhatIsAdded) {
  TierBudget unlimited(0), limited(1000);
  for (TierBudget* budget : {&unlimited, &limited}) {
    ASSERT_TRUE(budget->add(600));
    budget->set_ceiling(700);
    EXPECT_EQ(budget->room(), 100);
    EXPECT_FALSE(budget->add(101));
    EXPECT_TRUE(budget->add(100));
    EXPECT_THAT(budget->describe(), HasSubstr("the device has room for 700, and the runtime's sessions hold 700"));
    budget->set_ceiling(500);
    EXPECT_EQ(budget->used(), 700);
    EXPECT_FALSE(budget->add(1));
    budget->remove(300);
    EXPECT_EQ(budget->room(), 100);
    budget->set_ceiling(kNoLimit);
  }
  EXPECT_EQ(unlimited.room(), kNoLimit);
  EXPECT_EQ(limited.room(), 600);
  limited.set_ceiling(2000);
  EXPECT_FALSE(limited.add(601));
  EXPECT_THAT(limited.describe(), HasSubstr("budget is 1000"));
}

class SharedBudget : public KvTest {};

TEST_F(SharedBudget, ARefusalNamesWhoseBudgetItIs) {
  const auto runtime = std::make_shared<Residency>(5 * kLayers * record());
  const auto first = make({.residency = runtime});
  const auto second = make({.budget_bytes = 3 * kLayers * record(), .residency = runtime});
  ASSERT_TRUE(first->reserve(0, 48).ok());
  const Status own = second->reserve(0, 64);
  EXPECT_EQ(own.code(), Code::kBudget);
  EXPECT_THAT(own.message(), HasSubstr("needs " + std::to_string(4 * kLayers * record())));
  EXPECT_THAT(own.message(), HasSubstr("the session's budget is " + std::to_string(3 * kLayers * record())));
  const Status shared = second->reserve(0, 48);
  EXPECT_EQ(shared.code(), Code::kBudget);
  EXPECT_THAT(shared.message(), HasSubstr("needs " + std::to_string(3 * kLayers * record())));
  EXPECT_THAT(shared.message(), HasSubstr("the runtime's budget is " + std::to_string(5 * kLayers * record())));
  EXPECT_THAT(shared.message(), HasSubstr("hold " + std::to_string(3 * kLayers * record())));
  ASSERT_TRUE(second->reserve(0, 32).ok());
  EXPECT_EQ(runtime->budget()->used(), 5 * kLayers * record());
  EXPECT_EQ(first->reserve(48, 1).code(), Code::kBudget);
  second->truncate(16);
  EXPECT_TRUE(first->reserve(48, 1).ok());
}

TEST_F(SharedBudget, AStoreThatGoesGivesItsShareBack) {
  const auto runtime = std::make_shared<Residency>(100 * record());
  {
    const auto store = make({.n_query_heads = 2, .selection = kByVectors, .residency = runtime});
    ASSERT_TRUE(store->reserve(0, 40).ok());
    EXPECT_EQ(runtime->budget()->used(), store->stats().bytes);
    EXPECT_EQ(runtime->budget()->used(), allocator_.bytes());
  }
  EXPECT_EQ(runtime->budget()->used(), 0);
}

TEST_F(SharedBudget, AFailingAllocatorLeavesItAsItWas) {
  const auto runtime = std::make_shared<Residency>(100 * record());
  const auto store = make({.n_query_heads = 2, .selection = kByVectors, .residency = runtime});
  for (int64_t blocks = 0; blocks < 4; ++blocks) {
    memory_.left = blocks;
    EXPECT_EQ(store->reserve(0, 40).code(), Code::kOutOfMemory);
    EXPECT_EQ(runtime->budget()->used(), store->stats().bytes);
    EXPECT_EQ(runtime->budget()->used(), allocator_.bytes());
  }
}

// With a file below, what exceeds the runtime's budget goes there; an error is only what one step needs at once.
TEST_F(SharedBudget, WithAFileRecordsGoThereFirst) {
  const SpillDirectory directory;
  const auto memory = std::make_shared<Residency>(8 * record());
  const auto file = std::make_shared<TierBudget>(3000 * record());
  const ChunkStoreOptions options{.spill_directory = directory.path(), .residency = memory, .runtime_file = file};
  const auto first = make(options), second = make(options);
  const auto append = [&](ChunkStore& store, int64_t chunk) {
    QUIRE_TRY(store.reserve(chunk * 16, 16));
    for (int layer = 0; layer < kLayers; ++layer) QUIRE_TRY(acquire(store, layer, {chunk}, Access::kWrite));
    return Status();
  };
  for (int64_t chunk = 0; chunk < 4; ++chunk) ASSERT_TRUE(append(*first, chunk).ok());
  EXPECT_LE(memory->budget()->used(), 8 * record());
  EXPECT_EQ(first->stats().n_records, 4 * kLayers);
  first->release(*queue_);  // its step is over
  for (int64_t chunk = 0; chunk < 4; ++chunk) ASSERT_TRUE(append(*second, chunk).ok());
  EXPECT_LE(file->used(), file->limit());
  EXPECT_LE(memory->budget()->used(), memory->budget()->limit());
}

}  // namespace
}  // namespace quire::test
