#include "lib/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "lib/format/json.h"
#include "lib/tokenizer/added_tokens.h"
#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/bpe_tokenizer.h"
#include "lib/tokenizer/regex_syntax.h"
#include "lib/tokenizer/sentencepiece_model.h"

namespace quire {
namespace {

using TokenKind = BpeDefinition::TokenKind;

constexpr char kFile[] = "tokenizer.json";
constexpr JsonLimits kLimits{.max_depth = 32, .max_values = 8'000'000};
constexpr size_t kMaxParts = 32;                           // of a Sequence
constexpr size_t kMaxReplaced = 64;                        // bytes of what is replaced, and of what replaces it
constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581

Status unsupported(const std::string& what) { return Status(Code::kUnsupported, std::string(kFile) + ": " + what); }
Status bad(const std::string& what) { return Status(Code::kBadFile, std::string(kFile) + ": " + what); }

// Whether a class of transformers replaces the post-processor by one that adds a BOS as add_bos_token says.
bool replaces_post_processor(std::string_view tokenizer_class) {
  if (tokenizer_class.ends_with("Fast")) tokenizer_class.remove_suffix(4);
  return tokenizer_class == "LlamaTokenizer" || tokenizer_class == "CodeLlamaTokenizer" ||
         tokenizer_class == "GemmaTokenizer";
}

class Definer {
 public:
  Definer(const Json& file, int32_t vocab_size) : file_(file), most_ids_(std::min(vocab_size, kMaxTokens)) {}

  Result<BpeDefinition> run(const TokenizerSettings& settings) {
    const Json* model = file_.find("model");
    if (!model || !model->object()) return bad("there is no object \"model\"");
    QUIRE_TRY(read_model(JsonReader(*model, std::string(kFile) + ": model")));
    QUIRE_TRY(read_added());
    QUIRE_TRY(for_each_part("normalizer", "normalizers", [&](const Json& part) { return read_normalizer(part); }));
    QUIRE_TRY(
        for_each_part("pre_tokenizer", "pretokenizers", [&](const Json& part) { return read_pre_tokenizer(part); }));
    QUIRE_TRY(for_each_part("decoder", "decoders", [&](const Json& part) { return read_decoder(part); }));
    QUIRE_TRY(check_kind());
    QUIRE_TRY(
        for_each_part("post_processor", "processors", [&](const Json& part) { return read_post_processor(part); }));
    QUIRE_TRY(apply(settings));
    return std::move(definition_);
  }

 private:
  // A part's "type"; of old files, whose model has none, what it must be.
  static std::string type_of(const Json& part) {
    const Json* type = part.find("type");
    return type && type->string() ? *type->string() : std::string();
  }

  static Status refuse(const char* what, const Json& part) {
    return unsupported(std::string(what) + " " + json_excerpt(type_of(part)));
  }

  // The parts of a member that is an object, a "Sequence" of such or null.
  template <typename Read>
  Status for_each_part(const char* key, const char* list_key, Read&& read) {
    const Json* member = file_.find(key);
    if (!member || member->is_null()) return {};
    if (!member->object()) return bad(std::string(key) + " is " + json_excerpt(*member) + "; expected an object");
    if (type_of(*member) != "Sequence") return read(*member);
    const Json* list = member->find(list_key);
    if (!list || !list->array() || list->array()->size() > kMaxParts) {
      return bad(std::string(key) + ": expected \"" + list_key + "\", an array of at most " +
                 std::to_string(kMaxParts));
    }
    for (const Json& part : *list->array()) {
      if (!part.object()) return bad(std::string(key) + ": " + json_excerpt(part) + "; expected an object");
      QUIRE_TRY(read(part));
    }
    return {};
  }

  // ---- the model

  Result<BpeDefinition::Token*> token_of(const Json* value, std::string_view text, const char* where) {
    const auto id = value ? value->integer(0, INT32_MAX) : std::nullopt;
    if (!id) {
      return bad(std::string(where) + ": the id of " + json_excerpt(text) + " is " +
                 (value ? json_excerpt(*value) : "missing") + "; expected an integer");
    }
    if (*id >= most_ids_) {
      return bad(std::string(where) + ": token " + json_excerpt(text) + " has id " + std::to_string(*id) +
                 ", but the model's vocab_size is " + std::to_string(most_ids_));
    }
    const auto index = static_cast<size_t>(*id);
    if (index >= definition_.tokens.size()) definition_.tokens.resize(index + 1);
    return &definition_.tokens[index];
  }

