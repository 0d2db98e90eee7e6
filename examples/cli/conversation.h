// Messages by a chat template: what `quire chat` and `quire run --chat` share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire_handles.h"

namespace CLI {
class App;
}

namespace cli {

struct ChatArguments {
  std::string template_name;  // empty: the checkpoint's own
  std::string system;         // empty: none
  std::string date;           // empty: the template's default
  bool no_thinking = false;
};

void add_chat_options(CLI::App& command, ChatArguments& arguments);

struct Message {
  std::string role, text;
};

// The document, if any, and the text as one message of the user's.
std::string with_document(const std::string& document, const std::string& text);
// The system message, if there is one, and the user's first.
std::vector<Message> first_messages(const ChatArguments& arguments, const std::string& text);

int64_t count_chat_tokens(const quire_tokenizer* tokenizer, const std::vector<Message>& messages,
                          const ChatArguments& arguments);
// And the beginning of an answer.
void feed_messages(quire_session* session, const std::vector<Message>& messages, const ChatArguments& arguments);

}  // namespace cli
