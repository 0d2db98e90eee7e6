#include "conversation.h"

#include <CLI/CLI.hpp>

namespace cli {
namespace {

// The structs of quire.h for messages and options, which must outlive it.
struct Views {
  Views(const std::vector<Message>& list, const ChatArguments& arguments)
      : options(initialised(quire_chat_options_init)) {
    for (const auto& [role, text] : list) messages.push_back({role.data(), role.size(), text.data(), text.size()});
    if (arguments.no_thinking) options.flags |= QUIRE_CHAT_NO_THINKING;
    if (!arguments.template_name.empty()) options.template_name = arguments.template_name.data();
    options.template_name_len = arguments.template_name.size();
    if (!arguments.date.empty()) options.date = arguments.date.data();
    options.date_len = arguments.date.size();
  }

  std::vector<quire_message> messages;
  quire_chat_options options;
};

// Calls `call` with the error to fill in. A checkpoint without a known template: says how to name one.
template <typename Call>
void check_template(const ChatArguments& arguments, const char* doing, Call&& call) {
  Error error;
  const quire_status status = call(error.get());
  try {
    error.check_options(status, doing);
  } catch (const QuireFailure& failure) {
    const bool unknown = status == QUIRE_ERROR_NOT_FOUND || status == QUIRE_ERROR_UNSUPPORTED;
    if (!unknown || !arguments.template_name.empty()) throw;
    throw QuireFailure(
        status, std::string(failure.what()) + "; --chat-template NAME names one, `quire chat --templates` lists them");
  }
}

}  // namespace

void add_chat_options(CLI::App& command, ChatArguments& arguments) {
  command.add_option("--system", arguments.system, "system message before the first of the user's")->type_name("TEXT");
  command
      .add_option("--chat-template", arguments.template_name,
                  "how messages are written, see `quire chat --templates` (default: as the checkpoint says)")
      ->type_name("NAME");
  command.add_option("--date", arguments.date, "the day that templates write (default: their own, or today)")
      ->type_name("YYYY-MM-DD");
  command.add_flag("--no-thinking", arguments.no_thinking, "ask models that can think before they answer not to");
}

std::string with_document(const std::string& document, const std::string& text) {
  if (document.empty() || text.empty()) return document + text;
  return document + (document.ends_with('\n') ? "\n" : "\n\n") + text;
}

std::vector<Message> first_messages(const ChatArguments& arguments, const std::string& text) {
  std::vector<Message> messages;
  if (!arguments.system.empty()) messages.push_back({"system", arguments.system});
  messages.push_back({"user", text});
  return messages;
}

int64_t count_chat_tokens(const quire_tokenizer* tokenizer, const std::vector<Message>& messages,
                          const ChatArguments& arguments) {
  const Views views(messages, arguments);
  size_t needed = 0;
  check_template(arguments, "cannot write the messages", [&](quire_error* error) {
    return quire_tokenizer_encode_chat(tokenizer, views.messages.data(), views.messages.size(), &views.options, nullptr,
                                       0, &needed, error);
  });
  return static_cast<int64_t>(needed);
}

void feed_messages(quire_session* session, const std::vector<Message>& messages, const ChatArguments& arguments) {
  const Views views(messages, arguments);
  Error error;
  error.check(
      quire_session_feed_messages(session, views.messages.data(), views.messages.size(), &views.options, error.get()),
      "cannot feed the messages");
}

}  // namespace cli
