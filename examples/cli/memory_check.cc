#include "memory_check.h"

#include "document.h"

namespace cli {

void check_memory(const Engine& engine, const SessionArguments& arguments, int64_t n_tokens) {
  SessionArguments without_adapters = arguments;  // they change nothing here, and would be loaded
  without_adapters.adapters.clear();
  const quire_memory_plan plan = engine.plan_memory(without_adapters, n_tokens);
  // What is beyond the reach is not read, or an error of its own. A budget is what its giver wants to be taken.
  if (plan.reach < n_tokens && arguments.overflow != QUIRE_OVERFLOW_EXTRAPOLATE) return;
  if (arguments.kv_budget_bytes > 0) return;
  const int64_t weights = plan.kv_device_bytes > 0 ? 0 : plan.weight_bytes + plan.scratch_bytes;  // a device's own
  const int64_t needed = weights + plan.kv_host_bytes + plan.kv_compressed_bytes;
  const int64_t there = engine.memory_bytes();
  if (there == 0 || needed <= there) return;
  throw QuireFailure(QUIRE_ERROR_BUDGET, "a document of " + std::to_string(n_tokens) +
                                             " tokens does not fit: it takes " + human_bytes(needed) +
                                             " of memory, and the machine has " + human_bytes(there));
}

}  // namespace cli
