// Dual Chunk Attention's position map, which goes with more than one visibility.
#pragma once

#include <cstdint>

#include "lib/plan/plan.h"

namespace quire {

// Keys at j mod chunk; queries at i mod chunk (own chunk), min(chunk + i mod chunk, cap) (the one before) or cap.
struct DualChunkMap {
  enum class Parts { kAll, kIntraInter, kIntra };  // less than all: the paper's ablation (Figure 4)

  int64_t chunk = 0;  // s
  int64_t cap = 0;    // C; s <= C <= 2s - 1
  Parts parts = Parts::kAll;

  // Appends blocks of queries [first_query, first_query + n_queries) that see every earlier key, or of them the
  // selected ones.
  void plan(int64_t first_query, int64_t n_queries, KeysSeen seen, Plan& plan) const;
};

}  // namespace quire
