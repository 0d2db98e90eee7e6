// The tokenizer in the metadata of a GGUF file.
#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/format/gguf.h"
#include "lib/format/json.h"
#include "lib/support/utf8.h"
#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/bpe_tokenizer.h"
#include "lib/tokenizer/gguf_pre_tokenizers.h"
#include "lib/tokenizer/sentencepiece_tokenizer.h"

namespace quire {
namespace {

using TokenKind = BpeDefinition::TokenKind;

enum class TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

Status bad(const std::string& key, const std::string& what) {
  return Status(Code::kBadFile, "tokenizer.ggml." + key + " " + what);
}

bool looks_like_control(std::string_view text) {
  const auto is_between = [&](std::string_view left, std::string_view right) {
    return text.size() > left.size() + right.size() && text.starts_with(left) && text.ends_with(right);
  };
  return is_between("<|", "|>") || is_between("<｜", "｜>") || text == "<start_of_turn>" || text == "<end_of_turn>";
}

// Reads keys "tokenizer.ggml.".
class Metadata {
 public:
  explicit Metadata(const GgufHeader& header) : header_(header) {}

  const GgufValue* find(const std::string& key) const {
    const auto at = header_.metadata.find("tokenizer.ggml." + key);
    return at == header_.metadata.end() ? nullptr : &at->second;
  }

  Result<std::string> text(const std::string& key) const {
    const GgufValue* value = find(key);
    if (!value) return bad(key, "is missing");
    if (!value->string()) return bad(key, "is no string");
    return *value->string();
  }

  Result<bool> boolean(const std::string& key, bool fallback) const {
    const GgufValue* value = find(key);
    if (!value) return fallback;
    if (!value->boolean()) return bad(key, "is neither true nor false");
    return *value->boolean();
  }

  Result<const GgufValue::Strings*> texts(const std::string& key) const {
    const GgufValue* value = find(key);
    if (!value) return bad(key, "is missing");
    if (!value->strings()) return bad(key, "is no array of strings");
    return value->strings();
  }

  // -1: absent.
  Result<int32_t> id(const std::string& key, size_t n_tokens) const {
    const GgufValue* value = find(key);
    if (!value) return -1;
    if (!value->integer()) return bad(key, "is no integer");
    if (*value->integer() < 0 || *value->integer() >= static_cast<int64_t>(n_tokens)) {
      return bad(key,
                 "is " + std::to_string(*value->integer()) + ", but there are " + std::to_string(n_tokens) + " tokens");
    }
    return static_cast<int32_t>(*value->integer());
  }

  // Of each token; all normal if the file does not say. Some files call control tokens normal, which no text becomes:
  // these are known by their texts.
  Result<std::vector<TokenType>> types(const GgufValue::Strings& tokens) const {
    QUIRE_ASSIGN(auto types, written_types(tokens.size()));
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (types[i] == TokenType::kNormal && looks_like_control(tokens[i])) types[i] = TokenType::kControl;
    }
    return types;
  }

 private:
  Result<std::vector<TokenType>> written_types(size_t n_tokens) const {
    const GgufValue* value = find("token_type");
    if (!value) return std::vector<TokenType>(n_tokens, TokenType::kNormal);
    if (!value->integers() || value->integers()->size() != n_tokens) {
      return bad("token_type", "is no array of " + std::to_string(n_tokens) + " integers");
    }
    std::vector<TokenType> types;
    types.reserve(n_tokens);
    for (const int64_t type : *value->integers()) {
      if (type < static_cast<int64_t>(TokenType::kNormal) || type > static_cast<int64_t>(TokenType::kByte)) {
        return bad("token_type", "has an unknown type " + std::to_string(type));
      }
      types.push_back(static_cast<TokenType>(type));
    }
    return types;
  }

