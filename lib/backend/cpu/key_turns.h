// By how much keys are turned when they are read, where a span wants them elsewhere than they are stored.
#pragma once

#include <span>
#include <vector>

#include "lib/backend/cpu/rope_cache.h"
#include "lib/plan/plan.h"

namespace quire::cpu {

// The turns of a chunk's keys, which are the same in every chunk, for spans that divide positions so.
struct KeyTurns {
  int64_t key_div;
  bool key_floor;
  std::vector<float> turns;  // as turn_keys takes them
};

// Those that the text keys of a plan need, if they are stored by stored_div. Not of spans whose groups of keys lie
// differently in each chunk. rope: null only where no key is turned.
std::vector<KeyTurns> make_key_turns(const Plan& plan, const RopeCache* rope, int64_t chunk, int64_t stored_div);

// Writes the turns of keys [begin, end) of the chunk whose first key is `first`, to their places among the chunk's.
// angles: f32 [head_dim], to work in.
void write_key_turns(const RopeCache& rope, const Span& span, int64_t stored_div, int64_t first, int64_t begin,
                     int64_t end, float* angles, float* turns);

// Null: there are none in `made` for the span.
const float* find_key_turns(std::span<const KeyTurns> made, const Span& span, int64_t chunk);

}  // namespace quire::cpu
