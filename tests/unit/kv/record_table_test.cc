// What a backend may know records by (record_table.h).

#include "lib/kv/record_table.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr int kLayers = 2;

TEST(RecordTable, HasANewVersionWheneverTheBackendSeesOthers) {
  RecordTable table(kLayers), other(kLayers);
  ChunkRecords records(kLayers, 64), another(kLayers, 64);
  uint64_t last = 0;
  const auto changed = [&] { return std::exchange(last, table.version()) != table.version(); };
  EXPECT_EQ(table.version(), 0u);
  EXPECT_EQ(table.extend(KvKind::kText, 0, 2).size(), 2u);
  EXPECT_TRUE(changed());
  EXPECT_EQ(table.extend(KvKind::kText, 1, 2).size(), 1u);
  EXPECT_FALSE(changed()) << "it was long enough";
  table.hold(KvKind::kText, 0, records);
  EXPECT_TRUE(changed());
  table.see(1, KvKind::kText, 0, {});
  EXPECT_TRUE(changed());
  table.see_all();
  EXPECT_TRUE(changed());
  table.see_fixed();
  EXPECT_TRUE(changed());
  (void)other.extend(KvKind::kText, 0, 1);
  other.hold(KvKind::kText, 0, another);
  EXPECT_NE(other.version(), table.version());
  EXPECT_FALSE(changed());
  (void)table.forget(KvKind::kText, 0);
  EXPECT_TRUE(changed());
  table.shorten(KvKind::kText, 2);
  EXPECT_FALSE(changed());
  table.shorten(KvKind::kText, 1);
  EXPECT_TRUE(changed());
  EXPECT_NE(other.version(), table.version());
}

}  // namespace
}  // namespace quire
