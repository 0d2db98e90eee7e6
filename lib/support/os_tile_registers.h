// The operating system's leave to use tile registers (AMX).
#pragma once

namespace quire {

// Asks for it, for the whole process and all of its threads; it cannot be given back. Signal frames are larger from
// then on, so it is refused where a thread has too small an alternate signal stack. False: refused, or there is no such
// thing here. Any thread.
bool allow_tile_registers();

}  // namespace quire
