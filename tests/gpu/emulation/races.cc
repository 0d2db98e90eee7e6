#include "tests/gpu/emulation/races.h"

#include <cstring>

namespace quire::emulation {
namespace {

constexpr int kLanes = 32;
bool told = false;

int warp_of(const Moment& m) { return m.thread / kLanes; }
uint32_t bit(int n) { return uint32_t{1} << n; }
bool same_barriers(const Moment& a, const Moment& b) { return a.block == b.block && a.barriers == b.barriers; }
bool same_meetings(const Moment& a, const Moment& b) {
  return same_barriers(a, b) && warp_of(a) == warp_of(b) && a.meetings == b.meetings;
}
bool are_ordered(const Moment& a, const Moment& b) {
  if (a.block != b.block) return false;
  if (a.thread == b.thread || a.barriers != b.barriers) return true;
  return warp_of(a) == warp_of(b) && a.meetings != b.meetings;
}

}  // namespace

bool accesses_are_told() { return told; }

bool ByteHistory::races_with_readers(const Moment& now) const {
  if (!is_read_) return false;
  if (is_read_by_others_ || reader_.block != now.block) return true;
  if (!same_barriers(reader_, now)) return false;
  if ((warps_ & ~bit(warp_of(now))) != 0) return true;
  return same_meetings(reader_, now) && (lanes_ & ~bit(now.thread % kLanes)) != 0;
}

void ByteHistory::add_reader(const Moment& now) {
  if (is_read_ && reader_.block != now.block) is_read_by_others_ = true;
  const bool goes_on = is_read_ && same_barriers(reader_, now);
  lanes_ = bit(now.thread % kLanes) | (goes_on && same_meetings(reader_, now) ? lanes_ : 0);
  warps_ = bit(warp_of(now)) | (goes_on ? warps_ : 0);
  reader_ = now;
  is_read_ = true;
}

bool ByteHistory::races(const Moment& now, Access access, Moment& other) {
  const bool both_atomic = is_atomic_ && access == Access::kAtomic;
  if (is_written_ && !both_atomic && !are_ordered(writer_, now)) {
    other = writer_;
    return true;
  }
  if (access == Access::kRead) {
    add_reader(now);
    return false;
  }
  if (races_with_readers(now)) {
    other = reader_;
    return true;
  }
  writer_ = now;
  is_written_ = true;
  is_atomic_ = access == Access::kAtomic;
  return false;
}

bool LaunchHistory::races(const void* byte, const Moment& now, Access access, Moment& other) {
  const auto at = reinterpret_cast<uintptr_t>(byte);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ByteHistory[]>& line = lines_[at / kLine];
  if (!line) line = std::make_unique<ByteHistory[]>(kLine);
  return line[at % kLine].races(now, access, other);
}

}  // namespace quire::emulation

// ---- what compilers call in instrumented code: ThreadSanitizer's interface

using quire::emulation::Access;
using quire::emulation::accessed;
using quire::emulation::accessed_as_one;

#define QUIRE_ACCESSES(bytes)                                                         \
  void __tsan_read##bytes(void* p) { accessed_as_one(p, bytes, Access::kRead); }      \
  void __tsan_write##bytes(void* p) { accessed_as_one(p, bytes, Access::kWrite); }    \
  void __tsan_unaligned_read##bytes(void* p) { accessed(p, bytes, Access::kRead); }   \
  void __tsan_unaligned_write##bytes(void* p) { accessed(p, bytes, Access::kWrite); } \
  void __tsan_volatile_read##bytes(void* p) { accessed(p, bytes, Access::kRead); }    \
  void __tsan_volatile_write##bytes(void* p) { accessed(p, bytes, Access::kWrite); }
#define QUIRE_ATOMICS(bits, type)                                                    \
  type __tsan_atomic##bits##_fetch_add(type* p, type v, int) {                       \
    accessed(p, sizeof *p, Access::kAtomic);                                         \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                               \
  }                                                                                  \
  type __tsan_atomic##bits##_fetch_or(type* p, type v, int) {                        \
    accessed(p, sizeof *p, Access::kAtomic);                                         \
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                                \
  }                                                                                  \
  type __tsan_atomic##bits##_fetch_sub(type* p, type v, int) {                       \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); /* of shared_ptr and so on */ \
  }

extern "C" {
void __tsan_init() { quire::emulation::told = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, size_t n) { accessed(p, n, Access::kRead); }
void __tsan_write_range(void* p, size_t n) { accessed(p, n, Access::kWrite); }
uint8_t __tsan_atomic8_load(const uint8_t* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
// An addition of floats, as gcc and clang make it.
uint32_t __tsan_atomic32_load(const uint32_t* p, int) {
  accessed(p, sizeof *p, Access::kAtomic);
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
bool __tsan_atomic32_compare_exchange_weak(uint32_t* p, uint32_t* expected, uint32_t v, int, int) {
  accessed(p, sizeof *p, Access::kAtomic);
  return __atomic_compare_exchange_n(p, expected, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
uint32_t __tsan_atomic32_compare_exchange_val(uint32_t* p, uint32_t expected, uint32_t v, int, int) {
  accessed(p, sizeof *p, Access::kAtomic);
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}
QUIRE_ACCESSES(1)
QUIRE_ACCESSES(2)
QUIRE_ACCESSES(4)
QUIRE_ACCESSES(8)
QUIRE_ACCESSES(16)
QUIRE_ATOMICS(32, uint32_t)
QUIRE_ATOMICS(64, uint64_t)
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  accessed(from, n, Access::kRead);
  accessed(to, n, Access::kWrite);
  return std::memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  accessed(from, n, Access::kRead);
  accessed(to, n, Access::kWrite);
  return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int byte, size_t n) {
  accessed(to, n, Access::kWrite);
  return std::memset(to, byte, n);
}
}
