// The host tier: what it holds, what it gives on, and what that costs.

#include "lib/kv/host_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "lib/kv/file_tier.h"
#include "tests/unit/kv/held_tier.h"
#include "tests/unit/kv/kv_fixture.h"
#include "tests/unit/kv/spill_directory.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRecord = 4096;
using Bytes = std::vector<unsigned char>;

Bytes record_of(uint32_t number) {
  std::mt19937 random(number);
  Bytes record(kRecord);
  for (unsigned char& byte : record) byte = static_cast<unsigned char>(random());
  return record;
}

std::vector<int64_t> take_slots(Tier& tier, int64_t n) {
  auto slots = tier.take_slots(n);
  EXPECT_TRUE(slots.ok()) << slots.status().message();
  return std::move(*slots);
}

// Over the CPU's memory, which is counted and can run out.
class HostTierTest : public KvTest {
 protected:
  ~HostTierTest() override { tier_.reset(); }

  // With a tier behind it that has `next_records` slots; -1: with none.
  void make(int64_t budget_records, int64_t next_records = -1, std::shared_ptr<TierBudget> runtime = nullptr) {
    tier_.reset();
    auto next = next_records < 0 ? nullptr : std::make_unique<HeldTier>(kRecord, next_records);
    next_ = next.get();
    tier_ = std::make_unique<HostTier>(*backend_, HostTier::Options{kRecord, budget_records * kRecord, runtime},
                                       std::move(next));
  }
  std::vector<int64_t> take(int64_t n) { return take_slots(*tier_, n); }
  Status write(int64_t slot, uint32_t number) { return tier_->write(slot, record_of(number).data()); }
  bool has(int64_t slot, uint32_t number) {
    Bytes record(kRecord);
    const Status status = tier_->read(slot, record.data());
    EXPECT_TRUE(status.ok()) << status.message();
    return record == record_of(number);
  }
  TierStats stats() const {
    TierStats stats;
    tier_->describe(stats);
    return stats;
  }
  TierStats next_stats() const {
    TierRows behind;
    tier_->describe_behind(behind);
    return behind.empty() ? TierStats() : behind[0];
  }

  std::unique_ptr<HostTier> tier_;
  HeldTier* next_ = nullptr;
};

TEST_F(HostTierTest, TakesMemoryForWhatIsWrittenAndGivesItBack) {
  make(0);
  const auto slots = take(600);
  const int64_t blocks = memory_.blocks;
  EXPECT_EQ(stats().bytes, 0);
  for (uint32_t i = 0; i < 600; ++i) ASSERT_TRUE(write(slots[i], i).ok());
  ASSERT_TRUE(write(slots[3], 1000).ok());
  for (uint32_t i = 600; i-- > 0;) ASSERT_TRUE(has(slots[i], i == 3 ? 1000 : i)) << i;
  const TierStats now = stats();
  EXPECT_EQ(now.name, "host");
  EXPECT_EQ(now.n_records, 600);
  EXPECT_EQ(now.n_hits, 600);
  EXPECT_EQ(now.bytes_read, 600 * kRecord);
  EXPECT_EQ(now.bytes_written, 601 * kRecord);
  EXPECT_GE(now.bytes, 600 * kRecord);
  EXPECT_EQ(now.limit, 0);
  EXPECT_EQ(next_stats().name, "");
  EXPECT_GT(memory_.blocks, blocks);
  for (const int64_t slot : slots) tier_->free_slot(slot);
  EXPECT_EQ(stats().bytes, 0);
  EXPECT_EQ(stats().n_records, 0);
  EXPECT_EQ(memory_.blocks, blocks);
  EXPECT_EQ(take(600).size(), 600u);
}

TEST_F(HostTierTest, AloneItRefusesWhatTheBudgetHasNoRoomFor) {
  make(3);
  const auto slots = take(5);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(write(slots[i], i).ok());
  EXPECT_TRUE(tier_->can_write(slots[0]));  // it has its place
  EXPECT_FALSE(tier_->can_write(slots[3]));
  const Status refused = write(slots[3], 3);
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_THAT(refused.message(), HasSubstr(std::to_string(4 * kRecord) + " bytes of host memory"));
  EXPECT_THAT(refused.message(), HasSubstr("the session's budget is " + std::to_string(3 * kRecord)));
  ASSERT_TRUE(write(slots[1], 11).ok());
  tier_->free_slot(slots[0]);
  EXPECT_TRUE(tier_->can_write(slots[3]));
  ASSERT_TRUE(write(slots[3], 3).ok());
  EXPECT_TRUE(has(slots[1], 11) && has(slots[2], 2) && has(slots[3], 3));
  EXPECT_EQ(stats().bytes_peak, 3 * kRecord);
}

