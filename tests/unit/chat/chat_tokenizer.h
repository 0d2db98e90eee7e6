// The tokenizer of the golden model text_256 with control tokens in place of its last pieces.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/support/os_file.h"
#include "lib/tokenizer/model_tokenizer.h"
#include "tests/source_path.h"
#include "tests/unit/tokenizer/model_file.h"

namespace quire::test {

inline const std::vector<std::string>& control_tokens() {
  static const std::vector<std::string> kTokens = {"<|im_start|>",
                                                   "<|im_end|>",
                                                   "<|start_header_id|>",
                                                   "<|end_header_id|>",
                                                   "<|eot_id|>",
                                                   "[INST]",
                                                   "[/INST]",
                                                   "[SYSTEM_PROMPT]",
                                                   "[/SYSTEM_PROMPT]",
                                                   "<think>",
                                                   "</think>",
                                                   "<|system|>",
                                                   "<|user|>",
                                                   "<|assistant|>",
                                                   "<|end|>",
                                                   "<|im_sep|>",
                                                   "<|start_of_role|>",
                                                   "<|end_of_role|>",
                                                   "<|end_of_text|>",
                                                   "<｜User｜>",
                                                   "<｜Assistant｜>",
                                                   "<｜end▁of▁sentence｜>",
                                                   "<|end_of_turn|>",
                                                   "<start_of_turn>",
                                                   "<end_of_turn>"};
  return kTokens;
}

// `tokens` replace the last pieces of the vocabulary, as pieces of that type.
inline std::shared_ptr<const ModelTokenizer> chat_tokenizer(
    const std::vector<std::string>& tokens = control_tokens(), PieceType type = PieceType::kControl,
    Result<std::string> chat_template = Status(Code::kNotFound, "no chat template")) {
  const std::string bytes =
      read_text_file(source_path("tests/golden/models/text_256/tokenizer.model"), 1 << 20).value();
  SentencePieceModel model = parse_sentencepiece_model(bytes).value();
  model.remove_extra_whitespaces = false;  // as in Llama's model
  const size_t first = model.pieces.size() - tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) model.pieces[first + i] = {.text = tokens[i], .score = 0, .type = type};
  const auto vocab_size = static_cast<int32_t>(model.pieces.size());
  auto tokenizer = make_sentencepiece_tokenizer(serialize_sentencepiece_model(model), "", "", vocab_size);
  return std::make_shared<const ModelTokenizer>(std::move(tokenizer.value()), vocab_size, std::vector<int32_t>{},
                                                std::move(chat_template));
}

// The id of a control token.
inline int32_t control_id(const ModelTokenizer& tokenizer, const std::string& token) {
  return tokenizer.tokenizer().encode(token, {.first_segment = false, .parse_special = true}).value().at(0);
}

}  // namespace quire::test
