// Every known template writes what its Jinja program wrote (golden.json), and is found by name and by its text.
#include "lib/chat/known_templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/unit/chat/chat_golden.h"
#include "tests/unit/chat/chat_tokenizer.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(KnownTemplates, WriteWhatTheirProgramsWrite) {
  const auto tokenizer = chat_tokenizer();
  std::set<std::string> compared;
  for (const auto& [name, written] : chat_golden()["written"].items()) {
    const ChatTemplate& known = *find_chat_template(name).value();
    for (size_t i = 0; i < written.size(); ++i) {
      const GoldenConversation golden(i);
      const auto text = render_chat(known, *tokenizer, golden.messages, golden.options);
      if (written[i].is_null()) {
        EXPECT_EQ(text.status().code(), Code::kInvalidArgument) << name << " " << i;
      } else {
        EXPECT_EQ(text.value(), written[i].get<std::string>()) << name << " " << i;
      }
    }
    compared.insert(name);
  }
  const auto list = nlohmann::json::parse(list_chat_templates())["templates"];
  EXPECT_EQ(list.size(), compared.size());
  for (const auto& entry : list) {
    EXPECT_TRUE(compared.contains(entry["name"])) << entry;
    EXPECT_FALSE(entry["description"].get<std::string>().empty());
  }
}

TEST(KnownTemplates, AreRecognisedLetterByLetter) {
  EXPECT_EQ(recognise_chat_template(kChatMl).value()->name(), "chatml");
  EXPECT_EQ(recognise_chat_template(std::string(kChatMl) + "\n").value()->name(), "chatml");
  std::string spelled(kChatMl);  // with newlines in its strings, and with other line ends
  for (size_t at; (at = spelled.find("\\n")) != std::string::npos;) spelled.replace(at, 2, "\n");
  EXPECT_EQ(recognise_chat_template(spelled).value()->name(), "chatml");
  for (size_t at = 0; (at = spelled.find('\n', at)) != std::string::npos; at += 2) spelled.replace(at, 1, "\r\n");
  EXPECT_EQ(recognise_chat_template(spelled).value()->name(), "chatml");

  for (const std::string& other : {std::string(kChatMl) + " ", std::string(kChatMl) + "\n\n",
                                   " " + std::string(kChatMl), std::string(kChatMl.substr(1)), std::string()}) {
    EXPECT_EQ(recognise_chat_template(other).status().code(), Code::kUnsupported) << other;
  }
}

TEST(KnownTemplates, OthersAreRefusedByWhatTheyAre) {
  const Status unknown = recognise_chat_template("{{ messages }}\xFF").status();
  EXPECT_EQ(unknown.code(), Code::kUnsupported);
  for (const char* part : {"{{ messages }}", "15 bytes", "chatml", "mistral-v3-tekken"}) {
    EXPECT_THAT(unknown.message(), HasSubstr(part));
  }
  // Of one that writes some family's control tokens, that family's names are said alone.
  const Status chatml = recognise_chat_template("{{ '<|im_start|>' + x + '<|im_end|>' }}").status();
  EXPECT_THAT(chatml.message(), testing::EndsWith("may be named: chatml, qwen1.5, qwen2, qwen2.5, qwen3, "
                                                  "qwen3-thinking-2507, qwq, smollm2, smollm3, smollm3-unsloth"));
  const Status inst = recognise_chat_template("{{ '[INST]' + x + '[/INST]' }}").status();
  EXPECT_THAT(inst.message(), HasSubstr("may be named: llama2, "));
  EXPECT_THAT(inst.message(), testing::Not(HasSubstr("mistral-v7")));

  const Status long_one = recognise_chat_template(std::string(1 << 20, 'x')).status();
  EXPECT_EQ(long_one.code(), Code::kUnsupported);
  EXPECT_THAT(long_one.message(), HasSubstr("1048576 bytes"));
  EXPECT_LT(long_one.message().size(), 200u);

  const Status name = find_chat_template("chatML").status();
  EXPECT_EQ(name.code(), Code::kInvalidArgument);
  EXPECT_THAT(name.message(), HasSubstr("\"chatML\""));
  EXPECT_THAT(name.message(), HasSubstr("smollm3-unsloth"));
}

