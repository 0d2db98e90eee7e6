// tokenizer.json of the Hugging Face `tokenizers` library. Untrusted input ends here.
#pragma once

#include <memory>
#include <string_view>

#include "lib/format/json.h"
#include "lib/support/status.h"
#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {

// The tokenizer of the texts of tokenizer.json and tokenizer_config.json (may be empty). BPE only, byte-level or of
// characters with byte fallback; kUnsupported names what else the file wants: another model, normalizer,
// pre-tokenizer, decoder or post-processor. Errors: kBadFile, kUnsupported.
Result<std::unique_ptr<const Tokenizer>> make_json_tokenizer(std::string_view tokenizer_json,
                                                             std::string_view tokenizer_config, int32_t vocab_size);

// The same as data. The definition's merges are views of `file`, a parsed tokenizer.json.
Result<Json> parse_tokenizer_json(std::string_view tokenizer_json);
Result<BpeDefinition> define_json_tokenizer(const Json& file, std::string_view tokenizer_config, int32_t vocab_size);

}  // namespace quire
