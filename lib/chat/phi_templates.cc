// Phi-3, 3.5, 4 and 4-mini.
//
// Their programs write the end-of-sequence token behind a conversation that no answer is to follow. It is left out
// here: conversations go on.
#include "lib/chat/templates.h"

namespace quire {
namespace {

constexpr std::string_view kEnd = "<|end|>";
constexpr std::string_view kPhi3Tokens[] = {"<|user|>", "<|assistant|>", kEnd};

// <|ROLE|>, the text, <|end|>. Phi-3 and 3.5 write a newline behind each token, which their vocabularies give to the
// token; 3.5 leaves an empty system message out.
class Phi3Template final : public ChatTemplate {
 public:
  enum class System { kAny, kNotEmpty };

  constexpr Phi3Template(std::string_view name, std::string_view description, std::string_view newline, System system)
      : ChatTemplate(name, description, kPhi3Tokens, kEnd), newline_(newline), system_(system) {}

 private:
  ChatWriter& write(std::string_view token, ChatWriter& out) const {
    return (newline_.empty() ? out.token(token) : out.stripping_token(token)).text(newline_);
  }
  void begin_turn(std::string_view role, ChatWriter& out) const { write("<|" + std::string(role) + "|>", out); }
  void end_answer(ChatWriter& out) const override { write(kEnd, out); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (const ChatMessage& message : messages) {
      if (system_ == System::kNotEmpty && message.role == "system" && message.text.empty()) continue;
      begin_turn(message.role, out);
      write(kEnd, out.text(message.text));
    }
    state.begun = true;
    if (options.begin_answer) begin_turn("assistant", out);
    state.answering = options.begin_answer;
    return {};
  }

  std::string_view newline_;
  System system_;
};

constexpr std::string_view kTurnStart = "<|im_start|>";
constexpr std::string_view kSeparator = "<|im_sep|>";
constexpr std::string_view kTurnEnd = "<|im_end|>";
constexpr std::string_view kPhi4Tokens[] = {kTurnStart, kSeparator, kTurnEnd};

// <|im_start|>ROLE<|im_sep|>, the text, <|im_end|>. always_answers: a message of the user's begins an answer, whatever
// the caller asks for, and a message of the assistant's is one.
class Phi4Template final : public ChatTemplate {
 public:
  constexpr Phi4Template(std::string_view name, std::string_view description, bool always_answers)
      : ChatTemplate(name, description, kPhi4Tokens, kTurnEnd), always_answers_(always_answers) {}

 private:
  static ChatWriter& begin_turn(std::string_view role, ChatWriter& out) {
    return out.token(kTurnStart).text(role).token(kSeparator);
  }
  void end_answer(ChatWriter& out) const override { out.token(kTurnEnd); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (const ChatMessage& message : messages) {
      if (!always_answers_ || message.role != "assistant") begin_turn(message.role, out);
      out.text(message.text).token(kTurnEnd);
      if (always_answers_ && message.role == "user") begin_turn("assistant", out);
    }
    state.begun = true;
    if (!always_answers_ && options.begin_answer) begin_turn("assistant", out);
    state.answering = always_answers_ ? !messages.empty() && messages.back().role == "user" : options.begin_answer;
    return {};
  }

  bool always_answers_;
};

constexpr Phi3Template kPhi3("phi3", "Phi-3", "\n", Phi3Template::System::kAny);
constexpr Phi3Template kPhi35("phi3.5", "Phi-3.5: an empty system message is left out", "\n",
                              Phi3Template::System::kNotEmpty);
constexpr Phi4Template kPhi4("phi4", "Phi-4", false);
constexpr Phi4Template kPhi4Answering("phi4-answering", "Phi-4 as first published: a user's message begins an answer",
                                      true);
constexpr Phi3Template kPhi4Mini("phi4-mini", "Phi-4-mini", "", Phi3Template::System::kAny);

constexpr const ChatTemplate* kTemplates[] = {&kPhi3, &kPhi35, &kPhi4, &kPhi4Answering, &kPhi4Mini};

}  // namespace

std::span<const ChatTemplate* const> phi_templates() { return kTemplates; }

}  // namespace quire
