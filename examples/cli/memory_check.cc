#include "memory_check.h"

#include <filesystem>

#include "document.h"

namespace cli {

namespace fs = std::filesystem;

int64_t check_memory(const Engine& engine, const SessionArguments& arguments, int64_t n_tokens) {
  SessionArguments without_adapters = arguments;  // they change nothing here, and would be loaded
  without_adapters.adapters.clear();
  const quire_memory_plan plan = engine.plan_memory(without_adapters, n_tokens);
  // What is beyond the reach is not read, or an error of its own. A budget is what its giver wants to be taken.
  const int64_t all = plan.kv_device_bytes + plan.kv_host_bytes + plan.kv_compressed_bytes + plan.kv_file_bytes;
  if (plan.reach < n_tokens && arguments.overflow != QUIRE_OVERFLOW_EXTRAPOLATE) return 0;
  if (plan.kv_file_bytes > 0) check_disk(arguments.spill_directory + "/", plan.kv_file_bytes);
  if (arguments.kv_budget_bytes > 0) return all;
  const int64_t weights = plan.kv_device_bytes > 0 ? 0 : plan.weight_bytes + plan.scratch_bytes;  // a device's own
  const int64_t needed = weights + plan.kv_host_bytes + plan.kv_compressed_bytes;
  const int64_t there = engine.memory_bytes();
  if (there == 0 || needed <= there) return all;
  throw QuireFailure(QUIRE_ERROR_BUDGET, "a document of " + std::to_string(n_tokens) +
                                             " tokens does not fit: it takes " + human_bytes(needed) +
                                             " of memory, and the machine has " + human_bytes(there));
}

void check_disk(const std::string& path, int64_t n_bytes) {
  const fs::path directory = fs::absolute(path).parent_path();
  std::error_code unknown;
  const fs::space_info space = fs::space(directory, unknown);
  if (unknown || space.available >= static_cast<uintmax_t>(n_bytes)) return;
  throw QuireFailure(QUIRE_ERROR_IO, "the document takes " + human_bytes(n_bytes) + " of " + directory.string() +
                                         ", which has room for " + human_bytes(static_cast<int64_t>(space.available)));
}

}  // namespace cli
