// Runs a prompt through quire.h alone and returns the logits of every position.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/quire.h"

namespace quire::golden {

// A loaded model and its runtime. Failing calls throw std::runtime_error with the status name and message.
class GoldenModel {
 public:
  // merge: adapter directories. beacon: directory of a beacon plug-in; empty: none.
  explicit GoldenModel(const std::string& directory, const std::vector<std::string>& merge = {},
                       const std::string& beacon = {});

  int64_t vocab_size() const { return info_.vocab_size; }
  int64_t train_len() const { return info_.train_len; }

  // [position][vocab_size], with keys and values in float32. The session expects ids.size() tokens; prompts beyond the
  // trained length are allowed. adapters: directories. prefill_block: tokens at a time; 0: the library's own choice.
  std::vector<float> logits(const std::string& strategy, std::span<const int32_t> ids,
                            const std::vector<std::string>& adapters = {}, int32_t prefill_block = 0) const;

 private:
  std::unique_ptr<quire_runtime, decltype(&quire_runtime_release)> runtime_{nullptr, quire_runtime_release};
  std::unique_ptr<quire_model, decltype(&quire_model_release)> model_{nullptr, quire_model_release};
  quire_model_info info_{};
};

}  // namespace quire::golden
