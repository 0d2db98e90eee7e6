// What the CPU backend prepares of a step.
#pragma once

#include <vector>

#include "lib/backend/attention_pieces.h"
#include "lib/backend/cpu/key_turns.h"

namespace quire::cpu {

using tiling::kSelectedTileRows;
using tiling::kTileRows;
using tiling::Pick;
using tiling::Piece;
using tiling::Pieces;
using tiling::Tile;

class CpuStep : public PreparedStep {
 public:
  CpuStep(int n_heads, std::span<const StepSequence> all) : n_query_heads(n_heads) {
    sequences.reserve(all.size());
    for (const StepSequence& s : all) {
      sequences.push_back(
          {s, tiling::cut_pieces({*s.plan, n_heads, s.geometry.n_kv_heads, s.geometry.chunk, s.old}),
           make_key_turns(*s.plan, static_cast<const RopeCache*>(s.rope), s.geometry.chunk, s.stored_div)});
    }
  }

  struct Sequence : StepSequence {
    Pieces pieces;  // of the blocks without a selection
    std::vector<KeyTurns> key_turns;
  };
  const Sequence& at(int sequence) const { return sequences[static_cast<size_t>(sequence)]; }

  const int n_query_heads;
  std::vector<Sequence> sequences;
};

inline const CpuStep& cpu_step(const PreparedStep& step) { return static_cast<const CpuStep&>(step); }

}  // namespace quire::cpu
