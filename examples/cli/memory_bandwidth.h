// How fast this machine reads memory: the yardstick of decoding, which reads all weights for every token.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace cli {

class MemoryBandwidth {
 public:
  // Memory larger than the last-level caches of most machines, written once.
  MemoryBandwidth();
  // Reads it once with n_threads threads. Bytes a second by the clock.
  double measure(int32_t n_threads) const;

 private:
  struct Free {
    void operator()(uint64_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint64_t, Free> words_;
};

}  // namespace cli
