// Pages of records: what is allocated and released, and that a record is nobody else's.

#include "lib/kv/record_memory.h"

#include <algorithm>
#include <set>
#include <vector>

#include "tests/unit/kv/kv_fixture.h"

namespace quire::test {
namespace {

class RecordMemoryTest : public KvTest {
 protected:
  TierAccount account_{"of memory", 0, nullptr};
  RecordMemory records_{*backend_, account_, record()};
};

TEST_F(RecordMemoryTest, RecordsOfAPageDoNotOverlap) {
  auto first = records_.add_page(5), second = records_.add_page(2);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(memory_.blocks, 2);
  EXPECT_EQ(records_.bytes(), 7 * record());
  std::set<std::pair<Buffer*, size_t>> places;
  for (int r = 0; r < 7; ++r) {
    ASSERT_TRUE(records_.has_free());
    const KvRecord record = records_.record(records_.take());
    EXPECT_EQ(record.offset % static_cast<size_t>(this->record()), 0u);
    EXPECT_LE(record.offset + static_cast<size_t>(this->record()), record.page->size());
    EXPECT_TRUE(places.insert({record.page, record.offset}).second);
  }
  EXPECT_FALSE(records_.has_free());
}

TEST_F(RecordMemoryTest, OnlyEmptyPagesAreReleased) {
  auto first = records_.add_page(2), second = records_.add_page(3);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto a = records_.take_from(*first), b = records_.take_from(*first), c = records_.take_from(*second);
  records_.trim();
  EXPECT_EQ(memory_.blocks, 2);
  records_.give_back(a);
  records_.trim();
  EXPECT_EQ(memory_.blocks, 2);
  records_.give_back(b);
  EXPECT_EQ(records_.emptiest_page(), *first);
  EXPECT_EQ(memory_.blocks, 2);  // kept until trim()
  records_.trim();
  EXPECT_EQ(memory_.blocks, 1);
  EXPECT_EQ(records_.bytes(), 3 * record());
  auto third = records_.add_page(4);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(*third, *first);  // its number is free again
  records_.give_back(c);
  records_.trim();
  EXPECT_EQ(memory_.blocks, 0);
  EXPECT_EQ(records_.bytes(), 0);
  EXPECT_EQ(records_.emptiest_page(), -1);
}

TEST_F(RecordMemoryTest, AnyOrderOfTakingAndGivingBackFindsEveryRecord) {
  constexpr int kPages = 4, kRecords = 3;
  for (int p = 0; p < kPages; ++p) ASSERT_TRUE(records_.add_page(kRecords).ok());
  std::vector<RecordMemory::Slot> taken;
  uint32_t random = 1;
  for (int step = 0; step < 2000; ++step) {
    random = random * 1664525 + 1013904223;
    if ((random >> 16) % 2 == 0 && records_.has_free()) {
      const auto slot = records_.take();
      const auto same = [&](const auto& other) { return other.page == slot.page && other.index == slot.index; };
      ASSERT_TRUE(std::none_of(taken.begin(), taken.end(), same));
      taken.push_back(slot);
    } else if (!taken.empty()) {
      std::swap(taken[(random >> 8) % taken.size()], taken.back());
      records_.give_back(taken.back());
      taken.pop_back();
    }
    ASSERT_EQ(records_.has_free(), taken.size() < kPages * kRecords);
  }
}

TEST_F(RecordMemoryTest, AFailingAllocatorChangesNothing) {
  ASSERT_TRUE(records_.add_page(1).ok());
  memory_.left = 0;
  EXPECT_EQ(records_.add_page(2).status().code(), Code::kOutOfMemory);
  EXPECT_EQ(records_.bytes(), record());
  memory_.left = 1;
  auto page = records_.add_page(2);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(*page, 1);
}

}  // namespace
}  // namespace quire::test
