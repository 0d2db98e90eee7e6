// The pre-tokenizers that GGUF files name (tokenizer.ggml.pre).
#pragma once

#include <string_view>
#include <vector>

namespace quire {

struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string_view> expressions;  // in PCRE2's syntax; each cuts the parts of the one before
  bool ignore_merges = false;
  bool adds_bos = false;  // unless the file says otherwise
};

// By one of its names; an empty list of names: there is none.
GgufPreTokenizer find_gguf_pre_tokenizer(std::string_view name);

}  // namespace quire
