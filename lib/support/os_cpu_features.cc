#include "lib/support/os_cpu_features.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace quire {

bool allow_tile_registers() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool has_dot_products() {
#if defined(__linux__) && defined(__aarch64__)
  constexpr unsigned long kDotProducts = 1UL << 20;  // HWCAP_ASIMDDP
  return (::getauxval(AT_HWCAP) & kDotProducts) != 0;
#else
  return false;
#endif
}

}  // namespace quire
