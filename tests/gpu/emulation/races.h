// Races between the threads of a launch: accesses to a byte, one of which writes, that nothing orders.
//
// What orders them is what CUDA says of memory, not what the emulation does: the threads of a block __syncthreads(),
// those of a warp __syncwarp() too, and different blocks nothing. Shuffles and the like order no memory. Atomic
// operations do not race with each other. Races are found in code that is compiled with -fsanitize=thread: its hooks,
// which tell of each access, are here (races.cc) instead of ThreadSanitizer's. clang tells of less: not of most calls
// of memcpy(), which loads of 16 bytes are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace quire::emulation {

// Whether the program has code that tells of its accesses.
bool accesses_are_told();

enum class Access { kRead, kWrite, kAtomic };

// Of the thread that runs (block.h); for the hooks. Ends the launch with a Fault where it is a race, or where the
// kernel cannot reach the memory.
void accessed(const void* memory, size_t bytes, Access access);
// The same of a number, which an instruction reads or writes as one: it lies at a multiple of its size.
void accessed_as_one(const void* memory, size_t bytes, Access access);

// A thread at a time of its life.
struct Moment {
  uint32_t block = 0;
  int thread = 0;         // of the block
  unsigned barriers = 0;  // that it has passed: __syncthreads()
  unsigned meetings = 0;  // likewise __syncwarp() of whole warps
};

// The accesses to a byte, as far as later ones may race with them.
class ByteHistory {
 public:
  // Notes an access, and says whether it races with an earlier one: `other`.
  bool races(const Moment& now, Access access, Moment& other);

 private:
  bool races_with_readers(const Moment& now) const;
  void add_reader(const Moment& now);

  Moment writer_, reader_;  // the last ones
  bool is_written_ = false, is_atomic_ = false, is_read_ = false;
  bool is_read_by_others_ = false;  // by blocks other than the reader's
  // Who has read since the reader's barrier, and who of its warp since its meeting.
  uint32_t warps_ = 0, lanes_ = 0;
};

// Of memory that all blocks of a launch see. Threads of the OS use it together.
class LaunchHistory {
 public:
  bool races(const void* byte, const Moment& now, Access access, Moment& other);

 private:
  static constexpr uintptr_t kLine = 64;
  std::mutex mutex_;
  std::unordered_map<uintptr_t, std::unique_ptr<ByteHistory[]>> lines_;
};

}  // namespace quire::emulation