TEST_F(HostTierTest, GivesTheLeastRecentlyUsedToTheNextTier) {
  make(3, 100);
  const auto slots = take(6);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(write(slots[i], i).ok());
  EXPECT_TRUE(has(slots[0], 0));
  EXPECT_EQ(next_->n_writes(), 0);
  for (uint32_t i = 3; i < 5; ++i) ASSERT_TRUE(write(slots[i], i).ok());  // 1 and 2 leave
  for (const uint32_t here : {0u, 3u, 4u}) EXPECT_TRUE(has(slots[here], here)) << here;
  EXPECT_EQ(next_->n_reads(), 0);
  for (const uint32_t there : {1u, 2u}) EXPECT_TRUE(has(slots[there], there)) << there;
  EXPECT_EQ(next_->n_reads(), 2);
  const TierStats now = stats(), behind = next_stats();
  EXPECT_EQ(now.n_records, 3);
  EXPECT_EQ(now.n_evicted, 2);
  EXPECT_EQ(now.n_hits, 4);
  EXPECT_EQ(now.n_misses, 2);
  EXPECT_EQ(now.bytes_peak, 3 * kRecord);
  EXPECT_EQ(behind.name, "held");
  EXPECT_EQ(behind.n_records, 2);
  EXPECT_EQ(behind.n_hits, 2);
  EXPECT_EQ(behind.bytes_written, 2 * kRecord);
  EXPECT_EQ(behind.bytes_read, 2 * kRecord);
  EXPECT_EQ(behind.bytes, 2 * kRecord);  // slots for what is there, and no others
  tier_->will_read(slots[1]);
  tier_->will_read(slots[0]);
  EXPECT_EQ(next_->announced().size(), 1u);
  // What is written again is here, and its old bytes are nowhere.
  ASSERT_TRUE(write(slots[1], 21).ok());
  EXPECT_TRUE(has(slots[1], 21));
  EXPECT_EQ(next_stats().n_records, 2);
  for (const int64_t slot : slots) tier_->free_slot(slot);
  EXPECT_EQ(next_stats().bytes, 0);
  EXPECT_EQ(stats().bytes, 0);
}

