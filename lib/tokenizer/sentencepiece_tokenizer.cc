// Tokenizers of SentencePiece models: ordinary text goes through SentencePieceEncoder, added and control tokens beside
// it.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "lib/support/utf8.h"
#include "lib/tokenizer/added_tokens.h"
#include "lib/tokenizer/safe_cuts.h"
#include "lib/tokenizer/sentencepiece_encoder.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "lib/tokenizer/sentencepiece_tokenizer.h"
#include "lib/tokenizer/special_splitter.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    if (piece.substr(at).starts_with(kSpaceSymbol)) {
      text.push_back(' ');
      at += kSpaceSymbol.size();
    } else {
      text.push_back(piece[at++]);
    }
  }
  return text;
}

// Lets the configuration's tokens override the model's pieces: a special one is a control piece.
Status apply_added_tokens(const std::map<int32_t, AddedToken>& added, SentencePieceModel& model) {
  for (const auto& [id, token] : added) {
    if (static_cast<size_t>(id) >= model.pieces.size()) continue;
    auto& piece = model.pieces[static_cast<size_t>(id)];
    const bool text_piece =
        piece.type == PieceType::kNormal || piece.type == PieceType::kByte || piece.type == PieceType::kUnknown;
    if (text_piece && piece.text != token.text) {
      return Status(Code::kBadFile, "id " + std::to_string(id) + " is \"" + piece.text +
                                        "\" in tokenizer.model, but \"" + token.text +
                                        "\" in the tokenizer's JSON files: they do not belong together");
    }
    piece.text = token.text;
    if (token.special && piece.type != PieceType::kByte && piece.type != PieceType::kUnknown) {
      piece.type = PieceType::kControl;
    }
  }
  return {};
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  static Result<std::unique_ptr<const Tokenizer>> make(const SentencePieceModel& model,
                                                       const TokenizerSettings& settings, int32_t vocab_size);

  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options,
                                      std::vector<int64_t>* starts) const override;
  Status append_bytes(int32_t id, ControlText control, std::string& bytes) const override;

  bool has_dummy_prefix() const override { return has_dummy_prefix_; }
  int32_t size() const override { return static_cast<int32_t>(tokens_.size()); }
  int32_t bos() const override { return bos_; }
  bool adds_bos() const override { return adds_bos_; }
  bool is_control(int32_t id) const override {
    return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].control;
  }
  int32_t find_control(std::string_view text) const override {
    const auto at = named_.find(text);
    return at == named_.end() ? -1 : at->second;
  }
  TokenStrips strips(int32_t id) const override {
    return id >= 0 && id < size() ? tokens_[static_cast<size_t>(id)].strips : TokenStrips();
  }
  std::vector<int32_t> eos() const override { return eos_; }
  std::string kind() const override { return kind_; }

 private:
  struct Token {
    std::string bytes;  // what it stands for in a text
    std::string piece;  // its own text, for control tokens
    bool control = false;
    TokenStrips strips;
  };

  Status add_tokens(const SentencePieceModel& model, const TokenizerSettings& settings);
  Status find_named(const TokenizerSettings& settings, const SentencePieceModel& model);
  // Appends; text_begin is where this ordinary text lies in the whole text.
  Status encode_ordinary(std::string_view text, bool dummy_prefix, int64_t text_begin, const EncodeOptions& options,
                         std::vector<int32_t>& ids, std::vector<int64_t>* starts) const;

  std::unique_ptr<const SentencePieceEncoder> encoder_;
  std::vector<Token> tokens_;                          // by id; ids nobody named stand for nothing
  std::optional<SpecialSplitter> specials_;            // set by add_tokens()
  std::map<std::string, int32_t, std::less<>> named_;  // the control, added and user-defined tokens, by text
  std::optional<SafeCuts> cuts_;
  int32_t joined_ = -1;  // the unknown id, where one is made of several in a row
  size_t max_text_bytes_ = 0;
  int32_t vocab_size_ = 0;
  int32_t bos_ = -1;
  std::vector<int32_t> eos_;
  bool adds_bos_ = false;
  bool has_dummy_prefix_ = false;
  std::string kind_;
};

