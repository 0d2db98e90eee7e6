// Which tokens begin and end texts, by what the metadata of a GGUF file say.
#pragma once

#include "lib/format/gguf.h"
#include "lib/format/model_config.h"
#include "lib/support/status.h"

namespace quire {

// A key of Quire's own: an array of the ids that end a text, where they are not just that of
// tokenizer.ggml.eos_token_id.
inline constexpr char kGgufEosTokenIds[] = "quire.eos_token_ids";

// Sets bos_token_ids and eos_token_ids of a configuration whose vocab_size is known. The ids that end a text are those
// that the keys name, and those of the token texts that llama.cpp knows as ends; but "</s>" only where it is a control
// token, or the file does not say what it is: elsewhere it is HTML. Error: kBadFile (an id that no token has).
Status read_gguf_token_ids(const GgufHeader& header, ModelConfig& config);

}  // namespace quire
