// A chat template on a tokenizer: conversations as text and as token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/chat/chat_template.h"
#include "lib/support/status.h"
#include "lib/tokenizer/model_tokenizer.h"

namespace quire {

// The template of that name; empty: the checkpoint's own. Errors: kInvalidArgument, kNotFound (the checkpoint has
// none), kUnsupported (one that is not known).
Result<const ChatTemplate*> choose_chat_template(const ModelTokenizer& tokenizer, std::string_view name);

// The messages as the template's program would write them into one text.
Result<std::string> render_chat(const ChatTemplate& chat_template, const ModelTokenizer& tokenizer,
                                std::span<const ChatMessage> messages, const ChatOptions& options);

// Immutable: any thread. The tokenizer must outlive it.
class ChatFormat {
 public:
  // kUnsupported: the vocabulary has not the tokens that the template needs; the message lists them.
  static Result<std::shared_ptr<const ChatFormat>> make(const ChatTemplate& chat_template,
                                                        const ModelTokenizer& tokenizer);

  const ChatTemplate& chat_template() const { return chat_template_; }
  // What ends an answer.
  int32_t end_of_turn() const { return end_of_turn_; }

  // The ids of what the template writes behind `state`, which moves on: those of the whole text with its control tokens
  // parsed, save that nothing in a message becomes one, or one of the template's tokens. before: the token that it
  // stands behind; -1: none, so it gets the dummy prefix if it begins with text. With a SentencePiece model text behind
  // a beginning- or end-of-sequence token gets it, too, unless it begins with a space: the programs of Llama 2 and
  // Mistral encode turn by turn. Errors: those of ChatTemplate::write; kCancelled; then the state is as it was.
  Result<std::vector<int32_t>> encode(std::span<const ChatMessage> messages, const ChatOptions& options, int32_t before,
                                      ChatState& state, const CancelToken* cancel = nullptr) const;

 private:
  ChatFormat(const ChatTemplate& chat_template, const Tokenizer& tokenizer)
      : chat_template_(chat_template), tokenizer_(tokenizer) {}

  void guard(int32_t id);
  // Appends the ids of ordinary text. Where a guarded token would be among them, the text is cut behind that token's
  // first character, and the parts are encoded one by one.
  Status append_ordinary(std::string_view text, bool begins, const CancelToken* cancel,
                         std::vector<int32_t>& ids) const;

  const ChatTemplate& chat_template_;
  const Tokenizer& tokenizer_;
  int32_t end_of_turn_ = -1;
  // The template's tokens, and those of a sequence's ends, that the tokenizer does not know as control tokens and so
  // finds in ordinary text.
  std::vector<int32_t> guarded_;
  bool begins_turns_anew_ = false;
};

}  // namespace quire
