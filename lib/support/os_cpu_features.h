// What the operating system says of the processor, and allows.
#pragma once

namespace quire {

// Asks for leave to use tile registers (AMX), for the whole process and all of its threads; it cannot be given back.
// Signal frames are larger from then on, so it is refused where a thread has too small an alternate signal stack.
// False: refused, or there is no such thing here. Any thread.
bool allow_tile_registers();

// Whether an aarch64 processor has dot products of bytes (FEAT_DotProd). Any thread.
bool has_dot_products();

}  // namespace quire
