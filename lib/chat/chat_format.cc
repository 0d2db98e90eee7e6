#include "lib/chat/chat_format.h"

#include <algorithm>

#include "lib/chat/known_templates.h"
#include "lib/tokenizer/special_splitter.h"

namespace quire {
namespace {

int32_t eos_of(const Tokenizer& tokenizer) {
  const std::vector<int32_t> eos = tokenizer.eos();
  return eos.empty() ? -1 : eos.front();
}

size_t character_bytes(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
  return end - at;
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
    const int32_t id = tokenizer.find_control(token);
    format->guard(id);
    if (id < 0) missing.append(missing.empty() ? "" : ", ").append(token);
    if (token == chat_template.end_of_turn()) format->end_of_turn_ = id;
  }
  if (chat_template.end_of_turn().empty()) {
    format->end_of_turn_ = eos_of(tokenizer);
    if (format->end_of_turn_ < 0) missing.append(missing.empty() ? "" : ", ").append("an end-of-sequence token");
  }
  format->guard(tokenizer.bos());
  format->guard(eos_of(tokenizer));
  if (missing.empty()) return std::shared_ptr<const ChatFormat>(std::move(format));
  return Status(Code::kUnsupported, "the chat template " + std::string(chat_template.name()) +
                                        " needs control tokens that the vocabulary does not have: " + missing);
}

void ChatFormat::guard(int32_t id) {
  if (id >= 0 && !tokenizer_.is_control(id)) guarded_.push_back(id);
}

Status ChatFormat::append_ordinary(std::string_view text, bool begins, const CancelToken* cancel,
                                   std::vector<int32_t>& ids) const {
  const EncodeOptions ordinary{.first_segment = begins, .add_bos = false, .cancel = cancel};
  std::vector<int64_t> starts;
  QUIRE_ASSIGN(const auto more, tokenizer_.encode(text, ordinary, guarded_.empty() ? nullptr : &starts));
  std::vector<size_t> cuts;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (std::find(guarded_.begin(), guarded_.end(), more[i]) == guarded_.end()) continue;
    const auto start = static_cast<size_t>(starts[i]);
    const size_t cut = start + character_bytes(text, start);
    if (cut < text.size()) cuts.push_back(cut);
  }
  if (cuts.empty()) {
    ids.insert(ids.end(), more.begin(), more.end());
    return {};
  }
  cuts.push_back(text.size());
  size_t begin = 0;
  for (const size_t cut : cuts) {
    QUIRE_TRY(append_ordinary(text.substr(begin, cut - begin), begins && begin == 0, cancel, ids));
    begin = cut;
  }
  return {};
}

Result<std::vector<int32_t>> ChatFormat::encode(std::span<const ChatMessage> messages, const ChatOptions& options,
                                                int32_t before, ChatState& state, const CancelToken* cancel) const {
  ChatState next = state;
  QUIRE_ASSIGN(const auto pieces, chat_template_.write(messages, options, next));
  std::vector<int32_t> ids;
  std::string text;  // between two control tokens: encoded as one, since a token may reach over the end of a piece
  const int32_t bos = tokenizer_.bos(), eos = eos_of(tokenizer_);
  bool turn_begins = before >= 0 && (before == bos || before == eos);
  bool strips = before >= 0 && tokenizer_.strips(before).right;  // the token before `text` takes white space from it
  const auto encode_text = [&](bool strips_end) -> Status {
    std::string_view part = strips ? without_first_spaces(text) : text;
    if (strips_end) part = without_last_spaces(part);
    if (!part.empty()) {
      const bool begins = (ids.empty() && before < 0) || (turn_begins && begins_turns_anew_ && part.front() != ' ');
      QUIRE_TRY(append_ordinary(part, begins, cancel, ids));
    }
    strips = false;
    text.clear();
    return {};
  };
  for (const ChatPiece& piece : pieces) {
    int32_t id = -1;
    if (piece.kind == ChatPiece::Kind::kBos) id = bos;
    if (piece.kind == ChatPiece::Kind::kEos) id = eos;
    if (piece.kind == ChatPiece::Kind::kToken) id = tokenizer_.find_control(piece.text);
    if (id < 0) {
      text += piece.text;
      continue;
    }
    const TokenStrips token = tokenizer_.strips(id);
    QUIRE_TRY(encode_text(token.left));
    ids.push_back(id);
    strips = token.right || piece.strips_right;
    turn_begins = piece.kind == ChatPiece::Kind::kBos || piece.kind == ChatPiece::Kind::kEos || piece.strips_right;
  }
  QUIRE_TRY(encode_text(false));
  state = std::move(next);
  return ids;
}

}  // namespace quire
