// ChatML and the families that write it: <|im_start|>ROLE, a newline, the text, <|im_end|> and a newline.
#include "lib/chat/templates.h"

namespace quire {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kTokens[] = {kStart, kEnd};

ChatWriter& begin_turn(ChatWriter& out, std::string_view role) { return out.token(kStart).text(role).text("\n"); }
void end_turn(ChatWriter& out) { out.token(kEnd).text("\n"); }

class ChatMlBase : public ChatTemplate {
 protected:
  constexpr ChatMlBase(std::string_view name, std::string_view description)
      : ChatTemplate(name, description, kTokens, kEnd) {}
  ~ChatMlBase() = default;
  void end_answer(ChatWriter& out) const final { end_turn(out); }
};

// A conversation without a system message may get one.
class ChatMlTemplate final : public ChatMlBase {
 public:
  constexpr ChatMlTemplate(std::string_view name, std::string_view description, std::string_view default_system = {})
      : ChatMlBase(name, description), default_system_(default_system) {}

 private:
  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    if (!state.begun && !default_system_.empty() && messages[0].role != "system") {
      end_turn(begin_turn(out, "system").text(default_system_));
    }
    state.begun = true;
    for (const ChatMessage& message : messages) end_turn(begin_turn(out, message.role).text(message.text));
    if (options.begin_answer) begin_turn(out, "assistant");
    state.answering = options.begin_answer;
    return {};
  }

  std::string_view default_system_;
};

// Qwen3 takes the thinking out of the assistant's messages before the user's last one, and gives those behind it a
// place for it. always_thinks: an answer begins with <think>, whatever the caller asks for.
class Qwen3Template final : public ChatMlBase {
 public:
  constexpr Qwen3Template(std::string_view name, std::string_view description, bool always_thinks)
      : ChatMlBase(name, description), always_thinks_(always_thinks) {}

 private:
  static bool is_query(const ChatMessage& message) {
    return message.role == "user" &&
           !(message.text.starts_with("<tool_response>") && message.text.ends_with("</tool_response>"));
  }

  static void write_assistant(std::string_view text, bool after_query, bool last, ChatWriter& out) {
    std::string_view answer = text, reasoning;
    if (const size_t end = text.rfind(kThinkEnd); end != std::string_view::npos) {
      answer = strip_newlines_front(text.substr(end + kThinkEnd.size()));
      reasoning = strip_newlines_end(text.substr(0, text.find(kThinkEnd)));
      if (const size_t begin = reasoning.rfind(kThink); begin != std::string_view::npos) {
        reasoning.remove_prefix(begin + kThink.size());
      }
      reasoning = strip_newlines_front(reasoning);
    }
    begin_turn(out, "assistant");
    if (after_query && (last || !reasoning.empty())) {
      out.token(kThink).text("\n").text(strip_newlines(reasoning)).text("\n").token(kThinkEnd).text("\n\n");
      answer = strip_newlines_front(answer);
    }
    end_turn(out.text(answer));
  }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    size_t last_query = messages.size();
    while (last_query > 0 && !is_query(messages[last_query - 1])) --last_query;  // one more than its index; 0: none
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (message.role == "assistant") {
        const bool after_query = last_query > 0 ? i >= last_query : state.asked;
        write_assistant(message.text, after_query, i + 1 == messages.size(), out);
      } else {
        end_turn(begin_turn(out, message.role).text(message.text));
      }
    }
    state.begun = true;
    state.asked = state.asked || last_query > 0;
    if (options.begin_answer) {
      begin_turn(out, "assistant");
      if (always_thinks_) {
        out.token(kThink).text("\n");
      } else if (!options.thinking) {
        out.token(kThink).text("\n\n").token(kThinkEnd).text("\n\n");
      }
    }
    state.answering = options.begin_answer;
    return {};
  }

  bool always_thinks_;
};

// QwQ always thinks, and takes the thought out of the assistant's messages unless one is the last.
class QwqTemplate final : public ChatMlBase {
 public:
  constexpr QwqTemplate(std::string_view name, std::string_view description) : ChatMlBase(name, description) {}

 private:
  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const bool cut = message.role == "assistant" && i + 1 < messages.size();
      end_turn(
          begin_turn(out, message.role).text(cut ? strip_newlines_front(behind_thought(message.text)) : message.text));
    }
    state.begun = true;
    if (options.begin_answer) begin_turn(out, "assistant").token(kThink).text("\n");
    state.answering = options.begin_answer;
    return {};
  }
};

// SmolLM3 says in its system message whether to think. Flags in the system text decide, else the caller.
class SmolLm3Template final : public ChatMlBase {
 public:
  // as_published: with the date, without an end of the system message, which only a system text with /system_override
  // has.
  constexpr SmolLm3Template(std::string_view name, std::string_view description, bool as_published)
      : ChatMlBase(name, description), as_published_(as_published) {}

