// A tokenizer's files as the metadata of a GGUF file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/format/gguf_writer.h"
#include "lib/support/status.h"

namespace quire {

// Adds the keys "tokenizer.*" of the tokenizer and the chat template of a model directory. vocab_size is the model's:
// ids that no token has are filled up. eos: the ids that end a text by the model's configuration. Errors: those of
// load_tokenizer; kUnsupported: what a GGUF file cannot say.
Status add_gguf_tokenizer(const std::string& directory, int32_t vocab_size, const std::vector<int32_t>& eos,
                          GgufWriter& writer);

}  // namespace quire
