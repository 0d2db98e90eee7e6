// What a model and a session would take, from the headers of the files alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/backend/backend.h"
#include "lib/format/model_config.h"
#include "lib/strategy/strategy.h"

namespace quire {

struct MemoryRequest {
  std::string path;
  bool map = false;         // as ModelLoader::Options
  bool packed = false;      // matrices are mapped from a file in ModelLoader::Options::packed_directory
  int32_t weight_type = 0;  // as ModelLoader::Options
  ElementType activation_type = ElementType::kInt8;
  std::string beacon_directory;
  std::string strategy = "full";
  ElementType kv_type = ElementType::kF16;
  OldText old_text{};
  bool keeps_behind_windows = false;  // WindowLayers::keeps_all
  int64_t expected_tokens = 0;
  int64_t n_tokens = 0;  // the session's length
  int64_t prefill_block = 256;
  int64_t device_budget_bytes = 0;      // of a device's own memory; 0: what it has
  int64_t kv_budget_bytes = 0;          // of the machine's memory
  int64_t compressed_budget_bytes = 0;  // 0: no such tier
  bool spill = false;                   // to a file
  int64_t spill_budget_bytes = 0;       // 0: no limit
};

struct MemoryPlan {
  int64_t weight_bytes = 0;  // allocated
  int64_t mapped_bytes = 0;  // of files of weights, while the model lives
  // At most, while the text is read, in the memory that the model computes on; representations included.
  int64_t kv_bytes = 0;
  int64_t host_bytes = 0;  // the same of the machine's memory, below a device's own
  int64_t representation_bytes = 0;
  int64_t compressed_bytes = 0;    // of compressed memory, at most
  int64_t spill_bytes = 0;         // what goes to the file
  bool in_windows = false;         // not all records are in memory together
  int64_t scratch_bytes = 0;       // RoPE tables included
  int64_t kv_bytes_per_token = 0;  // of old text, where that is narrow
  int64_t reach = 0;
  std::string strategy;  // canonical
};

// The strategy that a session of n_tokens would have, from the configuration alone.
Result<std::unique_ptr<const Strategy>> plan_strategy(const Backend& backend, const MemoryRequest& request);
// The same where such a session can be made (check_kv).
Result<std::unique_ptr<const Strategy>> check_strategy(const Backend& backend, const MemoryRequest& request);

// Whether a session's KV cache can be made, by the request's types and its budget of compressed memory: the backend
// serves it, and that memory has room for what the tier takes for itself and a record. kUnsupported, kBudget.
Status check_kv(const Backend& backend, const ModelConfig& config, const Strategy& strategy,
                const MemoryRequest& request);

// Errors: those of loading and of make_strategy; kBudget where the KV cache does not fit in the budget and may not
// spill, or cannot work in it (message: bytes needed).
Result<MemoryPlan> plan_memory(const Backend& backend, const MemoryRequest& request);

}  // namespace quire
