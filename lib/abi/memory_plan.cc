// What would be, said from a model's files without loading it.
#include "lib/model/memory_plan.h"

#include <algorithm>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/abi/options.h"
#include "lib/session/estimate.h"

using namespace quire;
using namespace quire::abi;

namespace {

struct PlannedSession {
  MemoryRequest request;
  SessionOptions options;
  Backend& backend;  // the runtime's
};

Result<PlannedSession> read_planned(Runtime& runtime, const char* path, size_t path_len,
                                    const quire_model_options* model, const quire_session_options* session) {
  QUIRE_TRY(check_open(runtime));
  std::string_view directory;
  QUIRE_TRY(read_text(path, path_len, "path", &directory));
  if (directory.empty()) return invalid("path is empty");
  ModelLoadOptions m;
  QUIRE_TRY(read_model_options(model, &m));
  QUIRE_ASSIGN(const auto device, runtime.devices().open(m.device));
  SessionOptions s;
  QUIRE_TRY(read_session_options(session, *device.backend, &s));
  MemoryRequest request;
  request.path = std::string(directory);
  request.map = m.map;
  request.packed = !m.packed_directory.empty() && m.merge.empty();
  request.weight_type = m.weight_type;
  request.activation_type = m.activation_type;
  request.beacon_directory = m.beacon_directory;
  request.strategy = s.strategy;
  request.kv_type = s.kv_type;
  request.old_text = s.old_text;
  request.keeps_behind_windows = s.keep_behind_windows;
  request.expected_tokens = s.expected_tokens;
  request.prefill_block = s.prefill_block;
  request.device_budget_bytes = s.device_budget_bytes;
  request.kv_budget_bytes = s.kv_budget_bytes;
  request.compressed_budget_bytes = s.compressed_budget_bytes;
  request.spill = !s.spill_directory.empty();
  request.spill_budget_bytes = s.spill_budget_bytes;
  return PlannedSession{std::move(request), std::move(s), *device.backend};
}

Status check_no_adapters(const PlannedSession& planned) {
  if (planned.options.adapters.empty()) return {};
  return invalid("adapters are given, which belong to a loaded model");
}

}  // namespace

extern "C" {

quire_status quire_runtime_plan_memory(const quire_runtime* runtime, const char* path, size_t path_len,
                                       const quire_model_options* model, const quire_session_options* session,
                                       int64_t n_tokens, quire_memory_plan* plan, quire_error* err) {
  return with_handle(runtime, err, [&](const std::shared_ptr<Runtime>& r) -> Status {
    QUIRE_TRY(check_range("n_tokens", n_tokens, 0, int64_t{1} << 40));
    QUIRE_ASSIGN(PlannedSession planned, read_planned(*r, path, path_len, model, session));
    planned.request.n_tokens = n_tokens;
    QUIRE_ASSIGN(const MemoryPlan made, plan_memory(planned.backend, planned.request));
    quire_memory_plan full{};
    full.weight_bytes = made.weight_bytes;
    full.mapped_bytes = made.mapped_bytes;
    full.scratch_bytes = made.scratch_bytes;
    full.kv_bytes_per_token = made.kv_bytes_per_token;
    full.representation_bytes = made.representation_bytes;
    full.reach = made.reach;
    const bool on_device = planned.backend.has_own_memory();
    full.kv_device_bytes = on_device ? made.kv_bytes : 0;
    full.kv_host_bytes = on_device ? made.host_bytes : made.kv_bytes;
    full.kv_compressed_bytes = made.compressed_bytes;
    full.kv_file_bytes = made.spill_bytes;
    return write_output(full, "plan", plan);
  });
}

quire_status quire_model_estimate_rates(quire_model* model, const quire_session_options* options, int64_t n_tokens,
                                        quire_rate_estimate* estimate, quire_error* err) {
  return with_handle(model, err, [&](const std::shared_ptr<Model>& m) -> Status {
    QUIRE_TRY(check_open(*m->runtime));
    QUIRE_TRY(check_range("n_tokens", n_tokens, 1, int64_t{1} << 40));
    SessionOptions o;
    QUIRE_TRY(read_session_options(options, m->llama->backend(), &o));
    QUIRE_ASSIGN(const RateEstimate made, estimate_rates(m, o, n_tokens));
    const auto ns = [](double seconds) { return static_cast<int64_t>(std::min(1e9 * seconds, 9e18)); };
    quire_rate_estimate full{};
    full.prefill_ns = ns(made.rates.prefill_seconds);
    full.decode_token_ns = ns(made.rates.decode_token_seconds);
    full.decode_token_cold_ns = ns(made.rates.decode_token_cold_seconds);
    full.measured_tokens = made.measured_tokens;
    full.tier_read_bytes_per_second = static_cast<int64_t>(made.tier_read_rate);
    full.calibration_ns = ns(made.seconds);
    return write_output(full, "estimate", estimate);
  });
}

quire_status quire_runtime_check_session(const quire_runtime* runtime, const char* path, size_t path_len,
                                         const quire_model_options* model, const quire_session_options* session,
                                         quire_error* err) {
  return with_handle(runtime, err, [&](const std::shared_ptr<Runtime>& r) -> Status {
    QUIRE_ASSIGN(const PlannedSession planned, read_planned(*r, path, path_len, model, session));
    QUIRE_TRY(check_no_adapters(planned));
    QUIRE_ASSIGN(const auto strategy, check_strategy(planned.backend, planned.request));
    return Session::check_reach(*strategy, planned.options);
  });
}

quire_status quire_runtime_describe_strategy(const quire_runtime* runtime, const char* path, size_t path_len,
                                             const quire_model_options* model, const quire_session_options* session,
                                             char* buf, size_t cap, size_t* needed, quire_error* err) {
  return with_handle(runtime, err, [&](const std::shared_ptr<Runtime>& r) -> Status {
    QUIRE_ASSIGN(const PlannedSession planned, read_planned(*r, path, path_len, model, session));
    QUIRE_TRY(check_no_adapters(planned));
    QUIRE_ASSIGN(const auto strategy, plan_strategy(planned.backend, planned.request));
    return write_text(strategy->canonical(), buf, cap, needed);
  });
}
}
