// The products of 8-bit rows by tile registers, on registers that are emulated (kernels/cpu/tile_registers.h).
#pragma once

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

// As gemm_int8; where the processor has AVX-512 VNNI, as every one with tile registers. Null where AVX-512 is not
// compiled in. Throws std::logic_error where a processor would raise an exception, and where it computed anything else.
extern decltype(&gemm_int8) const emulated_gemm_int8;

// Products of registers so far.
int64_t n_emulated_products();

}  // namespace quire::cpu
