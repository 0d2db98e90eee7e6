#include "lib/tokenizer/tokenizer.h"

#include "lib/support/os_file.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

constexpr int64_t kMaxModelBytes = 64 << 20;
constexpr int64_t kMaxJsonBytes = 32 << 20;

Result<std::string> read_if_there(const std::string& path) {
  if (!path_exists(path)) return std::string();
  return read_text_file(path, kMaxJsonBytes);
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> load_tokenizer(const std::string& directory, int32_t vocab_size) {
  const std::string path = directory + "/tokenizer.model";
  if (!path_exists(path)) {
    const std::string other = directory + "/tokenizer.json";
    if (path_exists(other)) {
      return Status(Code::kUnsupported, other +
                                            " is there, but no tokenizer.model; only SentencePiece tokenizers "
                                            "(tokenizer.model) are supported");
    }
    return Status(Code::kNotFound, "no tokenizer.model in " + directory);
  }
  QUIRE_ASSIGN(const std::string model, read_text_file(path, kMaxModelBytes));
  QUIRE_ASSIGN(const std::string config, read_if_there(directory + "/tokenizer_config.json"));
  QUIRE_ASSIGN(const std::string added, read_if_there(directory + "/added_tokens.json"));
  auto tokenizer = make_sentencepiece_tokenizer(model, config, added, vocab_size);
  if (!tokenizer.ok()) return tokenizer.status().with_context(directory);
  return tokenizer;
}

Result<std::unique_ptr<const Tokenizer>> load_tokenizer_file(const std::string& path, int32_t vocab_size) {
  QUIRE_ASSIGN(const std::string model, read_text_file(path, kMaxModelBytes));
  auto tokenizer = make_sentencepiece_tokenizer(model, "", "", vocab_size);
  if (!tokenizer.ok()) return tokenizer.status().with_context(path);
  return tokenizer;
}

Result<std::string> decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, ControlText control) {
  std::string text;
  std::string bytes;  // what follows `text`, up to the next id without bytes
  bool drop_space = tokenizer.has_dummy_prefix();
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t before = bytes.size();
    const Status status = tokenizer.append_bytes(ids[i], control, bytes);
    if (!status.ok()) return Status(status.code(), status.message(), static_cast<int64_t>(i));
    if (bytes.size() == before) {
      text += utf8_sanitize(bytes);
      bytes.clear();
    } else if (drop_space && !tokenizer.is_control(ids[i])) {
      if (bytes[before] == ' ') bytes.erase(before, 1);
      drop_space = false;
    }
  }
  return text += utf8_sanitize(bytes);
}

}  // namespace quire
