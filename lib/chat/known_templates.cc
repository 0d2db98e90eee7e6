#include "lib/chat/known_templates.h"

#include <algorithm>
#include <array>

#include "lib/chat/templates.h"
#include "lib/format/json.h"
#include "lib/support/content_hash.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

struct KnownText {
  std::string_view hash;  // ContentHash of the text, without its last newline
  size_t bytes;
  std::string_view name;
};

// Printed by tests/peers/chat_templates.py. Some have several texts: newlines in strings written as such or as \n,
// and editions that differ only in what conversations of texts do not use.
constexpr KnownText kTexts[] = {
    {"f0a6a8278439fdb056191e205a440263", 196, "chatml"},
    {"577a7fce73f72e1ee2be9fd6966bb5eb", 199, "chatml"},
    {"a344e8c84fb0282dda206a9e46a4ac01", 291, "chatml"},
    {"7a128e0473e4be90846f9032c2079ea2", 294, "chatml"},
    {"cc9ddd5a40bc1c0c8fb5d937b1e8f5d0", 2630, "chatml"},
    {"68c860e7356f7ab320f20c2b5139eaee", 327, "qwen1.5"},
    {"5e2c14b656a8e5628dc1c6775f9ced80", 332, "qwen1.5"},
    {"e580c2da83415028d5d943bd0bd9082f", 328, "qwen2"},
    {"7c4c17cbc95b1d56c79034a9d5f0ae58", 333, "qwen2"},
    {"0fe61c920a9d3925c31e98db8c19d1d3", 2426, "qwen2"},
    {"e392aa06018503fd2469c9508f79506e", 2506, "qwen2.5"},
    {"0fab82ce8f4d5175c9e0155c80737cf2", 4168, "qwen3"},
    {"4457e3d12b367a860283f874ff58d644", 4116, "qwen3"},
    {"cb53a145cfc5e326bdee364f122d2352", 4049, "qwen3-thinking-2507"},
    {"98f63cc3d421d28f99ab995e9629dacd", 368, "smollm2"},
    {"f0323af61a5d6e2383059ddcb62b07a0", 373, "smollm2"},
    {"f45ff469005da372a5970aa085999fac", 3794, "smollm3-unsloth"},
    {"97aac26c37e4a675cb7c5112dfc4a3b0", 811, "llama2"},
    {"4adb1f81f5c508ea24f6d97f87d647f5", 815, "llama2"},
    {"77bf02e7498448ae9780cf9e7c61d5ec", 740, "llama2-stripped"},
    {"aa1e59b4b64cef5a5e790988f4074a5f", 744, "llama2-stripped"},
    {"09facc0e4aa943189799ad6e2dea0594", 389, "llama3"},
    {"11cc8d79e9815d5c866fc8fa50da12fe", 393, "llama3"},
    {"8f20b9eda669ce10b97891b7adc1beb8", 348, "llama3-answering"},
    {"0debe51b618cd79280e4830e93c6d9f7", 352, "llama3-answering"},
    {"9ddcd6cd71f96dd76ca7779b7730196a", 4613, "llama3.1"},
    {"573e1bcc8c56f178c3d57e38f5ff0756", 3826, "llama3.2"},
    {"70bf874ad98f31f4b7f52373b11c60d7", 477, "mistral-v0.1"},
    {"f395fc5daa794129a5d004210ebce758", 470, "mistral-v0.2"},
    {"6aef58edf0d62df9f89cfc57f651ff3d", 1057, "mistral-v1"},
    {"df3ebcd92fa9a63fc6614466504d495b", 3958, "mistral-v3"},
    {"638e5c8b05f6278ccae647ce0048756b", 3944, "mistral-v3-tekken"},
    {"5b658f89dcb1716f11381d1c62000f60", 423, "mistral-v7"},
    {"fd2311e127f73e91f76f9bea77871b27", 2703, "mistral-small-3"},
    {"c6261aae0f6075f94f6d27f8ff5d6905", 2866, "mistral-small-3"},
    {"cd1c13f65ef7d82737dfea3c41ab3c14", 1597, "mistral-small-3"},
    {"59e852f715f77598df8ea8c96e21d4e6", 6703, "mistral-small-3.2"},
    {"0850c77e9e7c37ed82fc89c04c54ba66", 407, "phi3"},
    {"63b7f5a9d64cae9b94a6330d43aa662a", 414, "phi3"},
    {"ceaa31b1554ec3f5cd8aff863abd4554", 430, "phi3.5"},
    {"a1551dd94cfdabed57b9f91cf031b03a", 437, "phi3.5"},
    {"32dc022941195ae770325d9540e2904f", 462, "phi4"},
    {"a50143285cdef922bc5711ad3f99d670", 377, "phi4-answering"},
    {"f4ba63d66919b6d41c0680782a7c9316", 423, "phi4-mini"},
    {"34005d257135f18e4358989c28834b99", 398, "phi4-mini"},
    {"54581ea7c7166920ad20145afdf4bf61", 1185, "granite3.0"},
    {"3f6c99fb28dafcf5c420578c21c4e98c", 1194, "granite3.0"},
    {"c8297af664a8a1413ecf25733ce105a3", 4566, "granite3.3"},
    {"a81083ba27667fa2484f12b9f5152ece", 2762, "qwq"},
    {"a7b627ae2661d349f48e53fd1793f416", 2237, "deepseek-r1"},
    {"b59c4fde1d06da0055b25ceb4910aa64", 2246, "deepseek-r1"},
    {"1b463e0a153a76caf47cfd234bfcd76a", 2478, "deepseek-r1"},
    {"287aafc427fc0dc778af3769c3733079", 2229, "deepseek-r1-2501"},
    {"ba826724af56e537759e4eeeb1ec9b77", 2237, "deepseek-r1-2501"},
    {"5ae4edc1a6c08aa61db34e9fc60441d8", 410, "zephyr"},
    {"dad915b146bfa1ee3885e6de6675991a", 222, "openchat"},
    {"6c84c2da794fd4c1d9c620dcaf86f38d", 1531, "gemma3"},
};
constexpr size_t kMaxBytes = 64 << 10;  // longer texts are not looked at: none of the known ones comes near

