// Sessions and streams with random options.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "quire/quire.h"

namespace quire::test {

// The same numbers for the same seed on every system.
class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}
  size_t below(size_t n) { return random_() % n; }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(below(static_cast<size_t>(most - least + 1)));
  }
  bool one_in(size_t n) { return below(n) == 0; }
  template <typename List>
  const auto& one_of(const List& list) {
    return *(std::begin(list) + static_cast<std::ptrdiff_t>(below(std::size(list))));
  }

 private:
  std::mt19937 random_;
};

struct SessionPlan {
  std::string strategy;
  std::string spill_directory;  // empty: none
  int64_t budget_bytes = 0;
  int32_t prefill_block = 0;
  int32_t kv_type = 0;

  quire_session_options options() const;  // points into the plan
  std::string text() const;
};

struct StreamPlan {
  uint32_t flags = 0;
  int64_t max_tokens = 0, min_tokens = 0;
  float temperature = 0, top_p = 0, min_p = 0;
  int32_t top_k = 0, n_top_logprobs = 0;
  uint64_t seed = 0;
  std::vector<int32_t> stop_ids;
  std::vector<quire_sampler> samplers;

  bool plain_greedy() const { return temperature == 0 && samplers.empty() && min_tokens == 0; }
  quire_stream_options options() const;  // points into the plan
  std::string text() const;
};

// Strategies that the model can have and whose keys do not depend on which tokens were generated.
enum class ModelKind { kBeacon, kShort, kWindow };
SessionPlan random_session(Dice& dice, ModelKind kind, const std::string& spill_directory);
StreamPlan random_stream(Dice& dice, int32_t vocab_size);
std::string random_text(Dice& dice);

}  // namespace quire::test
