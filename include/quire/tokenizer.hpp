// SPDX-License-Identifier: MIT
//
// Text to token ids and back, and messages as a model's chat template writes them.
#pragma once

#include "quire/model.hpp"

namespace quire {
inline namespace v0 {

// How a text becomes tokens.
struct TextOptions {
  bool parse_special = false;  // "<s>" and the like in the text are control tokens
  bool add_bos = true;         // the beginning-of-sequence token, where the tokenizer has one
};

struct Message {
  std::string_view role = {};  // "system", "user", "assistant"
  std::string_view text = {};
};

// As quire_chat_options.
struct ChatOptions {
  std::optional<std::string> template_name = {};  // none: the checkpoint's own
  std::optional<std::string> date = {};           // "2025-06-30"; none: what the template does
  bool answer = true;                             // begin the assistant's answer
  bool thinking = true;                           // false: tell models that can think not to
};

namespace detail {

inline std::uint32_t flags(const TextOptions& options) {
  return (options.parse_special ? QUIRE_TEXT_PARSE_SPECIAL : 0u) |
         (options.add_bos ? 0u : QUIRE_TEXT_NO_BOS);
}

inline std::vector<quire_message> convert(Span<const Message> messages) {
  std::vector<quire_message> all;
  all.reserve(messages.size());
  for (const Message& m : messages) {
    all.push_back({m.role.data(), m.role.size(), m.text.data(), m.text.size()});
  }
  return all;
}

// Enough for the messages in most templates.
inline std::size_t rendered_length(const std::vector<quire_message>& messages) {
  std::size_t length = 256;
  for (const quire_message& m : messages) length += m.role_len + m.text_len + 64;
  return length;
}

// What it points to is the options'.
inline quire_chat_options convert(const ChatOptions& options) {
  auto c = initialised(quire_chat_options_init);
  c.flags = (options.answer ? 0u : QUIRE_CHAT_NO_ANSWER) |
            (options.thinking ? 0u : QUIRE_CHAT_NO_THINKING);
  if (options.template_name) {
    c.template_name = options.template_name->data();
    c.template_name_len = options.template_name->size();
  }
  if (options.date) {
    c.date = options.date->data();
    c.date_len = options.date->size();
  }
  return c;
}

}  // namespace detail

// Any thread.
class Tokenizer : public Handle<quire_tokenizer, quire_tokenizer_retain, quire_tokenizer_release> {
 public:
  using Handle::Handle;

  // A model's.
  static Result<Tokenizer> of(const Model& model) {
    return detail::made<Tokenizer>(quire_model_get_tokenizer, model.get());
  }
  // One alone: of a model directory, a tokenizer.model, a tokenizer.json or a GGUF file.
  static Result<Tokenizer> load(const Runtime& runtime, std::string_view path) {
    return detail::made<Tokenizer>(quire_tokenizer_load, runtime.get(), path.data(), path.size());
  }

  // continued: as a later segment of a text, without its beginning.
  Result<std::vector<std::int32_t>> encode(std::string_view text, const TextOptions& options = {},
                                           bool continued = false) const {
    const std::uint32_t flags = detail::flags(options) | (continued ? QUIRE_TEXT_CONTINUE : 0u);
    return detail::guessed<std::vector<std::int32_t>>(text.size() / 2 + 8, quire_tokenizer_encode,
                                                      get(), text.data(), text.size(), flags);
  }
  // special: control tokens are printed as their piece instead of nothing.
  Result<std::string> decode(Span<const std::int32_t> ids, bool special = false) const {
    const std::uint32_t flags = special ? QUIRE_DECODE_SPECIAL : 0u;
    return detail::copied<std::string>(quire_tokenizer_decode, get(), ids.data(), ids.size(),
                                       flags);
  }
  // The bytes that an id stands for, which need not be UTF-8.
  Result<std::string> token_bytes(std::int32_t id) const {
    return detail::copied<std::string>(quire_tokenizer_get_token_bytes, get(), id);
  }
  std::int32_t vocab_size() const { return quire_tokenizer_get_vocab_size(get()); }
  // The id that begins a sequence, if there is one.
  std::optional<std::int32_t> bos() const {
    const std::int32_t id = quire_tokenizer_get_bos(get());
    return id < 0 ? std::nullopt : std::optional(id);
  }
  bool is_eos(std::int32_t id) const { return quire_tokenizer_is_eos(get(), id) != 0; }

  // The name of the checkpoint's own template.
  Result<std::string> chat_template() const {
    return detail::copied<std::string>(quire_tokenizer_get_chat_template, get());
  }
  // A conversation from its beginning as one text, for looking at; and as ids.
  Result<std::string> render_chat(Span<const Message> messages,
                                  const ChatOptions& options = {}) const {
    const auto all = detail::convert(messages);
    const auto c = detail::convert(options);
    return detail::guessed<std::string>(detail::rendered_length(all), quire_tokenizer_render_chat,
                                        get(), all.data(), all.size(), &c);
  }
  Result<std::vector<std::int32_t>> encode_chat(Span<const Message> messages,
                                                const ChatOptions& options = {}) const {
    const auto all = detail::convert(messages);
    const auto c = detail::convert(options);
    return detail::guessed<std::vector<std::int32_t>>(detail::rendered_length(all) / 2,
                                                      quire_tokenizer_encode_chat, get(),
                                                      all.data(), all.size(), &c);
  }
};

// The known chat templates, as JSON (quire_chat_get_list).
inline Result<std::string> list_chat_templates() {
  return detail::copied<std::string>(quire_chat_get_list);
}

}  // namespace v0
}  // namespace quire
