#include "lib/tokenizer/chat_template.h"

#include "lib/format/gguf.h"
#include "lib/format/json.h"
#include "lib/support/os_file.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;
constexpr int64_t kMaxConfigBytes = 32 << 20;

}  // namespace

Result<std::string> read_chat_template(const std::string& directory) {
  const std::string alone = directory + "/chat_template.jinja", config_path = directory + "/tokenizer_config.json";
  if (path_exists(alone)) {
    QUIRE_ASSIGN(std::string text, read_text_file(alone, kMaxTemplateBytes));
    if (utf8_first_invalid(text) != text.size()) return Status(Code::kBadFile, alone + " is not UTF-8");
    return text;
  }
  if (!path_exists(config_path)) return std::string();
  QUIRE_ASSIGN(const std::string text, read_text_file(config_path, kMaxConfigBytes));
  QUIRE_ASSIGN(const Json config, parse_json_object(text, config_path));
  const JsonReader reader(config, config_path);
  const Json* value = reader.find("chat_template");
  if (!value) return std::string();
  if (value->string()) return *value->string();
  if (!value->array()) return reader.bad("chat_template", "a string or an array of templates");
  for (const Json& named : *value->array()) {
    const Json *name = named.find("name"), *content = named.find("template");
    if (name && name->string() && *name->string() == "default" && content && content->string())
      return *content->string();
  }
  return std::string();
}

Result<std::string> read_chat_template(const GgufHeader& header) {
  const auto at = header.metadata.find("tokenizer.chat_template");
  if (at == header.metadata.end()) return std::string();
  const std::string* text = at->second.string();
  if (!text || utf8_first_invalid(*text) != text->size()) {
    return Status(Code::kBadFile, "tokenizer.chat_template is no text of UTF-8");
  }
  return *text;
}

}  // namespace quire
