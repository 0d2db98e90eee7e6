// The ids of conversations: those of the written text, but never a control token from a message.
#include "lib/chat/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "lib/chat/known_templates.h"
#include "tests/unit/chat/chat_golden.h"
#include "tests/unit/chat/chat_tokenizer.h"
#include "tests/unit/tokenizer/bpe_data.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& [name, written] : chat_golden()["written"].items()) names.push_back(name);
  return names;
}

const ChatTemplate& named(const std::string& name) { return *find_chat_template(name).value(); }

Ids encode(const std::string& name, const ModelTokenizer& tokenizer, const GoldenConversation& golden) {
  ChatState state;
  return ChatFormat::make(named(name), tokenizer).value()->encode(golden.messages, golden.options, -1, state).value();
}

int32_t last_of(const Ids& ids) { return ids.empty() ? -1 : ids.back(); }

// With control tokens as they are written.
std::string text_of(const ModelTokenizer& tokenizer, const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) {
    EXPECT_TRUE(tokenizer.tokenizer().append_bytes(id, ControlText::kPiece, text).ok());
  }
  return text;
}

std::vector<std::string> control_texts(const ModelTokenizer& tokenizer, const Ids& ids) {
  std::vector<std::string> texts;
  for (const int32_t id : ids) {
    if (!tokenizer.tokenizer().is_control(id)) continue;
    texts.push_back(text_of(tokenizer, {id}));
  }
  return texts;
}

// The ids of a written text with its control tokens. What follows a beginning- or end-of-sequence token is a text of
// its own, with a dummy prefix, unless it begins with a space.
Ids encode_turns(const ModelTokenizer& tokenizer, std::string_view text) {
  Ids ids;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min({text.size(), text.find("<s>", begin), text.find("</s>", begin)});
    if (end == begin) end = text.find('>', begin) + 1;
    const bool marked = begin > 0;
    const EncodeOptions options{
        .first_segment = !marked || text[begin] != ' ', .add_bos = false, .parse_special = true};
    const Ids more = tokenizer.tokenizer().encode(text.substr(begin, end - begin), options).value();
    ids.insert(ids.end(), more.begin(), more.end());
    begin = end;
  }
  return ids;
}

// Templates whose tokens take white space with them.
bool strips(const std::string& name) { return name == "phi3" || name == "phi3.5"; }

// Templates whose answers begin with a thought.
bool begins_thoughts(const std::string& name) {
  return name == "qwen3-thinking-2507" || name == "qwq" || name == "deepseek-r1";
}

// How many were compared.
int compare_with_written_text(const ModelTokenizer& tokenizer) {
  int n_compared = 0;
  for (const std::string& name : template_names()) {
    if (strips(name) || !ChatFormat::make(named(name), tokenizer).ok()) continue;
    for (size_t i = 0; i + 1 < n_golden_conversations(); ++i) {  // the last one has look-alikes
      const auto& written = chat_golden()["written"][name][i];
      if (written.is_null()) continue;
      EXPECT_EQ(encode(name, tokenizer, GoldenConversation(i)), encode_turns(tokenizer, written.get<std::string>()))
          << name << " " << i;
      ++n_compared;
    }
  }
  return n_compared;
}

TEST(ChatFormat, IdsAreThoseOfTheWrittenText) {
  EXPECT_EQ(compare_with_written_text(*chat_tokenizer()), 36 * 3 - 2);  // two templates refuse a system message
  // In the vocabularies of Llama 2 and Mistral v1 [INST] is ordinary text, and so are the marks of Zephyr.
  EXPECT_EQ(compare_with_written_text(*chat_tokenizer({})), 6 * 3 - 2);
  // Tokens reach over the ends of what is written piece by piece: " [" is one here.
  EXPECT_EQ(compare_with_written_text(*chat_tokenizer({"\xE2\x96\x81["}, PieceType::kNormal)), 6 * 3 - 2);
}

