#include "lib/chat/chat_format.h"

#include <algorithm>
#include <map>

#include "lib/chat/known_templates.h"
#include "lib/chat/strip.h"

namespace quire {
namespace {

int32_t eos_of(const Tokenizer& tokenizer) {
  const std::vector<int32_t> eos = tokenizer.eos();
  return eos.empty() ? -1 : eos.front();
}

// The id of a control or added token by its text; -1: none, or one that ordinary text becomes, too.
Result<int32_t> find_control_token(const Tokenizer& tokenizer, std::string_view text) {
  EncodeOptions options{.first_segment = false};
  QUIRE_ASSIGN(const auto ordinary, tokenizer.encode(text, options));
  options.parse_special = true;
  QUIRE_ASSIGN(const auto parsed, tokenizer.encode(text, options));
  if (parsed.size() != 1 || std::find(ordinary.begin(), ordinary.end(), parsed[0]) != ordinary.end()) return -1;
  return parsed[0];
}

}  // namespace

Result<const ChatTemplate*> choose_chat_template(const ModelTokenizer& tokenizer, std::string_view name) {
  if (!name.empty()) return find_chat_template(name);
  QUIRE_TRY(tokenizer.chat_template().status());
  return recognise_chat_template(tokenizer.chat_template().value());
}

Result<std::string> render_chat(const ChatTemplate& chat_template, const ModelTokenizer& tokenizer,
                                std::span<const ChatMessage> messages, const ChatOptions& options) {
  ChatState state;
  QUIRE_ASSIGN(const auto pieces, chat_template.write(messages, options, state));
  std::string text;
  for (const ChatPiece& piece : pieces) {
    const bool bos = piece.kind == ChatPiece::Kind::kBos;
    if (!bos && piece.kind != ChatPiece::Kind::kEos) {
      text += piece.text;
      continue;
    }
    const int32_t id = bos ? tokenizer.tokenizer().bos() : eos_of(tokenizer.tokenizer());
    if (id >= 0) QUIRE_TRY(tokenizer.tokenizer().append_bytes(id, ControlText::kPiece, text));
  }
  return text;
}

Result<std::shared_ptr<const ChatFormat>> ChatFormat::make(const ChatTemplate& chat_template,
                                                           const ModelTokenizer& model_tokenizer) {
  const Tokenizer& tokenizer = model_tokenizer.tokenizer();
  std::shared_ptr<ChatFormat> format(new ChatFormat(chat_template, tokenizer));
  format->begins_turns_anew_ = tokenizer.kind().starts_with("sentencepiece");
  std::string missing;
  for (const std::string_view token : chat_template.tokens()) {
    QUIRE_ASSIGN(const int32_t id, find_control_token(tokenizer, token));
    if (id < 0) missing.append(missing.empty() ? "" : ", ").append(token);
    if (token == chat_template.end_of_turn()) format->end_of_turn_ = id;
  }
  if (chat_template.end_of_turn().empty()) {
    format->end_of_turn_ = eos_of(tokenizer);
    if (format->end_of_turn_ < 0) missing.append(missing.empty() ? "" : ", ").append("an end-of-sequence token");
  }
  if (missing.empty()) return std::shared_ptr<const ChatFormat>(std::move(format));
  return Status(Code::kUnsupported, "the chat template " + std::string(chat_template.name()) +
                                        " needs control tokens that the vocabulary does not have: " + missing);
}

Result<std::vector<int32_t>> ChatFormat::encode(std::span<const ChatMessage> messages, const ChatOptions& options,
                                                int32_t before, ChatState& state, const CancelToken* cancel) const {
  ChatState next = state;
  QUIRE_ASSIGN(const auto pieces, chat_template_.write(messages, options, next));
  std::vector<int32_t> ids;
  std::string text;  // between two control tokens: encoded as one, since a token may reach over the end of a piece
  const int32_t bos = tokenizer_.bos(), eos = eos_of(tokenizer_);
  bool turn_begins = before >= 0 && (before == bos || before == eos);
  bool strips = false;  // the white space at the beginning of `text` is that of the token before it
  const auto encode_text = [&]() -> Status {
    if (strips) text.erase(0, text.size() - strip_front(text).size());
    strips = false;
    if (text.empty()) return {};
    const bool begins = (ids.empty() && before < 0) || (turn_begins && begins_turns_anew_ && text.front() != ' ');
    const EncodeOptions ordinary{.first_segment = begins, .add_bos = false, .cancel = cancel};
    QUIRE_ASSIGN(const auto more, tokenizer_.encode(text, ordinary));
    ids.insert(ids.end(), more.begin(), more.end());
    text.clear();
    return {};
  };
  std::map<std::string, int32_t, std::less<>> known;  // tokens met so far
  for (const ChatPiece& piece : pieces) {
    int32_t id = -1;
    if (piece.kind == ChatPiece::Kind::kBos) id = bos;
    if (piece.kind == ChatPiece::Kind::kEos) id = eos;
    if (piece.kind == ChatPiece::Kind::kToken) {
      const auto at = known.find(piece.text);
      if (at != known.end()) {
        id = at->second;
      } else {
        QUIRE_ASSIGN(id, find_control_token(tokenizer_, piece.text));
        known.emplace(piece.text, id);
      }
    }
    if (id < 0) {
      text += piece.text;
      continue;
    }
    QUIRE_TRY(encode_text());
    ids.push_back(id);
    strips = piece.strips_right;
    turn_begins = piece.kind == ChatPiece::Kind::kBos || piece.kind == ChatPiece::Kind::kEos || strips;
  }
  QUIRE_TRY(encode_text());
  state = std::move(next);
  return ids;
}

}  // namespace quire
