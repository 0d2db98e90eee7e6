#include "lib/support/os_timer_slack.h"

#if defined(__linux__)
#include <sys/prctl.h>
#endif

namespace quire {

void end_naps_on_time() {
#if defined(__linux__)
  constexpr unsigned long kSlackNs = 1000;
  (void)::prctl(PR_SET_TIMERSLACK, kSlackNs);
#endif
}

}  // namespace quire
