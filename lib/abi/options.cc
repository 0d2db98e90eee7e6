#include "lib/abi/options.h"

#include <cmath>
#include <limits>

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/strategy/expression.h"

namespace quire::abi {
namespace {

constexpr size_t kMostAdapters = 64;
constexpr int32_t kUsualHeads = 32;  // of a model of 7 billion parameters
constexpr int32_t kMostHeads = 65536;
static_assert(static_cast<int32_t>(KvKind::kText) == QUIRE_KV_TEXT);
static_assert(static_cast<int32_t>(KvKind::kCondensed) == QUIRE_KV_CONDENSED);

Status check_adapters(const void* entries, size_t n, const char* name) {
  if (!entries && n > 0) return invalid(std::string(name) + " is NULL but n_" + name + " is not 0");
  if (n <= kMostAdapters) return {};
  return invalid("n_" + std::string(name) + " is " + std::to_string(n) + "; at most " + std::to_string(kMostAdapters));
}

Status check_scale(double scale, const char* name, size_t i) {
  if (std::isfinite(scale) && scale != 0) return {};
  return invalid(std::string(name) + "[" + std::to_string(i) + "].scale is " + std::to_string(scale) +
                     "; expected a finite number other than 0",
                 static_cast<int64_t>(i));
}

// NULL leaves *out as it is. One that is too long is refused before it is copied: such a length may be a mistake.
Status read_strategy(const char* text, size_t size, std::string* out) {
  std::string_view strategy;
  QUIRE_TRY(read_text(text, size, "strategy", &strategy));
  if (strategy.size() > kMaxExpressionBytes) return parse_expression(strategy).status();
  if (text) *out = std::string(strategy);
  return {};
}

}  // namespace

Status read_model_options(const quire_model_options* in, ModelLoadOptions* out) {
  quire_model_options o;
  QUIRE_TRY(read_options(in, 0, "quire_model_options", &o));
  QUIRE_TRY(check_range("load", o.load, 0, QUIRE_LOAD_READ));
  QUIRE_TRY(check_range("weight_type", o.weight_type, 0, kLastElementType));
  out->map = o.load == QUIRE_LOAD_MMAP;
  out->weight_type = o.weight_type;
  QUIRE_TRY(check_range("reserved", o.reserved, 0, 0));
  if (o.activation_type != QUIRE_TYPE_DEFAULT) {
    const auto type = static_cast<ElementType>(o.activation_type);
    if (type != ElementType::kF32 && type != ElementType::kBF16 && type != ElementType::kInt8) {
      return invalid("activation_type is " + std::to_string(o.activation_type) +
                     "; expected QUIRE_TYPE_DEFAULT, QUIRE_TYPE_F32, QUIRE_TYPE_BF16 or QUIRE_TYPE_INT8");
    }
    out->activation_type = type;
  }
  out->cancel = object_of(o.cancel);
  if (o.progress) {
    out->progress = [o](int64_t done, int64_t total) { o.progress(o.progress_user_data, done, total); };
  }
  std::string_view device, beacon;
  QUIRE_TRY(read_text(o.device, o.device_len, "device", &device));
  out->device = std::string(device);
  QUIRE_TRY(read_text(o.beacon_path, o.beacon_path_len, "beacon_path", &beacon));
  out->beacon_directory = std::string(beacon);
  std::string_view packed;
  QUIRE_TRY(read_text(o.packed_directory, o.packed_directory_len, "packed_directory", &packed));
  out->packed_directory = std::string(packed);
  QUIRE_TRY(check_adapters(o.merge, o.n_merge, "merge"));
  for (size_t i = 0; i < o.n_merge; ++i) {
    std::string_view path;
    QUIRE_TRY(read_text(o.merge[i].path, o.merge[i].path_len, "merge path", &path));
    if (path.empty()) return invalid("merge[" + std::to_string(i) + "].path is empty", static_cast<int64_t>(i));
    QUIRE_TRY(check_scale(o.merge[i].scale, "merge", i));
    out->merge.push_back({std::string(path), o.merge[i].scale});
  }
  return {};
}

Status read_adapter_options(const quire_adapter_options* in, AdapterLoadOptions* out) {
  quire_adapter_options o;
  QUIRE_TRY(read_options(in, 0, "quire_adapter_options", &o));
  out->cancel = object_of(o.cancel);
  if (o.progress) {
    out->progress = [o](int64_t done, int64_t total) { o.progress(o.progress_user_data, done, total); };
  }
  return {};
}

namespace {

Status read_old_text(const quire_session_options& o, OldText* old) {
  if (o.kv_old_type != 0 && o.kv_old_type != QUIRE_TYPE_INT8 && o.kv_old_type != QUIRE_TYPE_INT4) {
    return invalid("kv_old_type is " + std::to_string(o.kv_old_type) + "; expected 0, " +
                   std::to_string(QUIRE_TYPE_INT8) + " (QUIRE_TYPE_INT8) or " + std::to_string(QUIRE_TYPE_INT4) +
                   " (QUIRE_TYPE_INT4)");
  }
  QUIRE_TRY(check_range("reserved_2", o.reserved_2, 0, 0));
  QUIRE_TRY(check_range("old_after", o.old_after, QUIRE_OLD_AT_ONCE, int64_t{1} << 40));
  if (o.kv_old_type == 0) {
    return o.old_after == 0 ? Status()
                            : invalid("old_after is " + std::to_string(o.old_after) + " without a kv_old_type");
  }
  constexpr int64_t kDefaultAfter = 4096;
  old->type = static_cast<ElementType>(o.kv_old_type);
  old->after = o.old_after == 0 ? kDefaultAfter : std::max<int64_t>(0, o.old_after);
  return {};
}

}  // namespace

Status read_session_options(const quire_session_options* in, const Backend& backend, SessionOptions* out) {
  quire_session_options o;
  QUIRE_TRY(read_options(in, kSessionFlags, "quire_session_options", &o));
  QUIRE_TRY(read_strategy(o.strategy, o.strategy_len, &out->strategy));
  QUIRE_TRY(check_range("kv_type", o.kv_type, 0, QUIRE_TYPE_BF16));
  QUIRE_TRY(check_range("overflow", o.overflow, 0, QUIRE_OVERFLOW_EXTRAPOLATE));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  QUIRE_TRY(read_old_text(o, &out->old_text));
  QUIRE_TRY(check_range("expected_tokens", o.expected_tokens, 0, kMost));
  QUIRE_TRY(check_range("prefill_block", o.prefill_block, 0, 65536));
  QUIRE_TRY(check_range("reserved", o.reserved, 0, 0));
  QUIRE_TRY(check_range("kv_device_budget_bytes", o.kv_device_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("kv_host_budget_bytes", o.kv_host_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("kv_compressed_budget_bytes", o.kv_compressed_budget_bytes, 0, kMost));
  QUIRE_TRY(check_range("kv_file_budget_bytes", o.kv_file_budget_bytes, 0, kMost));
  std::string_view directory;
  QUIRE_TRY(read_text(o.kv_file_directory, o.kv_file_directory_len, "kv_file_directory", &directory));
  if (directory.empty() && o.kv_file_budget_bytes != 0) {
    return invalid("kv_file_budget_bytes without a kv_file_directory");
  }
  out->spill_directory = std::string(directory);
  out->spill_budget_bytes = o.kv_file_budget_bytes;
  out->compressed_budget_bytes = o.kv_compressed_budget_bytes;
  if (o.kv_type != 0) out->kv_type = static_cast<ElementType>(o.kv_type);
  if (o.overflow == QUIRE_OVERFLOW_STOP) out->overflow = OverflowPolicy::kStop;
  if (o.overflow == QUIRE_OVERFLOW_EXTRAPOLATE) out->overflow = OverflowPolicy::kExtrapolate;
  out->keep_behind_windows = (o.flags & QUIRE_SESSION_KEEP_BEHIND_WINDOWS) != 0;
  out->reuse_prefixes = (o.flags & QUIRE_SESSION_NO_PREFIX_REUSE) == 0;
  out->expected_tokens = o.expected_tokens;
  out->device_budget_bytes = o.kv_device_budget_bytes;
  out->kv_budget_bytes = o.kv_host_budget_bytes;
  out->prefill_block = o.prefill_block != 0 ? o.prefill_block : backend.prefill_block();
  QUIRE_TRY(check_adapters(o.adapters, o.n_adapters, "adapters"));
  for (size_t i = 0; i < o.n_adapters; ++i) {
    const quire_session_adapter& a = o.adapters[i];
    if (!a.adapter) return invalid("adapters[" + std::to_string(i) + "].adapter is NULL", static_cast<int64_t>(i));
    QUIRE_TRY(check_scale(a.scale, "adapters", i));
    out->adapters.push_back({object_of(a.adapter), a.scale});
  }
  return {};
}

Status read_strategy_options(const quire_strategy_options* in, StrategyOptions* out) {
  if (!in) return invalid("options is NULL");
  quire_strategy_options o;
  QUIRE_TRY(read_options(in, 0, "quire_strategy_options", &o));
  QUIRE_TRY(read_strategy(o.strategy, o.strategy_len, &out->expression));
  QUIRE_TRY(check_range("train_len", o.train_len, 1, int64_t{1} << 40));
  QUIRE_TRY(check_range("expected_tokens", o.expected_tokens, 0, std::numeric_limits<int64_t>::max()));
  QUIRE_TRY(check_range("n_heads", o.n_heads, 0, kMostHeads));
  QUIRE_TRY(check_range("reserved", o.reserved, 0, 0));
  StrategyContext& context = out->context;
  context.train_len = o.train_len;
  context.expected_tokens = o.expected_tokens;
  context.n_query_heads = context.n_kv_heads = o.n_heads == 0 ? kUsualHeads : o.n_heads;
  context.beacon.emplace();  // as published
  context.beacon_only_by_name = true;
  return {};
}

Status read_position_view(const quire_position_view* in, int n_heads, PositionView* out) {
  if (!in) return invalid("view is NULL");
  quire_position_view v;
  QUIRE_TRY(read_options(in, 0, "quire_position_view", &v));
  QUIRE_TRY(check_range("head", v.head, 0, n_heads - 1));
  QUIRE_TRY(check_range("query_kind", v.query_kind, QUIRE_KV_TEXT, QUIRE_KV_CONDENSED));
  QUIRE_TRY(check_range("key_kind", v.key_kind, QUIRE_KV_TEXT, QUIRE_KV_CONDENSED));
  QUIRE_TRY(check_range("reserved", v.reserved, 0, 0));
  QUIRE_TRY(check_range("first_query", v.first_query, 0, kMostViewedTokens));
  QUIRE_TRY(check_range("n_queries", v.n_queries, 1, kMostViewedTokens));
  QUIRE_TRY(check_range("n_keys", v.n_keys, 1, kMostViewedTokens));
  out->head = v.head;
  out->n_heads = n_heads;
  out->queries = static_cast<KvKind>(v.query_kind);
  out->keys = static_cast<KvKind>(v.key_kind);
  out->first_query = v.first_query;
  out->n_queries = v.n_queries;
  out->n_keys = v.n_keys;
  return {};
}

}  // namespace quire::abi