  Status read_model(const JsonReader& model) {
    QUIRE_ASSIGN(const std::string type, model.string("type", "BPE"));
    if (type != "BPE") return unsupported("a model of type " + json_excerpt(type) + "; only \"BPE\" is supported");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      QUIRE_ASSIGN(const std::string text, model.string(key, ""));
      if (!text.empty()) return unsupported(std::string("model: ") + key + " " + json_excerpt(text));
    }
    QUIRE_ASSIGN(const double dropout, model.number("dropout", 0, 1, 0.0));
    if (dropout != 0) return unsupported("model: dropout");
    QUIRE_ASSIGN(definition_.byte_fallback, model.boolean("byte_fallback", false));
    QUIRE_ASSIGN(definition_.fuse_unknown, model.boolean("fuse_unk", false));
    QUIRE_ASSIGN(definition_.ignore_merges, model.boolean("ignore_merges", false));
    const Json* vocabulary = model.find("vocab");
    if (!vocabulary || !vocabulary->object()) return model.bad("vocab", "an object of token: id");
    definition_.tokens.reserve(vocabulary->object()->size());
    for (const auto& [text, value] : *vocabulary->object()) {
      QUIRE_ASSIGN(BpeDefinition::Token * token, token_of(&value, text, "vocab"));
      if (token->kind != TokenKind::kNone) {
        return bad("vocab: " + json_excerpt(token->text) + " and " + json_excerpt(text) + " have one id");
      }
      *token = {text, TokenKind::kText, true};
    }
    QUIRE_ASSIGN(const std::string unknown, model.string("unk_token", ""));
    if (!unknown.empty()) {
      const Json* id = vocabulary->find(unknown);
      if (!id) return model.bad("unk_token", "a token of the vocabulary");
      definition_.unknown = static_cast<int32_t>(*id->integer());
    }
    return read_merges(model);
  }

  // "left right", or ["left", "right"].
  Status read_merges(const JsonReader& model) {
    const Json* merges = model.find("merges");
    if (!merges || !merges->array()) return model.bad("merges", "an array");
    definition_.merges.reserve(merges->array()->size());
    for (const Json& merge : *merges->array()) {
      if (const Json::Array* pair = merge.array();
          pair && pair->size() == 2 && (*pair)[0].string() && (*pair)[1].string()) {
        definition_.merges.emplace_back(*(*pair)[0].string(), *(*pair)[1].string());
        continue;
      }
      const std::string_view line = merge.string() ? std::string_view(*merge.string()) : std::string_view();
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        return bad("merges: " + json_excerpt(merge) + "; expected two tokens");
      }
      definition_.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
    }
    return {};
  }

  // ---- added tokens

  Status read_added() {
    const Json* added = file_.find("added_tokens");
    if (!added || added->is_null()) return {};
    if (!added->array()) return bad("added_tokens is " + json_excerpt(*added) + "; expected an array");
    for (const Json& element : *added->array()) {
      if (!element.object()) return bad("added_tokens: " + json_excerpt(element) + "; expected an object");
      const JsonReader fields(element, std::string(kFile) + ": added_tokens");
      AddedToken token;
      QUIRE_ASSIGN(token.text, fields.string("content", ""));
      QUIRE_ASSIGN(token.special, fields.boolean("special", false));
      QUIRE_ASSIGN(token.strip_left, fields.boolean("lstrip", false));
      QUIRE_ASSIGN(token.strip_right, fields.boolean("rstrip", false));
      QUIRE_ASSIGN(const bool normalized, fields.boolean("normalized", !token.special));
      QUIRE_ASSIGN(const bool single_word, fields.boolean("single_word", false));
      if (single_word) return unsupported("added_tokens: single_word of " + json_excerpt(token.text));
      QUIRE_ASSIGN(BpeDefinition::Token * place, token_of(fields.find("id"), token.text, "added_tokens"));
      QUIRE_TRY(add(place - definition_.tokens.data(), token, normalized));
    }
    return {};
  }

  Status add(int64_t id, const AddedToken& added, bool normalized) {
    BpeDefinition::Token& token = definition_.tokens[static_cast<size_t>(id)];
    if (token.kind != TokenKind::kNone && token.text != added.text) {
      return bad("added_tokens: id " + std::to_string(id) + " is " + json_excerpt(added.text) + ", but elsewhere " +
                 json_excerpt(token.text));
    }
    if (token.kind == TokenKind::kAdded || token.kind == TokenKind::kControl) return {};
    token = {added.text, added.special ? TokenKind::kControl : TokenKind::kAdded, token.in_vocabulary};
    definition_.added.push_back({static_cast<int32_t>(id), added.strip_left, added.strip_right, normalized});
    return {};
  }

