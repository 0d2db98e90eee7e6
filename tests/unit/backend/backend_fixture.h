// A CPU backend with its threads, and random numbers (tests/seed.h).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "tests/seed.h"

namespace quire::test {

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

inline std::string message_of(const Status& status) { return status.ok() ? "ok" : status.message(); }

struct Machine {
  explicit Machine(int n_threads = 1) : pool(n_threads), backend(cpu::create_cpu_backend(allocator, pool)) {
    stream = take(backend->create_stream());
  }

  std::unique_ptr<Buffer> buffer(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    auto made = take(backend->allocate(bytes, MemoryKind::kDevice));
    if (!backend->upload(*stream, values.data(), *made, 0, bytes).ok()) throw std::runtime_error("upload");
    return made;
  }
  std::vector<float> values(const Buffer& buffer) {
    std::vector<float> out(buffer.size() / sizeof(float));
    if (!backend->download(*stream, buffer, 0, out.data(), buffer.size()).ok()) throw std::runtime_error("download");
    return out;
  }
  Exec exec(const CancelToken* cancel = nullptr) { return {*stream, cancel}; }

  Allocator allocator;
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
};

class Random {
 public:
  std::vector<float> normal(int64_t n, float scale = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, scale);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = distribution(engine_);
    return x;
  }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  std::string trace() const { return test::seed_trace(); }

 private:
  std::mt19937 engine_ = test::seeded_random();
};

inline void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& actual,
                             const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(0, std::memcmp(&expected[i], &actual[i], sizeof(float)))
        << what << ": element " << i << ": " << expected[i] << ", " << actual[i];
  }
}

}  // namespace quire::test