TEST(KnownTemplates, MessagesWithoutAPlaceAreRefusedByIndexAndRole) {
  const struct {
    const char* name;
    std::vector<ChatMessage> messages;
    size_t index;
  } cases[] = {
      {"llama2", {{"user", "a"}, {"user", "b"}}, 1},
      {"llama2", {{"user", "a"}, {"system", "b"}}, 1},
      {"mistral-v0.2", {{"system", "a"}, {"user", "b"}}, 0},
      {"mistral-v1", {{"assistant", "a"}}, 0},
      {"mistral-v3", {{"system", "a"}, {"user", "b"}, {"system", "c"}}, 2},
      {"llama2-stripped", {{"user", "a"}, {"system", "b"}}, 1},
      {"mistral-small-3.2", {{"user", "a"}, {"assistant", "b"}, {"system", "c"}}, 2},
      {"smollm3", {{"user", "a"}, {"system", "b"}}, 1},
  };
  for (const auto& c : cases) {
    ChatState state;
    const Status refused = find_chat_template(c.name).value()->write(c.messages, {}, state).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << c.name;
    EXPECT_EQ(refused.offset(), static_cast<int64_t>(c.index)) << c.name;
    EXPECT_THAT(refused.message(),
                HasSubstr("messages[" + std::to_string(c.index) + "] (" + std::string(c.messages[c.index].role) + ")"));
    EXPECT_THAT(refused.message(), HasSubstr(c.name));
    EXPECT_FALSE(state.begun) << c.name;  // as it was
  }
}

// DeepSeek-R1's program writes the last system message first, wherever it stands.
TEST(KnownTemplates, ASystemMessageThatBelongsInFrontIsRefusedLater) {
  const ChatTemplate& deepseek = *find_chat_template("deepseek-r1").value();
  ChatState state;
  const std::vector<ChatMessage> first = {{"user", "a"}, {"system", "b"}, {"system", "c"}},
                                 later = {{"user", "d"}, first[1]};
  const auto pieces = deepseek.write(first, {}, state).value();
  ASSERT_GE(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].kind, ChatPiece::Kind::kBos);
  EXPECT_EQ(pieces[1].text, "c");
  const Status refused = deepseek.write(later, {}, state).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.offset(), 1);
  EXPECT_THAT(refused.message(), HasSubstr("messages[1] (system)"));
  EXPECT_TRUE(state.answering);  // as it was
}

TEST(KnownTemplates, BadMessages) {
  const ChatTemplate& chatml = *find_chat_template("chatml").value();
  ChatState state;
  const auto write = [&](std::vector<ChatMessage> messages) { return chatml.write(messages, {}, state).status(); };
  EXPECT_THAT(write({{"user", "a"}, {"tool", "b"}}).message(), HasSubstr("messages[1].role is \"tool\""));
  EXPECT_EQ(write({{"User", "a"}}).code(), Code::kInvalidArgument);
  EXPECT_EQ(write({{"\xFF", "a"}}).code(), Code::kInvalidArgument);
  const Status text = write({{"user", "a"}, {"user", "b\xC3"}});
  EXPECT_EQ(text.code(), Code::kInvalidText);
  EXPECT_THAT(text.message(), HasSubstr("messages[1].text"));
  EXPECT_EQ(text.offset(), 1);
  EXPECT_EQ(write({}).code(), Code::kInvalidArgument);
  EXPECT_FALSE(state.begun);
}

// The templates that have a date have one of their own, too.
TEST(KnownTemplates, Dates) {
  const auto tokenizer = chat_tokenizer();
  const std::vector<ChatMessage> hello = {{"user", "Hello"}};
  const auto text = [&](const char* name, ChatOptions options) {
    return render_chat(*find_chat_template(name).value(), *tokenizer, hello, options).value();
  };
  EXPECT_THAT(text("llama3.1", {}), HasSubstr("Today Date: 26 Jul 2024\n"));
  EXPECT_THAT(text("llama3.1", {.date = ChatDate{2025, 1, 2}}), HasSubstr("Today Date: 02 Jan 2025\n"));
  for (const char* name : {"llama3.2", "smollm3", "mistral-small-3", "mistral-small-3.2"}) {
    const ChatDate before = today();
    const std::string written = text(name, {});
    const ChatDate after = today();
    EXPECT_TRUE(written == text(name, {.date = before}) || written == text(name, {.date = after})) << name;
    EXPECT_NE(text(name, {.date = ChatDate{2025, 1, 2}}), text(name, {.date = ChatDate{2025, 1, 3}})) << name;
  }
}

}  // namespace
}  // namespace quire::test
