#include "engine.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "cancel_on_interrupt.h"
#include "interrupt.h"
#include "pages.h"
#include "progress.h"

namespace cli {
namespace {

constexpr int32_t kPollMs = 50;

std::mutex log_mutex;
std::string last_said;

void print_log(void*, int32_t level, const char* message, size_t message_len) {
  std::lock_guard lock(log_mutex);
  last_said.assign(message, message_len);
  const char* word = level == QUIRE_LOG_ERROR ? "error" : "warning";
  std::fprintf(stderr, "quire: %s: %.*s\n", word, static_cast<int>(message_len), message);
}

// Without what belongs to one call. The arguments must outlive it.
quire_model_options model_options(const ModelArguments& arguments) {
  auto options = initialised(quire_model_options_init);
  options.weight_type = arguments.weight_type;
  options.activation_type = arguments.activation_type;
  if (!arguments.beacon.empty()) options.beacon_path = arguments.beacon.data();
  options.beacon_path_len = arguments.beacon.size();
  options.device = arguments.device.data();
  options.device_len = arguments.device.size();
  if (!arguments.packed_directory.empty()) options.packed_directory = arguments.packed_directory.data();
  options.packed_directory_len = arguments.packed_directory.size();
  return options;
}

Model load(quire_runtime* runtime, const ModelArguments& arguments) {
  const std::string& directory = arguments.path;
  std::vector<quire_adapter_source> merge;
  for (const AdapterArgument& a : arguments.merge) merge.push_back({a.directory.data(), a.directory.size(), a.scale});
  const CancelOnInterrupt cancel;
  Progress progress("loading", "MiB");
  quire_model_options options = model_options(arguments);
  options.cancel = cancel.get();
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  options.merge = merge.data();
  options.n_merge = merge.size();
  Error error;
  quire_model* model = nullptr;
  const quire_status status =
      quire_model_load(runtime, directory.data(), directory.size(), &options, &model, error.get());
  if (status == QUIRE_ERROR_CANCELLED) throw Interrupted();
  error.check_options(status, "cannot load the model in " + directory);
  return Model(model);
}

Adapter load_adapter(quire_model* model, const std::string& directory) {
  const CancelOnInterrupt cancel;
  Progress progress("adapter", "MiB");
  auto options = initialised(quire_adapter_options_init);
  options.cancel = cancel.get();
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  Error error;
  quire_adapter* adapter = nullptr;
  const quire_status status =
      quire_adapter_load(model, directory.data(), directory.size(), &options, &adapter, error.get());
  if (status == QUIRE_ERROR_CANCELLED) throw Interrupted();
  error.check(status, "cannot load the adapter in " + directory);
  return Adapter(adapter);
}

// The options that arguments say, and the adapters, which are loaded for them.
struct OpenSessionOptions {
  OpenSessionOptions(quire_model* model, const SessionArguments& arguments)
      : options(initialised(quire_session_options_init)) {
    if (!arguments.strategy.empty()) options.strategy = arguments.strategy.data();
    options.strategy_len = arguments.strategy.size();
    options.kv_type = arguments.kv_type;
    options.kv_old_type = arguments.kv_old_type;
    options.old_after = arguments.old_after;
    if (arguments.keep_behind_windows) options.flags |= QUIRE_SESSION_KEEP_BEHIND_WINDOWS;
    options.overflow = arguments.overflow;
    options.expected_tokens = arguments.expected_tokens;
    options.kv_device_budget_bytes = arguments.device_budget_bytes;
    options.kv_host_budget_bytes = arguments.kv_budget_bytes;
    options.kv_compressed_budget_bytes = arguments.compressed_budget_bytes;
    if (!arguments.spill_directory.empty()) options.kv_file_directory = arguments.spill_directory.data();
    options.kv_file_directory_len = arguments.spill_directory.size();
    for (const AdapterArgument& a : arguments.adapters) {
      adapters.push_back(load_adapter(model, a.directory));
      used.push_back({adapters.back().get(), a.scale});
    }
    options.adapters = used.data();
    options.n_adapters = used.size();
  }
  OpenSessionOptions(const OpenSessionOptions&) = delete;
  OpenSessionOptions& operator=(const OpenSessionOptions&) = delete;

