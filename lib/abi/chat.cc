#include "lib/chat/chat_format.h"

#include "lib/abi/boundary.h"
#include "lib/abi/handles.h"
#include "lib/chat/known_templates.h"

using namespace quire;
using namespace quire::abi;

namespace {

// What the functions on conversations are given, checked. The texts are the caller's.
struct Conversation {
  std::vector<ChatMessage> messages;
  ChatOptions options;
  std::string_view template_name;
};

Status read_messages(const quire_message* messages, size_t n_messages, std::vector<ChatMessage>* out) {
  if (!messages && n_messages > 0) return invalid("messages is NULL but n_messages is not 0");
  if (n_messages > size_t{1} << 20) return invalid("n_messages is " + std::to_string(n_messages) + "; at most 2^20");
  for (size_t i = 0; i < n_messages; ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]";
    ChatMessage message;
    QUIRE_TRY(read_text(messages[i].role, messages[i].role_len, (name + ".role").c_str(), &message.role));
    QUIRE_TRY(read_text(messages[i].text, messages[i].text_len, (name + ".text").c_str(), &message.text));
    out->push_back(message);
  }
  return {};
}

Result<Conversation> read_conversation(const quire_message* messages, size_t n_messages,
                                       const quire_chat_options* options) {
  Conversation conversation;
  QUIRE_TRY(read_messages(messages, n_messages, &conversation.messages));
  quire_chat_options o;
  QUIRE_TRY(read_options(options, QUIRE_CHAT_NO_ANSWER | QUIRE_CHAT_NO_THINKING, "quire_chat_options", &o));
  QUIRE_TRY(read_text(o.template_name, o.template_name_len, "template_name", &conversation.template_name));
  if (o.template_name && o.template_name_len == 0) return invalid("template_name is empty");
  conversation.options.begin_answer = (o.flags & QUIRE_CHAT_NO_ANSWER) == 0;
  conversation.options.thinking = (o.flags & QUIRE_CHAT_NO_THINKING) == 0;
  std::string_view date;
  QUIRE_TRY(read_text(o.date, o.date_len, "date", &date));
  if (o.date) {
    QUIRE_ASSIGN(conversation.options.date, parse_chat_date(date));
  }
  return conversation;
}

}  // namespace

extern "C" {

quire_status quire_chat_get_list(char* buf, size_t cap, size_t* needed, quire_error* err) {
  return guard(err, [&] { return write_text(list_chat_templates(), buf, cap, needed); });
}

quire_status quire_tokenizer_get_chat_template(const quire_tokenizer* tokenizer, char* buf, size_t cap, size_t* needed,
                                               quire_error* err) {
  return with_tokenizer(tokenizer, err, [&](const ModelTokenizer& t, const CancelToken&) -> Status {
    QUIRE_ASSIGN(const ChatTemplate* own, choose_chat_template(t, ""));
    return write_text(own->name(), buf, cap, needed);
  });
}

quire_status quire_tokenizer_render_chat(const quire_tokenizer* tokenizer, const quire_message* messages,
                                         size_t n_messages, const quire_chat_options* options, char* buf, size_t cap,
                                         size_t* needed, quire_error* err) {
  return with_tokenizer(tokenizer, err, [&](const ModelTokenizer& t, const CancelToken&) -> Status {
    QUIRE_ASSIGN(const Conversation chat, read_conversation(messages, n_messages, options));
    QUIRE_ASSIGN(const ChatTemplate* chosen, choose_chat_template(t, chat.template_name));
    QUIRE_ASSIGN(const std::string text, render_chat(*chosen, t, chat.messages, chat.options));
    return write_text(text, buf, cap, needed);
  });
}

quire_status quire_tokenizer_encode_chat(const quire_tokenizer* tokenizer, const quire_message* messages,
                                         size_t n_messages, const quire_chat_options* options, int32_t* ids, size_t cap,
                                         size_t* needed, quire_error* err) {
  return with_tokenizer(tokenizer, err, [&](const ModelTokenizer& t, const CancelToken& closing) -> Status {
    QUIRE_ASSIGN(const Conversation chat, read_conversation(messages, n_messages, options));
    QUIRE_ASSIGN(const ChatTemplate* chosen, choose_chat_template(t, chat.template_name));
    QUIRE_ASSIGN(const auto format, ChatFormat::make(*chosen, t));
    ChatState state;
    QUIRE_ASSIGN(const auto all, format->encode(chat.messages, chat.options, -1, state, &closing));
    return write_array(all, "ids", ids, cap, needed);
  });
}

quire_status quire_session_feed_messages(quire_session* session, const quire_message* messages, size_t n_messages,
                                         const quire_chat_options* options, quire_error* err) {
  return with_handle(session, err, [&](const std::shared_ptr<Session>& s) -> Status {
    QUIRE_ASSIGN(const Conversation chat, read_conversation(messages, n_messages, options));
    return s->feed_messages(chat.messages, chat.options, chat.template_name);
  });
}
}
