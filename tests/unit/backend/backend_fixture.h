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

using Buffers = std::vector<std::shared_ptr<Buffer>>;

// KV records of given bytes in pages of several, every page but the first with a hole before its records.
struct Records {
  Records(Backend& backend, size_t record_bytes, int64_t n) {
    for (int64_t c = 0; c < n; ++c) {
      if (c % kPageRecords == 0) {
        pages.push_back(take(backend.allocate((kPageRecords + 1) * record_bytes, MemoryKind::kDevice)));
        std::memset(pages.back()->host(), 0xFF, pages.back()->size());  // NaN in every type: reading too far shows
      }
      const size_t hole = pages.size() > 1 ? 1 : 0;
      chunks.push_back({pages.back().get(), (static_cast<size_t>(c) % kPageRecords + hole) * record_bytes});
    }
  }
  Records() = default;

  static constexpr size_t kPageRecords = 3;
  Buffers pages;
  std::vector<KvRecord> chunks;
};

struct Machine {
  explicit Machine(int n_threads = 1) : pool(n_threads), backend(cpu::create_cpu_backend(allocator, pool)) {
    queue = take(backend->create_queue());
  }

  std::unique_ptr<Buffer> buffer(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    auto made = take(backend->allocate(bytes, MemoryKind::kDevice));
    if (!backend->upload(*queue, values.data(), *made, 0, bytes).ok()) throw std::runtime_error("upload");
    return made;
  }
  std::unique_ptr<Buffer> ids(const std::vector<int32_t>& tokens) {
    const size_t bytes = tokens.size() * sizeof(int32_t);
    auto made = take(backend->allocate(bytes, MemoryKind::kDevice));
    if (!backend->upload(*queue, tokens.data(), *made, 0, bytes).ok()) throw std::runtime_error("upload");
    return made;
  }
  std::vector<float> values(const Buffer& buffer) {
    std::vector<float> out(buffer.size() / sizeof(float));
    if (!backend->download(*queue, buffer, 0, out.data(), buffer.size()).ok()) throw std::runtime_error("download");
    return out;
  }
  Exec exec(const CancelToken* cancel = nullptr) { return {*queue, cancel}; }
  // A step of one sequence.
  std::unique_ptr<PreparedStep> step(int n_query_heads, const StepSequence& sequence) {
    return take(backend->prepare_step(exec(), n_query_heads, {&sequence, 1}));
  }
  // Of a sequence whose rows only store keys.
  std::unique_ptr<PreparedStep> storing_step(StepSequence sequence) {
    sequence.plan = std::make_shared<Plan>();
    return step(sequence.geometry.n_kv_heads, sequence);
  }

  Allocator allocator;
  ThreadPool pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Queue> queue;
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
