#include "lib/chat/chat_template.h"

#include <utility>

#include "lib/format/json.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

Status check_message(const ChatMessage& message, size_t i) {
  const std::string name = "messages[" + std::to_string(i) + "]";
  if (message.role != "system" && message.role != "user" && message.role != "assistant") {
    return Status(Code::kInvalidArgument,
                  name + ".role is " + json_excerpt(utf8_sanitize(message.role)) +
                      "; expected \"system\", \"user\" or \"assistant\"",
                  static_cast<int64_t>(i));
  }
  if (const size_t bad = utf8_first_invalid(message.text); bad != message.text.size()) {
    return Status(Code::kInvalidText, name + ".text is not valid UTF-8 at byte " + std::to_string(bad),
                  static_cast<int64_t>(bad));
  }
  return {};
}

}  // namespace

ChatWriter& ChatWriter::text(std::string_view text) {
  if (text.empty()) return *this;
  if (pieces_.empty() || pieces_.back().kind != ChatPiece::Kind::kText) pieces_.push_back({});
  pieces_.back().text += text;
  return *this;
}

ChatWriter& ChatWriter::token(std::string_view text) {
  pieces_.push_back({ChatPiece::Kind::kToken, std::string(text)});
  return *this;
}

ChatWriter& ChatWriter::stripping_token(std::string_view text) {
  pieces_.push_back({ChatPiece::Kind::kToken, std::string(text), true});
  return *this;
}

ChatWriter& ChatWriter::bos() {
  pieces_.push_back({ChatPiece::Kind::kBos, ""});
  return *this;
}

ChatWriter& ChatWriter::eos() {
  pieces_.push_back({ChatPiece::Kind::kEos, ""});
  return *this;
}

Result<std::vector<ChatPiece>> ChatTemplate::write(std::span<const ChatMessage> messages, const ChatOptions& options,
                                                   ChatState& state) const {
  for (size_t i = 0; i < messages.size(); ++i) QUIRE_TRY(check_message(messages[i], i));
  if (messages.empty() && !state.begun) {
    return Status(Code::kInvalidArgument, "a conversation begins with a message; there is none");
  }
  ChatState next = state;
  ChatWriter out;
  if (next.answering) {
    end_answer(out);
    next.answering = false;
    ++next.n_turns;
  }
  QUIRE_TRY(write_messages(messages, options, next, out));
  if (messages.empty() && options.begin_answer && !next.answering) {
    return Status(Code::kInvalidArgument, "an answer is asked for where there is no message; the chat template " +
                                              std::string(name_) + " has a user's message before each answer");
  }
  state = std::move(next);
  return out.take();
}

Status ChatTemplate::refuse(std::span<const ChatMessage> messages, size_t i, const std::string& why) const {
  return Status(Code::kInvalidArgument,
                "messages[" + std::to_string(i) + "] (" + std::string(messages[i].role) + "): the chat template " +
                    std::string(name_) + " " + why,
                static_cast<int64_t>(i));
}

}  // namespace quire
