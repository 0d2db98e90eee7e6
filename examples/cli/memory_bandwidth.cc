#include "memory_bandwidth.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

namespace cli {
namespace {

constexpr size_t kWords = size_t{1} << 26;      // 512 MiB
constexpr size_t kPartWords = size_t{1} << 17;  // what a thread takes at a time: 1 MiB
constexpr size_t kHugePage = size_t{1} << 21;

// Independent lanes, so that the compiler can use vectors and loads need not wait for one another.
uint64_t read_part(const uint64_t* words) {
  constexpr size_t kLanes = 32;
  uint64_t lanes[kLanes] = {};
  for (size_t i = 0; i < kPartWords; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] ^= words[i + lane];
  }
  uint64_t all = 0;
  for (const uint64_t lane : lanes) all ^= lane;
  return all;
}

}  // namespace

MemoryBandwidth::MemoryBandwidth() : words_(static_cast<uint64_t*>(std::aligned_alloc(kHugePage, kWords * 8))) {
  if (!words_) throw std::bad_alloc();
  madvise(words_.get(), kWords * 8, MADV_HUGEPAGE);  // as the weights are; without it the reads are slower
  for (size_t i = 0; i < kWords; ++i) words_.get()[i] = i;
}

double MemoryBandwidth::measure(int32_t n_threads) const {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> all{0};  // the reads have a result, so that they are not left out
  const auto work = [&] {
    uint64_t mine = 0;
    for (size_t part = next++; part < kWords / kPartWords; part = next++) {
      mine ^= read_part(words_.get() + part * kPartWords);
    }
    all ^= mine;
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int32_t t = 1; t < n_threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  return static_cast<double>(kWords) * 8 / time.count();
}

}  // namespace cli