Result<std::unique_ptr<const Tokenizer>> SentencePieceTokenizer::make(const SentencePieceModel& model,
                                                                      const TokenizerSettings& settings,
                                                                      int32_t vocab_size) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  tokenizer->has_dummy_prefix_ = model.add_dummy_prefix && settings.add_prefix_space;
  tokenizer->kind_ = model.algorithm == PieceAlgorithm::kBpe ? "sentencepiece-bpe" : "sentencepiece-unigram";
  QUIRE_ASSIGN(tokenizer->encoder_, SentencePieceEncoder::make(model));
  // SentencePiece counts the bytes of the normalized text in an int. A space becomes three bytes.
  const size_t growth = kSpaceSymbol.size() * longest_replacement(model.charsmap);
  tokenizer->max_text_bytes_ = std::numeric_limits<int32_t>::max() / growth - kSpaceSymbol.size();
  QUIRE_TRY(tokenizer->add_tokens(model, settings));
  QUIRE_TRY(tokenizer->find_named(settings, model));
  tokenizer->vocab_size_ = vocab_size == kAnyVocabSize ? tokenizer->size() : vocab_size;
  tokenizer->cuts_.emplace(model);
  tokenizer->adds_bos_ = settings.add_bos.value_or(true) && tokenizer->bos_ >= 0;
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

Status SentencePieceTokenizer::add_tokens(const SentencePieceModel& model, const TokenizerSettings& settings) {
  const size_t n_added = settings.added.empty() ? 0 : static_cast<size_t>(settings.added.rbegin()->first) + 1;
  tokens_.resize(std::max(model.pieces.size(), n_added));
  std::vector<SpecialSplitter::Token> specials;
  for (const auto& [id, added] : settings.added) {
    Token& token = tokens_[static_cast<size_t>(id)];
    token.piece = added.text;
    token.control = added.special;
    token.strips = {added.strip_left, added.strip_right};
    if (!added.special) token.bytes = added.text;
    // All added tokens, special or not, are looked for in a text only with parse_special: what an ordinary text
    // becomes depends on the SentencePiece model alone.
    specials.push_back({added.text, id, added.strip_left, added.strip_right});
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    Token& token = tokens_[id];
    token.piece = piece.text;
    token.control = piece.type == PieceType::kControl;
    if (token.control) {
      token.bytes.clear();
      specials.push_back({.text = piece.text, .id = static_cast<int32_t>(id)});
    } else if (piece.type == PieceType::kByte) {
      token.bytes = std::string(1, static_cast<char>(byte_of_piece(piece.text)));
    } else {
      if (piece.type == PieceType::kUnknown && !model.byte_fallback) joined_ = static_cast<int32_t>(id);
      token.bytes = piece.type == PieceType::kUnknown ? model.unk_surface : with_spaces(piece.text);
    }
  }
  for (const auto& special : specials) named_.emplace(special.text, special.id);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (piece.type == PieceType::kUserDefined) named_.emplace(piece.text, static_cast<int32_t>(id));
  }
  QUIRE_ASSIGN(specials_, SpecialSplitter::make(specials));
  return {};
}

Status SentencePieceTokenizer::find_named(const TokenizerSettings& settings, const SentencePieceModel& model) {
  auto find = [&](const std::string& text) -> int32_t {
    for (const auto& [id, token] : settings.added) {
      if (token.text == text) return id;
    }
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      if (model.pieces[id].text == text) return static_cast<int32_t>(id);
    }
    return -1;
  };
  bos_ = find(settings.bos_token.value_or(model.bos_piece));
  int32_t eos = find(settings.eos_token.value_or(model.eos_piece));
  // A name in the model file is only a name until there is a control piece for it; one in the configuration binds.
  if (!settings.bos_token && !is_control(bos_)) bos_ = -1;
  if (!settings.eos_token && !is_control(eos)) eos = -1;
  if (settings.bos_token && !settings.bos_token->empty() && bos_ < 0) {
    return Status(Code::kBadFile, "tokenizer_config.json: bos_token " + *settings.bos_token + " has no id");
  }
  if (settings.eos_token && !settings.eos_token->empty() && eos < 0) {
    return Status(Code::kBadFile, "tokenizer_config.json: eos_token " + *settings.eos_token + " has no id");
  }
  eos_ = settings.eos;
  if (eos_.empty() && eos >= 0) eos_.push_back(eos);
  return {};
}

