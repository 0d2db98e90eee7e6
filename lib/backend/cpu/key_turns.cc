#include "lib/backend/cpu/key_turns.h"

#include <cmath>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {
namespace {

// Whether the span's groups of keys lie alike in every chunk.
bool same_in_all_chunks(const Span& span, int64_t chunk) {
  if (span.key_div <= 1 || !span.key_floor) return true;
  return span.key_base % span.key_div == 0 && chunk % span.key_div == 0;
}

}  // namespace

void write_key_turns(const RopeCache& rope, const Span& span, int64_t stored_div, int64_t first, int64_t begin,
                     int64_t end, float* angles, float* turns) {
  const int64_t half = rope.half_dim();
  for (int64_t offset = begin; offset < end; ++offset) {
    const double by = span.key_position(first + offset) - span.key_position(first) -
                      static_cast<double>(stored_position(offset, stored_div));
    const float *cos = angles, *sin = angles + half;
    if (by >= 0 && by < static_cast<double>(rope.chunk()) && by == std::floor(by)) {
      cos = rope.chunk_cos(static_cast<int64_t>(by));
      sin = rope.chunk_sin(static_cast<int64_t>(by));
    } else {
      rope.angles(by, angles, angles + half);
    }
    float* to = turns + offset / kKeyBlock * kKeyBlock * 2 * half + offset % kKeyBlock;
    for (int64_t a = 0; a < half; ++a, to += 2 * kKeyBlock) {
      to[0] = cos[a];
      to[kKeyBlock] = sin[a];
    }
  }
}

const float* find_key_turns(std::span<const KeyTurns> made, const Span& span, int64_t chunk) {
  if (!same_in_all_chunks(span, chunk)) return nullptr;
  for (const KeyTurns& of : made) {
    if (of.key_div == span.key_div && of.key_floor == span.key_floor) return of.turns.data();
  }
  return nullptr;
}

std::vector<KeyTurns> make_key_turns(const Plan& plan, const RopeCache* rope, int64_t chunk, int64_t stored_div) {
  std::vector<KeyTurns> made;
  for (const Span& span : plan.spans) {
    if (span.kind != KvKind::kText || span.as_stored(stored_div, chunk)) continue;
    if (!same_in_all_chunks(span, chunk) || find_key_turns(made, span, chunk)) continue;
    const int64_t d = 2 * rope->half_dim();
    const Span divides{.key_div = span.key_div, .key_floor = span.key_floor};
    KeyTurns of{span.key_div, span.key_floor, {}};
    of.turns.resize(static_cast<size_t>(key_elements(chunk, d)));
    std::vector<float> angles(static_cast<size_t>(d));
    write_key_turns(*rope, divides, stored_div, 0, 0, chunk, angles.data(), of.turns.data());
    made.push_back(std::move(of));
  }
  return made;
}

}  // namespace quire::cpu
