// How late the system may end a thread's naps.
#pragma once

namespace quire {

// Those of the calling thread end at most a microsecond late. Linux allows itself 50, a twentieth of a short step of a
// GPU. Elsewhere it does nothing.
void end_naps_on_time();

}  // namespace quire
