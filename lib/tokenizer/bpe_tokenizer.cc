#include "lib/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string_view>

#include "lib/format/json.h"
#include "lib/support/utf8.h"
#include "lib/tokenizer/bpe_model.h"
#include "lib/tokenizer/origins.h"
#include "lib/tokenizer/safe_cuts.h"
#include "lib/tokenizer/special_splitter.h"
#include "lib/tokenizer/unicode.h"

namespace quire {
namespace {

using TokenKind = BpeDefinition::TokenKind;

constexpr size_t kMaxAddedBytes = 4096;

// The most bytes that the change makes of one, a prefix aside.
size_t growth(const TextChange& change) {
  if (change.kind == TextChange::Kind::kNfc) return 3;
  if (change.kind != TextChange::Kind::kReplace) return 1;
  return std::max<size_t>(1, (change.to.size() + change.from.size() - 1) / change.from.size());
}

// A text that was changed, and where its bytes stem from. What nothing changes is not copied.
class ChangedText {
 public:
  ChangedText(std::string_view text, bool with_origins) : text_(text), with_origins_(with_origins) {}

  std::string_view text() const { return text_; }

  size_t origin_of(size_t at) const {
    for (auto origins = origins_.rbegin(); origins != origins_.rend(); ++origins) at = origins->of(at);
    return at;
  }

  // is_first: it is the beginning of the whole text. continues: what it belongs to came before it; it gets no prefix.
  void change(const TextChange& change, bool is_first, bool continues) {
    switch (change.kind) {
      case TextChange::Kind::kNfc:
        if (is_surely_nfc(text_)) return;
        return set([&](Origins* origins) { return to_nfc(text_, origins); });
      case TextChange::Kind::kReplace:
        if (text_.find(change.from) == std::string_view::npos) return;
        return set([&](Origins* origins) { return replaced(change.from, change.to, origins); });
      case TextChange::Kind::kPrefixFirst:
        if (!is_first) return;
        [[fallthrough]];
      case TextChange::Kind::kPrefixUnless:
        if (text_.starts_with(change.to)) return;
        [[fallthrough]];
      case TextChange::Kind::kPrefix:
        if (text_.empty() || continues) return;
        return set([&](Origins* origins) {
          if (origins) {
            origins->add_replaced(0, 0);
            origins->add_copied(change.to.size(), 0);
          }
          return change.to + std::string(text_);
        });
    }
  }

 private:
  template <typename Make>
  void set(Make&& make) {
    if (with_origins_) origins_.emplace_back();
    std::string changed = make(with_origins_ ? &origins_.back() : nullptr);
    own_ = std::move(changed);
    text_ = own_;
  }

  std::string replaced(std::string_view from, std::string_view to, Origins* origins) const {
    std::string out;
    for (size_t at = 0; at < text_.size();) {
      const size_t next = std::min(text_.find(from, at), text_.size());
      if (origins) origins->add_copied(out.size(), at);
      out += text_.substr(at, next - at);
      at = next;
      if (at == text_.size()) break;
      if (origins) origins->add_replaced(out.size(), at);
      out += to;
      at += from.size();
      if (origins) origins->add_copied(out.size(), at);
    }
    return out;
  }

