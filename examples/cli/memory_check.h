// Whether a text's keys and values have room: said before hours of reading, not after.
#pragma once

#include "engine.h"

namespace cli {

// Throws QuireFailure where the KV cache of n_tokens does not fit in the budgets, or without one in the machine, or
// where --spill-dir has no room for its file. Returns how many bytes it has at most.
int64_t check_memory(const Engine& engine, const SessionArguments& arguments, int64_t n_tokens);

// Throws QuireFailure if a file of so many bytes has no room in the directory of `path`.
void check_disk(const std::string& path, int64_t n_bytes);

}  // namespace cli
