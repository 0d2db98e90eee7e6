#include "lib/abi/options.h"

#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"

namespace quire::abi {

Status read_model_options(const quire_model_options* in, ModelLoadOptions* out) {
  quire_model_options o;
  QUIRE_TRY(read_options(in, 0, "quire_model_options", &o));
  QUIRE_TRY(check_range("load", o.load, 0, QUIRE_LOAD_READ));
  QUIRE_TRY(check_range("weight_type", o.weight_type, 0, QUIRE_TYPE_BF16));
  out->map = o.load != QUIRE_LOAD_READ;
  out->weight_type = o.weight_type;
  if (o.cancel) out->cancel = o.cancel->impl;
  if (o.progress) {
    out->progress = [o](int64_t done, int64_t total) { o.progress(o.progress_user_data, done, total); };
  }
  return {};
}

Status read_session_options(const quire_session_options* in, SessionOptions* out) {
  quire_session_options o;
  QUIRE_TRY(read_options(in, 0, "quire_session_options", &o));
  std::string_view strategy;
  QUIRE_TRY(read_text(o.strategy, o.strategy_len, "strategy", &strategy));
  QUIRE_TRY(check_range("kv_type", o.kv_type, 0, QUIRE_TYPE_BF16));
  QUIRE_TRY(check_range("overflow", o.overflow, 0, QUIRE_OVERFLOW_EXTRAPOLATE));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  QUIRE_TRY(check_range("expected_tokens", o.expected_tokens, 0, kMost));
  QUIRE_TRY(check_range("kv_budget_bytes", o.kv_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("prefill_block", o.prefill_block, 0, 65536));
  QUIRE_TRY(check_range("reserved", o.reserved, 0, 0));
  std::string_view spill;
  QUIRE_TRY(read_text(o.spill_directory, o.spill_directory_len, "spill_directory", &spill));
  QUIRE_TRY(check_range("spill_budget_bytes", o.spill_budget_bytes, 0, kMost));
  if (spill.empty() && o.spill_budget_bytes != 0) return invalid("spill_budget_bytes without a spill_directory");
  out->spill_directory = std::string(spill);
  out->spill_budget_bytes = o.spill_budget_bytes;
  if (o.strategy) out->strategy = std::string(strategy);
  if (o.kv_type != 0) out->kv_type = static_cast<ElementType>(o.kv_type);
  if (o.overflow == QUIRE_OVERFLOW_STOP) out->overflow = OverflowPolicy::kStop;
  if (o.overflow == QUIRE_OVERFLOW_EXTRAPOLATE) out->overflow = OverflowPolicy::kExtrapolate;
  out->expected_tokens = o.expected_tokens;
  out->kv_budget_bytes = o.kv_budget_bytes;
  if (o.prefill_block != 0) out->prefill_block = o.prefill_block;
  return {};
}

}  // namespace quire::abi
