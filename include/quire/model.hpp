// SPDX-License-Identifier: MIT
//
// Models, adapters, and the files that they come from.
#pragma once

#include "quire/runtime.hpp"

namespace quire {
inline namespace v0 {

using ModelInfo = quire_model_info;
using AdapterInfo = quire_adapter_info;

// The directory of an adapter that is merged into the weights.
struct AdapterSource {
  std::string path = {};
  double scale = 1;
};

// As quire_model_options: 0 and empty are each one's default.
struct ModelOptions {
  Load load = Load::kDefault;
  Type weight_type = Type::kDefault;
  Progress progress = {};
  Cancel cancel = {};  // none: the call cannot be stopped
  std::vector<AdapterSource> merge = {};
  std::string beacon_path = {};
  std::string device = {};
  Type activation_type = Type::kDefault;
  std::string packed_directory = {};
};

struct AdapterOptions {
  Progress progress = {};
  Cancel cancel = {};
};

struct QuantizeOptions {
  std::string recipe = {};  // one of quantizations(); empty: "q4_k_m"
  std::int32_t n_threads = 0;
  Progress progress = {};
  Cancel cancel = {};
};

namespace detail {

// quire_model_options with what it points to. It must not outlive the options.
class CModelOptions {
 public:
  explicit CModelOptions(const ModelOptions& options) : call_(options.progress, options.cancel) {
    c_ = initialised(quire_model_options_init);
    c_.load = static_cast<std::int32_t>(options.load);
    c_.weight_type = static_cast<std::int32_t>(options.weight_type);
    call_.put_into(&c_);
    for (const AdapterSource& source : options.merge) {
      merge_.push_back({source.path.data(), source.path.size(), source.scale});
    }
    c_.merge = data_or_null(merge_);
    c_.n_merge = merge_.size();
    c_.beacon_path = data_or_null(options.beacon_path);
    c_.beacon_path_len = options.beacon_path.size();
    c_.device = data_or_null(options.device);
    c_.device_len = options.device.size();
    c_.activation_type = static_cast<std::int32_t>(options.activation_type);
    c_.packed_directory = data_or_null(options.packed_directory);
    c_.packed_directory_len = options.packed_directory.size();
  }
  const quire_model_options* get() const { return &c_; }
  const LongCall& call() const { return call_; }

 private:
  LongCall call_;
  std::vector<quire_adapter_source> merge_;
  quire_model_options c_;
};

}  // namespace detail

// Immutable weights, shared by any number of sessions. Any thread.
class Model : public Handle<quire_model, quire_model_retain, quire_model_release> {
 public:
  using Handle::Handle;

  // Loads a Hugging Face directory or a GGUF file, and waits until that is done.
  static Result<Model> load(const Runtime& runtime, std::string_view path,
                            const ModelOptions& options = {}) {
    const detail::CModelOptions c(options);
    return c.call().result(
        detail::made<Model>(quire_model_load, runtime.get(), path.data(), path.size(), c.get()));
  }

  Result<ModelInfo> info() const { return detail::filled<ModelInfo>(quire_model_get_info, get()); }
  // "architecture", "device", "identity", "config.json" and others: quire_model_get_metadata.
  Result<std::string> metadata(std::string_view key) const {
    return detail::copied<std::string>(quire_model_get_metadata, get(), key.data(), key.size());
  }
};

// A LoRA adapter of one model, for SessionOptions::adapters. Any thread.
class Adapter : public Handle<quire_adapter, quire_adapter_retain, quire_adapter_release> {
 public:
  using Handle::Handle;

  // Loads a PEFT directory, and waits until that is done.
  static Result<Adapter> load(const Model& model, std::string_view path,
                              const AdapterOptions& options = {}) {
    detail::LongCall call(options.progress, options.cancel);
    auto c = detail::initialised(quire_adapter_options_init);
    call.put_into(&c);
    return call.result(
        detail::made<Adapter>(quire_adapter_load, model.get(), path.data(), path.size(), &c));
  }

  // `flags` are QUIRE_ADAPTER_*.
  Result<AdapterInfo> info() const {
    return detail::filled<AdapterInfo>(quire_adapter_get_info, get());
  }
  // "identity" or "base_model".
  Result<std::string> metadata(std::string_view key) const {
    return detail::copied<std::string>(quire_adapter_get_metadata, get(), key.data(), key.size());
  }
};

// What the files of a model hold, as JSON (quire_model_describe_files). No weight is read.
inline Result<std::string> describe_model_files(std::string_view path) {
  return detail::copied<std::string>(quire_model_describe_files, path.data(), path.size());
}
// The names of the recipes of quantize_model, separated by ", ".
inline std::string_view quantizations() { return quire_get_quantizations(); }
// Writes a model as the GGUF file `out`, which appears when it is complete.
inline Result<void> quantize_model(std::string_view path, std::string_view out,
                                   const QuantizeOptions& options = {}) {
  detail::LongCall call(options.progress, options.cancel);
  auto c = detail::initialised(quire_quantize_options_init);
  call.put_into(&c);
  c.n_threads = options.n_threads;
  c.recipe = detail::data_or_null(options.recipe);
  c.recipe_len = options.recipe.size();
  return call.result(
      detail::call(quire_model_quantize, path.data(), path.size(), out.data(), out.size(), &c));
}

}  // namespace v0
}  // namespace quire