// The programs of Llama 2 and Mistral encode each turn by itself, with a dummy prefix behind <s> and </s>.
TEST(ChatFormat, EachTurnBeginsWithADummyPrefixWhereItsMarkIsText) {
  const auto tokenizer = chat_tokenizer({"\xE2\x96\x81["}, PieceType::kNormal);
  const int32_t begin = tokenizer->tokenizer().encode("[INST]", {.add_bos = false}).value().at(0);
  std::string piece;
  EXPECT_TRUE(tokenizer->tokenizer().append_bytes(begin, ControlText::kPiece, piece).ok());
  EXPECT_EQ(piece, " [");
  const std::vector<ChatMessage> messages = {{"user", "one"}, {"assistant", "two"}, {"user", "three"}};
  for (const char* name : {"llama2", "llama2-stripped", "mistral-v0.2", "mistral-v1"}) {
    const auto format = ChatFormat::make(named(name), *tokenizer).value();
    ChatState whole_state, state;
    ChatOptions silent;
    silent.begin_answer = false;
    const Ids whole = format->encode(messages, {}, -1, whole_state).value();
    EXPECT_EQ(whole.at(1), begin) << name;
    Ids parts;  // message by message
    for (const ChatMessage& message : messages) {
      const Ids more = format->encode({&message, 1}, silent, last_of(parts), state).value();
      if (message.role == "user") {
        EXPECT_TRUE(more.at(0) == begin || more.at(1) == begin) << name;
      }
      parts.insert(parts.end(), more.begin(), more.end());
    }
    EXPECT_EQ(parts, whole) << name;
  }
}

// Mistral v0.1 writes a space behind </s>, also where that is the last message of a call: the next one adds none.
TEST(ChatFormat, ASpaceBehindAnAnswerIsWrittenOnce) {
  const auto tokenizer = chat_tokenizer({"\xE2\x96\x81["}, PieceType::kNormal);
  const std::vector<ChatMessage> messages = {{"user", "one"}, {"assistant", "two"}, {"user", "three"}};
  const auto format = ChatFormat::make(named("mistral-v0.1"), *tokenizer).value();
  ChatState whole_state, state;
  const Ids whole = format->encode(messages, {}, -1, whole_state).value();
  Ids parts = format->encode(std::span(messages).first(2), {}, -1, state).value();
  const Ids last = format->encode(std::span(messages).last(1), {}, last_of(parts), state).value();
  parts.insert(parts.end(), last.begin(), last.end());
  EXPECT_THAT(text_of(*tokenizer, whole), HasSubstr("</s> [INST] three"));
  EXPECT_EQ(text_of(*tokenizer, parts), text_of(*tokenizer, whole));
}

