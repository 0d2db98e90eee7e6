// The options structs of quire.h, checked.
#pragma once

#include "include/quire/quire.h"
#include "lib/session/sampler.h"
#include "lib/session/session.h"
#include "lib/strategy/position_view.h"

namespace quire::abi {

// Of quire_session_options.
constexpr uint32_t kSessionFlags = QUIRE_SESSION_NO_PREFIX_REUSE | QUIRE_SESSION_KEEP_BEHIND_WINDOWS;

// A strategy without a model.
struct StrategyOptions {
  std::string expression = "full";
  StrategyContext context;
};

// How a snapshot is written or verified.
struct SnapshotOptions {
  SaveControl control;
  std::shared_ptr<const CancelToken> cancel;  // control's; null: none
};

Status read_model_options(const quire_model_options* in, ModelLoadOptions* out);
Status read_adapter_options(const quire_adapter_options* in, AdapterLoadOptions* out);
// Chain, bias and number of log-probabilities; in sampling_options.cc.
Status read_sampling(const quire_stream_options& in, SamplingOptions* out);
// Of a text that is fed.
Status read_labels(const quire_label* labels, size_t n_labels, std::vector<TextLabel>* read);
// Of a session on this backend, whose defaults it has.
Status read_session_options(const quire_session_options* in, const Backend& backend, SessionOptions* out);
// In snapshot.cc.
Status read_snapshot_options(const quire_snapshot_options* in, uint32_t known_flags, SnapshotOptions* out);
Status read_strategy_options(const quire_strategy_options* in, StrategyOptions* out);
Status read_position_view(const quire_position_view* in, int n_heads, PositionView* out);

}  // namespace quire::abi