  std::string_view text_;
  std::string own_;  // what text_ views, if it was changed
  bool with_origins_;
  std::vector<Origins> origins_;  // of each change in turn
};

std::string with_spaces(std::string_view text, std::string_view symbol) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (!symbol.empty() && text.substr(at).starts_with(symbol)) {
      out += ' ';
      at += symbol.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

class BpeTokenizer : public Tokenizer {
 public:
  Status init(const BpeDefinition& definition, int32_t vocab_size);

  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options,
                                      std::vector<int64_t>* starts) const override;
  Status append_bytes(int32_t id, ControlText control, std::string& bytes) const override;

  bool has_dummy_prefix() const override { return drops_first_space_; }
  int32_t size() const override { return static_cast<int32_t>(tokens_.size()); }
  int32_t bos() const override { return bos_; }
  bool adds_bos() const override { return adds_bos_; }
  // What unknown characters become is none, though it is written as one.
  bool is_control(int32_t id) const override {
    return id >= 0 && id < size() && id != model_->unknown() &&
           tokens_[static_cast<size_t>(id)].kind == TokenKind::kControl;
  }
  int32_t find_control(std::string_view text) const override {
    const auto at = added_.find(text);
    return at == added_.end() ? -1 : at->second;
  }
  TokenStrips strips(int32_t id) const override {
    return id >= 0 && id < size() ? tokens_[static_cast<size_t>(id)].strips : TokenStrips();
  }
  std::vector<int32_t> eos() const override { return eos_; }
  std::string kind() const override { return model_->bytes() ? "byte-level-bpe" : "bpe"; }

 private:
  struct Token {
    TokenKind kind = TokenKind::kNone;
    std::string bytes;  // what it stands for; of a control token what is written for it
    TokenStrips strips;
  };
  // Added tokens, by where they are looked for: in the text as it is, or in the normalized text.
  struct Splitters {
    std::optional<SpecialSplitter> as_is, normalized;  // nothing: there are no such tokens
  };
  class Encoding;  // of one text

  Status add_tokens(const BpeDefinition& definition);
  std::string normalized_text(std::string_view text) const;
  Status make_model(const BpeDefinition& definition);
  Status make_splitters(const BpeDefinition& definition, bool with_control, Splitters& splitters) const;

  std::vector<Token> tokens_;  // by id
  std::map<std::string, int32_t, std::less<>> added_;
  std::optional<BpeModel> model_;
  std::optional<PreTokenizer> pre_tokenizer_;
  std::optional<SafeCuts> safe_cuts_;  // of a model of characters
  std::vector<TextChange> normalizer_, before_cuts_;
  Splitters all_, ordinary_;  // with control tokens and without
  size_t max_text_bytes_ = std::numeric_limits<int32_t>::max() / 2;
  int32_t vocab_size_ = 0;
  int32_t bos_ = -1;
  bool adds_bos_ = false;
  bool drops_first_space_ = false;
  std::vector<int32_t> eos_;
};

Status BpeTokenizer::init(const BpeDefinition& definition, int32_t vocab_size) {
  const size_t n_tokens = definition.tokens.size();
  if (n_tokens > static_cast<size_t>(std::clamp(vocab_size, 0, kMaxTokens))) {
    return Status(Code::kBadFile, "the tokenizer has ids up to " + std::to_string(n_tokens - 1) +
                                      ", but the model's vocab_size is " + std::to_string(vocab_size));
  }
  vocab_size_ = vocab_size == kAnyVocabSize ? static_cast<int32_t>(n_tokens) : vocab_size;
  normalizer_ = definition.normalizer;
  before_cuts_ = definition.before_cuts;
  for (const auto* changes : {&normalizer_, &before_cuts_}) {
    for (const TextChange& change : *changes) max_text_bytes_ /= growth(change);
  }
  drops_first_space_ = definition.drops_first_space;
  bos_ = definition.bos;
  adds_bos_ = definition.adds_bos && bos_ >= 0;
  eos_ = definition.eos;
  QUIRE_TRY(add_tokens(definition));
  QUIRE_TRY(make_model(definition));
  QUIRE_ASSIGN(pre_tokenizer_, PreTokenizer::make(definition.cuts));
  QUIRE_TRY(make_splitters(definition, true, all_));
  return make_splitters(definition, false, ordinary_);
}

Status BpeTokenizer::add_tokens(const BpeDefinition& definition) {
  tokens_.resize(definition.tokens.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const auto& [text, kind, in_vocabulary] = definition.tokens[id];
    Token& token = tokens_[id];
    token.kind = kind;
    if (kind == TokenKind::kByte) {
      token.bytes = std::string(1, static_cast<char>(byte_of_piece(text)));
    } else if (kind != TokenKind::kText) {
      token.bytes = text;
    } else if (!definition.byte_level) {
      token.bytes = with_spaces(text, definition.space_symbol);
    } else if (!bytes_of_alphabet(text, token.bytes)) {
      token.bytes = text;
    }
  }
  for (const auto& added : definition.added) {
    const std::string& text = definition.tokens[static_cast<size_t>(added.id)].text;
    if (text.empty() || text.size() > kMaxAddedBytes) {
      return Status(Code::kBadFile, "the text of token " + std::to_string(added.id) + " has " +
                                        std::to_string(text.size()) + " bytes; expected 1 to " +
                                        std::to_string(kMaxAddedBytes));
    }
    added_.emplace(text, added.id);
    tokens_[static_cast<size_t>(added.id)].strips = {added.strip_left, added.strip_right};
    if (added.normalized && !definition.byte_level) {
      tokens_[static_cast<size_t>(added.id)].bytes = with_spaces(normalized_text(text), definition.space_symbol);
    }
  }
  return {};
}

// An added token as it is written in a normalized text; empty: in none.
std::string BpeTokenizer::normalized_text(std::string_view text) const {
  if (utf8_first_invalid(text) != text.size()) return {};
  ChangedText changed(text, false);
  for (const TextChange& change : normalizer_) changed.change(change, true, false);
  return std::string(changed.text());
}

// The tokens that text may become, and the merges to them. Ordinary text never becomes a control token: none is in the
// table, and a merge to or from one is left out.
Status BpeTokenizer::make_model(const BpeDefinition& definition) {
  TokenTable table;
  table.reserve(definition.tokens.size());
  std::map<std::string_view, int32_t> others;  // texts that are not of the alphabet, so that no text leads to them
  BpeModel::Options options;
  std::string bytes;
  SentencePieceModel pieces;  // for SafeCuts
  if (definition.byte_fallback) options.byte_fallback.assign(256, -1);
  for (size_t i = 0; i < definition.tokens.size(); ++i) {
    const auto& [text, kind, in_vocabulary] = definition.tokens[i];
    const auto id = static_cast<int32_t>(i);
    if (const int byte = definition.byte_fallback ? byte_of_piece(text) : -1; byte >= 0) {
      options.byte_fallback[static_cast<size_t>(byte)] = id;
    }
    if (!in_vocabulary) continue;
    if (kind == TokenKind::kControl || (definition.byte_level && !bytes_of_alphabet(text, bytes))) {
      others.emplace(text, kind == TokenKind::kControl ? -1 : id);
    } else {
      QUIRE_TRY(table.insert(id, definition.byte_level ? bytes : text));
      if (!definition.byte_level) pieces.pieces.push_back({.text = text});
    }
  }
  if (std::count(options.byte_fallback.begin(), options.byte_fallback.end(), -1) > 0) {
    return Status(Code::kBadFile, "byte fallback needs 256 byte tokens, <0x00> to <0xFF>");
  }
  std::vector<BpeModel::Merge> merges;
  merges.reserve(definition.merges.size());
  constexpr int32_t kUnknown = -2;
  const auto find = [&](std::string_view text) -> int32_t {
    if (const auto other = others.find(text); other != others.end()) return other->second;
    if (definition.byte_level && !bytes_of_alphabet(text, bytes)) return kUnknown;
    const int32_t id = table.find(definition.byte_level ? std::string_view(bytes) : text);
    return id < 0 ? kUnknown : id;
  };
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const auto& [left, right] = definition.merges[rank];
    const BpeModel::Merge merge{find(left), find(right), find(std::string(left) += right)};
    if (merge.left == kUnknown || merge.right == kUnknown || merge.result == kUnknown) {
      const std::string_view unknown = merge.left == kUnknown ? left : merge.right == kUnknown ? right : "";
      return Status(Code::kBadFile, "merge " + std::to_string(rank) + ", " + json_excerpt(left) + " and " +
                                        json_excerpt(right) + ": " +
                                        (unknown.empty() ? std::string("what they become") : json_excerpt(unknown)) +
                                        " is not in the vocabulary");
    }
    if (merge.left >= 0 && merge.right >= 0 && merge.result >= 0) merges.push_back(merge);
  }
  options.bytes = definition.byte_level;
  options.ignore_merges = definition.ignore_merges;
  options.fuse_unknown = definition.fuse_unknown;
  options.unknown = definition.unknown;
  if (!definition.byte_level) {
    pieces.algorithm = PieceAlgorithm::kBpe;
    pieces.remove_extra_whitespaces = pieces.escape_whitespaces = false;
    safe_cuts_.emplace(pieces);
  }
  QUIRE_ASSIGN(model_, BpeModel::make(std::move(table), merges, std::move(options)));
  return {};
}

Status BpeTokenizer::make_splitters(const BpeDefinition& definition, bool with_control, Splitters& splitters) const {
  std::vector<SpecialSplitter::Token> as_is, normalized;
  std::vector<std::string> texts;  // what `normalized` views
  texts.reserve(definition.added.size());
  for (const auto& added : definition.added) {
    const auto& [text, kind, in_vocabulary] = definition.tokens[static_cast<size_t>(added.id)];
    if (kind == TokenKind::kControl && !with_control) continue;
    if (!added.normalized) {
      as_is.push_back({text, added.id, added.strip_left, added.strip_right});
      continue;
    }
    texts.push_back(normalized_text(text));
    if (texts.back().empty()) continue;
    normalized.push_back({texts.back(), added.id, added.strip_left, added.strip_right});
  }
  if (!as_is.empty()) {
    QUIRE_ASSIGN(splitters.as_is, SpecialSplitter::make(as_is));
  }
  if (!normalized.empty()) {
    QUIRE_ASSIGN(splitters.normalized, SpecialSplitter::make(normalized));
  }
  return {};
}

class BpeTokenizer::Encoding {
 public:
  Encoding(const BpeTokenizer& tokenizer, const EncodeOptions& options, std::vector<int64_t>* starts)
      : tokenizer_(tokenizer),
        options_(options),
        splitters_(options.parse_special ? tokenizer.all_ : tokenizer.ordinary_),
        cutter_(*tokenizer.pre_tokenizer_),
        starts_(starts) {
    work_.cancel = options.cancel;
  }

