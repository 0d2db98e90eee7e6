#include "lib/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <span>

#include "lib/format/gguf.h"
#include "lib/support/os_file.h"
#include "lib/support/utf8.h"
#include "lib/tokenizer/tokenizer_files.h"
#include "lib/tokenizer/tokenizer_json.h"

namespace quire {
namespace {

Result<bool> is_gguf(const ReadFile& file) {
  std::array<char, 4> magic{};
  if (file.size() < static_cast<int64_t>(magic.size())) return false;
  QUIRE_TRY(file.read_at(0, std::as_writable_bytes(std::span(magic))));
  return std::string_view(magic.data(), magic.size()) == "GGUF";
}

Result<std::unique_ptr<const Tokenizer>> load_file(const std::string& path, int32_t vocab_size) {
  QUIRE_ASSIGN(const auto file, ReadFile::open(path));
  QUIRE_ASSIGN(const bool gguf, is_gguf(*file));
  if (gguf) {
    const auto read = [&](int64_t offset, std::span<std::byte> out) { return file->read_at(offset, out); };
    QUIRE_ASSIGN(const GgufHeader header, read_gguf_header(read, file->size()));
    return make_gguf_tokenizer(header, vocab_size);
  }
  if (path.ends_with(".json")) {
    QUIRE_ASSIGN(const std::string text, read_text_file(path, kMaxTokenizerJsonBytes));
    return make_json_tokenizer(text, "", vocab_size);
  }
  QUIRE_ASSIGN(const std::string model, read_text_file(path, kMaxTokenizerModelBytes));
  return make_sentencepiece_tokenizer(model, "", "", vocab_size);
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> load_tokenizer(const std::string& directory, int32_t vocab_size) {
  QUIRE_ASSIGN(const TokenizerFiles files, read_tokenizer_files(directory));
  auto tokenizer = files.json.empty() ? make_sentencepiece_tokenizer(files.model, files.tokenizer_config,
                                                                     files.added_tokens, vocab_size)
                                      : make_json_tokenizer(files.json, files.tokenizer_config, vocab_size);
  if (!tokenizer.ok()) return tokenizer.status().with_context(directory);
  return tokenizer;
}

Result<std::unique_ptr<const Tokenizer>> load_tokenizer_file(const std::string& path, int32_t vocab_size) {
  auto tokenizer = load_file(path, vocab_size);
  const Code code = tokenizer.status().code();
  if (code == Code::kOk || code == Code::kIo || code == Code::kNotFound) return tokenizer;  // which name the file
  return tokenizer.status().with_context(path);
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
