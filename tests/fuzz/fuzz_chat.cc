// Conversations by every known chat template, and texts that a checkpoint gives as its template.
// Input: a byte that chooses the template; a byte of flags (1: no answer, 2: no thinking, 4: a date); then messages: a
// byte for the role (s, u, a; others are unknown roles), the text, and a byte 1 between messages.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/chat/chat_format.h"
#include "lib/chat/known_templates.h"
#include "tests/fuzz/require.h"
#include "tests/unit/chat/chat_tokenizer.h"

namespace {

using namespace quire;

const std::vector<std::string>& names() {
  static const auto kNames = [] {
    std::vector<std::string> all;
    const auto list = nlohmann::json::parse(list_chat_templates());
    for (const auto& known : list["templates"]) all.push_back(known["name"]);
    return all;
  }();
  return kNames;
}

const ModelTokenizer& tokenizer() {
  static const auto kTokenizer = test::chat_tokenizer();
  return *kTokenizer;
}

std::vector<ChatMessage> take_messages(std::string_view rest) {
  std::vector<ChatMessage> messages;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('\1'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (one.empty()) continue;
    const char role = one[0];
    messages.push_back({role == 's'   ? "system"
                        : role == 'u' ? "user"
                        : role == 'a' ? "assistant"
                                      : one.substr(0, 1),
                        one.substr(1)});
  }
  return messages;
}

// The ids of what is written: as many control tokens as the template wrote, whatever the messages say.
void check_ids(const ChatTemplate& known, const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  static const auto is_control = [](int32_t id) { return tokenizer().tokenizer().is_control(id); };
  ChatState state, same;
  const auto pieces = known.write(messages, options, state);
  const auto format = ChatFormat::make(known, tokenizer());
  FUZZ_REQUIRE(format.ok());
  const auto ids = format.value()->encode(messages, options, -1, same);
  FUZZ_REQUIRE(ids.ok() == pieces.ok());
  const bool known_code =
      pieces.ok() || pieces.status().code() == Code::kInvalidArgument || pieces.status().code() == Code::kInvalidText;
  FUZZ_REQUIRE(known_code);
  FUZZ_REQUIRE(pieces.ok() || !state.begun);
  if (!pieces.ok()) return;
  const auto n_written = std::count_if(pieces.value().begin(), pieces.value().end(),
                                       [](const ChatPiece& piece) { return piece.kind != ChatPiece::Kind::kText; });
  FUZZ_REQUIRE(std::count_if(ids.value().begin(), ids.value().end(), is_control) == n_written);
}

// Fed one by one, messages are taken as they are together: all of them, or as many as are good.
void check_parts(const ChatTemplate& known, const std::vector<ChatMessage>& messages, ChatOptions options) {
  if (known.name().ends_with("-answering")) return;  // they begin answers unasked, which the next message would end
  options.begin_answer = false;
  ChatState whole, parts;
  const bool good = known.write(messages, options, whole).ok();
  bool all = !messages.empty();
  for (const ChatMessage& message : messages) all = all && known.write(std::span(&message, 1), options, parts).ok();
  // DeepSeek's program writes a later system message first, which cannot be once something is written.
  FUZZ_REQUIRE(good == all || (good && known.name().starts_with("deepseek")));
  FUZZ_REQUIRE(!all || (whole.n_turns == parts.n_turns && whole.begun && parts.begun));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const auto recognised = recognise_chat_template(all);
  FUZZ_REQUIRE(recognised.ok() || recognised.status().code() == Code::kUnsupported);
  if (size < 2) return 0;
  const ChatTemplate& known = *find_chat_template(names()[data[0] % names().size()]).value();
  ChatOptions options;
  options.begin_answer = (data[1] & 1) == 0;
  options.thinking = (data[1] & 2) == 0;
  if (data[1] & 4) options.date = ChatDate{2025, 3, 9};
  const std::vector<ChatMessage> messages = take_messages(all.substr(2));
  check_ids(known, messages, options);
  check_parts(known, messages, options);
  return 0;
}
