// Zephyr, OpenChat and Gemma: a line that names the role, and the text.
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

constexpr std::string_view kStartOfTurn = "<start_of_turn>", kGemmaEndOfTurn = "<end_of_turn>";
constexpr std::string_view kGemmaTokens[] = {kStartOfTurn, kGemmaEndOfTurn};

// Turns of the user and others alternate. A system text at the beginning stands in front of the first message, as it
// is; other texts lose the white space at both ends.
class GemmaTemplate final : public ChatTemplate {
 public:
  constexpr GemmaTemplate(std::string_view name, std::string_view description)
      : ChatTemplate(name, description, kGemmaTokens, kGemmaEndOfTurn) {}

 private:
  static ChatWriter& begin_turn(std::string_view role, ChatWriter& out) {
    return out.token(kStartOfTurn).text(role == "assistant" ? "model" : role).text("\n");
  }
  void end_answer(ChatWriter& out) const override { out.token(kGemmaEndOfTurn).text("\n"); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    const bool begins = !state.begun;
    if (begins) out.bos();
    state.begun = true;
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (begins && i == 0 && message.role == "system") {
        state.system = message.text;
        continue;
      }
      const bool user = message.role == "user";
      if (user != (state.n_turns % 2 == 0)) return refuse(messages, i, "has user and assistant in turn");
      begin_turn(message.role, out);
      if (state.system) out.text(*state.system + "\n\n");
      state.system.reset();
      end_answer(out.text(strip(message.text)));
      ++state.n_turns;
    }
    if (options.begin_answer) begin_turn("assistant", out);
    state.answering = options.begin_answer;
    return {};
  }
};

constexpr ZephyrTemplate kZephyr("zephyr", "Zephyr and TinyLlama Chat");
constexpr OpenChatTemplate kOpenChat("openchat", "OpenChat 3.5");

constexpr GemmaTemplate kGemma3("gemma3", "Gemma 3");

constexpr const ChatTemplate* kTemplates[] = {&kZephyr, &kOpenChat, &kGemma3};

}  // namespace

std::span<const ChatTemplate* const> turn_templates() { return kTemplates; }

}  // namespace quire
