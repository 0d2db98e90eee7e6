// Narrow records that the device makes, beside those that the CPU backend makes of the same full ones: the same bytes.

#include <gtest/gtest.h>

#include <limits>

#include "lib/backend/cuda/cuda_backend.h"
#include "tests/gpu/schedules.h"
#include "tests/gpu/test_device.h"
#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {
namespace {

constexpr int64_t kChunks = 4;  // of the text: the first and the last one stay as they are

class NarrowRecords : public OnEverySchedule {};
INSTANTIATE_TEST_SUITE_P(Orders, NarrowRecords, kSchedules, schedule_name);

// Full records in their neutral form. Among ordinary numbers are groups of all kinds.
std::vector<std::byte> full_records(Random& random, const KvGeometry& g) {
  const int64_t d = g.head_dim, rows = kChunks * g.n_kv_heads * 2 * g.chunk;
  const std::vector<float> numbers = random.normal(rows * d, 3);
  std::vector<std::byte> neutral(row_bytes(g.type, rows * d));
  const auto set = [&](int64_t row, int64_t channel, float v) {
    store_element(g.type, neutral.data(), row * d + channel, v);
  };
  for (int64_t i = 0; i < rows * d; ++i) set(0, i, numbers[static_cast<size_t>(i)]);
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float special[] = {kNan, kInfinity, -kInfinity, -0.0f, 65000.0f, 3e38f, 1e-7f, 1e-40f};
  for (int64_t n = 0; n < 12; ++n) {  // somewhere a number, or a row or a channel of equal ones
    const float v = special[random.between(0, std::size(special) - 1)];
    const int64_t row = random.between(0, rows - 1), channel = random.between(0, d - 1);
    set(row, channel, v);
    if (n % 3 == 1) {
      for (int64_t c = 0; c < d; ++c) set(row, c, v);
    } else if (n % 3 == 2) {
      for (int64_t r = row / g.chunk * g.chunk; r < (row / g.chunk + 1) * g.chunk; ++r) set(r, channel, v);
    }
  }
  return neutral;
}

// What a backend makes of them: the neutral forms of all chunks' narrow records, of bytes 0x5A where none was made.
std::vector<std::byte> narrowed(Backend& backend, const KvGeometry& g, ElementType type,
                                const std::vector<std::byte>& full) {
  const auto queue = take(backend.create_queue());
  const OldText old{.type = type, .after = 0};
  const KvGeometry narrow = narrow_geometry(g, old);
  const size_t full_bytes = backend.kv_record_bytes(g), narrow_bytes = backend.kv_record_bytes(narrow);
  const auto full_page = take(backend.allocate(kChunks * full_bytes, MemoryKind::kDevice));
  const auto narrow_page = take(backend.allocate(kChunks * narrow_bytes, MemoryKind::kDevice));
  std::vector<std::byte> records(kChunks * full_bytes), marks(kChunks * narrow_bytes, std::byte{0x5A});
  std::vector<KvRecord> from, to;
  for (size_t c = 0; c < kChunks; ++c) {
    const size_t place = kChunks - 1 - c;  // in the page
    backend.from_neutral(g, full.data() + c * kv_neutral_bytes(g), records.data() + place * full_bytes);
    from.push_back({full_page.get(), place * full_bytes});
    to.push_back({narrow_page.get(), c * narrow_bytes});
  }
  const Status uploaded = backend.upload(*queue, records.data(), *full_page, 0, records.size());
  EXPECT_TRUE(uploaded.ok() && backend.upload(*queue, marks.data(), *narrow_page, 0, marks.size()).ok());
  from.front() = {};  // a record that was dropped
  RopeTable table;
  table.theta.assign(static_cast<size_t>(g.head_dim / 2), 1.0);
  const auto rope = take(backend.create_rope(table, g.chunk));
  const StepSequence sequence{.plan = std::make_shared<Plan>(), .rope = rope.get(), .old = old, .geometry = g};
  const auto step = take(backend.prepare_step({*queue}, g.n_kv_heads, {&sequence, 1}));
  const NarrowArgs args{.first_chunk = 1, .n_chunks = kChunks - 2, .records = {from}, .out = {to}};
  EXPECT_TRUE(backend.narrow_chunks({*queue}, *step, args).ok());
  EXPECT_TRUE(backend.download(*queue, *narrow_page, 0, marks.data(), marks.size()).ok());
  EXPECT_TRUE(finish_queue(backend, *queue).ok());
  std::vector<std::byte> neutral(kChunks * kv_neutral_bytes(narrow));
  for (size_t c = 0; c < kChunks; ++c) {
    backend.to_neutral(narrow, marks.data() + c * narrow_bytes, neutral.data() + c * kv_neutral_bytes(narrow));
  }
  return neutral;
}

TEST_P(NarrowRecords, AreThoseOfTheCpu) {
  Random random;
  SCOPED_TRACE(random.trace());
  Allocator allocator;
  const auto device = take(cuda::create_cuda_backend(allocator, test_device(), 0));
  Machine cpu;
  const std::pair<int, int64_t> sizes[] = {{24, 16}, {128, 48}, {80, 64},  {96, 32},
                                           {6, 80},  {38, 16},  {256, 32}, {138, 16}};
  for (const auto& [d, chunk] : sizes) {
    for (const ElementType type : {ElementType::kF16, ElementType::kBF16}) {
      const KvGeometry g{3, d, chunk, type};
      const std::vector<std::byte> full = full_records(random, g);
      for (const ElementType narrow : {ElementType::kInt8, ElementType::kInt4}) {
        const auto expected = narrowed(*cpu.backend, g, narrow, full), got = narrowed(*device, g, narrow, full);
        ASSERT_EQ(expected.size(), got.size());
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(expected[i], got[i]) << "byte " << i << " of head_dim " << d << ", chunk " << chunk << ", "
                                         << element_name(type) << " to " << element_name(narrow);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::test