 private:
  static constexpr std::string_view kPersona = "You are a helpful AI assistant named SmolLM, trained by Hugging Face.";
  static constexpr std::string_view kThinkingPersona =
      " Your role as an assistant involves thoroughly exploring questions through a systematic thinking process before "
      "providing the final precise and accurate solutions. This requires engaging in a comprehensive cycle of "
      "analysis, "
      "summarizing, exploration, reassessment, reflection, backtracking, and iteration to develop well-considered "
      "thinking process. Please structure your response into two main sections: Thought and Solution using the "
      "specified format: <think> Thought section </think> Solution section. In the Thought section, detail your "
      "reasoning process in steps. Each step should include detailed considerations such as analysing questions, "
      "summarizing relevant findings, brainstorming new ideas, verifying the accuracy of the current steps, refining "
      "any errors, and revisiting previous steps. In the Solution section, based on various attempts, explorations, "
      "and "
      "reflections from the Thought section, systematically present the final solution that you deem correct. The "
      "Solution section should be logical, accurate, and concise and detail necessary steps needed to reach the "
      "conclusion.";

  // The persona is text of the template: its <think> and </think> are tokens where the vocabulary has them.
  static void write_thinking_persona(ChatWriter& out) {
    const std::string_view persona = kThinkingPersona;
    const size_t begin = persona.find(kThink), end = persona.find(kThinkEnd);
    out.text(kPersona).text(persona.substr(0, begin)).token(kThink);
    out.text(persona.substr(begin + kThink.size(), end - begin - kThink.size())).token(kThinkEnd);
    out.text(persona.substr(end + kThinkEnd.size()));
  }

  void write_system(std::string_view given, const ChatOptions& options, ChatState& state, ChatWriter& out) const {
    state.thinking = options.thinking;
    if (given.find("/no_think") != std::string_view::npos) {
      state.thinking = false;
    } else if (given.find("/think") != std::string_view::npos) {
      state.thinking = true;
    }
    const std::string stripped = without(without(given, "/no_think"), "/think");
    const std::string_view system = strip_end(stripped);
    begin_turn(out, "system");
    if (as_published_ && given.find("/system_override") != std::string_view::npos) {
      end_turn(out.text(strip_end(without(system, "/system_override"))));
      return;
    }
    out.text("## Metadata\n\nKnowledge Cutoff Date: June 2025\n");
    if (as_published_) out.text("Today Date: ").text(options.date.value_or(today()).long_month()).text("\n");
    out.text("Reasoning Mode: ").text(state.thinking ? "/think" : "/no_think").text("\n\n## Custom Instructions\n\n");
    if (!system.empty()) {
      out.text(system);
    } else if (state.thinking) {
      write_thinking_persona(out);
    } else {
      out.text(kPersona);
    }
    out.text("\n\n");
    if (!as_published_) end_turn(out);
  }

  static ChatWriter& begin_assistant(const ChatState& state, ChatWriter& out) {
    begin_turn(out, "assistant");
    if (!state.thinking) out.token(kThink).text("\n\n").token(kThinkEnd).text("\n");
    return out;
  }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const bool is_system = message.role == "system";
      if (is_system && state.begun) return refuse(messages, i, "has a system message at the beginning only");
      if (!state.begun) write_system(is_system ? message.text : "", options, state, out);
      state.begun = true;
      if (message.role == "user") end_turn(begin_turn(out, "user").text(message.text));
      if (message.role == "assistant") {
        end_turn(begin_assistant(state, out).text(strip_newlines_front(message.text)));
      }
    }
    if (options.begin_answer) begin_assistant(state, out);
    state.answering = options.begin_answer;
    return {};
  }

  bool as_published_;
};

constexpr ChatMlTemplate kChatMl("chatml", "ChatML; no system message of its own (also Qwen3-Instruct-2507)");
constexpr ChatMlTemplate kQwen15("qwen1.5", "Qwen1.5: ChatML with a default system message",
                                 "You are a helpful assistant");
constexpr ChatMlTemplate kQwen2("qwen2", "Qwen2 and Qwen2.5-1M: ChatML with a default system message",
                                "You are a helpful assistant.");
constexpr ChatMlTemplate kQwen25("qwen2.5", "Qwen2.5: ChatML with a default system message",
                                 "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
constexpr ChatMlTemplate kSmolLm2("smollm2", "SmolLM2: ChatML with a default system message",
                                  "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
constexpr Qwen3Template kQwen3("qwen3", "Qwen3, with thinking", false);
constexpr Qwen3Template kQwen3Thinking("qwen3-thinking-2507", "Qwen3-Thinking-2507: always thinks", true);
constexpr QwqTemplate kQwq("qwq", "QwQ: always thinks");
constexpr SmolLm3Template kSmolLm3("smollm3", "SmolLM3 as published, with thinking and the date of the day", true);
constexpr SmolLm3Template kSmolLm3Unsloth("smollm3-unsloth", "SmolLM3 as Unsloth edited it, without a date", false);

constexpr const ChatTemplate* kTemplates[] = {&kChatMl,        &kQwen15, &kQwen2,   &kQwen25,  &kQwen3,
                                              &kQwen3Thinking, &kQwq,    &kSmolLm2, &kSmolLm3, &kSmolLm3Unsloth};

}  // namespace

std::span<const ChatTemplate* const> chatml_templates() { return kTemplates; }

}  // namespace quire