std::array<std::span<const ChatTemplate* const>, 7> families() {
  return {chatml_templates(),  llama_templates(),    mistral_templates(), phi_templates(),
          granite_templates(), deepseek_templates(), turn_templates()};
}

const ChatTemplate* find(std::string_view name) {
  for (const auto family : families()) {
    for (const ChatTemplate* known : family) {
      if (known->name() == name) return known;
    }
  }
  return nullptr;
}

// Whether the program writes the tokens that this template needs, or the text that it is known by.
bool has_its_tokens(const ChatTemplate& known, std::string_view program) {
  const auto writes = [&](std::string_view token) { return program.find(token) != std::string_view::npos; };
  return known.tokens().empty() ? writes(known.mark())
                                : std::all_of(known.tokens().begin(), known.tokens().end(), writes);
}

// The names of the templates that write the tokens of `program`; of all, if there is no such template.
std::string names(std::string_view program = {}) {
  std::string likely, all;
  for (const auto family : families()) {
    for (const ChatTemplate* known : family) {
      all.append(all.empty() ? "" : ", ").append(known->name());
      if (has_its_tokens(*known, program)) likely.append(likely.empty() ? "" : ", ").append(known->name());
    }
  }
  return likely.empty() ? all : likely;
}

std::string normalised(std::string_view jinja) {
  std::string text;
  text.reserve(jinja.size());
  for (size_t i = 0; i < jinja.size(); ++i) {
    if (jinja[i] != '\r') {
      text.push_back(jinja[i]);
    } else if (i + 1 == jinja.size() || jinja[i + 1] != '\n') {
      text.push_back('\n');
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

Result<const ChatTemplate*> find_chat_template(std::string_view name) {
  if (const ChatTemplate* known = find(name)) return known;
  return Status(Code::kInvalidArgument,
                "no chat template is called " + json_excerpt(utf8_sanitize(name)) + "; there are " + names());
}

Result<const ChatTemplate*> recognise_chat_template(std::string_view jinja) {
  if (jinja.size() > kMaxBytes) {
    return Status(Code::kUnsupported, "the checkpoint's chat template has " + std::to_string(jinja.size()) +
                                          " bytes; those known have less than " + std::to_string(kMaxBytes));
  }
  const std::string text = normalised(jinja);
  const std::string hash = ContentHash().add(std::as_bytes(std::span(text.data(), text.size()))).hex();
  for (const KnownText& known : kTexts) {
    if (known.bytes == text.size() && known.hash == hash) return find(known.name);
  }
  return Status(Code::kUnsupported,
                "the checkpoint's chat template is not a known one: " + json_excerpt(utf8_sanitize(text)) + ", " +
                    std::to_string(text.size()) + " bytes, hash " + hash +
                    "; one that writes the same may be named: " + names(text));
}

std::string list_chat_templates() {
  Json::Array templates;
  for (const auto family : families()) {
    for (const ChatTemplate* known : family) {
      Json::Object entry;
      entry.emplace("name", Json(std::string(known->name())));
      entry.emplace("description", Json(std::string(known->description())));
      templates.emplace_back(std::move(entry));
    }
  }
  Json::Object list;
  list.emplace("templates", Json(std::move(templates)));
  std::string text;
  Json(std::move(list)).print(text, SIZE_MAX);
  return text;
}

}  // namespace quire
