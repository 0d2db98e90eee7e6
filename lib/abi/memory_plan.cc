#include "lib/model/memory_plan.h"

#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"

using namespace quire;
using namespace quire::abi;

extern "C" {

quire_status quire_runtime_plan_memory(quire_runtime* runtime, const char* path, size_t path_len,
                                       const quire_model_options* model, const quire_session_options* session,
                                       int64_t n_tokens, quire_memory_plan* plan, quire_error* err) {
  return guard(err, [&]() -> Status {
    if (!runtime) return invalid("runtime is NULL");
    if (runtime->impl->closed()) return Status(Code::kClosed, "the runtime was closed");
    std::string_view directory;
    QUIRE_TRY(read_text(path, path_len, "path", &directory));
    QUIRE_TRY(check_range("n_tokens", n_tokens, 0, int64_t{1} << 40));
    ModelLoadOptions m;
    QUIRE_TRY(read_model_options(model, &m));
    SessionOptions s;
    QUIRE_TRY(read_session_options(session, &s));
    MemoryRequest request;
    request.directory = std::string(directory);
    request.map = m.map;
    request.weight_type = m.weight_type;
    request.beacon_directory = m.beacon_directory;
    request.strategy = s.strategy;
    request.kv_type = s.kv_type;
    request.expected_tokens = s.expected_tokens;
    request.n_tokens = n_tokens;
    request.prefill_block = s.prefill_block;
    request.kv_budget_bytes = s.kv_budget_bytes;
    request.spill = !s.spill_directory.empty();
    QUIRE_ASSIGN(const auto device, runtime->impl->devices().open(m.device));
    QUIRE_ASSIGN(const MemoryPlan made, plan_memory(*device.backend, request));
    quire_memory_plan full{};
    full.weight_bytes = made.weight_bytes;
    full.mapped_bytes = made.mapped_bytes;
    full.kv_bytes = made.kv_bytes;
    full.representation_bytes = made.representation_bytes;
    full.spill_bytes = made.spill_bytes;
    full.scratch_bytes = made.scratch_bytes;
    full.kv_bytes_per_token = made.kv_bytes_per_token;
    full.reach = made.reach;
    return write_output(full, "plan", plan);
  });
}
}