  quire_session_options options;
  std::vector<Adapter> adapters;
  std::vector<quire_session_adapter> used;
};

}  // namespace

Runtime create_runtime(int32_t n_threads) {
  auto options = initialised(quire_runtime_options_init);
  options.n_threads = n_threads;
  options.log = print_log;
  Error error;
  quire_runtime* runtime = nullptr;
  error.check(quire_runtime_create(&options, &runtime, error.get()), "cannot start the runtime");
  return Runtime(runtime);
}

Engine::Engine(const ModelArguments& arguments)
    : arguments_(arguments), runtime_(create_runtime(arguments.n_threads)), model_(load(runtime_.get(), arguments)) {}

quire_model_info Engine::info() const {
  quire_model_info info = {};
  info.struct_size = sizeof info;
  Error error;
  error.check(quire_model_get_info(model(), &info, error.get()), "reading the model's facts");
  return info;
}

std::string Engine::metadata(std::string_view key) const {
  try {
    return get_text(
        [&](char* buf, size_t cap, size_t* needed, quire_error* err) {
          return quire_model_get_metadata(model(), key.data(), key.size(), buf, cap, needed, err);
        },
        "reading the model's metadata");
  } catch (const QuireFailure& failure) {
    if (failure.status() != QUIRE_ERROR_NOT_FOUND) throw;
    return "";
  }
}

Tokenizer Engine::tokenizer() const {
  Error error;
  quire_tokenizer* tokenizer = nullptr;
  error.check(quire_model_get_tokenizer(model(), &tokenizer, error.get()), "opening the tokenizer");
  return Tokenizer(tokenizer);
}

int64_t Engine::memory_bytes() const {
  Error error;
  int32_t n = 0;
  error.check(quire_runtime_get_device_count(runtime_.get(), &n, error.get()), "counting devices");
  for (int32_t i = 0; i < n; ++i) {
    quire_device_info info = {};
    info.struct_size = sizeof info;
    error.check(quire_runtime_get_device_info(runtime_.get(), i, &info, error.get()), "asking for a device");
    if (info.kind == QUIRE_DEVICE_CPU) return info.memory_bytes;
  }
  return 0;
}

std::string Engine::describe(const std::string& strategy) const {
  auto options = initialised(quire_session_options_init);
  options.strategy = strategy.data();
  options.strategy_len = strategy.size();
  return get_text(
      [&](char* buf, size_t cap, size_t* needed, quire_error* err) {
        return quire_model_describe_strategy(model(), &options, buf, cap, needed, err);
      },
      "asking for the strategy");
}

Session Engine::create_session(const SessionArguments& arguments, int64_t n_tokens) const {
  OpenSessionOptions open(model(), arguments);
  quire_session_options& options = open.options;
  if (options.expected_tokens == 0) options.expected_tokens = n_tokens;
  Error error;
  quire_session* session = nullptr;
  error.check_options(
      quire_session_create(model(), &options, &session, error.get()),
      "cannot open a session with strategy \"" + (arguments.strategy.empty() ? "full" : arguments.strategy) + "\"");
  return Session(session);
}

quire_memory_plan Engine::plan_memory(const SessionArguments& arguments, int64_t n_tokens) const {
  OpenSessionOptions open(model(), arguments);
  if (open.options.expected_tokens == 0) open.options.expected_tokens = n_tokens;
  const quire_model_options options = model_options(arguments_);
  quire_memory_plan plan = {};
  plan.struct_size = sizeof plan;
  Error error;
  const quire_status status = quire_runtime_plan_memory(runtime_.get(), arguments_.path.data(), arguments_.path.size(),
                                                        &options, &open.options, n_tokens, &plan, error.get());
  error.check(status, status == QUIRE_ERROR_BUDGET
                          ? "a document of " + std::to_string(n_tokens) + " tokens does not fit"
                          : "planning the memory with strategy \"" + arguments.strategy + "\"");
  return plan;
}

quire_rate_estimate Engine::estimate_rates(const SessionArguments& arguments, int64_t n_tokens) const {
  OpenSessionOptions open(model(), arguments);
  if (open.options.expected_tokens == 0) open.options.expected_tokens = n_tokens;
  quire_rate_estimate estimate = {};
  estimate.struct_size = sizeof estimate;
  Error error;
  const quire_status status = quire_model_estimate_rates(model(), &open.options, n_tokens, &estimate, error.get());
  if (interrupted()) throw Interrupted();  // nothing stops the call, which is short unless the model is large
  error.check(status, "estimating how long it takes");
  return estimate;
}

Session Engine::load_session(const std::string& path, const SessionArguments& arguments) const {
  const OpenSessionOptions open(model(), arguments);
  Error error;
  quire_session* session = nullptr;
  error.check(quire_session_load(model(), path.data(), path.size(), &open.options, &session, error.get()),
              "cannot go on from a saved session");
  return Session(session);
}

Session Engine::load_stored_session(quire_store* store, const std::vector<int32_t>& ids,
                                    const SessionArguments& arguments, int64_t n_tokens,
                                    quire_store_match& match) const {
  OpenSessionOptions open(model(), arguments);
  if (open.options.expected_tokens == 0) open.options.expected_tokens = n_tokens;
  Error error;
  quire_session* session = nullptr;
  const quire_status status =
      quire_store_load(store, model(), &open.options, ids.data(), ids.size(), &match, &session, error.get());
  if (status == QUIRE_ERROR_NOT_FOUND) {
    std::snprintf(match.reason, sizeof match.reason, "%s", error.get()->message);
    return nullptr;
  }
  error.check(status, "cannot go on from the store");
  return Session(session);
}

bool is_news(std::string_view message) {
  std::lock_guard lock(log_mutex);
  if (last_said == message) return false;
  last_said = message;
  return true;
}

std::vector<int32_t> encode(const quire_tokenizer* tokenizer, std::string_view text, uint32_t flags) {
  // Of most texts a token takes more than two bytes; others are encoded a second time.
  std::vector<int32_t> ids(text.size() / 2 + 16);
  Error error;
  size_t needed = 0;
  const auto encode = [&] {
    return quire_tokenizer_encode(tokenizer, text.data(), text.size(), flags, ids.data(), ids.size(), &needed,
                                  error.get());
  };
  quire_status status = encode();
  if (status == QUIRE_ERROR_BUFFER_TOO_SMALL) {
    ids.resize(needed);
    status = encode();
  }
  error.check(status, "tokenizing");
  ids.resize(needed);
  ids.shrink_to_fit();
  return ids;
}

void feed_text(quire_session* session, std::string_view text, uint32_t flags) {
  Error error;
  error.check(quire_session_feed_text(session, text.data(), text.size(), flags, error.get()), "cannot feed the text");
}

void edit_text(quire_session* session, std::string_view document, quire_edit_options options,
               quire_edit_result* result) {
  const std::vector<quire_label> pages = find_pages(document);
  options.labels = pages.data();
  options.n_labels = pages.size();
  Error error;
  error.check(quire_session_edit_text(session, document.data(), document.size(), &options, result, error.get()),
              "cannot feed the document");
}

void feed_document(quire_session* session, std::string_view document, uint32_t flags) {
  auto options = initialised(quire_edit_options_init);
  options.flags = flags;
  edit_text(session, document, options, nullptr);
}

void feed_tokens(quire_session* session, const int32_t* ids, size_t n_ids) {
  Error error;
  error.check(quire_session_feed_tokens(session, ids, n_ids, error.get()), "cannot feed the tokens");
}

std::vector<int32_t> tokens_of(const quire_session* session) {
  Error error;
  size_t n = 0;
  error.check(quire_session_get_tokens(session, nullptr, 0, &n, error.get()), "cannot read the session's tokens");
  std::vector<int32_t> ids(n);
  error.check(quire_session_get_tokens(session, ids.data(), n, &n, error.get()), "cannot read the session's tokens");
  return ids;
}

void reset(quire_session* session) {
  Error error;
  error.check(quire_session_reset(session, error.get()), "cannot reset the session");
}

void truncate(quire_session* session, int64_t n_tokens) {
  Error error;
  error.check(quire_session_truncate(session, n_tokens, error.get()), "cannot go back in the session");
}

quire_session_stats get_stats(const quire_session* session) {
  quire_session_stats stats = {};
  stats.struct_size = sizeof stats;
  Error error;
  error.check(quire_session_get_stats(session, &stats, error.get()), "reading the session's statistics");
  return stats;
}

quire_tier_stats get_tier_stats(const quire_session* session, int32_t tier) {
  quire_tier_stats stats = {};
  stats.struct_size = sizeof stats;
  Error error;
  error.check(quire_session_get_tier_stats(session, tier, &stats, error.get()), "reading the KV cache's statistics");
  return stats;
}

quire_tier_stats get_first_tier_stats(const quire_session* session) {
  const quire_tier_stats device = get_tier_stats(session, QUIRE_TIER_DEVICE);
  return device.bytes_peak > 0 ? device : get_tier_stats(session, QUIRE_TIER_HOST);
}

std::string strategy_of(const quire_session* session) {
  return get_text([&](char* buf, size_t cap, size_t* needed,
                      quire_error* err) { return quire_session_get_strategy(session, buf, cap, needed, err); },
                  "reading the session's strategy");
}

int32_t run_stream(quire_session* session, const quire_stream_options& options, const EventVisitor& visit) {
  Error error;
  quire_stream* opened = nullptr;
  error.check_options(quire_stream_open(session, &options, &opened, error.get()), "cannot start");
  const Stream stream(opened);
  auto event = initialised(quire_event_init);
  for (;;) {
    if (interrupted()) error.check(quire_stream_cancel(stream.get(), error.get()), "cancelling");
    const quire_status status =
        error.check(quire_stream_next(stream.get(), kPollMs, &event, error.get()), "generation failed");
    if (status == QUIRE_TIMEOUT) continue;
    if (status == QUIRE_END) return QUIRE_FINISH_NONE;
    const bool go_on = visit(event);
    if (event.kind == QUIRE_EVENT_END) return event.finish_reason;
    if (go_on) continue;
    error.check(quire_stream_close(stream.get(), error.get()), "closing the stream");
    return QUIRE_FINISH_NONE;
  }
}

const char* finish_name(int32_t finish_reason) {
  switch (finish_reason) {
    case QUIRE_FINISH_MAX_TOKENS:
      return "max_tokens";
    case QUIRE_FINISH_EOS:
      return "eos";
    case QUIRE_FINISH_STOP_ID:
      return "stop_id";
    case QUIRE_FINISH_STOP_STRING:
      return "stop_string";
    case QUIRE_FINISH_REACH:
      return "reach";
    case QUIRE_FINISH_CANCELLED:
      return "cancelled";
    case QUIRE_FINISH_DEADLINE:
      return "deadline";
    default:
      return "none";
  }
}

const char* type_name(int32_t type) {
  switch (type) {
    case QUIRE_TYPE_F32:
      return "f32";
    case QUIRE_TYPE_F16:
      return "f16";
    case QUIRE_TYPE_BF16:
      return "bf16";
    case QUIRE_TYPE_INT8:
      return "int8";
    case QUIRE_TYPE_INT4:
      return "int4";
    case QUIRE_TYPE_Q8_0:
      return "q8_0";
    case QUIRE_TYPE_Q4_0:
      return "q4_0";
    case QUIRE_TYPE_Q4_1:
      return "q4_1";
    case QUIRE_TYPE_Q5_0:
      return "q5_0";
    case QUIRE_TYPE_Q5_1:
      return "q5_1";
    case QUIRE_TYPE_Q4_K:
      return "q4_k";
    case QUIRE_TYPE_Q5_K:
      return "q5_k";
    case QUIRE_TYPE_Q6_K:
      return "q6_k";
    case QUIRE_TYPE_Q2_K:
      return "q2_k";
    case QUIRE_TYPE_Q3_K:
      return "q3_k";
    case QUIRE_TYPE_IQ4_NL:
      return "iq4_nl";
    case QUIRE_TYPE_IQ4_XS:
      return "iq4_xs";
    default:
      return "unknown";
  }
}

}  // namespace cli
