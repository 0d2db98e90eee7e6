// What a backend may know records by (record_table.h).

#include "lib/kv/record_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using ::testing::ElementsAre;

constexpr int kLayers = 2;
constexpr int kAllLayers[] = {0, 1};

TEST(RecordTable, HasANewVersionWheneverTheBackendSeesOthers) {
  RecordTable table(kLayers, {}), other(kLayers, {});
  ChunkRecords records(kAllLayers, 64), another(kAllLayers, 64);
  uint64_t last = 0;
  const auto changed = [&] { return std::exchange(last, table.version()) != table.version(); };
  EXPECT_EQ(table.version(), 0u);
  EXPECT_EQ(table.extend(RecordKind::kText, 0, 2).size(), 2u);
  EXPECT_TRUE(changed());
  EXPECT_EQ(table.extend(RecordKind::kText, 1, 2).size(), 1u);
  EXPECT_FALSE(changed()) << "it was long enough";
  table.hold(RecordKind::kText, 0, records);
  EXPECT_TRUE(changed());
  table.see(1, RecordKind::kText, 0, {});
  EXPECT_TRUE(changed());
  table.see_all();
  EXPECT_TRUE(changed());
  table.see_fixed();
  EXPECT_TRUE(changed());
  (void)other.extend(RecordKind::kText, 0, 1);
  other.hold(RecordKind::kText, 0, another);
  EXPECT_NE(other.version(), table.version());
  EXPECT_FALSE(changed());
  (void)table.forget(RecordKind::kText, 0);
  EXPECT_TRUE(changed());
  table.shorten(RecordKind::kText, 2);
  EXPECT_FALSE(changed());
  table.shorten(RecordKind::kText, 1);
  EXPECT_TRUE(changed());
  EXPECT_NE(other.version(), table.version());
}

TEST(RecordTable, HasTheTextOfLayersWithAWindowInRecordsOfItsOwn) {
  RecordTable table(4, {true, false, true, true});
  EXPECT_THAT(table.layers(RecordKind::kText), ElementsAre(1));
  EXPECT_THAT(table.layers(RecordKind::kNarrow), ElementsAre(1));
  EXPECT_THAT(table.layers(RecordKind::kWindow), ElementsAre(0, 2, 3));
  ChunkRecords text(table.layers(RecordKind::kText), 64), windowed(table.layers(RecordKind::kWindow), 64);
  for (size_t i = 0; i < 3; ++i) windowed.records[i].fixed.offset = 100 + i;
  text.records[0].fixed.offset = 7;
  (void)table.extend(RecordKind::kText, 0, 1);
  (void)table.extend(RecordKind::kWindow, 0, 1);
  table.hold(RecordKind::kText, 0, text);
  table.hold(RecordKind::kWindow, 0, windowed);
  EXPECT_EQ(table.held(), (RecordSums{4, 4 * 64, 0}));
  const size_t offsets[] = {100, 7, 101, 102};
  for (int layer = 0; layer < 4; ++layer) {
    const RecordKind kind = table.kind_in(layer, KvKind::kText);
    EXPECT_EQ(kind, layer == 1 ? RecordKind::kText : RecordKind::kWindow);
    EXPECT_EQ(table.record(layer, kind, 0).layer, layer);
    EXPECT_EQ(table.layer(layer, KvKind::kText)[0].offset, offsets[layer]);
  }
  (void)table.forget(RecordKind::kWindow, 0);
  EXPECT_EQ(table.held(), (RecordSums{1, 64, 0}));
  EXPECT_EQ(table.layer(0, KvKind::kText)[0].offset, 0u);
  EXPECT_EQ(table.layer(1, KvKind::kText)[0].offset, 7u) << "the others stay";
}

}  // namespace
}  // namespace quire
