// cos and sin of positions up to 2^30 against long double.

#include <gtest/gtest.h>

#include <thread>

#include "lib/backend/cpu/rope_cache.h"
#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {
namespace {

RopeTable table_for(int64_t d, double base) {
  RopeTable table;
  for (int64_t a = 0; a < d / 2; ++a) {
    table.theta.push_back(std::pow(base, -2.0 * static_cast<double>(a) / static_cast<double>(d)));
  }
  return table;
}

cpu::RopeCache cache_of(const RopeTable& table, int64_t chunk) {
  static Allocator allocator;
  const size_t bytes = cpu::RopeCache::bytes_of(static_cast<int64_t>(table.theta.size()), chunk);
  return {table, chunk, HostMemory(allocator, bytes)};
}

double worst_error(const RopeTable& table, const cpu::RopeCache& cache, double position) {
  const size_t half = table.theta.size();
  std::vector<float> cos(half), sin(half);
  cache.angles(position, cos.data(), sin.data());
  double worst = 0;
  for (size_t a = 0; a < half; ++a) {
    const long double angle = static_cast<long double>(position) * static_cast<long double>(table.theta[a]);
    worst = std::max(worst, static_cast<double>(std::fabs(cosl(angle) - static_cast<long double>(cos[a]))));
    worst = std::max(worst, static_cast<double>(std::fabs(sinl(angle) - static_cast<long double>(sin[a]))));
  }
  return worst;
}

// Rounding to f32 costs half a unit in the last place (2^-25); angles of 10^7 radians about 2^-30 more.
constexpr double kTolerance = 0x1p-25 + 0x1p-29;

TEST(RopeCache, IsExactToF32UpToTenMillion) {
  Random random;
  SCOPED_TRACE(random.trace());
  for (const double base : {10000.0, 500000.0}) {
    const RopeTable table = table_for(128, base);
    const cpu::RopeCache cache = cache_of(table, 64);
    std::vector<int64_t> positions = {0,       1,       63,      1023,    1024,    1025,    2047,    2048,
                                      1 << 20, 2097151, 2097152, 2097153, 4194304, 9999999, 10000000};
    for (int n = 0; n < 300; ++n) positions.push_back(random.between(0, 10000000));
    for (const int64_t p : positions) {
      ASSERT_LE(worst_error(table, cache, static_cast<double>(p)), kTolerance) << "position " << p;
      ASSERT_LE(worst_error(table, cache, -static_cast<double>(p)), kTolerance) << "position " << -p;
    }
    for (int n = 0; n < 100; ++n) {  // real positions: leaky maps
      const double p = static_cast<double>(random.between(0, 100000000)) / 10 + 0.05;
      ASSERT_LE(worst_error(table, cache, p), kTolerance) << "position " << p;
    }
  }
}

// Farther positions have the error of an angle that is rounded to float64, too.
TEST(RopeCache, IsAsExactAsAFloat64AngleBeyond) {
  Random random;
  SCOPED_TRACE(random.trace());
  constexpr int64_t kStep = 2097152, kEnd = int64_t{1} << 30;
  std::vector<int64_t> positions = {kStep, 2 * kStep - 1, 2 * kStep, kEnd - kStep, kEnd - 1, kEnd, kEnd + 1};
  for (int n = 0; n < 300; ++n) positions.push_back(random.between(kStep, kEnd - 1));
  for (const double base : {10000.0, 500000.0}) {
    const RopeTable table = table_for(128, base);
    const cpu::RopeCache cache = cache_of(table, 64);
    for (const int64_t position : positions) {
      const auto p = static_cast<double>(position);
      ASSERT_LE(worst_error(table, cache, p), kTolerance + p * 0x1p-53) << "position " << position;
      ASSERT_LE(worst_error(table, cache, -p), kTolerance + p * 0x1p-53) << "position " << -position;
    }
  }
}

TEST(RopeCache, ChunkRowsAreTheAnglesOfTheOffsets) {
  const RopeTable table = table_for(48, 10000);
  const cpu::RopeCache cache = cache_of(table, 256);
  std::vector<float> cos(24), sin(24);
  for (int64_t offset = 0; offset < 256; ++offset) {
    cache.angles(static_cast<double>(offset), cos.data(), sin.data());
    ASSERT_EQ(0, std::memcmp(cos.data(), cache.chunk_cos(offset), 24 * sizeof(float)));
    ASSERT_EQ(0, std::memcmp(sin.data(), cache.chunk_sin(offset), 24 * sizeof(float)));
  }
}

// The measure sees an error of one position.
TEST(RopeCache, MeasureSeesANeighbour) {
  const RopeTable table = table_for(64, 10000);
  RopeTable off = table;
  off.theta[3] *= 1 + 1e-9;
  const cpu::RopeCache cache = cache_of(off, 16);
  EXPECT_GT(worst_error(table, cache, 10000000), 100 * kTolerance);
}

TEST(RopeCache, IsSharedByWhoWantsTheSameTables) {
  Machine machine;
  const int64_t before = machine.allocator.bytes();
  RopeTable table = table_for(64, 10000), other = table_for(64, 500000);
  const auto rope = take(machine.backend->create_rope(table, 64));
  const int64_t one = machine.allocator.bytes() - before;
  EXPECT_EQ(one, static_cast<int64_t>(machine.backend->rope_bytes(64, 64)));
  EXPECT_EQ(one, static_cast<int64_t>(rope->bytes));
  table.attention_factor = 1.5;  // applied to the query, not to the tables
  EXPECT_EQ(take(machine.backend->create_rope(table, 64)), rope);
  EXPECT_EQ(machine.allocator.bytes() - before, one);
  auto base = take(machine.backend->create_rope(other, 64));
  auto chunk = take(machine.backend->create_rope(table, 80));
  EXPECT_NE(base, rope);
  EXPECT_NE(chunk, rope);
  EXPECT_EQ(machine.allocator.bytes() - before, 2 * one + static_cast<int64_t>(machine.backend->rope_bytes(64, 80)));
  base.reset();
  chunk.reset();
  EXPECT_EQ(machine.allocator.bytes() - before, one);
}

TEST(RopeCache, GoesWithItsLastHolderAndIsMadeAnew) {
  Machine machine;
  const int64_t before = machine.allocator.bytes();
  for (int round = 0; round < 3; ++round) {
    auto a = take(machine.backend->create_rope(table_for(32, 10000), 16));
    auto b = take(machine.backend->create_rope(table_for(32, 10000), 16));
    EXPECT_EQ(a, b);
    a.reset();
    EXPECT_GT(machine.allocator.bytes(), before);
    b.reset();
    EXPECT_EQ(machine.allocator.bytes(), before);
  }
}

TEST(RopeCache, IsOneHoweverManyThreadsAsk) {
  Machine machine;
  const int64_t before = machine.allocator.bytes();
  std::vector<std::shared_ptr<const Rope>> ropes(8);
  std::vector<std::thread> threads;
  for (auto& rope : ropes) {
    threads.emplace_back([&] { rope = take(machine.backend->create_rope(table_for(32, 10000), 16)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& rope : ropes) EXPECT_EQ(rope, ropes[0]);
  EXPECT_EQ(machine.allocator.bytes() - before, static_cast<int64_t>(machine.backend->rope_bytes(32, 16)));
}

TEST(RopeCache, SaysThatThereIsNoMemory) {
  Allocator none([](void*, size_t, size_t) -> void* { return nullptr; }, [](void*, void*, size_t, size_t) {}, nullptr);
  ThreadPool pool(1);
  const auto backend = cpu::create_cpu_backend(none, pool);
  const auto rope = backend->create_rope(table_for(32, 10000), 16);
  ASSERT_FALSE(rope.ok());
  EXPECT_EQ(rope.status().code(), Code::kOutOfMemory);
  EXPECT_NE(rope.status().message().find("RoPE tables (" + std::to_string(backend->rope_bytes(32, 16)) + " bytes)"),
            std::string::npos)
      << rope.status().message();
}

}  // namespace
}  // namespace quire::test
