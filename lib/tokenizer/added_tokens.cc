#include "lib/tokenizer/added_tokens.h"

#include <charconv>
#include <set>

#include "lib/format/json.h"

namespace quire {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

Status check_token(const std::string& file, const std::string& text, int64_t id, int32_t vocab_size) {
  if (text.empty() || text.size() > kMaxTokenBytes) {
    return Status(Code::kBadFile, file + ": the text of token " + std::to_string(id) + " has " +
                                      std::to_string(text.size()) + " bytes; expected 1 to " +
                                      std::to_string(kMaxTokenBytes));
  }
  if (id < 0 || id >= vocab_size) {
    return Status(Code::kBadFile, file + ": token " + json_excerpt(text) + " has id " + std::to_string(id) +
                                      ", but the model's vocab_size is " + std::to_string(vocab_size));
  }
  return {};
}

// A named token is a text, or an object with "content"; null and absent differ: null says that there is none.
Result<std::optional<std::string>> named_token(const Json& config, const JsonReader& reader, const char* key) {
  const Json* at = config.find(key);
  if (!at) return std::optional<std::string>();
  if (at->is_null()) return std::optional<std::string>("");
  if (at->string()) return std::optional<std::string>(*at->string());
  if (!at->object()) return reader.bad(key, "a string, an object or null");
  QUIRE_ASSIGN(std::string content, JsonReader(*at, reader.what() + ": " + key).string("content", ""));
  return std::optional<std::string>(std::move(content));
}

Status read_decoder(const JsonReader& reader, int32_t vocab_size, std::map<int32_t, AddedToken>& added) {
  const Json* decoder = reader.find("added_tokens_decoder");
  if (!decoder) return {};
  if (!decoder->object()) return reader.bad("added_tokens_decoder", "an object of id: token");
  for (const auto& [key, value] : *decoder->object()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || !value.object()) {
      return Status(Code::kBadFile, reader.what() + ": added_tokens_decoder: expected id: token, found " +
                                        json_excerpt(key) + ": " + json_excerpt(value));
    }
    const JsonReader fields(value, reader.what() + ": added_tokens_decoder: " + key);
    AddedToken token;
    QUIRE_ASSIGN(token.text, fields.string("content", ""));
    QUIRE_ASSIGN(token.special, fields.boolean("special", false));
    QUIRE_ASSIGN(token.strip_left, fields.boolean("lstrip", false));
    QUIRE_ASSIGN(token.strip_right, fields.boolean("rstrip", false));
    QUIRE_TRY(check_token(reader.what(), token.text, id, vocab_size));
    if (!added.emplace(static_cast<int32_t>(id), std::move(token)).second) {
      return Status(Code::kBadFile, fields.what() + " names an id twice");
    }
  }
  return {};
}

// The older file knows text and id only; which of its tokens are special is said in the configuration.
Status read_added_tokens(std::string_view text, const std::set<std::string>& special, int32_t vocab_size,
                         std::map<int32_t, AddedToken>& added) {
  if (text.empty()) return {};
  const std::string file = "added_tokens.json";
  QUIRE_ASSIGN(const Json tokens, parse_json_object(text, file));
  for (const auto& [content, value] : *tokens.object()) {
    const auto id = value.integer();
    if (!id) {
      return Status(Code::kBadFile, file + ": the id of token " + json_excerpt(content) + " is " + json_excerpt(value) +
                                        "; expected an integer");
    }
    QUIRE_TRY(check_token(file, content, *id, vocab_size));
    const auto [at, inserted] =
        added.emplace(static_cast<int32_t>(*id), AddedToken{.text = content, .special = special.contains(content)});
    if (!inserted && at->second.text != content) {
      return Status(Code::kBadFile, file + ": token " + std::to_string(*id) + " is " + json_excerpt(content) +
                                        ", but elsewhere " + json_excerpt(at->second.text));
    }
  }
  return {};
}

}  // namespace

Result<TokenizerSettings> parse_tokenizer_settings(std::string_view tokenizer_config, std::string_view added_tokens,
                                                   int32_t vocab_size) {
  TokenizerSettings settings;
  std::set<std::string> special;
  if (!tokenizer_config.empty()) {
    const std::string file = "tokenizer_config.json";
    QUIRE_ASSIGN(const Json config, parse_json_object(tokenizer_config, file));
    const JsonReader reader(config, file);
    QUIRE_ASSIGN(settings.tokenizer_class, reader.string("tokenizer_class", ""));
    if (reader.find("add_bos_token")) {
      QUIRE_ASSIGN(settings.add_bos, reader.boolean("add_bos_token", true));
    }
    QUIRE_ASSIGN(settings.add_prefix_space, reader.boolean("add_prefix_space", true));
    QUIRE_ASSIGN(settings.bos_token, named_token(config, reader, "bos_token"));
    QUIRE_ASSIGN(settings.eos_token, named_token(config, reader, "eos_token"));
    for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
      QUIRE_ASSIGN(const auto token, named_token(config, reader, key));
      if (token) special.insert(*token);
    }
    if (const Json* more = reader.find("additional_special_tokens"); more && more->array()) {
      for (const Json& token : *more->array()) {
        if (token.string()) special.insert(*token.string());
      }
    }
    QUIRE_TRY(read_decoder(reader, vocab_size, settings.added));
  }
  QUIRE_TRY(read_added_tokens(added_tokens, special, vocab_size, settings.added));
  return settings;
}

}  // namespace quire
