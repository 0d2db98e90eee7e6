// The seed of a test's random inputs. A fast test has a fixed one: each run is the same. The slow tests run the same
// programs with QUIRE_TEST_SEED=fresh and so with other inputs each time; they print the seed they drew, and
// QUIRE_TEST_SEED=SEED repeats that run.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace quire::test {

// The same for all of a process.
inline uint32_t seed() {
  static const uint32_t kSeed = [] {
    const char* wanted = std::getenv("QUIRE_TEST_SEED");
    if (!wanted) return uint32_t{1};
    if (std::string(wanted) != "fresh") return static_cast<uint32_t>(std::strtoul(wanted, nullptr, 10));
    const uint32_t drawn = std::random_device()();
    std::printf("QUIRE_TEST_SEED=%u\n", drawn);
    return drawn;
  }();
  return kSeed;
}

// For SCOPED_TRACE: how to repeat the run.
inline std::string seed_trace() { return "QUIRE_TEST_SEED=" + std::to_string(seed()); }

// A generator that begins with the seed; `stream` tells apart generators of one test.
inline std::mt19937 seeded_random(uint32_t stream = 0) {
  std::seed_seq sequence{seed(), stream};
  return std::mt19937(sequence);
}

}  // namespace quire::test
