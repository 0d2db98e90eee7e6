// Links of sampling chains, for tests.
#pragma once

#include <cstdint>

#include "lib/session/sampler.h"

namespace quire::test {

inline SamplerStep step_of(SamplerStep::Kind kind, double value, int64_t n = 0) {
  SamplerStep step;
  step.kind = kind;
  step.value = value;
  step.n = n;
  return step;
}

}  // namespace quire::test
