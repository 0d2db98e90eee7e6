// Which template a checkpoint has, by exact comparison of its Jinja text with known ones.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lib/chat/chat_template.h"
#include "lib/support/status.h"

namespace quire {

// kInvalidArgument: there is none; the message lists those that there are.
Result<const ChatTemplate*> find_chat_template(std::string_view name);

// The template whose program this is: letter by letter, but for line ends and a newline at the end, which Jinja itself
// makes equal or drops. kUnsupported: a program that is not known; the message says how long it is, its hash, and how
// it begins.
Result<const ChatTemplate*> recognise_chat_template(std::string_view jinja);

// {"templates": [{"name", "description"}, ...]}
std::string list_chat_templates();

}  // namespace quire
