// Llama 2 and Llama 3.
#include "lib/chat/templates.h"

namespace quire {
namespace {

// [INST] and [/INST] are ordinary text in Llama 2's vocabulary, and turns alternate. A system text stands in the first
// user message; its white space at both ends is cut off or not.
class Llama2Template final : public ChatTemplate {
 public:
  constexpr Llama2Template(std::string_view name, std::string_view description, bool strips_system)
      : ChatTemplate(name, description, {}, ""), strips_system_(strips_system) {}

 private:
  void end_answer(ChatWriter& out) const override { out.text(" ").eos(); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const bool begins = !state.begun;
      state.begun = true;
      if (message.role == "system") {
        if (!begins) return refuse(messages, i, "has a system message at the beginning only");
        state.system = strips_system_ ? strip(message.text) : message.text;
        continue;
      }
      const bool user = message.role == "user";
      if (user != (state.n_turns % 2 == 0)) return refuse(messages, i, "has user and assistant in turn");
      if (user) {
        std::string text(message.text);
        if (state.system) text = "<<SYS>>\n" + *state.system + "\n<</SYS>>\n\n" + text;
        state.system.reset();
        out.bos().token("[INST]").text(" ").text(strip(text)).text(" ").token("[/INST]");
      } else {
        out.text(" ").text(strip(message.text)).text(" ").eos();
      }
      ++state.n_turns;
    }
    state.answering = options.begin_answer && state.n_turns % 2 == 1;
    return {};
  }

  bool strips_system_;
};

constexpr std::string_view kStart = "<|start_header_id|>";
constexpr std::string_view kEnd = "<|end_header_id|>";
constexpr std::string_view kEndOfTurn = "<|eot_id|>";
constexpr std::string_view kLlama3Tokens[] = {kStart, kEnd, kEndOfTurn};

ChatWriter& header(ChatWriter& out, std::string_view role) {
  return out.token(kStart).text(role).token(kEnd).text("\n\n");
}

class Llama3Template final : public ChatTemplate {
 public:
  enum class Beginning {
    kPlain,
    kDated,     // a system message with a date, even where none is given
    kDatedNow,  // the same, by default with the date of the day
  };

  constexpr Llama3Template(std::string_view name, std::string_view description, Beginning beginning,
                           bool always_answers = false)
      : ChatTemplate(name, description, kLlama3Tokens, kEndOfTurn),
        beginning_(beginning),
        always_answers_(always_answers) {}

 private:
  void end_answer(ChatWriter& out) const override { out.token(kEndOfTurn); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    size_t first = 0;
    if (!state.begun) {
      out.bos();
      if (beginning_ != Beginning::kPlain) {
        const bool has_system = messages[0].role == "system";
        write_dated_system(has_system ? messages[0].text : "", options, out);
        first = has_system ? 1 : 0;
      }
    }
    state.begun = true;
    for (const ChatMessage& message : messages.subspan(first)) {
      header(out, message.role).text(strip(message.text)).token(kEndOfTurn);
    }
    state.answering = options.begin_answer || always_answers_;
    if (state.answering) header(out, "assistant");
    return {};
  }

  void write_dated_system(std::string_view system, const ChatOptions& options, ChatWriter& out) const {
    constexpr ChatDate kFixed{2024, 7, 26};
    const ChatDate date = options.date.value_or(beginning_ == Beginning::kDatedNow ? today() : kFixed);
    header(out, "system").text("Cutting Knowledge Date: December 2023\nToday Date: ").text(date.short_month());
    out.text("\n\n").text(strip(system)).token(kEndOfTurn);
  }

  Beginning beginning_;
  bool always_answers_;
};

using Beginning = Llama3Template::Beginning;
constexpr Llama2Template kLlama2("llama2", "Llama 2 Chat", false);
constexpr Llama2Template kLlama2Stripped("llama2-stripped", "Llama 2 Chat and CodeLlama as published later", true);
constexpr Llama3Template kLlama3("llama3", "Llama 3", Beginning::kPlain);
constexpr Llama3Template kLlama3Answering("llama3-answering", "Llama 3 as first published: always begins an answer",
                                          Beginning::kPlain, true);
constexpr Llama3Template kLlama31("llama3.1", "Llama 3.1 and 3.3; the date is 2024-07-26 by default",
                                  Beginning::kDated);
constexpr Llama3Template kLlama32("llama3.2", "Llama 3.2; the date of the day by default", Beginning::kDatedNow);

constexpr const ChatTemplate* kTemplates[] = {&kLlama2,          &kLlama2Stripped, &kLlama3,
                                              &kLlama3Answering, &kLlama31,        &kLlama32};

}  // namespace

std::span<const ChatTemplate* const> llama_templates() { return kTemplates; }

}  // namespace quire