  Result<std::vector<int32_t>> run(std::string_view text) {
    if (options_.first_segment && options_.add_bos && tokenizer_.adds_bos_) add(tokenizer_.bos_, 0);
    QUIRE_TRY(split(splitters_.as_is, text, [&](std::string_view part, int32_t id) -> Status {
      const auto begin = static_cast<size_t>(part.data() - text.data());
      if (id < 0) return encode_part(part, begin);
      add(id, begin);
      return {};
    }));
    return std::move(ids_);
  }

 private:
  void add(int32_t id, size_t start) {
    ids_.push_back(id);
    if (starts_) starts_->push_back(static_cast<int64_t>(start));
  }

  template <typename Visit>
  static Status split(const std::optional<SpecialSplitter>& splitter, std::string_view text, Visit&& visit) {
    if (text.empty()) return {};
    if (!splitter) return visit(text, -1);
    return splitter->split(text, [&](const SpecialSplitter::Part& part) { return visit(part.text, part.id); });
  }

  // A part between the added tokens that are found in the text as it is; it begins at that byte.
  Status encode_part(std::string_view part, size_t begin) {
    ChangedText normal(part, starts_ != nullptr);
    const bool continues = begin == 0 && !options_.first_segment;
    for (const TextChange& change : tokenizer_.normalizer_) normal.change(change, begin == 0, continues);
    return split(splitters_.normalized, normal.text(), [&](std::string_view inner, int32_t id) -> Status {
      const auto inner_begin = static_cast<size_t>(inner.data() - normal.text().data());
      if (id >= 0) {
        add(id, begin + normal.origin_of(inner_begin));
        return {};
      }
      const bool is_first = begin == 0 && inner_begin == 0;
      ChangedText changed(inner, starts_ != nullptr);
      for (const TextChange& change : tokenizer_.before_cuts_) {
        changed.change(change, is_first, is_first && !options_.first_segment);
      }
      return cutter_.cut(changed.text(), [&](std::string_view cut) {
        const auto cut_begin = static_cast<size_t>(cut.data() - changed.text().data());
        return merge(cut, [&](int32_t id_of_piece, size_t at) {
          // The place is asked for only where it is wanted: finding it takes time.
          add(id_of_piece, starts_ ? begin + normal.origin_of(inner_begin + changed.origin_of(cut_begin + at)) : 0);
        });
      });
    });
  }

