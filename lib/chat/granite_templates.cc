// Granite 3.0 and 3.3: <|start_of_role|>ROLE<|end_of_role|>, the text, <|end_of_text|> and a newline.
#include "lib/chat/templates.h"

namespace quire {
namespace {

constexpr std::string_view kStart = "<|start_of_role|>";
constexpr std::string_view kRoleEnd = "<|end_of_role|>";
constexpr std::string_view kTurnEnd = "<|end_of_text|>";
constexpr std::string_view kTokens[] = {kStart, kRoleEnd, kTurnEnd};

class GraniteTemplate final : public ChatTemplate {
 public:
  // Granite 3.3 begins each conversation with a system message, and no answer to one alone. What its program adds for
  // tools, documents, controls and thinking aloud is left out, as it is where nobody asks the program for it.
  // between: what stands between the sentences of that message; empty: there is none.
  constexpr GraniteTemplate(std::string_view name, std::string_view description, std::string_view between)
      : ChatTemplate(name, description, kTokens, kTurnEnd), between_(between) {}

 private:
  static ChatWriter& begin_turn(std::string_view role, ChatWriter& out) {
    return out.token(kStart).text(role).token(kRoleEnd);
  }
  static ChatWriter& end_turn(ChatWriter& out) { return out.token(kTurnEnd).text("\n"); }
  void end_answer(ChatWriter& out) const override { end_turn(out); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    const bool has_system = !state.begun && messages[0].role == "system";
    if (!state.begun && !has_system && !between_.empty()) {
      begin_turn("system", out).text("Knowledge Cutoff Date: April 2024.").text(between_).text("Today's Date: ");
      out.text(options.date.value_or(today()).month_first()).text(".").text(between_);
      end_turn(out.text("You are Granite, developed by IBM. You are a helpful AI assistant."));
    }
    for (const ChatMessage& message : messages) end_turn(begin_turn(message.role, out).text(message.text));
    state.begun = true;
    state.n_turns += std::ssize(messages) - (has_system ? 1 : 0);
    state.answering = options.begin_answer && (between_.empty() || state.n_turns > 0);
    if (state.answering) begin_turn("assistant", out);
    return {};
  }

  std::string_view between_;
};

constexpr GraniteTemplate kGranite30("granite3.0", "Granite 3.0", "");
constexpr GraniteTemplate kGranite33("granite3.3", "Granite 3.3; the date of the day by default", " ");
constexpr GraniteTemplate kGranite33Lines("granite3.3-lines", "the same with a default system message of three lines",
                                          "\n");

constexpr const ChatTemplate* kTemplates[] = {&kGranite30, &kGranite33, &kGranite33Lines};

}  // namespace

std::span<const ChatTemplate* const> granite_templates() { return kTemplates; }

}  // namespace quire
