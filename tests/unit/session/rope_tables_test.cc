// Sessions whose frequencies and chunks are equal share RoPE tables.

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/session/session_fixture.h"
#include "tests/unit/session/test_memory.h"

namespace quire::test {
namespace {

int64_t tables_of(const Model& model, const std::string& strategy) {
  const auto made = take(choose_strategy(model, with_strategy(strategy)));
  return static_cast<int64_t>(model.llama->backend().rope_bytes(model.llama->config().head_dim, made->kv_chunk()));
}

TEST(RopeTables, OfAHundredSessionsAreAllocatedOnce) {
  static TestMemory memory;
  const auto model = load("text_256", memory.runtime());
  const int64_t loaded = memory.bytes;
  std::vector<std::shared_ptr<Session>> sessions(100);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t s = t; s < sessions.size(); s += 4) sessions[s] = make_session(model, with_strategy("dca"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.bytes - loaded, tables_of(*model, "dca"));
  auto other = make_session(model, with_strategy("dca + pi(factor=2)"));
  EXPECT_EQ(memory.bytes - loaded, tables_of(*model, "dca") + tables_of(*model, "dca + pi(factor=2)"));
  const auto same = make_session(model, with_strategy("rerope"));  // the frequencies and the chunk of dca
  EXPECT_EQ(memory.bytes - loaded, tables_of(*model, "dca") + tables_of(*model, "dca + pi(factor=2)"));
  other.reset();
  EXPECT_EQ(memory.bytes - loaded, tables_of(*model, "dca"));
  sessions.resize(1);
  EXPECT_EQ(memory.bytes - loaded, tables_of(*model, "dca"));
}

TEST(RopeTables, GoWithTheLastSession) {
  static TestMemory memory;
  const auto model = load("text_256", memory.runtime());
  const int64_t loaded = memory.bytes;
  auto one = make_session(model, with_strategy("full")), two = make_session(model, with_strategy("full"));
  one.reset();
  EXPECT_EQ(memory.bytes - loaded, tables_of(*model, "full"));
  two->close();  // the handle is still there
  EXPECT_EQ(memory.bytes, loaded);
}

// Layers without RoPE have tables that turn nothing, whatever the frequencies.
TEST(RopeTables, OfLayersWithoutRopeAreSharedByAllFrequencies) {
  static TestMemory memory;
  const auto model = load("smollm3_yarn", memory.runtime());
  const int64_t loaded = memory.bytes, one = tables_of(*model, "full(kv_chunk=32)");
  auto full = make_session(model, with_strategy("full(kv_chunk=32)"));
  EXPECT_EQ(memory.bytes - loaded, 2 * one);
  const auto other = make_session(model, with_strategy("full(kv_chunk=32) + pi(factor=2)"));
  EXPECT_EQ(memory.bytes - loaded, 3 * one);
  full.reset();
  EXPECT_EQ(memory.bytes - loaded, 2 * one);
}

}  // namespace
}  // namespace quire::test
