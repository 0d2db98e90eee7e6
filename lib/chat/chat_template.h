// Chat templates: how a family of models writes a conversation.
//
// A checkpoint carries its template as a Jinja program. Nothing here runs Jinja: a known template is a class that
// writes what the program writes, for messages that have a role and a text; which program a checkpoint has is found by
// exact comparison (known_templates.h). All are immutable and constant-initialised: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chat/chat_date.h"
#include "lib/support/status.h"

namespace quire {

struct ChatMessage {
  std::string_view role;  // "system", "user", "assistant"
  std::string_view text;
};

struct ChatOptions {
  bool begin_answer = true;      // the beginning of the assistant's turn, behind the messages
  bool thinking = true;          // false: ask models that can think aloud not to
  std::optional<ChatDate> date;  // absent: the template's own default
};

// How far a conversation is written. Together with the messages that follow it determines what is written next, so a
// conversation can go on without what was written before. A value.
struct ChatState {
  bool begun = false;                 // the conversation has a beginning
  bool answering = false;             // the assistant's turn is open: what follows is its answer
  bool asked = false;                 // there was a message of the user's
  bool thinking = true;               // as the conversation began
  int64_t n_turns = 0;                // messages behind a system message at the beginning, an open answer not counted
  std::optional<std::string> system;  // a system text that waits for the message that it is written into
};

// A part of what a template writes.
struct ChatPiece {
  enum class Kind {
    kText,   // nothing in it is a control token
    kToken,  // a token that is known by its text; if the vocabulary does not have it, and need not, it is text
    kBos,
    kEos,
  };
  Kind kind = Kind::kText;
  std::string text;  // kText, kToken
  // kToken: where the vocabulary has it, it takes the white space behind it with it, even if the tokenizer does not say
  // so, as one of a GGUF file cannot.
  bool strips_right = false;
};

class ChatWriter {
 public:
  ChatWriter& text(std::string_view text);
  ChatWriter& token(std::string_view text);
  ChatWriter& stripping_token(std::string_view text);  // with strips_right
  ChatWriter& bos();
  ChatWriter& eos();
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  std::vector<ChatPiece> pieces_;  // no two texts in a row
};

class ChatTemplate {
 public:
  std::string_view name() const { return name_; }
  std::string_view description() const { return description_; }
  // Tokens that a vocabulary must have.
  std::span<const std::string_view> tokens() const { return tokens_; }
  // Where these are none: a text that its program writes.
  std::string_view mark() const { return mark_; }
  // The token behind an answer; empty: the end-of-sequence token.
  std::string_view end_of_turn() const { return end_of_turn_; }

  // Writes what comes behind `state`, and moves it on: the end of an open answer, the messages, and the beginning of an
  // answer if it is asked for. kInvalidArgument: an unknown role, or a message that the template has no place for;
  // kInvalidText: a text that is not valid UTF-8. Then the state is as it was.
  Result<std::vector<ChatPiece>> write(std::span<const ChatMessage> messages, const ChatOptions& options,
                                       ChatState& state) const;

 protected:
  constexpr ChatTemplate(std::string_view name, std::string_view description, std::span<const std::string_view> tokens,
                         std::string_view end_of_turn, std::string_view mark = "[INST]")
      : name_(name), description_(description), tokens_(tokens), end_of_turn_(end_of_turn), mark_(mark) {}
  ~ChatTemplate() = default;

  // Messages have known roles and valid texts, and no answer is open. There is a message unless the conversation has
  // begun.
  virtual Status write_messages(std::span<const ChatMessage> messages, const ChatOptions& options, ChatState& state,
                                ChatWriter& out) const = 0;
  // What follows the text of an answer.
  virtual void end_answer(ChatWriter& out) const = 0;

  // kInvalidArgument that names the message, its role and the template.
  Status refuse(std::span<const ChatMessage> messages, size_t i, const std::string& why) const;

 private:
  std::string_view name_, description_;
  std::span<const std::string_view> tokens_;
  std::string_view end_of_turn_;
  std::string_view mark_;
};

}  // namespace quire
