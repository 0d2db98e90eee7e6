// SPDX-License-Identifier: MIT
//
// What a session is made with, and how that is given to C.
#pragma once

#include "quire/tokenizer.hpp"

namespace quire {
inline namespace v0 {

struct SessionAdapter {
  Adapter adapter = {};
  double scale = 1;
};

// As quire_session_options: 0, none and empty are each one's default.
struct SessionOptions {
  std::optional<std::string> strategy = {};  // none: "full"; of a saved session: its own
  Type kv_type = Type::kDefault;
  Overflow overflow = Overflow::kDefault;
  std::int64_t expected_tokens = 0;
  std::int32_t prefill_block = 0;
  std::int64_t kv_device_budget_bytes = 0;
  std::int64_t kv_host_budget_bytes = 0;
  std::int64_t kv_compressed_budget_bytes = 0;
  std::int64_t kv_file_budget_bytes = 0;
  std::string kv_file_directory = {};
  std::vector<SessionAdapter> adapters = {};
  Type kv_old_type = Type::kDefault;
  std::int64_t old_after = 0;  // kOldAtOnce: no distance
  bool prefix_reuse = true;
  bool keep_behind_windows = false;
};

namespace detail {

// quire_session_options with what it points to. It must not outlive the options.
class CSessionOptions {
 public:
  explicit CSessionOptions(const SessionOptions& options) {
    c_ = initialised(quire_session_options_init);
    c_.flags = (options.prefix_reuse ? 0u : QUIRE_SESSION_NO_PREFIX_REUSE) |
               (options.keep_behind_windows ? QUIRE_SESSION_KEEP_BEHIND_WINDOWS : 0u);
    if (options.strategy) {
      c_.strategy = options.strategy->data();
      c_.strategy_len = options.strategy->size();
    }
    c_.kv_type = static_cast<std::int32_t>(options.kv_type);
    c_.overflow = static_cast<std::int32_t>(options.overflow);
    c_.expected_tokens = options.expected_tokens;
    c_.prefill_block = options.prefill_block;
    c_.kv_device_budget_bytes = options.kv_device_budget_bytes;
    c_.kv_host_budget_bytes = options.kv_host_budget_bytes;
    c_.kv_compressed_budget_bytes = options.kv_compressed_budget_bytes;
    c_.kv_file_budget_bytes = options.kv_file_budget_bytes;
    c_.kv_file_directory = data_or_null(options.kv_file_directory);
    c_.kv_file_directory_len = options.kv_file_directory.size();
    for (const SessionAdapter& a : options.adapters)
      adapters_.push_back({a.adapter.get(), a.scale});
    c_.adapters = data_or_null(adapters_);
    c_.n_adapters = adapters_.size();
    c_.kv_old_type = static_cast<std::int32_t>(options.kv_old_type);
    c_.old_after = options.old_after;
  }
  CSessionOptions(const CSessionOptions&) = delete;
  CSessionOptions& operator=(const CSessionOptions&) = delete;
  const quire_session_options* get() const { return &c_; }

 private:
  std::vector<quire_session_adapter> adapters_;
  quire_session_options c_;
};

}  // namespace detail
}  // namespace v0
}  // namespace quire