  // ---- normalizer, pre-tokenizer, decoder, post-processor

  Status read_normalizer(const Json& part) {
    const std::string type = type_of(part);
    const JsonReader fields(part, std::string(kFile) + ": normalizer " + type);
    if (type == "NFC") {
      definition_.normalizer.push_back({.kind = TextChange::Kind::kNfc});
    } else if (type == "Prepend") {
      QUIRE_ASSIGN(std::string text, fields.string("prepend", ""));
      if (text.size() > kMaxReplaced) return fields.bad("prepend", "a short text");
      definition_.normalizer.push_back({.kind = TextChange::Kind::kPrefix, .to = std::move(text)});
    } else if (type == "Replace") {
      QUIRE_ASSIGN(TextChange change, read_replace(fields));
      definition_.normalizer.push_back(std::move(change));
    } else {
      return refuse("normalizer", part);
    }
    return {};
  }

  Result<TextChange> read_replace(const JsonReader& fields) {
    const Json* pattern = fields.find("pattern");
    const Json* from = pattern ? pattern->find("String") : nullptr;
    if (!from || !from->string()) return unsupported("Replace of a regular expression");
    QUIRE_ASSIGN(std::string to, fields.string("content", ""));
    if (from->string()->empty() || from->string()->size() > kMaxReplaced || to.size() > kMaxReplaced) {
      return fields.bad("pattern", "short texts");
    }
    return TextChange{.kind = TextChange::Kind::kReplace, .from = *from->string(), .to = std::move(to)};
  }

  Status read_pre_tokenizer(const Json& part) {
    const std::string type = type_of(part);
    const JsonReader fields(part, std::string(kFile) + ": pre_tokenizer " + type);
    if (type == "ByteLevel") return read_byte_level(fields);
    if (type == "Metaspace") return read_metaspace(fields);
    if (type == "Split") return read_split(fields);
    if (type == "Digits") {
      QUIRE_ASSIGN(const bool individual, fields.boolean("individual_digits", false));
      definition_.cuts.push_back({.expression = individual ? "\\p{N}" : "\\p{N}+"});
      return {};
    }
    return refuse("pre_tokenizer", part);
  }

  Status read_byte_level(const JsonReader& fields) {
    if (byte_level_) return unsupported("pre_tokenizer ByteLevel twice");
    byte_level_ = true;
    QUIRE_ASSIGN(const bool prefix, fields.boolean("add_prefix_space", true));
    QUIRE_ASSIGN(const bool use_regex, fields.boolean("use_regex", true));
    if (prefix && !definition_.cuts.empty()) return unsupported("add_prefix_space behind another pre-tokenizer");
    if (prefix) {
      definition_.before_cuts.push_back({.kind = TextChange::Kind::kPrefixUnless, .to = " "});
    }
    if (use_regex) definition_.cuts.push_back({.expression = kGpt2Expression});
    return {};
  }

  Status read_metaspace(const JsonReader& fields) {
    if (!definition_.cuts.empty() || byte_level_) return unsupported("Metaspace behind another pre-tokenizer");
    QUIRE_ASSIGN(const std::string symbol, fields.string("replacement", std::string(kSpaceSymbol)));
    if (symbol.empty() || symbol.size() > 4) return fields.bad("replacement", "one character");
    QUIRE_ASSIGN(const bool old_prefix, fields.boolean("add_prefix_space", true));
    QUIRE_ASSIGN(const std::string scheme, fields.string("prepend_scheme", old_prefix ? "always" : "never"));
    QUIRE_ASSIGN(const bool split, fields.boolean("split", true));
    definition_.before_cuts.push_back({.kind = TextChange::Kind::kReplace, .from = " ", .to = symbol});
    if (scheme == "always" || scheme == "first") {
      const auto kind = scheme == "first" ? TextChange::Kind::kPrefixFirst : TextChange::Kind::kPrefixUnless;
      definition_.before_cuts.push_back({.kind = kind, .to = symbol});
    } else if (scheme != "never") {
      return fields.bad("prepend_scheme", "\"always\", \"first\" or \"never\"");
    }
    if (split) {
      definition_.cuts.push_back({.expression = regex_of_text(symbol), .behavior = CutBehavior::kMergedWithNext});
    }
    return {};
  }

