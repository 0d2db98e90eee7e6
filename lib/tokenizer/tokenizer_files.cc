#include "lib/tokenizer/tokenizer_files.h"

#include "lib/support/os_file.h"

namespace quire {
namespace {

constexpr int64_t kMaxConfigBytes = 32 << 20;

Result<std::string> read_if_there(const std::string& path) {
  QUIRE_ASSIGN(const bool exists, path_exists(path));
  return exists ? read_text_file(path, kMaxConfigBytes) : std::string();
}

}  // namespace

Result<TokenizerFiles> read_tokenizer_files(const std::string& directory) {
  const std::string model = directory + "/tokenizer.model", json = directory + "/tokenizer.json";
  TokenizerFiles files;
  QUIRE_ASSIGN(files.tokenizer_config, read_if_there(directory + "/tokenizer_config.json"));
  QUIRE_ASSIGN(const bool has_model, path_exists(model));
  QUIRE_ASSIGN(const bool has_json, path_exists(json));
  if (has_model) {
    QUIRE_ASSIGN(files.model, read_text_file(model, kMaxTokenizerModelBytes));
    QUIRE_ASSIGN(files.added_tokens, read_if_there(directory + "/added_tokens.json"));
  } else if (has_json) {
    QUIRE_ASSIGN(files.json, read_text_file(json, kMaxTokenizerJsonBytes));
  } else {
    QUIRE_ASSIGN(const bool tekken, path_exists(directory + "/tekken.json"));
    return Status(Code::kNotFound, "neither tokenizer.model nor tokenizer.json in " + directory +
                                       (tekken ? "; tekken.json, which is there, is not read" : ""));
  }
  return files;
}

}  // namespace quire
