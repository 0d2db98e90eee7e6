// A tokenizer with what its model says of ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/tokenizer/tokenizer.h"

namespace quire {

// Immutable: any thread.
class ModelTokenizer {
 public:
  // vocab_size: of the model; the tokenizer's own ids may be fewer. eos: what the model's configuration says ends a
  // text; empty: what the tokenizer says. chat_template: the Jinja text, or why there is none.
  ModelTokenizer(std::unique_ptr<const Tokenizer> tokenizer, int32_t vocab_size, std::vector<int32_t> eos,
                 Result<std::string> chat_template)
      : tokenizer_(std::move(tokenizer)),
        vocab_size_(vocab_size),
        eos_(eos.empty() ? tokenizer_->eos() : std::move(eos)),
        chat_template_(std::move(chat_template)) {}

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int32_t vocab_size() const { return vocab_size_; }
  // Ids that end a text.
  const std::vector<int32_t>& eos() const { return eos_; }
  const Result<std::string>& chat_template() const { return chat_template_; }
  bool is_eos(int32_t id) const { return std::find(eos_.begin(), eos_.end(), id) != eos_.end(); }

 private:
  const std::unique_ptr<const Tokenizer> tokenizer_;
  const int32_t vocab_size_;
  const std::vector<int32_t> eos_;
  const Result<std::string> chat_template_;
};

}  // namespace quire