  // Whether the normalizer leaves no such text, so that cuts there cut nothing (Gemma's at spaces).
  bool is_replaced(const std::string& text) const {
    if (definition_.normalizer.empty()) return false;
    const TextChange& last = definition_.normalizer.back();
    return last.kind == TextChange::Kind::kReplace && last.from == text && text.size() == 1 &&
           last.to.find(text) == std::string::npos;
  }

  Status read_split(const JsonReader& fields) {
    Cut cut;
    const Json* pattern = fields.find("pattern");
    const Json* expression = pattern ? pattern->find("Regex") : nullptr;
    const Json* text = pattern ? pattern->find("String") : nullptr;
    if (expression && expression->string()) {
      auto translated = regex_for_pcre2(*expression->string());
      if (!translated.ok()) {
        return translated.status().with_context(fields.what() + ": the regular expression " +
                                                json_excerpt(*expression->string()));
      }
      cut.expression = std::move(*translated);
    } else if (text && text->string() && !text->string()->empty()) {
      if (is_replaced(*text->string())) return {};
      cut.expression = regex_of_text(*text->string());
    } else {
      return fields.bad("pattern", "{\"Regex\": ...} or {\"String\": ...}");
    }
    QUIRE_ASSIGN(const std::string behavior, fields.string("behavior", ""));
    constexpr std::array<std::string_view, 5> kNames{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                                     "Contiguous"};  // in the order of CutBehavior
    const auto name = std::find(kNames.begin(), kNames.end(), behavior);
    if (name == kNames.end()) return fields.bad("behavior", "\"Isolated\", \"Removed\" or the like");
    cut.behavior = static_cast<CutBehavior>(name - kNames.begin());
    QUIRE_ASSIGN(cut.invert, fields.boolean("invert", false));
    definition_.cuts.push_back(std::move(cut));
    return {};
  }

  Status read_decoder(const Json& part) {
    const std::string type = type_of(part);
    const JsonReader fields(part, std::string(kFile) + ": decoder " + type);
    if (type == "ByteLevel") {
      byte_level_decoder_ = true;
    } else if (type == "ByteFallback") {
      byte_decoder_ = true;
    } else if (type == "Metaspace") {
      QUIRE_ASSIGN(definition_.space_symbol, fields.string("replacement", std::string(kSpaceSymbol)));
      QUIRE_ASSIGN(const bool old_prefix, fields.boolean("add_prefix_space", true));
      QUIRE_ASSIGN(const std::string scheme, fields.string("prepend_scheme", old_prefix ? "always" : "never"));
      definition_.drops_first_space = scheme != "never";
    } else if (type == "Replace") {
      QUIRE_ASSIGN(const TextChange change, read_replace(fields));
      if (change.to != " " || !definition_.space_symbol.empty())
        return unsupported("decoder: Replace by another text than a space");
      definition_.space_symbol = change.from;
    } else if (type == "Strip") {
      QUIRE_ASSIGN(const std::string content, fields.string("content", " "));
      QUIRE_ASSIGN(const int64_t start, fields.integer("start", 0, INT32_MAX, 0));
      QUIRE_ASSIGN(const int64_t stop, fields.integer("stop", 0, INT32_MAX, 0));
      if (content != " " || start > 1 || stop != 0) return unsupported("decoder: Strip of more than one leading space");
      definition_.drops_first_space = start == 1;
    } else if (type != "Fuse") {
      return refuse("decoder", part);
    }
    return {};
  }

  // Byte-level, or of characters with byte fallback as SentencePiece's.
  Status check_kind() {
    definition_.byte_level = byte_level_;
    if (byte_level_ != byte_level_decoder_) {
      return unsupported(byte_level_ ? "pre_tokenizer ByteLevel without the decoder"
                                     : "decoder ByteLevel without the pre-tokenizer");
    }
    if (byte_level_) {
      // In a part's text there are characters of GPT-2's alphabet only, so nothing falls back to bytes.
      definition_.byte_fallback = false;
      if (byte_decoder_ || !definition_.space_symbol.empty()) return unsupported("a decoder beside ByteLevel");
      return {};
    }
    if (definition_.space_symbol.empty()) {
      return unsupported("a BPE model without ByteLevel, and without a symbol for the space in its decoder");
    }
    if (byte_decoder_) {
      for (auto& token : definition_.tokens) {
        if (token.kind == TokenKind::kText && byte_of_piece(token.text) >= 0) token.kind = TokenKind::kByte;
      }
    }
    return {};
  }

