#include "lib/tokenizer/gguf_tokenizer_writer.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "lib/support/os_file.h"
#include "lib/tokenizer/added_tokens.h"
#include "lib/tokenizer/chat_template.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {
namespace {

// The numbers of tokenizer.ggml.token_type; those of SentencePiece's piece types are the same.
constexpr int32_t kControl = 3, kUserDefined = 4, kUnused = 5;

constexpr int64_t kMaxFileBytes = 64 << 20;

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;

  void put(size_t id, std::string text, float score, int32_t type) {
    texts[id] = std::move(text), scores[id] = score, types[id] = type;
  }
};

Result<std::string> read_if_there(const std::string& path) {
  if (!path_exists(path)) return std::string();
  return read_text_file(path, kMaxFileBytes);
}

Status add_sentencepiece(const std::string& directory, int32_t vocab_size, GgufWriter& writer) {
  QUIRE_ASSIGN(const std::string file, read_text_file(directory + "/tokenizer.model", kMaxFileBytes));
  QUIRE_ASSIGN(const std::string config, read_if_there(directory + "/tokenizer_config.json"));
  QUIRE_ASSIGN(const std::string added_tokens, read_if_there(directory + "/added_tokens.json"));
  QUIRE_ASSIGN(const SentencePieceModel model, parse_sentencepiece_model(file));
  QUIRE_ASSIGN(const TokenizerSettings settings, parse_tokenizer_settings(config, added_tokens, vocab_size));
  if (model.algorithm != PieceAlgorithm::kBpe) {
    return Status(Code::kUnsupported,
                  "tokenizer.model is a unigram model; GGUF has a place for SentencePiece's BPE only");
  }
  if (!model.charsmap.empty()) {
    return Status(Code::kUnsupported, "tokenizer.model normalises texts by a character map; GGUF has no place for one");
  }
  const auto n = static_cast<size_t>(vocab_size);
  Vocabulary vocabulary{std::vector<std::string>(n), std::vector<float>(n), std::vector<int32_t>(n)};
  for (size_t id = 0; id < n; ++id) {
    if (id < model.pieces.size()) {
      const auto& piece = model.pieces[id];
      vocabulary.put(id, piece.text, piece.score, static_cast<int32_t>(piece.type));
    } else {
      vocabulary.put(id, "[PAD" + std::to_string(id) + "]", 0, kUnused);
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
    if (vocabulary.types[id] == 2) writer.add("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(id));
  }
  return {};
}

}  // namespace

Status add_gguf_tokenizer(const std::string& directory, int32_t vocab_size, GgufWriter& writer) {
  QUIRE_ASSIGN(const auto tokenizer, load_tokenizer(directory, vocab_size));
  const Status status = add_sentencepiece(directory, vocab_size, writer);
  if (!status.ok()) return status.with_context(directory);
  if (tokenizer->bos() >= 0) writer.add("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(tokenizer->bos()));
  if (!tokenizer->eos().empty()) {
    writer.add("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(tokenizer->eos()[0]));
  }
  writer.add("tokenizer.ggml.add_bos_token", tokenizer->adds_bos());
  const auto chat_template = read_chat_template(directory);
  if (chat_template.status().code() == Code::kNotFound) return {};
  if (!chat_template.ok()) return chat_template.status();
  writer.add("tokenizer.chat_template", std::string_view(chat_template.value()));
  return {};
}

}  // namespace quire
