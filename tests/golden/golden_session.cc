#include "tests/golden/golden_session.h"

#include <stdexcept>

namespace quire::golden {
namespace {

class Error {
 public:
  quire_error* operator&() { return &error_; }
  void check(quire_status status, const std::string& what) const {
    if (status < 0) throw std::runtime_error(what + ": " + quire_get_status_name(status) + ": " + error_.message);
  }

 private:
  quire_error error_;
};

void run_to_end(quire_session* session) {
  Error error;
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.flags = QUIRE_STREAM_KEEP_LOGITS;
  quire_stream* stream = nullptr;
  error.check(quire_stream_open(session, &options, &stream, &error), "stream_open");
  const std::unique_ptr<quire_stream, decltype(&quire_stream_release)> owner(stream, quire_stream_release);
  quire_event event;
  quire_event_init(&event, sizeof event);
  quire_status status = QUIRE_OK;
  while (status != QUIRE_END) {
    status = quire_stream_next(stream, -1, &event, &error);
    error.check(status, "stream_next");
  }
}

}  // namespace

GoldenModel::GoldenModel(const std::string& directory, const std::vector<std::string>& merge,
                         const std::string& beacon) {
  Error error;
  quire_runtime_options options;
  quire_runtime_options_init(&options, sizeof options);
  options.n_threads = 2;
  quire_runtime* runtime = nullptr;
  error.check(quire_runtime_create(&options, &runtime, &error), "runtime_create");
  runtime_.reset(runtime);
  std::vector<quire_adapter_source> sources;
  for (const std::string& path : merge) sources.push_back({path.data(), path.size(), 1.0});
  quire_model_options loading;
  quire_model_options_init(&loading, sizeof loading);
  loading.merge = sources.data();
  loading.n_merge = sources.size();
  loading.activation_type = QUIRE_TYPE_F32;  // the references round no rows
  if (!beacon.empty()) {
    loading.beacon_path = beacon.data();
    loading.beacon_path_len = beacon.size();
  }
  quire_model* model = nullptr;
  error.check(quire_model_load(runtime, directory.data(), directory.size(), &loading, &model, &error), "model_load");
  model_.reset(model);
  info_.struct_size = sizeof info_;
  error.check(quire_model_get_info(model, &info_, &error), "model_get_info");
}

std::vector<float> GoldenModel::logits(const std::string& strategy, std::span<const int32_t> ids,
                                       const std::vector<std::string>& adapters, int32_t prefill_block) const {
  Error error;
  std::vector<std::unique_ptr<quire_adapter, decltype(&quire_adapter_release)>> loaded;
  std::vector<quire_session_adapter> used;
  for (const std::string& path : adapters) {
    quire_adapter* adapter = nullptr;
    error.check(quire_adapter_load(model_.get(), path.data(), path.size(), nullptr, &adapter, &error), "adapter_load");
    loaded.emplace_back(adapter, quire_adapter_release);
    used.push_back({adapter, 1.0});
  }
  quire_session_options options;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy.data();
  options.strategy_len = strategy.size();
  options.kv_type = QUIRE_TYPE_F32;
  options.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  options.expected_tokens = static_cast<int64_t>(ids.size());
  if (prefill_block > 0) options.prefill_block = prefill_block;
  options.adapters = used.data();
  options.n_adapters = used.size();
  quire_session* session = nullptr;
  error.check(quire_session_create(model_.get(), &options, &session, &error), strategy);
  const std::unique_ptr<quire_session, decltype(&quire_session_release)> owner(session, quire_session_release);
  error.check(quire_session_feed_tokens(session, ids.data(), ids.size(), &error), "feed_tokens");
  run_to_end(session);
  std::vector<float> out(ids.size() * static_cast<size_t>(vocab_size()));
  error.check(
      quire_session_get_logits(session, 0, static_cast<int64_t>(ids.size()), out.data(), out.size(), nullptr, &error),
      "get_logits");
  return out;
}

}  // namespace quire::golden