  // In parts, where the model has places to cut: each takes memory.
  template <typename Append>
  Status merge(std::string_view text, Append&& append) {
    const BpeModel& model = *tokenizer_.model_;
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      QUIRE_TRY(check_cancelled(options_));
      const bool whole = !tokenizer_.safe_cuts_ || text.size() - begin <= options_.part_bytes;
      end = whole ? text.size() : tokenizer_.safe_cuts_->next(text, begin + std::max<size_t>(options_.part_bytes, 1));
      // Unknown characters on both sides of a cut are one token, where those in a row are.
      bool joins = begin > 0 && model.fuses_unknown() && !ids_.empty() && ids_.back() == model.unknown();
      QUIRE_TRY(model.encode(text.substr(begin, end - begin), work_, [&](int32_t id, size_t at) {
        if (!(joins && id == model.unknown())) append(id, begin + at);
        joins = false;
      }));
    }
    return {};
  }

  const BpeTokenizer& tokenizer_;
  const EncodeOptions& options_;
  const Splitters& splitters_;
  PreTokenizer::Cutter cutter_;
  BpeModel::Workspace work_;
  std::vector<int32_t> ids_;
  std::vector<int64_t>* const starts_;
};

Result<std::vector<int32_t>> BpeTokenizer::encode(std::string_view text, const EncodeOptions& options,
                                                  std::vector<int64_t>* starts) const {
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
  if (starts) starts->clear();
  return Encoding(*this, options, starts).run(text);
}

Status BpeTokenizer::append_bytes(int32_t id, ControlText control, std::string& bytes) const {
  if (id < 0 || id >= vocab_size_) {
    return Status(Code::kInvalidToken,
                  "token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(vocab_size_));
  }
  // Models round their vocabulary up: an id that the tokenizer does not know stands for nothing.
  if (id >= size()) return {};
  const Token& token = tokens_[static_cast<size_t>(id)];
  if (token.kind != TokenKind::kControl || control == ControlText::kPiece) bytes += token.bytes;
  return {};
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> make_bpe_tokenizer(const BpeDefinition& definition, int32_t vocab_size) {
  auto tokenizer = std::make_unique<BpeTokenizer>();
  QUIRE_TRY(tokenizer->init(definition, vocab_size));
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

}  // namespace quire
