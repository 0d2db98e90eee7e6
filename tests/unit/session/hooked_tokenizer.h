// A model's tokenizer, with a place for tests in what is called often.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/session/runtime.h"

namespace quire::test {

struct HookedTokenizer : Tokenizer {
  using Hook = std::function<void()>;  // empty: nothing

  HookedTokenizer(std::shared_ptr<const ModelTokenizer> tokenizer, Hook append, Hook encoding)
      : whole(std::move(tokenizer)), in_append_bytes(std::move(append)), in_encode(std::move(encoding)) {}

  // The model has a hooked one instead of its own.
  static void put_into(Model& model, Hook in_append_bytes, Hook in_encode) {
    const auto whole = model.tokenizer;
    model.tokenizer = std::make_shared<const ModelTokenizer>(
        std::make_unique<HookedTokenizer>(whole, std::move(in_append_bytes), std::move(in_encode)), whole->vocab_size(),
        whole->eos(), whole->chat_template());
  }

  Status append_bytes(int32_t id, ControlText control, std::string& bytes) const override {
    if (in_append_bytes) in_append_bytes();
    return inner.append_bytes(id, control, bytes);
  }
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options,
                                      std::vector<int64_t>* starts) const override {
    if (in_encode) in_encode();
    return inner.encode(text, options, starts);
  }
  bool has_dummy_prefix() const override { return inner.has_dummy_prefix(); }
  int32_t size() const override { return inner.size(); }
  int32_t bos() const override { return inner.bos(); }
  bool adds_bos() const override { return inner.adds_bos(); }
  bool is_control(int32_t id) const override { return inner.is_control(id); }
  int32_t find_control(std::string_view text) const override { return inner.find_control(text); }
  TokenStrips strips(int32_t id) const override { return inner.strips(id); }
  std::vector<int32_t> eos() const override { return inner.eos(); }
  std::string kind() const override { return inner.kind(); }

  const std::shared_ptr<const ModelTokenizer> whole;
  const Tokenizer& inner = whole->tokenizer();
  const Hook in_append_bytes, in_encode;
};

}  // namespace quire::test
