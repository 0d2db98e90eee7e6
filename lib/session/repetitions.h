// Repetitions of a text's end, for DRY.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "lib/session/sampler.h"

namespace quire {

// By the token that would continue it: the length of the longest repetition of the text's last tokens.
using Repetitions = std::unordered_map<int32_t, size_t>;

// Those of at least step.allowed_length tokens among the step's last tokens of the history. `breakers`: by token.
Repetitions find_repetitions(const SamplerStep& step, std::span<const int32_t> history,
                             const std::vector<bool>& breakers);

// kDry.
void penalise_repetition(const SamplerStep& step, const Repetitions& repetitions, Candidates& candidates);

}  // namespace quire
