// Whether a text's keys and values have room: said before hours of reading, not after.
#pragma once

#include "engine.h"

namespace cli {

// Throws QuireFailure where the KV cache of n_tokens does not fit in the budgets, or without one in the machine.
void check_memory(const Engine& engine, const SessionArguments& arguments, int64_t n_tokens);

}  // namespace cli
