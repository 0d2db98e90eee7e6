// The bytes of packed rows, which files keep under the name kPackedLayout.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "lib/support/content_hash.h"
#include "lib/support/quantization.h"

namespace quire::cpu {
namespace {

struct Golden {
  ElementType type;
  const char* hash;  // of 40 packed rows of 512 elements, by the packing of layout "cpu 1"
};

constexpr Golden kGolden[] = {{ElementType::kF32, "63021ca528185bf82cc9483988740027"},
                              {ElementType::kF16, "4fcf5ea4a5be7da8d06bb232c989c7a2"},
                              {ElementType::kBF16, "e4f93cf7a22c25c370ea3b63b2d4e0a0"},
                              {ElementType::kQ8_0, "2c7b9721ba7da7db9a78347443a866b3"},
                              {ElementType::kQ4_0, "4a5824376913310920ecf704b49d1f6c"},
                              {ElementType::kQ4_1, "7cbd2b7c3f5f16d4ccae827225bff625"},
                              {ElementType::kQ5_0, "c794f689f07cdbcf738829654815562b"},
                              {ElementType::kQ5_1, "9a8e0c894e2de48164cc16203b6142cc"},
                              {ElementType::kQ4_K, "a9366674b844383971375a2ffbb1816a"},
                              {ElementType::kQ5_K, "e86dd726a31800e928d786ad67714fb9"},
                              {ElementType::kQ6_K, "343b9b6c718c66212699457b08363753"},
                              {ElementType::kQ2_K, "6bb17157fbb8017a46ab9dd3f03ca52f"},
                              {ElementType::kQ3_K, "755b7903c396d26c56bf7521244e4d81"},
                              {ElementType::kIQ4_NL, "4a5824376913310920ecf704b49d1f6c"},
                              {ElementType::kIQ4_XS, "7bc1c0923eb9c443037adbd04c6f0416"}};

std::string packed_hash(ElementType type) {
  constexpr int64_t kRows = 40, kColumns = 512;
  std::vector<uint8_t> stored(row_bytes(type, kRows * kColumns));
  uint32_t state = 1;
  for (uint8_t& byte : stored) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24);
  }
  std::vector<char> packed(packed_bytes(type, kRows, kColumns));
  pack_rows(type, stored.data(), kColumns, kRows, kColumns, type, packed.data(), 0);
  return ContentHash().add(std::as_bytes(std::span(packed))).hex();
}

// Whoever changes the order of bytes gives kPackedLayout another number, so that files of before are not taken for the
// new order, and writes the new hashes here.
TEST(PackedLayout, HasTheBytesOfItsName) {
  EXPECT_STREQ(kPackedLayout, "cpu 1");
  for (const auto& [type, hash] : kGolden) EXPECT_EQ(packed_hash(type), hash) << element_name(type);
}

}  // namespace
}  // namespace quire::cpu
