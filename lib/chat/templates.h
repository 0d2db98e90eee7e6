// The known templates, family by family, and what their files share.
#pragma once

#include <span>

#include "lib/chat/chat_template.h"
#include "lib/chat/strip.h"

namespace quire {

std::span<const ChatTemplate* const> chatml_templates();
std::span<const ChatTemplate* const> granite_templates();
std::span<const ChatTemplate* const> llama_templates();
std::span<const ChatTemplate* const> mistral_templates();
std::span<const ChatTemplate* const> phi_templates();

}  // namespace quire