  Status read_post_processor(const Json& part) {
    const std::string type = type_of(part);
    if (type == "ByteLevel") return {};  // of offsets only
    if (type != "TemplateProcessing") return refuse("post_processor", part);
    const Json* single = part.find("single");
    if (!single || !single->array()) return bad("post_processor: expected \"single\", an array");
    // What comes behind the text is for embeddings and training: a session's text goes on.
    const Json* first = single->array()->empty() ? nullptr : single->array()->front().find("SpecialToken");
    if (!first) return {};
    const Json* name = first->find("id");
    if (!name || !name->string()) return bad("post_processor: SpecialToken: expected \"id\", a string");
    const Json* tokens = part.find("special_tokens");
    const Json* token = tokens ? tokens->find(*name->string()) : nullptr;
    const Json* ids = token ? token->find("ids") : nullptr;
    if (!ids || !ids->array() || ids->array()->size() != 1) {
      return bad("post_processor: special_tokens: expected one id of " + json_excerpt(*name->string()));
    }
    const auto id = ids->array()->front().integer(0, static_cast<int64_t>(definition_.tokens.size()) - 1);
    if (!id || definition_.tokens[static_cast<size_t>(*id)].kind == TokenKind::kNone) {
      return bad("post_processor: " + json_excerpt(*name->string()) + " has an id that no token has");
    }
    if (single->array()->size() > 1 && (*single->array())[1].find("SpecialToken")) {
      return unsupported("post_processor: two tokens before the text");
    }
    definition_.bos = static_cast<int32_t>(*id);
    definition_.adds_bos = true;
    return {};
  }

  // ---- tokenizer_config.json

  Status apply(const TokenizerSettings& settings) {
    for (const auto& [id, token] : settings.added) {
      const Json value(static_cast<int64_t>(id));
      QUIRE_TRY(token_of(&value, token.text, "tokenizer_config.json").status());
      QUIRE_TRY(add(id, token, false));
    }
    const auto find = [&](const std::string& text) -> int32_t {
      for (size_t id = 0; id < definition_.tokens.size(); ++id) {
        if (definition_.tokens[id].kind != TokenKind::kNone && definition_.tokens[id].text == text) {
          return static_cast<int32_t>(id);
        }
      }
      return -1;
    };
    const bool replaces = settings.add_bos && replaces_post_processor(settings.tokenizer_class);
    for (const auto& [name, key, is_bos] :
         {std::tuple(settings.bos_token, "bos_token", true), std::tuple(settings.eos_token, "eos_token", false)}) {
      if (!name || name->empty()) continue;
      const int32_t id = find(*name);
      if (id < 0)
        return Status(Code::kBadFile, std::string("tokenizer_config.json: ") + key + " " + *name + " has no id");
      if (!is_bos) definition_.eos = {id};
      if (is_bos && (replaces || !definition_.adds_bos)) definition_.bos = id;
    }
    if (replaces) definition_.adds_bos = *settings.add_bos && definition_.bos >= 0;
    return {};
  }

  const Json& file_;
  const int32_t most_ids_;
  BpeDefinition definition_;
  bool byte_level_ = false, byte_level_decoder_ = false, byte_decoder_ = false;
};

}  // namespace

Result<Json> parse_tokenizer_json(std::string_view tokenizer_json) {
  return parse_json_object(tokenizer_json, kFile, kLimits);
}

Result<BpeDefinition> define_json_tokenizer(const Json& file, std::string_view tokenizer_config, int32_t vocab_size) {
  QUIRE_ASSIGN(const TokenizerSettings settings, parse_tokenizer_settings(tokenizer_config, "", vocab_size));
  return Definer(file, vocab_size).run(settings);
}

Result<std::unique_ptr<const Tokenizer>> make_json_tokenizer(std::string_view tokenizer_json,
                                                             std::string_view tokenizer_config, int32_t vocab_size) {
  QUIRE_ASSIGN(const Json file, parse_tokenizer_json(tokenizer_json));
  QUIRE_ASSIGN(const BpeDefinition definition, define_json_tokenizer(file, tokenizer_config, vocab_size));
  auto tokenizer = make_bpe_tokenizer(definition, vocab_size);
  if (!tokenizer.ok()) return tokenizer.status().with_context(kFile);
  return tokenizer;
}

}  // namespace quire
