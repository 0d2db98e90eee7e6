// Random quantised weights for the kernel tests.
#pragma once

#include "lib/support/quantization.h"
#include "tests/unit/kernels/kernel_test.h"

namespace quire::cpu {

inline constexpr ElementType kQuantized[] = {ElementType::kQ8_0, ElementType::kQ4_0,   ElementType::kQ4_1,
                                             ElementType::kQ5_0, ElementType::kQ5_1,   ElementType::kQ4_K,
                                             ElementType::kQ5_K, ElementType::kQ6_K,   ElementType::kQ2_K,
                                             ElementType::kQ3_K, ElementType::kIQ4_NL, ElementType::kIQ4_XS};

class QuantizedTest : public KernelTest {
 protected:
  // Behind the first four bytes, those in front of this one can have any value; the rest may be f16 numbers, which must
  // not become NaN.
  static size_t end_of_bits(ElementType type) {
    return block_format(type).bytes - (type == ElementType::kQ2_K ? 4 : 2);
  }
  // Rows of random blocks, with scales that are no special numbers.
  std::vector<char> blocks(ElementType type, int64_t rows, int64_t k) {
    const std::vector<float> x = normal(rows * k);
    std::vector<char> stored(row_bytes(type, rows * k));
    quantize(x.data(), rows * k, type, stored.data());
    const auto format = block_format(type);
    for (size_t block = 0; block < stored.size(); block += format.bytes) {  // all bits of the numbers vary
      for (size_t b = 4; b < end_of_bits(type); ++b) stored[block + b] = static_cast<char>(between(-128, 127));
    }
    return stored;
  }
  std::vector<char> pack(ElementType type, const std::vector<char>& stored, int64_t n, int64_t k) {
    std::vector<char> packed(packed_bytes(type, n, k));
    pack_rows(type, stored.data(), k, n, k, type, packed.data(), 0);
    return packed;
  }
};

}  // namespace quire::cpu
