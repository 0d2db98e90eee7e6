// Zephyr and OpenChat: a line that names the role, and the text.
#include "lib/chat/templates.h"

namespace quire {
namespace {

// The mark of the role is ordinary text to Llama's vocabulary; a message ends with the end-of-sequence token.
class ZephyrTemplate final : public ChatTemplate {
 public:
  constexpr ZephyrTemplate(std::string_view name, std::string_view description)
      : ChatTemplate(name, description, {}, {}, "<|assistant|>") {}

 private:
  static ChatWriter& begin_turn(std::string_view role, ChatWriter& out) {
    return out.token("<|" + std::string(role) + "|>").text("\n");
  }
  void end_answer(ChatWriter& out) const override { out.eos().text("\n"); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (const ChatMessage& message : messages) end_answer(begin_turn(message.role, out).text(message.text));
    state.begun = true;
    if (options.begin_answer) begin_turn("assistant", out);
    state.answering = options.begin_answer;
    return {};
  }
};

constexpr std::string_view kEndOfTurn = "<|end_of_turn|>";
constexpr std::string_view kOpenChatTokens[] = {kEndOfTurn};

class OpenChatTemplate final : public ChatTemplate {
 public:
  constexpr OpenChatTemplate(std::string_view name, std::string_view description)
      : ChatTemplate(name, description, kOpenChatTokens, kEndOfTurn) {}

 private:
  static ChatWriter& begin_turn(std::string_view role, ChatWriter& out) {
    const std::string_view title = role == "user" ? "User" : role == "system" ? "System" : "Assistant";
    return out.text("GPT4 Correct ").text(title).text(":");
  }
  void end_answer(ChatWriter& out) const override { out.token(kEndOfTurn); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    if (!state.begun) out.bos();
    for (const ChatMessage& message : messages) end_answer(begin_turn(message.role, out).text(" ").text(message.text));
    state.begun = true;
    if (options.begin_answer) begin_turn("assistant", out);
    state.answering = options.begin_answer;
    return {};
  }
};

constexpr ZephyrTemplate kZephyr("zephyr", "Zephyr and TinyLlama Chat");
constexpr OpenChatTemplate kOpenChat("openchat", "OpenChat 3.5");

constexpr const ChatTemplate* kTemplates[] = {&kZephyr, &kOpenChat};

}  // namespace

std::span<const ChatTemplate* const> turn_templates() { return kTemplates; }

}  // namespace quire