// Phi-3's tokens take the newline that is written behind them, and white space of a message; what follows is a text of
// its own, with a dummy prefix. Where a vocabulary has no such token it is text, and so is what follows.
TEST(ChatFormat, TokensTakeTheWhiteSpaceBehindThem) {
  const auto tokenizer = chat_tokenizer();
  const auto id = [&](const char* token) { return control_id(*tokenizer, token); };
  const std::vector<ChatMessage> messages = {
      {"system", " \xE3\x80\x80 be brief "}, {"user", "one"}, {"assistant", "\n"}, {"user", "<|end|>\n"}};
  Ids expected;
  const std::pair<const char*, const char*> turns[] = {
      {"<|system|>", "be brief "}, {"<|user|>", "one"}, {"<|assistant|>", ""}, {"<|user|>", "<|end|>\n"}};
  for (const auto& [token, text] : turns) {
    expected.push_back(id(token));
    if (*text != 0) {
      const Ids ids = tokenizer->tokenizer().encode(text, {.first_segment = true, .add_bos = false}).value();
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    expected.push_back(id("<|end|>"));
  }
  expected.push_back(id("<|assistant|>"));
  for (const char* name : {"phi3", "phi3.5"}) {
    ChatState state;
    EXPECT_EQ(ChatFormat::make(named(name), *tokenizer).value()->encode(messages, {}, -1, state).value(), expected);
  }
}

// Phi-4's do so on both sides, as tokenizer.json says.
TEST(ChatFormat, TokensTakeTheWhiteSpaceThatTheTokenizerGivesThem) {
  nlohmann::json file = bpe_file("byte_level");
  const std::map<int, const char*> texts = {{481, "<|im_start|>"}, {482, "<|im_sep|>"}, {483, "<|im_end|>"}};
  for (auto& added : file["added_tokens"]) {
    const auto text = texts.find(added["id"].get<int>());
    if (text == texts.end()) continue;
    added.update({{"content", text->second}, {"special", true}, {"lstrip", true}, {"rstrip", true}});
  }
  const ModelTokenizer tokenizer(std::move(*make_json(file)), 484, {}, Status(Code::kNotFound, "no chat template"));
  const std::vector<ChatMessage> messages = {
      {"system", " \u3000be brief\n"}, {"user", "one \n"}, {"assistant", " \t"}, {"user", "\n two  words \n"}};
  for (const char* name : {"phi4", "phi4-answering"}) {
    const auto format = ChatFormat::make(named(name), tokenizer).value();
    const std::string written = render_chat(named(name), tokenizer, messages, {}).value();
    const EncodeOptions parse{.add_bos = false, .parse_special = true};
    const Ids expected = tokenizer.tokenizer().encode(written, parse).value();
    ChatState state, part_state;
    EXPECT_EQ(format->encode(messages, {}, -1, state).value(), expected) << name;
    Ids parts;
    const ChatOptions silent{.begin_answer = false, .date = {}};
    for (const ChatMessage& message : messages) {
      const bool is_last = &message == &messages.back();
      const ChatOptions options = is_last ? ChatOptions() : silent;
      const Ids more = format->encode({&message, 1}, options, last_of(parts), part_state).value();
      parts.insert(parts.end(), more.begin(), more.end());
    }
    // The answering one begins an answer behind each message of the user's.
    EXPECT_EQ(parts == expected, std::string_view(name) == "phi4") << name;
  }
}

TEST(ChatFormat, LookAlikesInMessagesStayText) {
  const auto tokenizer = chat_tokenizer();
  for (const std::string& name : template_names()) {
    // No system message; <think> is taken apart; the newlines of the text are in its tokens; behind <s> and </s> stands
    // a dummy prefix.
    const bool is_other = name.starts_with("mistral-v0.") || name.starts_with("qwen3") ||
                          name.starts_with("deepseek") || strips(name) || name == "zephyr" || name == "openchat";
    if (is_other) continue;
    GoldenConversation golden(n_golden_conversations() - 1);
    const Ids ids = encode(name, *tokenizer, golden);
    // All of it is there as it was written, yet the control tokens are those of a conversation without look-alikes.
    EXPECT_EQ(text_of(*tokenizer, ids), chat_golden()["written"][name].back().get<std::string>()) << name;
    golden.messages[1].text = golden.messages[2].text = "text";
    EXPECT_EQ(control_texts(*tokenizer, ids), control_texts(*tokenizer, encode(name, *tokenizer, golden))) << name;
  }
}

TEST(ChatFormat, ThinkingIsMarkedByTokensWhereTheVocabularyHasThem) {
  const GoldenConversation golden(1);  // thinking is off
  const auto with = chat_tokenizer();
  const auto without = chat_tokenizer({"<|im_start|>", "<|im_end|>"});
  EXPECT_THAT(control_texts(*with, encode("qwen3", *with, golden)), testing::Contains("<think>").Times(1));
  EXPECT_THAT(control_texts(*without, encode("qwen3", *without, golden)), testing::Not(testing::Contains("<think>")));
  EXPECT_EQ(text_of(*with, encode("qwen3", *with, golden)), text_of(*without, encode("qwen3", *without, golden)));
}

TEST(ChatFormat, EndOfTurn) {
  const auto tokenizer = chat_tokenizer();
  const auto end = [&](const char* name) { return ChatFormat::make(named(name), *tokenizer).value()->end_of_turn(); };
  EXPECT_EQ(end("chatml"), control_id(*tokenizer, "<|im_end|>"));
  EXPECT_EQ(end("llama3.1"), control_id(*tokenizer, "<|eot_id|>"));
  EXPECT_EQ(end("mistral-v3"), control_id(*tokenizer, "</s>"));
  EXPECT_EQ(end("llama2"), control_id(*tokenizer, "</s>"));
}

TEST(ChatFormat, MissingTokensAreListed) {
  const auto tokenizer = chat_tokenizer({"<|im_start|>"});
  const auto refused = [&](const char* name) { return ChatFormat::make(named(name), *tokenizer).status(); };
  EXPECT_EQ(refused("chatml").code(), Code::kUnsupported);
  EXPECT_THAT(refused("chatml").message(), HasSubstr("chatml needs"));
  EXPECT_THAT(refused("chatml").message(), testing::EndsWith(": <|im_end|>"));
  EXPECT_THAT(refused("llama3").message(), HasSubstr("<|start_header_id|>, <|end_header_id|>, <|eot_id|>"));
  EXPECT_TRUE(refused("llama2").ok());
}

// Tokens that the tokenizer finds in ordinary text: SentencePiece's user-defined pieces, and added tokens of
// tokenizer.json that are not special, as <｜User｜> and <｜Assistant｜> of DeepSeek-R1's distilled models are.
TEST(ChatFormat, MessagesDoNotBecomeTokensThatOrdinaryTextBecomes) {
  const auto control = chat_tokenizer(), user_defined = chat_tokenizer(control_tokens(), PieceType::kUserDefined);
  for (const char* name : {"chatml", "gemma3", "phi4"}) {
    const auto format = ChatFormat::make(named(name), *user_defined);
    ASSERT_TRUE(format.ok()) << name << ": " << format.status().message();
    for (const char* text : {"plain", "a<|im_start|>b<|im_end|><start_of_turn>", "<｜User｜><｜User｜>",
                             "<<｜Assistant｜>|im_sep|>", "<|im_sep|>"}) {
      const std::vector<ChatMessage> messages = {{"user", text}, {"assistant", "two"}, {"user", text}};
      ChatState state, expected_state;
      const Ids ids = format.value()->encode(messages, {}, -1, state).value();
      const Ids expected =
          ChatFormat::make(named(name), *control).value()->encode(messages, {}, -1, expected_state).value();
      EXPECT_EQ(text_of(*user_defined, ids), text_of(*control, expected)) << name;
      for (const std::string_view token : named(name).tokens()) {
        const int32_t id = control_id(*control, std::string(token));
        EXPECT_EQ(std::count(ids.begin(), ids.end(), id), std::count(expected.begin(), expected.end(), id))
            << name << " " << text;
      }
    }
  }
}

TEST(ChatFormat, TheTokensOfDistilledModelsNeedNotBeSpecial) {
  nlohmann::json file = bpe_file("byte_level");
  for (const auto& [id, text, special] :
       {std::tuple(480, "<｜begin▁of▁sentence｜>", true), std::tuple(481, "<｜User｜>", false),
        std::tuple(482, "<｜Assistant｜>", false), std::tuple(483, "<｜end▁of▁sentence｜>", true)}) {
    for (auto& added : file["added_tokens"]) {
      if (added["id"] == id) added.update({{"content", text}, {"special", special}, {"normalized", false}});
    }
  }
  const std::string config = R"({"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"})";
  auto made = make_json(file, config);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const ModelTokenizer tokenizer(std::move(made.value()), 484, {}, Status(Code::kNotFound, "no chat template"));
  const auto format = ChatFormat::make(named("deepseek-r1-2501"), tokenizer);
  ASSERT_TRUE(format.ok()) << format.status().message();
  ChatState state;
  const std::vector<ChatMessage> messages = {{"user", "one<｜User｜>two"}};
  const Ids ids = format.value()->encode(messages, {}, -1, state).value();
  EXPECT_EQ(text_of(tokenizer, ids), "<｜begin▁of▁sentence｜><｜User｜>one<｜User｜>two<｜Assistant｜>");
  EXPECT_THAT(ids, testing::Contains(481).Times(1));
  EXPECT_EQ(ids.at(1), 481);
  EXPECT_EQ(ids.back(), 482);
}

TEST(ChatFormat, TheTemplateIsTheNamedOneOrTheCheckpoints) {
  const auto choose = [](Result<std::string> own, std::string_view name) {
    return choose_chat_template(*chat_tokenizer({}, PieceType::kControl, std::move(own)), name);
  };
  const std::string mistral =
      "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
      "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
      "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == "
      "'assistant' "
      "%}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are "
      "supported!') }}"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(choose(mistral, "").value()->name(), "mistral-v0.2");
  EXPECT_EQ(choose(mistral, "chatml").value()->name(), "chatml");
  EXPECT_EQ(choose(std::string("{{ other }}"), "").status().code(), Code::kUnsupported);
  EXPECT_EQ(choose(std::string("{{ other }}"), "qwen2").value()->name(), "qwen2");
  EXPECT_EQ(choose(Status(Code::kNotFound, "none"), "").status().code(), Code::kNotFound);
  EXPECT_EQ(choose(Status(Code::kNotFound, "none"), "llama2").value()->name(), "llama2");
  EXPECT_EQ(choose(mistral, "mistral").status().code(), Code::kInvalidArgument);
}

// Message by message, and the ends of answers: the same ids as all at once. The answers say what begin_answer began.
TEST(ChatFormat, ContinuingWritesTheSameIds) {
  const auto tokenizer = chat_tokenizer();
  const std::vector<ChatMessage> messages = {
      {"user", "one"}, {"assistant", "two"}, {"user", "three"}, {"assistant", "four"}};
  const EncodeOptions ordinary{.first_segment = false};
  for (const std::string& name : template_names()) {
    const auto format = ChatFormat::make(named(name), *tokenizer).value();
    const ChatOptions begin{.date = ChatDate{2025, 1, 2}}, silent{.begin_answer = false, .date = begin.date};
    ChatState whole_state, state;
    const Ids whole = format->encode(std::span(messages).first(3), silent, -1, whole_state).value();
    const auto all = std::span(messages);

    Ids parts = format->encode(all.first(1), silent, -1, state).value();
    for (size_t i = 1; i < 3; ++i) {
      const Ids more = format->encode(all.subspan(i, 1), silent, last_of(parts), state).value();
      parts.insert(parts.end(), more.begin(), more.end());
    }
    // qwen3 gives a last answer a place for thinking; the answering ones begin an answer each time.
    const bool differs = name.starts_with("qwen3") || name == "llama3-answering" || name == "phi4-answering";
    EXPECT_EQ(parts == whole, !differs) << name;

    ChatState answered;
    Ids told = format->encode(all.first(1), begin, -1, answered).value();
    EXPECT_TRUE(answered.answering) << name;
    // What the model would have to say after what was begun.
    const bool spaced = name.starts_with("llama2") || name == "mistral-v1" || name == "mistral-v3" ||
                        name == "mistral-v7" || name == "openchat";
    const EncodeOptions options = strips(name) ? EncodeOptions{.add_bos = false} : ordinary;
    const Ids answer = tokenizer->tokenizer().encode(spaced ? " two" : "two", options).value();
    told.insert(told.end(), answer.begin(), answer.end());
    const Ids next = format->encode(all.subspan(2, 1), silent, last_of(told), answered).value();
    told.insert(told.end(), next.begin(), next.end());
    // An answer that begins with a thought is none of those that came before, whose thoughts are taken out.
    EXPECT_EQ(told == whole, !begins_thoughts(name)) << name;
  }
}

// Behind an answer some templates have no place for another one. What they have one for may be begun without a message.
TEST(ChatFormat, AnAnswerWithoutAMessageIsBegunOrRefused) {
  const auto tokenizer = chat_tokenizer();
  const ChatMessage message{"user", "one"};
  for (const std::string& name : template_names()) {
    SCOPED_TRACE(name);
    const auto format = ChatFormat::make(named(name), *tokenizer).value();
    const ChatOptions options{.date = ChatDate{2025, 1, 2}};
    ChatState state;
    const Ids begun = format->encode({&message, 1}, options, -1, state).value();
    ASSERT_TRUE(state.answering);
    const int64_t n_turns = state.n_turns;
    const auto again = format->encode({}, options, begun.back(), state);
    EXPECT_TRUE(state.answering);
    EXPECT_EQ(state.n_turns > n_turns, again.ok());
    if (!again.ok()) {
      EXPECT_EQ(again.status().code(), Code::kInvalidArgument);
      EXPECT_THAT(again.status().message(), testing::HasSubstr(name + " has a user's message before each answer"));
    }
  }
}

// Text behind </s> has its dummy prefix wherever a call ends, and text behind [/INST] has none.
TEST(ChatFormat, AnswersBeginTheSameInACallOfTheirOwn) {
  const auto tokenizer = chat_tokenizer();
  ChatOptions silent{.begin_answer = false, .date = ChatDate{2025, 1, 2}};
  ChatOptions begin{.date = silent.date};
  const std::vector<ChatMessage> messages = {{"assistant", "one"},  {"assistant", "two"},  {"user", "three"},
                                             {"assistant", "four"}, {"user", "five"},      {"assistant", "six"},
                                             {"user", "seven"},     {"assistant", "eight"}};
  for (const char* name : {"mistral-v7-tekken", "mistral-small-3"}) {
    const auto format = ChatFormat::make(named(name), *tokenizer).value();
    ChatState whole_state, state, answered;
    const Ids whole = format->encode(messages, silent, -1, whole_state).value();
    Ids parts, told;
    for (const ChatMessage& message : messages) {
      const Ids more = format->encode({&message, 1}, silent, last_of(parts), state).value();
      parts.insert(parts.end(), more.begin(), more.end());
    }
    EXPECT_EQ(parts, whole) << name;
    // Two of the answers are what a model said.
    const auto tell = [&](std::span<const ChatMessage> next, const ChatOptions& options) {
      const Ids more = format->encode(next, options, last_of(told), answered).value();
      told.insert(told.end(), more.begin(), more.end());
    };
    tell(std::span(messages).first(2), silent);
    for (size_t i = 2; i < 6; i += 2) {
      tell({&messages[i], 1}, begin);
      const Ids answer = tokenizer->tokenizer().encode(messages[i + 1].text, {.first_segment = false}).value();
      told.insert(told.end(), answer.begin(), answer.end());
    }
    tell({&messages[6], 1}, silent);
    tell({&messages[7], 1}, silent);
    EXPECT_EQ(told, whole) << name;
  }
}

TEST(ChatFormat, ASystemTextWaitsForItsMessage) {
  const auto tokenizer = chat_tokenizer();
  const std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "one"}};
  for (const char* name : {"llama2", "mistral-v1", "mistral-v3", "mistral-v3-tekken"}) {
    const auto format = ChatFormat::make(named(name), *tokenizer).value();
    ChatState whole_state, state;
    const Ids whole = format->encode(messages, {}, -1, whole_state).value();
    Ids parts = format->encode(std::span(messages).first(1), {}, -1, state).value();
    EXPECT_FALSE(state.answering) << name;
    const Ids more = format->encode(std::span(messages).subspan(1), {}, last_of(parts), state).value();
    parts.insert(parts.end(), more.begin(), more.end());
    EXPECT_EQ(parts, whole) << name;
    EXPECT_FALSE(state.system) << name;
  }
}

}  // namespace
}  // namespace quire::test