  const GgufHeader& header_;
};

// The ids that end a text or a turn: those that the file names, and where it names no end of turn, the usual ones.
Result<std::vector<int32_t>> find_ends(const Metadata& metadata, const GgufValue::Strings& tokens,
                                       const std::vector<TokenType>& types) {
  std::vector<int32_t> ends;
  const auto add = [&](int32_t id) {
    if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  };
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    QUIRE_ASSIGN(const int32_t id, metadata.id(key, tokens.size()));
    add(id);
  }
  if (metadata.find("eot_token_id")) return ends;
  for (const char* text : {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"}) {
    const auto at = std::find(tokens.begin(), tokens.end(), text);
    const auto id = at - tokens.begin();
    if (at != tokens.end() && types[static_cast<size_t>(id)] == TokenType::kControl) add(static_cast<int32_t>(id));
  }
  return ends;
}

Result<std::unique_ptr<const Tokenizer>> make_bpe(const Metadata& metadata, const GgufValue::Strings& tokens,
                                                  int32_t vocab_size) {
  QUIRE_ASSIGN(const std::string pre, metadata.text("pre"));
  const GgufPreTokenizer family = find_gguf_pre_tokenizer(pre);
  if (family.names.empty()) {
    return Status(Code::kUnsupported,
                  "tokenizer.ggml.pre: the pre-tokenizer " + json_excerpt(utf8_sanitize(pre)) + " is not known here");
  }
  BpeDefinition definition;
  definition.ignore_merges = family.ignore_merges;
  for (const std::string_view expression : family.expressions) {
    definition.cuts.push_back({.expression = std::string(expression)});
  }
  QUIRE_ASSIGN(const bool add_space, metadata.boolean("add_space_prefix", false));
  if (add_space) {
    definition.before_cuts.push_back({.kind = TextChange::Kind::kPrefixUnless, .to = " "});
  }
  QUIRE_ASSIGN(const auto types, metadata.types(tokens));
  definition.tokens.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    BpeDefinition::Token& token = definition.tokens[i];
    token = {tokens[i], TokenKind::kText, true};
    if (types[i] == TokenType::kNormal || types[i] == TokenType::kByte) continue;
    if (types[i] == TokenType::kUnused) {  // what fills the vocabulary up
      token = {};
      continue;
    }
    token.kind = types[i] == TokenType::kUserDefined ? TokenKind::kAdded : TokenKind::kControl;
    if (!tokens[i].empty()) definition.added.push_back({.id = static_cast<int32_t>(i)});
  }
  QUIRE_ASSIGN(const auto* merges, metadata.texts("merges"));
  definition.merges.reserve(merges->size());
  for (const std::string& merge : *merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos)
      return bad("merges", "has " + json_excerpt(utf8_sanitize(merge)) + "; expected two tokens");
    definition.merges.emplace_back(std::string_view(merge).substr(0, space), std::string_view(merge).substr(space + 1));
  }
  QUIRE_ASSIGN(definition.bos, metadata.id("bos_token_id", tokens.size()));
  QUIRE_ASSIGN(definition.adds_bos, metadata.boolean("add_bos_token", family.adds_bos));
  QUIRE_ASSIGN(definition.eos, find_ends(metadata, tokens, types));
  return make_bpe_tokenizer(definition, vocab_size);
}

Result<std::unique_ptr<const Tokenizer>> make_sentencepiece(const Metadata& metadata, const GgufValue::Strings& tokens,
                                                            int32_t vocab_size) {
  QUIRE_ASSIGN(const auto types, metadata.types(tokens));
  const GgufValue* scores = metadata.find("scores");
  if (!scores || !scores->numbers() || scores->numbers()->size() != tokens.size()) {
    return bad("scores", "is no array of " + std::to_string(tokens.size()) + " numbers");
  }
  QUIRE_ASSIGN(const int32_t unknown, metadata.id("unknown_token_id", tokens.size()));
  SentencePieceModel model;
  model.algorithm = PieceAlgorithm::kBpe;
  model.pieces.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const double score = (*scores->numbers())[i];
    if (!(std::abs(score) <= 1e9))
      return bad("scores", "has one that is no useful number: that of token " + std::to_string(i));
    model.pieces.push_back({tokens[i], static_cast<float>(score), static_cast<PieceType>(types[i])});
    // Some files give another type to the unknown piece, and its type to ids without a meaning.
    if (i == static_cast<size_t>(std::max(unknown, 0))) {
      model.pieces.back().type = PieceType::kUnknown;
    } else if (types[i] == TokenType::kUnknown) {
      model.pieces.back().type = PieceType::kControl;
    }
    model.byte_fallback = model.byte_fallback || types[i] == TokenType::kByte;
  }
  QUIRE_ASSIGN(model.add_dummy_prefix, metadata.boolean("add_space_prefix", true));
  QUIRE_ASSIGN(model.remove_extra_whitespaces, metadata.boolean("remove_extra_whitespaces", false));
  TokenizerSettings settings;
  QUIRE_ASSIGN(settings.add_bos, metadata.boolean("add_bos_token", true));
  QUIRE_ASSIGN(const int32_t bos, metadata.id("bos_token_id", tokens.size()));
  settings.bos_token = bos < 0 ? std::string() : tokens[static_cast<size_t>(bos)];
  QUIRE_ASSIGN(settings.eos, find_ends(metadata, tokens, types));
  return make_sentencepiece_tokenizer(std::move(model), settings, vocab_size);
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> make_gguf_tokenizer(const GgufHeader& header, int32_t vocab_size) {
  const Metadata metadata(header);
  QUIRE_ASSIGN(const std::string model, metadata.text("model"));
  QUIRE_ASSIGN(const auto* tokens, metadata.texts("tokens"));
  if (tokens->size() > static_cast<size_t>(std::clamp(vocab_size, 0, kMaxTokens))) {
    return bad("tokens", "are " + std::to_string(tokens->size()) + ", but the model's vocab_size is " +
                             std::to_string(vocab_size));
  }
  if (model == "gpt2") return make_bpe(metadata, *tokens, vocab_size);
  if (model == "llama") return make_sentencepiece(metadata, *tokens, vocab_size);
  return Status(Code::kUnsupported, "tokenizer.ggml.model: " + json_excerpt(utf8_sanitize(model)) +
                                        "; only \"gpt2\" (BPE) and \"llama\" (SentencePiece) are supported");
}

}  // namespace quire