Result<std::vector<int32_t>> SentencePieceTokenizer::encode(std::string_view text, const EncodeOptions& options,
                                                            std::vector<int64_t>* starts) const {
  // Checked here, because SentencePiece would replace what it cannot read and go on.
  const size_t invalid = utf8_first_invalid(text);
  if (invalid != text.size()) {
    return Status(Code::kInvalidText, "the text is not valid UTF-8 at byte " + std::to_string(invalid),
                  static_cast<int64_t>(invalid));
  }
  if (text.size() > max_text_bytes_) {
    return Status(Code::kInvalidArgument, "a text of " + std::to_string(text.size()) +
                                              " bytes; this tokenizer takes at most " +
                                              std::to_string(max_text_bytes_) + " at once");
  }
  std::vector<int32_t> ids;
  if (starts) starts->clear();
  const auto add = [&](int32_t id, int64_t start) {
    ids.push_back(id);
    if (starts) starts->push_back(start);
  };
  if (options.first_segment && options.add_bos && adds_bos_) add(bos_, 0);
  if (!options.parse_special) {
    QUIRE_TRY(encode_ordinary(text, options.first_segment, 0, options, ids, starts));
    return ids;
  }
  bool at_start = options.first_segment;  // a token that is written out is a beginning already
  QUIRE_TRY(specials_->split(text, [&](const SpecialSplitter::Part& part) -> Status {
    const int64_t begin = part.text.data() - text.data();
    const bool dummy_prefix = std::exchange(at_start, false);
    if (part.id < 0) return encode_ordinary(part.text, dummy_prefix, begin, options, ids, starts);
    add(part.id, begin);
    return {};
  }));
  return ids;
}

Status SentencePieceTokenizer::encode_ordinary(std::string_view text, bool dummy_prefix, int64_t text_begin,
                                               const EncodeOptions& options, std::vector<int32_t>& ids,
                                               std::vector<int64_t>* starts) const {
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    QUIRE_TRY(check_cancelled(options));
    end = text.size() - begin <= options.part_bytes
              ? text.size()
              : cuts_->next(text, begin + std::max<size_t>(options.part_bytes, 1));
    const size_t n_before = ids.size();
    QUIRE_TRY(encoder_->encode(text.substr(begin, end - begin), dummy_prefix && has_dummy_prefix_ && begin == 0,
                               text_begin + static_cast<int64_t>(begin), options.cancel, ids, starts));
    if (begin == 0 || n_before == ids.size() || n_before == 0) continue;
    if (ids[n_before - 1] == joined_ && ids[n_before] == joined_) {
      const auto at = static_cast<std::ptrdiff_t>(n_before);
      ids.erase(ids.begin() + at);
      if (starts) starts->erase(starts->begin() + at);
    }
  }
  return {};
}

Status SentencePieceTokenizer::append_bytes(int32_t id, ControlText control, std::string& bytes) const {
  if (id < 0 || id >= vocab_size_) {
    return Status(Code::kInvalidToken,
                  "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab_size_));
  }
  // Models round their vocabulary up: an id that the tokenizer does not know stands for nothing.
  if (id >= size()) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  bytes += token.control ? (control == ControlText::kPiece ? token.piece : std::string()) : token.bytes;
  return {};
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> make_sentencepiece_tokenizer(std::string_view model_bytes,
                                                                      std::string_view tokenizer_config,
                                                                      std::string_view added_tokens,
                                                                      int32_t vocab_size) {
  auto parsed = parse_sentencepiece_model(model_bytes);
  if (!parsed.ok()) return parsed.status().with_context("tokenizer.model");
  SentencePieceModel& model = *parsed;
  if (model.pieces.size() > static_cast<size_t>(std::max(vocab_size, 0))) {
    return Status(Code::kBadFile, "tokenizer.model has " + std::to_string(model.pieces.size()) +
                                      " pieces, but the model's vocab_size is " + std::to_string(vocab_size));
  }
  QUIRE_ASSIGN(const TokenizerSettings settings,
               parse_tokenizer_settings(tokenizer_config, added_tokens, std::min(vocab_size, kMaxTokens)));
  QUIRE_TRY(apply_added_tokens(settings.added, model));
  QUIRE_TRY(check_sentencepiece_model(model).with_context("tokenizer.model"));
  return SentencePieceTokenizer::make(model, settings, vocab_size);
}

Result<std::unique_ptr<const Tokenizer>> make_sentencepiece_tokenizer(SentencePieceModel model,
                                                                      const TokenizerSettings& settings,
                                                                      int32_t vocab_size) {
  QUIRE_TRY(check_sentencepiece_model(model));
  return SentencePieceTokenizer::make(model, settings, vocab_size);
}

}  // namespace quire
