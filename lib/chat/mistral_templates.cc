// Mistral: [INST] and [/INST] around the user's texts; they are ordinary text in the vocabularies of v1.
#include "lib/chat/templates.h"

namespace quire {
namespace {

constexpr std::string_view kInst = "[INST]";
constexpr std::string_view kInstEnd = "[/INST]";
constexpr std::string_view kSystem = "[SYSTEM_PROMPT]";
constexpr std::string_view kSystemEnd = "[/SYSTEM_PROMPT]";
constexpr std::string_view kInstTokens[] = {kInst, kInstEnd};
constexpr std::string_view kSystemTokens[] = {kInst, kInstEnd, kSystem, kSystemEnd};

// White space beside the tokens, in which the versions differ.
struct Spaces {
  std::string_view before_inst, after_inst, before_inst_end, before_answer, after_eos;
};

void write_user(const Spaces& spaces, std::string_view system, std::string_view text, ChatWriter& out) {
  out.text(spaces.before_inst).token(kInst).text(spaces.after_inst);
  out.text(system).text(text).text(spaces.before_inst_end).token(kInstEnd);
}

// Versions 1 and 3: turns alternate, and a system text stands in one of the user's messages.
class AlternatingTemplate final : public ChatTemplate {
 public:
  enum class SystemIn { kNone, kFirst, kLast };

  constexpr AlternatingTemplate(std::string_view name, std::string_view description,
                                std::span<const std::string_view> tokens, SystemIn system_in, Spaces spaces,
                                bool strips_answers = false)
      : ChatTemplate(name, description, tokens, ""),
        system_in_(system_in),
        spaces_(spaces),
        strips_answers_(strips_answers) {}

 private:
  void end_answer(ChatWriter& out) const override { out.eos().text(spaces_.after_eos); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const bool begins = !state.begun;
      if (begins) out.bos();
      state.begun = true;
      if (message.role == "system") {
        if (system_in_ == SystemIn::kNone) return refuse(messages, i, "has no system messages");
        if (!begins) return refuse(messages, i, "has a system message at the beginning only");
        state.system = message.text;
        continue;
      }
      const bool user = message.role == "user";
      if (user != (state.n_turns % 2 == 0)) return refuse(messages, i, "has user and assistant in turn");
      if (!user) {
        out.text(spaces_.before_answer).text(strips_answers_ ? strip(message.text) : message.text);
        out.eos().text(spaces_.after_eos);
      } else if (state.system && (system_in_ == SystemIn::kFirst || i + 1 == messages.size())) {
        write_user(spaces_, *state.system + "\n\n", message.text, out);
        state.system.reset();
      } else {
        write_user(spaces_, "", message.text, out);
      }
      ++state.n_turns;
    }
    state.answering = options.begin_answer && state.n_turns % 2 == 1;
    return {};
  }

  SystemIn system_in_;
  Spaces spaces_;
  bool strips_answers_;
};

// The beginning of the system messages that Mistral Small writes of its own; a date follows.
constexpr std::string_view kSmallBeforeDate =
    "You are Mistral Small 3, a Large Language Model (LLM) created by Mistral AI, a French startup headquartered in "
    "Paris.\nYour knowledge base was last updated on 2023-10-01. The current date is ";

// Version 7: system messages have tokens of their own. A conversation without one may get one, with the date of the day
// before `after_date`; empty: it gets none.
class SystemPromptTemplate final : public ChatTemplate {
 public:
  constexpr SystemPromptTemplate(std::string_view name, std::string_view description, Spaces spaces,
                                 std::string_view after_date = {})
      : ChatTemplate(name, description, kSystemTokens, ""), spaces_(spaces), after_date_(after_date) {}

 private:
  void end_answer(ChatWriter& out) const override { out.eos(); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    if (!state.begun) {
      out.bos();
      if (!after_date_.empty() && messages[0].role != "system") {
        out.token(kSystem).text(kSmallBeforeDate).text(options.date.value_or(today()).iso()).text(after_date_);
        out.token(kSystemEnd);
      }
    }
    state.begun = true;
    for (const ChatMessage& message : messages) {
      if (message.role == "system") {
        out.token(kSystem).text(spaces_.after_inst).text(message.text).token(kSystemEnd);
      } else if (message.role == "user") {
        write_user(spaces_, "", message.text, out);
      } else {
        out.text(spaces_.before_answer).text(message.text).eos();
      }
    }
    state.answering = options.begin_answer;
    return {};
  }

  Spaces spaces_;
  std::string_view after_date_;
};

// Mistral Small 3.2 (2506): version 7 with a long system message of its own, and turns that alternate; behind the
// beginning a system message may stand where the assistant's would.
class Small32Template final : public ChatTemplate {
 public:
  constexpr Small32Template()
      : ChatTemplate("mistral-small-3.2",
                     "Mistral Small 3.2 (v7-tekken); its own system message has the date of the day", kSystemTokens,
                     "") {}

