// The Jinja text of a checkpoint's chat template.
#pragma once

#include <string>

#include "lib/support/status.h"

namespace quire {

struct GgufHeader;

// DIR/chat_template.jinja, else "chat_template" of DIR/chat_template.json, which models with images have, or else of
// DIR/tokenizer_config.json: a text, or a list of named ones, of which "default" counts. Errors: kNotFound (there is
// none), kBadFile (also: a text of a megabyte or more), kIo.
Result<std::string> read_chat_template(const std::string& directory);

// tokenizer.chat_template. Errors: kNotFound (there is none), kBadFile.
Result<std::string> read_chat_template(const GgufHeader& header);

}  // namespace quire
