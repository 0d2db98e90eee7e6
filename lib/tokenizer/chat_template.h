// Where a model's chat template is written, as the text that it is there.
#pragma once

#include <string>

#include "lib/support/status.h"

namespace quire {

struct GgufHeader;

// DIR/chat_template.jinja, or else "chat_template" of DIR/tokenizer_config.json (of several the one named "default").
// Empty: the directory has none. Errors: kBadFile, kIo.
Result<std::string> read_chat_template(const std::string& directory);

// tokenizer.chat_template. Empty: the file has none. Errors: kBadFile.
Result<std::string> read_chat_template(const GgufHeader& header);

}  // namespace quire
