// Strategies whose heads select chunks (ChunkSelection): what longheads and dca_topk have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lib/strategy/arguments.h"
#include "lib/strategy/dual_chunk.h"
#include "lib/strategy/strategy.h"

namespace quire {

constexpr int64_t kChunkStep = 16;  // backends lay keys out in blocks of 16

// Queries before `begin` see every key, later ones those of the chunks that they select.
class SelectingStrategy final : public Strategy {
 public:
  // dual_chunk: where keys stand; empty: packed. dense_reading: given tokens see every key, only generated ones select.
  SelectingStrategy(const ChunkSelection& selection, std::optional<DualChunkMap> dual_chunk, int64_t begin,
                    bool dense_reading, int64_t train_len);

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override;
  void plan_generated(int64_t first_query, int64_t n_queries, Plan& plan) const override;
  bool plans_generated_apart() const override { return dense_reading_ || selection_.n_sticky > 0; }
  int64_t chunks_selected(int64_t query) const override;
  std::vector<KeyRange> retained(int64_t) const override { return {{0, kNoLimit}}; }

 private:
  void append(int64_t first_query, int64_t n_queries, int64_t dense_end, Plan& plan) const;
  void add(int64_t begin, int64_t end, KeysSeen seen, Plan& plan) const;

  std::optional<DualChunkMap> dual_chunk_;
  int64_t begin_;
  bool dense_reading_;
};

// The map of the arguments dca_chunk, a multiple of `step`, and dca_cap.
Result<DualChunkMap> read_dual_chunk(const Arguments& arguments, int64_t train_len, int64_t step = 1);

}  // namespace quire