 private:
  static constexpr std::string_view kAfterDate = R"(.

When you're not sure about some information or when the user's request requires up-to-date or specific data, you must use the available tools to fetch the information. Do not hesitate to use tools whenever they can provide a more accurate or complete response. If no relevant tools are available, then clearly state that you don't have the information and avoid making up anything.

If the user's question is not clear, ambiguous, or does not provide enough context for you to accurately answer the question, you do not try to answer it right away and you rather ask the user to clarify their request (e.g. "What are some good restaurants around me?" => "Where are you?" or "When is the next flight to Tokyo" => "Where do you travel from?").
You are always very attentive to dates, and when asked about information at specific dates, you discard information that is at another date.
You follow these instructions in all languages, and always respond to the user in the language they use or request.
Next sections describe the capabilities that you have.

# WEB BROWSING INSTRUCTIONS

You cannot perform any web search or access internet to open URLs, links etc. If it seems like the user is expecting you to do so, you clarify the situation and ask the user to copy paste the text directly in the chat.

# MULTI-MODAL INSTRUCTIONS

You have the ability to read images, but you cannot generate images. You also cannot transcribe audio files or videos.
You cannot read nor transcribe audio files or videos.

# TOOL CALLING INSTRUCTIONS

You may have access to tools that you can use to fetch information or perform actions. You must use these tools in the following situations:

1. When the request requires up-to-date information.
2. When the request requires specific data that you do not have in your knowledge base.
3. When the request involves actions that you cannot perform without tools.

Always prioritize using tools to provide the most accurate and helpful response. If tools are not available, inform the user that you cannot perform the requested action at the moment.)";

  void end_answer(ChatWriter& out) const override { out.eos(); }

  Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                        ChatWriter& out) const override {
    size_t first = 0;
    if (!state.begun) {
      out.bos().token(kSystem);
      if (messages[0].role == "system") {
        out.text(messages[0].text);
        first = 1;
      } else {
        out.text(kSmallBeforeDate).text(options.date.value_or(today()).iso()).text(kAfterDate);
      }
      out.token(kSystemEnd);
    }
    state.begun = true;
    for (size_t i = first; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      const bool user = message.role == "user";
      if (user != (state.n_turns % 2 == 0)) return refuse(messages, i, "has user and assistant in turn");
      if (user) {
        write_user({}, "", message.text, out);
      } else if (message.role == "system") {
        out.token(kSystem).text(message.text).token(kSystemEnd);
      } else {
        out.text(message.text).eos();
      }
      ++state.n_turns;
    }
    state.answering = options.begin_answer && state.n_turns % 2 == 1;
    return {};
  }
};

using SystemIn = AlternatingTemplate::SystemIn;
constexpr AlternatingTemplate kV01("mistral-v0.1", "Mistral 7B Instruct v0.1", {}, SystemIn::kNone,
                                   {"", " ", " ", "", " "});
constexpr AlternatingTemplate kV02("mistral-v0.2", "Mistral 7B Instruct v0.2 and Mixtral as first published", {},
                                   SystemIn::kNone, {"", " ", " ", "", ""});
constexpr AlternatingTemplate kV1("mistral-v1", "Mistral v1, with a system message", {}, SystemIn::kFirst,
                                  {" ", " ", " ", " ", ""});
constexpr AlternatingTemplate kV3("mistral-v3", "Mistral v3 (7B v0.3, Large 2407)", kInstTokens, SystemIn::kLast,
                                  {"", " ", "", " ", ""}, true);
constexpr AlternatingTemplate kV3Tekken("mistral-v3-tekken", "Mistral v3-tekken (Nemo)", kInstTokens, SystemIn::kLast,
                                        {});
constexpr SystemPromptTemplate kV7("mistral-v7", "Mistral v7 (Large 2411)", {"", " ", "", " ", ""});
constexpr SystemPromptTemplate kV7Tekken("mistral-v7-tekken", "Mistral v7-tekken without a system message of its own",
                                         {});
constexpr SystemPromptTemplate kSmall3(
    "mistral-small-3", "Mistral Small 3 and 3.1 (v7-tekken); its own system message has the date of the day", {},
    ".\n\nWhen you're not sure about some information, you say that you don't have the information and don't make up "
    "anything.\nIf the user's question is not clear, ambiguous, or does not provide enough context for you to "
    "accurately answer the question, you do not try to answer it right away and you rather ask the user to clarify "
    "their request (e.g. \"What are some good restaurants around me?\" => \"Where are you?\" or \"When is the next "
    "flight to Tokyo\" => \"Where do you travel from?\")");
constexpr Small32Template kSmall32;

constexpr const ChatTemplate* kTemplates[] = {&kV01, &kV02,      &kV1,     &kV3,     &kV3Tekken,
                                              &kV7,  &kV7Tekken, &kSmall3, &kSmall32};

}  // namespace

std::span<const ChatTemplate* const> mistral_templates() { return kTemplates; }

}  // namespace quire