TEST_F(HostTierTest, WhereBothAreFullWritingFailsAndNothingIsLost) {
  make(2, 2);
  const auto slots = take(6);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(write(slots[i], i).ok());
  EXPECT_EQ(write(slots[4], 4).code(), Code::kBudget);
  EXPECT_FALSE(tier_->can_write(slots[4]));
  for (uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(has(slots[i], i)) << i;
  tier_->free_slot(slots[1]);
  EXPECT_TRUE(tier_->can_write(slots[4]));
  ASSERT_TRUE(write(slots[4], 4).ok());
  for (const uint32_t i : {0u, 2u, 3u, 4u}) EXPECT_TRUE(has(slots[i], i)) << i;
}

TEST_F(HostTierTest, ARecordThatTheNextTierDoesNotTakeStays) {
  make(2, 100);
  const auto slots = take(4);
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(write(slots[i], i).ok());
  next_->fail_writes(1);
  ASSERT_TRUE(write(slots[2], 2).ok());  // itself goes there
  EXPECT_EQ(stats().n_evicted, 0);
  next_->fail_writes(2);
  EXPECT_EQ(write(slots[3], 3).code(), Code::kIo);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(has(slots[i], i)) << i;
  EXPECT_EQ(next_stats().bytes, kRecord);  // the slot of what failed was given back
  next_->fail_reads(1);
  Bytes record(kRecord);
  EXPECT_EQ(tier_->read(slots[2], record.data()).code(), Code::kIo);
  EXPECT_TRUE(has(slots[2], 2));
}

TEST_F(HostTierTest, TheRuntimesBudgetHoldsForAllTiers) {
  const auto runtime = std::make_shared<TierBudget>(4 * kRecord);
  make(0, -1, runtime);
  HostTier other(*backend_, {kRecord, 0, runtime}, nullptr);
  const auto slots = take(5);
  const auto others = take_slots(other, 2);
  ASSERT_TRUE(other.write(others[0], record_of(9).data()).ok());  // the slab has what room there was
  EXPECT_EQ(runtime->used(), 4 * kRecord);
  const Status refused = write(slots[0], 0);
  EXPECT_EQ(refused.code(), Code::kBudget);
  EXPECT_THAT(refused.message(), HasSubstr("the runtime's budget is " + std::to_string(4 * kRecord)));
  other.free_slot(others[0]);
  EXPECT_EQ(runtime->used(), 0);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(write(slots[i], i).ok());
  tier_.reset();
  EXPECT_EQ(runtime->used(), 0);
}

TEST_F(HostTierTest, WhereTheMachineHasNoMemoryRecordsGoToTheNextTier) {
  make(0);
  auto slots = take(2);
  memory_.left = 0;
  EXPECT_EQ(write(slots[0], 0).code(), Code::kOutOfMemory);
  EXPECT_EQ(stats().bytes, 0);
  memory_.left = INT64_MAX;
  ASSERT_TRUE(write(slots[0], 0).ok());
  make(0, 10);
  slots = take(2);
  memory_.left = 0;
  ASSERT_TRUE(write(slots[0], 0).ok());
  EXPECT_EQ(stats().n_records, 0);
  memory_.left = INT64_MAX;
  ASSERT_TRUE(write(slots[1], 1).ok());
  EXPECT_TRUE(has(slots[0], 0) && has(slots[1], 1));
}

// A device copies to a slot and from it.
TEST_F(HostTierTest, WhatIsBeingReadOrWrittenStaysWhereItIs) {
  make(2, 100);
  const auto slots = take(4);
  auto place = tier_->begin_write(slots[0]);
  ASSERT_TRUE(place.ok() && *place);
  std::memcpy(*place, record_of(0).data(), kRecord);
  tier_->end_write(slots[0], true);
  ASSERT_TRUE(write(slots[1], 1).ok());
  const StagedRecord read = tier_->begin_read(slots[0]);
  ASSERT_TRUE(read);
  place = tier_->begin_write(slots[2]);  // 0 is read: 1 leaves
  ASSERT_TRUE(place.ok() && *place);
  EXPECT_FALSE(tier_->begin_read(slots[1]));
  auto none = tier_->begin_write(slots[3]);  // all that is here is in use: it goes to the next tier itself
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(*none);
  ASSERT_TRUE(write(slots[3], 3).ok());
  EXPECT_EQ(std::memcmp(read.data(), record_of(0).data(), kRecord), 0);
  tier_->end_read(slots[0]);
  tier_->end_write(slots[2], false);  // it failed: the block is another one's
  EXPECT_TRUE(has(slots[0], 0) && has(slots[1], 1) && has(slots[3], 3));
  ASSERT_TRUE(write(slots[2], 2).ok());
  EXPECT_TRUE(has(slots[2], 2) && has(slots[0], 0));
  EXPECT_EQ(stats().bytes_peak, 2 * kRecord);
}

// Threads write, read and give back slots of their own; what one writes pushes out what others have.
TEST_F(HostTierTest, KeepsRecordsOfManyThreads) {
  const SpillDirectory directory;
  auto file = FileTier::create(directory.path(), kRecord, 0);
  ASSERT_TRUE(file.ok());
  tier_ = std::make_unique<HostTier>(*backend_, HostTier::Options{kRecord, 7 * kRecord, nullptr}, std::move(*file));
  const auto work = [&](uint32_t thread) {
    std::mt19937 random(thread);
    std::vector<std::pair<int64_t, uint32_t>> own;  // slots, and what they have
    for (uint32_t call = 0; call < 400; ++call) {
      const uint32_t what = random() % 4;
      if (own.size() < 8 && what == 0) {
        const auto slots = take_slots(*tier_, 1);
        own.emplace_back(slots[0], thread * 1000 + call);
        EXPECT_TRUE(write(own.back().first, own.back().second).ok());
      } else if (!own.empty()) {
        auto& [slot, number] = own[random() % own.size()];
        if (what == 1) {
          number = thread * 1000 + call;
          EXPECT_TRUE(write(slot, number).ok());
        } else if (what == 2 && own.size() > 4) {
          tier_->free_slot(slot);
          own.erase(std::ranges::find(own, slot, &std::pair<int64_t, uint32_t>::first));
        } else {
          EXPECT_TRUE(has(slot, number));
        }
      }
    }
    for (const auto& [slot, number] : own) {
      EXPECT_TRUE(has(slot, number));
      tier_->free_slot(slot);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(stats().bytes_peak, 7 * kRecord);
  EXPECT_GT(stats().n_evicted, 0);
  EXPECT_EQ(stats().bytes, 0);
}

}  // namespace
}  // namespace quire::test
