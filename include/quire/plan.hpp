// SPDX-License-Identifier: MIT
//
// Before anything is loaded or read: would such a session work, what would it take, how long? Any
// thread.
#pragma once

#include "quire/session.hpp"

namespace quire {
inline namespace v0 {

using MemoryPlan = quire_memory_plan;
using RateEstimate = quire_rate_estimate;

// What the model in `path` and a session of n_tokens would take, from the headers of its files.
inline Result<MemoryPlan> plan_memory(const Runtime& runtime, std::string_view path,
                                      std::int64_t n_tokens, const SessionOptions& options = {},
                                      const ModelOptions& model_options = {}) {
  const detail::CModelOptions m(model_options);
  const detail::CSessionOptions s(options);
  return detail::filled<MemoryPlan>(quire_runtime_plan_memory, runtime.get(), path.data(),
                                    path.size(), m.get(), s.get(), n_tokens);
}
// How long such a session would take to read n_tokens tokens and to answer, by a measurement that
// takes about a second.
inline Result<RateEstimate> estimate_rates(const Model& model, std::int64_t n_tokens,
                                           const SessionOptions& options = {}) {
  const detail::CSessionOptions c(options);
  return detail::filled<RateEstimate>(quire_model_estimate_rates, model.get(), c.get(), n_tokens);
}

// Whether Session::create would succeed with these options, and the text fit the strategy's reach.
inline Result<void> check_session(const Model& model, const SessionOptions& options = {}) {
  const detail::CSessionOptions c(options);
  return detail::call(quire_model_check_session, model.get(), c.get());
}
// The same for a model directory whose weights are not loaded.
inline Result<void> check_session(const Runtime& runtime, std::string_view path,
                                  const SessionOptions& options = {},
                                  const ModelOptions& model_options = {}) {
  const detail::CModelOptions m(model_options);
  const detail::CSessionOptions s(options);
  return detail::call(quire_runtime_check_session, runtime.get(), path.data(), path.size(), m.get(),
                      s.get());
}

// The canonical strategy that such a session would have.
inline Result<std::string> describe_strategy(const Model& model,
                                             const SessionOptions& options = {}) {
  const detail::CSessionOptions c(options);
  return detail::copied<std::string>(quire_model_describe_strategy, model.get(), c.get());
}
inline Result<std::string> describe_strategy(const Runtime& runtime, std::string_view path,
                                             const SessionOptions& options = {},
                                             const ModelOptions& model_options = {}) {
  const detail::CModelOptions m(model_options);
  const detail::CSessionOptions s(options);
  return detail::copied<std::string>(quire_runtime_describe_strategy, runtime.get(), path.data(),
                                     path.size(), m.get(), s.get());
}

}  // namespace v0
}  // namespace quire
