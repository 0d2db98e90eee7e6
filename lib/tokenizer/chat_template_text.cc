#include "lib/tokenizer/chat_template_text.h"

#include <optional>
#include <utility>

#include "lib/format/gguf.h"
#include "lib/format/json.h"
#include "lib/support/os_file.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

constexpr int64_t kMaxTemplateBytes = (1 << 20) - 1;
constexpr int64_t kMaxConfigBytes = 32 << 20;

Status none(const std::string& directory) {
  return Status(Code::kNotFound, directory +
                                     " has no chat template: neither chat_template.jinja nor a chat_template in "
                                     "chat_template.json or tokenizer_config.json");
}

// `where` names the text in messages.
Result<std::string> checked(const std::string& text, const std::string& where) {
  if (static_cast<int64_t>(text.size()) > kMaxTemplateBytes) {
    return Status(Code::kBadFile, where + " has " + std::to_string(text.size()) + " bytes; at most " +
                                      std::to_string(kMaxTemplateBytes) + " are expected");
  }
  if (utf8_first_invalid(text) != text.size()) return Status(Code::kBadFile, where + " is not UTF-8");
  return text;
}

// Of a list of templates with names.
const Json* find_default(const Json::Array& templates) {
  for (const Json& entry : templates) {
    const Json* name = entry.find("name");
    if (name && name->string() && *name->string() == "default") return entry.find("template");
  }
  return nullptr;
}

// The member chat_template of a JSON file. Nothing: there is no such file or member.
Result<std::optional<std::string>> read_member(const std::string& path) {
  QUIRE_ASSIGN(const bool exists, path_exists(path));
  if (!exists) return std::optional<std::string>();
  QUIRE_ASSIGN(const std::string text, read_text_file(path, kMaxConfigBytes));
  QUIRE_ASSIGN(const Json object, parse_json_object(text, path));
  const Json* found = object.find("chat_template");
  if (!found || found->is_null()) return std::optional<std::string>();
  if (found->array()) found = find_default(*found->array());
  if (!found || !found->string()) {
    return Status(Code::kBadFile, path + ": chat_template is neither a text nor a list with one named \"default\"");
  }
  QUIRE_ASSIGN(std::string chat_template, checked(*found->string(), path + ": chat_template"));
  return std::optional<std::string>(std::move(chat_template));
}

}  // namespace

Result<std::string> read_chat_template(const std::string& directory) {
  const std::string own_file = directory + "/chat_template.jinja";
  QUIRE_ASSIGN(const bool has_own_file, path_exists(own_file));
  if (has_own_file) {
    QUIRE_ASSIGN(const std::string text, read_text_file(own_file, kMaxTemplateBytes));
    return checked(text, own_file);
  }
  for (const char* name : {"/chat_template.json", "/tokenizer_config.json"}) {
    QUIRE_ASSIGN(auto found, read_member(directory + name));
    if (found) return std::move(*found);
  }
  return none(directory);
}

Result<std::string> read_chat_template(const GgufHeader& header) {
  constexpr char kKey[] = "tokenizer.chat_template";
  const auto at = header.metadata.find(kKey);
  if (at == header.metadata.end())
    return Status(Code::kNotFound, "the file has no chat template: no " + std::string(kKey));
  if (!at->second.string()) return Status(Code::kBadFile, std::string(kKey) + " is no text");
  return checked(*at->second.string(), kKey);
}

}  // namespace quire
