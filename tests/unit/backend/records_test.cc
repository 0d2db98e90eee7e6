// KV records and their neutral form.

#include <gtest/gtest.h>

#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"
#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {
namespace {

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};

std::vector<KvGeometry> geometries() {
  std::vector<KvGeometry> all;
  for (const ElementType type : kTypes) {
    for (const int d : {16, 24, 64, 80, 128}) {
      for (const int64_t chunk : {16, 48, 256}) all.push_back({d == 128 ? 1 : 3, d, chunk, type});
    }
  }
  return all;
}

std::string name_of(const KvGeometry& g) {
  return std::to_string(g.n_kv_heads) + " heads, d " + std::to_string(g.head_dim) + ", chunk " +
         std::to_string(g.chunk) + ", " + element_name(g.type);
}

// [n_kv_heads][keys, values][chunk][head_dim]
TEST(NeutralRecords, HaveTheDocumentedLayout) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine;
  for (const KvGeometry& g : geometries()) {
    SCOPED_TRACE(name_of(g));
    const int64_t d = g.head_dim, width = g.n_kv_heads * d;
    const auto keys = random.normal(g.chunk * width), values = random.normal(g.chunk * width);
    const auto key_buffer = machine.buffer(keys), value_buffer = machine.buffer(values);
    const Records records(*machine.backend, machine.backend->kv_record_bytes(g), 1);
    const auto step = machine.storing_step({.n = g.chunk, .geometry = g});
    StoreKvArgs args;
    args.keys = {key_buffer.get(), 0, width};
    args.values = {value_buffer.get(), 0, width};
    args.records = {records.chunks, 0};
    ASSERT_TRUE(machine.backend->store_kv(machine.exec(), *step, args).ok());

    ASSERT_EQ(kv_neutral_bytes(g), static_cast<size_t>(2 * g.chunk * width) * element_bytes(g.type));
    std::vector<std::byte> neutral(kv_neutral_bytes(g));
    machine.backend->to_neutral(g, cpu::record_ptr(records.chunks[0]), neutral.data());
    for (int64_t head = 0; head < g.n_kv_heads; ++head) {
      for (int part = 0; part < 2; ++part) {
        for (int64_t j = 0; j < g.chunk; ++j) {
          const auto& from = part == 0 ? keys : values;
          std::vector<std::byte> row(static_cast<size_t>(d) * element_bytes(g.type));
          cpu::scalar::convert(ElementType::kF32, &from[static_cast<size_t>(j * width + head * d)], g.type, row.data(),
                               d);
          const auto at = static_cast<size_t>((head * 2 + part) * g.chunk + j) * row.size();
          ASSERT_EQ(0, std::memcmp(&neutral[at], row.data(), row.size()))
              << "head " << head << (part == 0 ? " key " : " value ") << j;
        }
      }
    }
  }
}

// Any numbers of the type come back as the same bits: subnormal ones, infinities and negative zeros too.
TEST(NeutralRecords, GoThereAndBack) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine;
  for (const KvGeometry& g : geometries()) {
    SCOPED_TRACE(name_of(g));
    std::vector<std::byte> neutral(kv_neutral_bytes(g)), again(neutral.size());
    const size_t size = element_bytes(g.type);
    for (size_t at = 0; at < neutral.size(); at += size) {
      do {
        const auto bits = static_cast<uint32_t>(random.between(0, UINT32_MAX));
        std::memcpy(&neutral[at], &bits, size);
      } while (std::isnan(load_element(g.type, &neutral[at], 0)));
    }
    const size_t bytes = machine.backend->kv_record_bytes(g);
    std::vector<std::byte> record(bytes, std::byte{0x5A}), copy(bytes, std::byte{0x5A});
    machine.backend->from_neutral(g, neutral.data(), record.data());
    machine.backend->to_neutral(g, record.data(), again.data());
    ASSERT_EQ(neutral, again);
    machine.backend->from_neutral(g, again.data(), copy.data());
    ASSERT_EQ(record, copy);
    EXPECT_GE(bytes, neutral.size());
  }
}

TEST(NeutralRecords, NarrowOnesGoThereAndBack) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine;
  for (KvGeometry g : geometries()) {
    for (const ElementType type : {ElementType::kInt8, ElementType::kInt4}) {
      g.type = type;
      SCOPED_TRACE(name_of(g));
      std::vector<std::byte> neutral(kv_neutral_bytes(g)), again(neutral.size());
      for (std::byte& byte : neutral) byte = static_cast<std::byte>(random.between(0, 255));
      std::vector<std::byte> record(machine.backend->kv_record_bytes(g), std::byte{0x5A});
      machine.backend->from_neutral(g, neutral.data(), record.data());
      machine.backend->to_neutral(g, record.data(), again.data());
      ASSERT_EQ(neutral, again);
    }
  }
}

}  // namespace
}  // namespace quire::test
