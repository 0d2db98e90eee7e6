// What a caller may ask of a session, and which strategy and adapters that means for a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/model/adapter.h"
#include "lib/session/runtime.h"
#include "lib/strategy/strategy.h"

namespace quire {

enum class OverflowPolicy { kError, kStop, kExtrapolate };

struct SessionAdapter {
  std::shared_ptr<const LoadedAdapter> adapter;
  double scale = 1;
};

struct SessionOptions {
  std::string strategy = "full";
  ElementType kv_type = ElementType::kF16;
  OldText old_text{};  // read in a narrower type
  OverflowPolicy overflow = OverflowPolicy::kError;
  int64_t expected_tokens = 0;
  int64_t device_budget_bytes = 0;      // of the memory of a device that has its own; other models take no notice
  int64_t kv_budget_bytes = 0;          // of the machine's memory
  int64_t compressed_budget_bytes = 0;  // 0: no compressed memory
  std::string spill_directory;          // empty: no file
  int64_t spill_budget_bytes = 0;
  int64_t prefill_block = 256;
  std::vector<SessionAdapter> adapters;
  bool keep_behind_windows = false;  // WindowLayers::keeps_all
  bool reuse_prefixes = false;       // shares the chunks of equal texts with the runtime's other sessions that do
};

// Of the memory that a model on this device computes on.
inline int64_t first_budget(const Backend& backend, const SessionOptions& options) {
  return backend.has_own_memory() ? options.device_budget_bytes : options.kv_budget_bytes;
}
Result<std::unique_ptr<const Strategy>> choose_strategy(const Model& model, const SessionOptions& options);
// kInvalidArgument: an adapter of another model, or two that replace the same tensor.
Result<AdapterList> list_adapters(const Model& model, const SessionOptions& options);
// What to say where an adapter may need another RoPE base than the session has; empty: nothing.
std::string adapter_base_warning(const Model& model, const AdapterList& adapters, const Strategy& strategy);

}  // namespace quire
