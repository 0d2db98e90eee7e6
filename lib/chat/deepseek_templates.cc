// DeepSeek-R1 and the models distilled from it: the system text alone, <｜User｜> and a text, <｜Assistant｜>, an
// answer and <｜end▁of▁sentence｜>.
#include "lib/chat/templates.h"

namespace quire {
namespace {

constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
constexpr std::string_view kTokens[] = {kUser, kAssistant, kEnd};

// Of the assistant's messages what follows a thought is written. begins_thought: an answer begins with one.
class DeepSeekR1Template final : public ChatTemplate {
 public:
  constexpr DeepSeekR1Template(std::string_view name, std::string_view description, bool begins_thought)
      : ChatTemplate(name, description, kTokens, kEnd), begins_thought_(begins_thought) {}

 private:
  void end_answer(ChatWriter& out) const override { out.token(kEnd); }

  // The program writes the last system message, wherever it stands, in front of all others: so there can be one only
  // where the conversation begins.
  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    std::string_view system;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != "system") continue;
      if (state.begun)
        return refuse(messages, i, "writes system messages in front of the conversation, which has begun");
      system = messages[i].text;
    }
    if (!state.begun) out.bos().text(system);
    state.begun = true;
    for (const ChatMessage& message : messages) {
      if (message.role == "user") out.token(kUser).text(message.text);
      if (message.role == "assistant") out.token(kAssistant).text(behind_thought(message.text)).token(kEnd);
    }
    state.answering = options.begin_answer;
    if (!state.answering) return {};
    out.token(kAssistant);
    if (begins_thought_) out.token(kThink).text("\n");
    return {};
  }

  bool begins_thought_;
};

constexpr DeepSeekR1Template kDeepSeekR1("deepseek-r1", "DeepSeek-R1's distilled models: always thinks", true);
constexpr DeepSeekR1Template kDeepSeekR1First("deepseek-r1-2501", "the same as first published: begins no thought",
                                              false);

constexpr const ChatTemplate* kTemplates[] = {&kDeepSeekR1, &kDeepSeekR1First};

}  // namespace

std::span<const ChatTemplate* const> deepseek_templates() { return kTemplates; }

}  // namespace quire
