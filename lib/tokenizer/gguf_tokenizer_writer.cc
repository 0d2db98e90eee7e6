#include "lib/tokenizer/gguf_tokenizer_writer.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "lib/format/gguf_token_ids.h"
#include "lib/format/json.h"
#include "lib/tokenizer/added_tokens.h"
#include "lib/tokenizer/bpe_definition.h"
#include "lib/tokenizer/character_bpe.h"
#include "lib/tokenizer/chat_template_text.h"
#include "lib/tokenizer/regex_syntax.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "lib/tokenizer/tokenizer.h"
#include "lib/tokenizer/tokenizer_files.h"
#include "lib/tokenizer/tokenizer_json.h"

namespace quire {
namespace {

// The numbers of tokenizer.ggml.token_type; those of SentencePiece's piece types are the same.
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5;

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;

  void put(size_t id, std::string text, float score, int32_t type) {
    texts[id] = std::move(text), scores[id] = score, types[id] = type;
  }
};

// The text of an id that no token has.
std::string filler(size_t id) { return "[PAD" + std::to_string(id) + "]"; }

void put_sentencepiece(const SentencePieceModel& model, const TokenizerSettings& settings, int32_t vocab_size,
                       GgufWriter& writer) {
  const auto n = static_cast<size_t>(vocab_size);
  Vocabulary vocabulary{std::vector<std::string>(n), std::vector<float>(n), std::vector<int32_t>(n)};
  for (size_t id = 0; id < n; ++id) {
    if (id < model.pieces.size() && !model.pieces[id].text.empty()) {
      const auto& piece = model.pieces[id];
      vocabulary.put(id, piece.text, piece.score, static_cast<int32_t>(piece.type));
    } else {
      vocabulary.put(id, filler(id), 0, kUnused);
    }
  }
  for (const auto& [id, added] : settings.added) {
    const auto at = static_cast<size_t>(id);
    const bool is_piece = at < model.pieces.size() && model.pieces[at].type != PieceType::kControl;
    if (is_piece && !added.special) continue;
    vocabulary.put(at, added.text, vocabulary.scores[at], added.special ? kControl : kUserDefined);
  }
  writer.add("tokenizer.ggml.model", "llama");
  writer.add("tokenizer.ggml.pre", "default");
  writer.add("tokenizer.ggml.tokens", std::span<const std::string>(vocabulary.texts));
  writer.add("tokenizer.ggml.scores", std::span<const float>(vocabulary.scores));
  writer.add("tokenizer.ggml.token_type", std::span<const int32_t>(vocabulary.types));
  writer.add("tokenizer.ggml.add_space_prefix", model.add_dummy_prefix && settings.add_prefix_space);
  writer.add("tokenizer.ggml.remove_extra_whitespaces", model.remove_extra_whitespaces);
  for (size_t id = 0; id < n; ++id) {
    if (vocabulary.types[id] == kUnknown) writer.add("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(id));
  }
}

Status add_sentencepiece(const TokenizerFiles& files, int32_t vocab_size, GgufWriter& writer) {
  QUIRE_ASSIGN(const SentencePieceModel model, parse_sentencepiece_model(files.model));
  QUIRE_ASSIGN(const TokenizerSettings settings,
               parse_tokenizer_settings(files.tokenizer_config, files.added_tokens, vocab_size));
  if (model.algorithm != PieceAlgorithm::kBpe) {
    return Status(Code::kUnsupported,
                  "tokenizer.model is a unigram model; GGUF has a place for SentencePiece's BPE only");
  }
  if (!model.charsmap.empty()) {
    return Status(Code::kUnsupported, "tokenizer.model normalises texts by a character map; GGUF has no place for one");
  }
  put_sentencepiece(model, settings, vocab_size, writer);
  return {};
}

// ---- BPE of tokenizer.json

constexpr char kWords[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+)";
constexpr char kRest[] = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                           R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                           R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A pre-tokenizer by GGUF's name, and the regular expressions of tokenizer.json that cut as it does.
struct Family {
  const char* name;
  std::vector<std::string> expressions;
  bool ignore_merges;
};

Result<std::vector<Family>> families() {
  std::vector<Family> all = {{"llama-bpe", {kWords + std::string(R"(|\p{N}{1,3})") + kRest}, true},
                             {"smaug-bpe", {kWords + std::string(R"(|\p{N}{1,3})") + kRest}, false},
                             {"qwen2", {kWords + std::string(R"(|\p{N})") + kRest}, false},
                             {"tekken", {kTekken}, true}};
  for (Family& family : all) {
    for (std::string& expression : family.expressions) {
      QUIRE_ASSIGN(expression, regex_for_pcre2(expression));
    }
  }
  all.push_back({"gpt-2", {kGpt2Expression}, false});
  all.push_back({"smollm", {R"(\p{N})", kGpt2Expression}, false});
  return all;
}

// What GGUF calls the way in which the definition cuts texts.
Result<std::string> name_pre_tokenizer(const BpeDefinition& definition) {
  QUIRE_ASSIGN(const auto all, families());
  for (const Family& family : all) {
    const bool same =
        std::equal(definition.cuts.begin(), definition.cuts.end(), family.expressions.begin(), family.expressions.end(),
                   [](const Cut& cut, const std::string& expression) {
                     return cut.expression == expression && cut.behavior == CutBehavior::kIsolated && !cut.invert;
                   });
    if (same && definition.ignore_merges == family.ignore_merges) return std::string(family.name);
  }
  std::string cuts;
  for (const Cut& cut : definition.cuts) cuts += (cuts.empty() ? "" : ", ") + json_excerpt(cut.expression);
  return Status(Code::kUnsupported,
                "tokenizer.json cuts texts in a way that GGUF has no name for, or none that is known here: by " +
                    (cuts.empty() ? "nothing" : cuts) +
                    (definition.ignore_merges ? ", whole words before merges" : ""));
}

// Normalising to NFC is left out: programs that read GGUF files do not do it.
Status check_changes(const BpeDefinition& definition) {
  for (const TextChange& change : definition.normalizer) {
    if (change.kind != TextChange::Kind::kNfc) {
      return Status(Code::kUnsupported, "tokenizer.json normalises texts; GGUF has no place for how");
    }
  }
  return {};
}

Status add_bpe(const TokenizerFiles& files, int32_t vocab_size, GgufWriter& writer) {
  using TokenKind = BpeDefinition::TokenKind;
  QUIRE_ASSIGN(const Json file, parse_tokenizer_json(files.json));
  QUIRE_ASSIGN(const BpeDefinition definition, define_json_tokenizer(file, files.tokenizer_config, vocab_size));
  if (!definition.byte_level) {
    QUIRE_ASSIGN(const SentencePieceModel model, as_sentencepiece_model(definition));
    put_sentencepiece(model, {}, vocab_size, writer);
    return {};
  }
  QUIRE_ASSIGN(const std::string pre, name_pre_tokenizer(definition));
  QUIRE_TRY(check_changes(definition));
  const auto n = static_cast<size_t>(vocab_size);
  Vocabulary vocabulary{std::vector<std::string>(n), std::vector<float>(n), std::vector<int32_t>(n)};
  for (size_t id = 0; id < n; ++id) {
    const bool is_token = id < definition.tokens.size() && definition.tokens[id].kind != TokenKind::kNone;
    if (!is_token) {
      vocabulary.put(id, filler(id), 0, kUnused);
      continue;
    }
    const BpeDefinition::Token& token = definition.tokens[id];
    const int32_t type = token.kind == TokenKind::kControl ? kControl
                         : token.kind == TokenKind::kAdded ? kUserDefined
                                                           : kNormal;
    vocabulary.put(id, token.text, 0, type);
  }
  std::vector<std::string> merges;
  merges.reserve(definition.merges.size());
  for (const auto& [left, right] : definition.merges) merges.push_back(std::string(left) + " " + std::string(right));
  writer.add("tokenizer.ggml.model", "gpt2");
  writer.add("tokenizer.ggml.pre", std::string_view(pre));
  writer.add("tokenizer.ggml.tokens", std::span<const std::string>(vocabulary.texts));
  writer.add("tokenizer.ggml.token_type", std::span<const int32_t>(vocabulary.types));
  writer.add("tokenizer.ggml.merges", std::span<const std::string>(merges));
  writer.add("tokenizer.ggml.add_space_prefix", !definition.before_cuts.empty());
  return {};
}

// The keys of other programs for further ids, such as eot_token_id, each mean a certain token: they are not written.
void add_ends(const Tokenizer& tokenizer, const std::vector<int32_t>& eos, GgufWriter& writer) {
  if (tokenizer.eos().empty() && eos.empty()) return;
  const int32_t first = tokenizer.eos().empty() ? eos[0] : tokenizer.eos()[0];
  writer.add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(first));
  if (!eos.empty() && eos != std::vector{first}) writer.add(kGgufEosTokenIds, std::span<const int32_t>(eos));
}

}  // namespace

Status add_gguf_tokenizer(const std::string& directory, int32_t vocab_size, const std::vector<int32_t>& eos,
                          GgufWriter& writer) {
  QUIRE_ASSIGN(const auto tokenizer, load_tokenizer(directory, vocab_size));
  QUIRE_ASSIGN(const TokenizerFiles files, read_tokenizer_files(directory));
  const Status status =
      files.json.empty() ? add_sentencepiece(files, vocab_size, writer) : add_bpe(files, vocab_size, writer);
  if (!status.ok()) return status.with_context(directory);
  if (tokenizer->bos() >= 0) writer.add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(tokenizer->bos()));
  add_ends(*tokenizer, eos, writer);
  writer.add("tokenizer.ggml.add_bos_token", tokenizer->adds_bos());
  const auto chat_template = read_chat_template(directory);
  if (chat_template.status().code() == Code::kNotFound) return {};
  if (!chat_template.ok()) return chat_template.status();
  writer.add("tokenizer.chat_template", std::string_view(chat_template.value()));
  return {};
}

}  // namespace quire
