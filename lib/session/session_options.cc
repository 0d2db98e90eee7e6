#include "lib/session/session_options.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "lib/model/strategy_context.h"

namespace quire {

Result<std::unique_ptr<const Strategy>> choose_strategy(const Model& model, const SessionOptions& options) {
  const ModelConfig& config = model.llama->config();
  const Backend& backend = model.llama->backend();
  const bool lower_holds_all = backend.has_own_memory() || !options.spill_directory.empty();
  StrategyContext context =
      strategy_context(config, {options.expected_tokens, options.kv_type, first_budget(backend, options),
                                options.prefill_block, lower_holds_all ? kNoLimit : options.compressed_budget_bytes,
                                options.old_text, options.keep_behind_windows});
  context.beacon_only_by_name = !options.adapters.empty();
  QUIRE_ASSIGN(auto strategy, make_strategy(options.strategy, context));
  if (!strategy->condenses() || options.adapters.empty()) return strategy;
  return Status(Code::kUnsupported,
                strategy->canonical() +
                    ": beacon weights are made for the model without adapters; merge those that they "
                    "were trained with into the model");
}

Result<AdapterList> list_adapters(const Model& model, const SessionOptions& options) {
  std::vector<AdapterList::Entry> entries;
  for (size_t i = 0; i < options.adapters.size(); ++i) {
    const SessionAdapter& a = options.adapters[i];
    if (a.adapter->model.get() != &model) {
      return Status(Code::kInvalidArgument,
                    "adapters[" + std::to_string(i) + "] was loaded for another model than the session's",
                    static_cast<int64_t>(i));
    }
    entries.push_back({a.adapter->adapter.get(), a.scale});
  }
  return AdapterList::make(std::move(entries));
}

std::string adapter_base_warning(const Model& model, const AdapterList& adapters, const Strategy& strategy) {
  if (strategy.names_frequencies()) return {};
  const auto turns = [](const auto& a) { return a.changes_queries_or_keys; };
  const auto& merged = model.llama->weights().merged;
  const auto& own = adapters.entries();
  if (std::none_of(merged.begin(), merged.end(), turns) &&
      std::none_of(own.begin(), own.end(), [&](const auto& e) { return turns(*e.adapter); })) {
    return {};
  }
  char theta[32];
  const auto end = std::to_chars(theta, theta + sizeof theta, model.llama->config().rope_theta).ptr;
  return "the adapter changes queries or keys, and may need the RoPE base or scaling that it was trained with, which "
         "its files cannot say: add `+ base(theta=...)` or a scaling to the strategy, with theta=" +
         std::string(theta, end) + " if the model's own is right";
}

}  // namespace quire
