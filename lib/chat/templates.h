// The known templates, family by family, and what their files share.
#pragma once

#include <span>

#include "lib/chat/chat_template.h"
#include "lib/chat/strip.h"

namespace quire {

inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";

// What follows the last end of a thought; all of it where there is none.
inline std::string_view behind_thought(std::string_view text) {
  const size_t end = text.rfind(kThinkEnd);
  return end == std::string_view::npos ? text : text.substr(end + kThinkEnd.size());
}

std::span<const ChatTemplate* const> chatml_templates();
std::span<const ChatTemplate* const> deepseek_templates();
std::span<const ChatTemplate* const> granite_templates();
std::span<const ChatTemplate* const> llama_templates();
std::span<const ChatTemplate* const> mistral_templates();
std::span<const ChatTemplate* const> phi_templates();
std::span<const ChatTemplate* const> turn_templates();

}  // namespace quire
