// Conversations in a session: messages behind answers, however these ended, and what a cut leaves of them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lib/chat/known_templates.h"
#include "tests/unit/chat/chat_tokenizer.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const std::vector<ChatMessage> kAsk = {{"user", "one"}};
const std::vector<ChatMessage> kAskAgain = {{"user", "three"}};
const ChatOptions kSilent{.begin_answer = false, .date = ChatDate{2025, 1, 2}};
const ChatOptions kBegin{.date = ChatDate{2025, 1, 2}};

const std::shared_ptr<Model>& model() {
  static const auto kModel = [] {
    auto loaded = load("text_256");
    loaded->tokenizer = chat_tokenizer();
    return loaded;
  }();
  return kModel;
}

std::shared_ptr<Session> make() { return make_session(model(), with_strategy("full")); }

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  const auto list = nlohmann::json::parse(list_chat_templates());
  for (const auto& entry : list["templates"]) names.push_back(entry["name"]);
  return names;
}

// What `state` and the messages become on the model's tokenizer.
Tokens encode(const std::string& name, const std::vector<ChatMessage>& messages, ChatState& state,
              const ChatOptions& options) {
  const auto format = take(ChatFormat::make(*take(find_chat_template(name)), *model()->tokenizer));
  return take(format->encode(messages, options, state.begun ? 0 : -1, state));  // no text comes first
}

Logits logits_after(const Tokens& tokens) {
  const auto session = make();
  expect_ok(session->feed_tokens(tokens));
  expect_ok(run(session).status);
  return last_logits(*session);
}

StreamOptions choosing(int32_t token, int64_t max_tokens = 4) {
  StreamOptions options = generating(max_tokens);
  options.ignore_eos = false;
  options.sampling.logit_bias = {{token, 1e6f}};
  return options;
}

void append(Tokens& tokens, const Tokens& more) { tokens.insert(tokens.end(), more.begin(), more.end()); }

TEST(Conversation, ContinuingIsReadingTheWhole) {
  int n_compared = 0;
  for (const std::string& name : template_names()) {
    const bool is_long =
        name.starts_with("mistral-small") || name.starts_with("smollm3") || name.starts_with("granite3.3");
    if (is_long) continue;  // by its beginning
    if (name == "qwen3-thinking-2507" || name == "qwq" || name == "deepseek-r1")
      continue;  // they begin answers with a thought, which they take out of earlier ones
    const bool spaced = name.starts_with("llama2") || name.starts_with("phi3") || name == "mistral-v1" ||
                        name == "mistral-v3" || name == "mistral-v7" || name == "openchat";
    const auto parts = make();
    expect_ok(parts->feed_messages(kAsk, kBegin, name));
    expect_ok(run(parts).status);
    expect_ok(parts->feed_text(spaced ? " two" : "two", false, true));  // what the answer comes to
    expect_ok(parts->feed_messages(kAskAgain, kBegin, ""));
    expect_ok(run(parts).status);

    const auto whole = make();
    expect_ok(whole->feed_messages(std::vector<ChatMessage>{{"user", "one"}, {"assistant", "two"}, {"user", "three"}},
                                   kBegin, name));
    expect_ok(run(whole).status);
    EXPECT_EQ(position(*parts), position(*whole)) << name;
    EXPECT_TRUE(same_bits(last_logits(*parts), last_logits(*whole))) << name;
    ++n_compared;
  }
  EXPECT_EQ(n_compared, 29);
}

// However an answer ends, the next messages close its turn, and nothing is read again.
TEST(Conversation, AnswersEndInEveryWay) {
  for (const char* how : {"max_tokens", "end of turn", "cancel", "close", "nothing"}) {
    ChatState state;
    Tokens tokens = encode("chatml", kAsk, state, kBegin);
    const auto session = make();
    expect_ok(session->feed_messages(kAsk, kBegin, "chatml"));
    const std::string end = how;
    const int32_t im_end = control_id(*model()->tokenizer, "<|im_end|>");
    if (end == "max_tokens") append(tokens, run(session, generating(4)).tokens);
    if (end == "end of turn") {
      EXPECT_EQ(run(session, choosing(im_end)).end.token, im_end);
    }
    if (end == "cancel" || end == "close") {
      const auto stream = take(GenerationStream::open(session, generating(20)));
      append(tokens, read(*stream, 3).tokens);
      if (end == "cancel") {
        expect_ok(stream->cancel());
        EXPECT_EQ(read(*stream).end.finish, FinishReason::kCancelled);
      } else {
        stream->close();
      }
    }
    const int64_t n_answer =
        static_cast<int64_t>(tokens.size()) - (position(*session).tokens + position(*session).pending);
    EXPECT_EQ(n_answer, 0) << how;
    const int64_t read_before = stats(*session).n_prefilled;
    expect_ok(session->feed_messages(kAskAgain, kBegin, ""));
    append(tokens, encode("chatml", kAskAgain, state, kBegin));
    expect_ok(run(session).status);
    EXPECT_EQ(position(*session), (Position{static_cast<int64_t>(tokens.size()), 0})) << how;
    EXPECT_TRUE(same_bits(last_logits(*session), logits_after(tokens))) << how;
    // The last token of a cancelled or closed answer may have been taken back and is then read again.
    ChatState first;
    const auto n_first = static_cast<int64_t>(encode("chatml", kAsk, first, kBegin).size());
    const auto n_second = static_cast<int64_t>(encode("chatml", kAskAgain, first, kBegin).size());
    EXPECT_LE(stats(*session).n_prefilled - read_before, n_second + 1 + (end == "nothing" ? n_first : 0)) << how;
  }
}

TEST(Conversation, TheEndOfATurnIsAStopId) {
  const int32_t im_end = control_id(*model()->tokenizer, "<|im_end|>");
  const auto session = make();
  expect_ok(session->feed_messages(kAsk, kBegin, "chatml"));
  const Position before{0, position(*session).pending};
  const Outcome outcome = run(session, choosing(im_end));
  EXPECT_EQ(outcome.end.finish, FinishReason::kStopId);
  EXPECT_EQ(outcome.end.token, im_end);
  EXPECT_EQ(outcome.tokens, Tokens{});
  EXPECT_EQ(position(*session), (Position{before.pending, 0}));

  StreamOptions ignoring = choosing(im_end);
  ignoring.ignore_eos = true;
  EXPECT_EQ(run(session, ignoring).tokens, Tokens(4, im_end));
  EXPECT_EQ(run(session, choosing(im_end)).end.finish, FinishReason::kStopId);  // the answer goes on

  // Before min_tokens it is not chosen.
  StreamOptions at_least = choosing(im_end);
  at_least.min_tokens = 2;
  EXPECT_EQ(run(session, at_least).tokens.size(), 2u);
}

TEST(Conversation, TheEndOfATurnIsOneToAnswersAlone) {
  const int32_t im_end = control_id(*model()->tokenizer, "<|im_end|>");
  const auto text = make();
  expect_ok(text->feed_text("one", false, true));
  EXPECT_EQ(run(text, choosing(im_end)).tokens, Tokens(4, im_end));
  const auto silent = make();
  expect_ok(silent->feed_messages(kAsk, kSilent, "chatml"));
  EXPECT_EQ(run(silent, choosing(im_end)).tokens, Tokens(4, im_end));
  const auto llama = make();
  expect_ok(llama->feed_messages(kAsk, kBegin, "llama2"));
  EXPECT_EQ(run(llama, choosing(2)).end.finish, FinishReason::kEos);
}

TEST(Conversation, NoMessagesBeginAnAnswer) {
  const auto at_once = make(), later = make();
  expect_ok(at_once->feed_messages(kAsk, kBegin, "llama3"));
  expect_ok(later->feed_messages(kAsk, kSilent, "llama3"));
  expect_ok(later->feed_messages({}, kBegin, ""));
  EXPECT_EQ(position(*later), position(*at_once));
  expect_ok(run(at_once).status);
  expect_ok(run(later).status);
  EXPECT_TRUE(same_bits(last_logits(*later), last_logits(*at_once)));
}

TEST(Conversation, CutsGoBackToAnyPlaceButTheMiddleOfMessages) {
  const auto session = make();
  expect_ok(session->feed_messages(kAsk, kBegin, "chatml"));
  const int64_t first = position(*session).pending;
  const Tokens answer = run(session, generating(5)).tokens;
  expect_ok(session->feed_messages(kAskAgain, kBegin, ""));
  const int64_t second = position(*session).pending;
  expect_ok(run(session, generating(3)).status);

  // In the middle of the answer: it is still open.
  expect_ok(session->truncate(first + 2));
  expect_ok(session->feed_messages(kAskAgain, kBegin, ""));
  EXPECT_EQ(position(*session).pending, second);
  expect_ok(run(session).status);
  ChatState state;
  Tokens tokens = encode("chatml", kAsk, state, kBegin);
  append(tokens, {answer[0], answer[1]});
  append(tokens, encode("chatml", kAskAgain, state, kBegin));
  EXPECT_TRUE(same_bits(last_logits(*session), logits_after(tokens)));

  // In the middle of messages.
  for (const int64_t place : {first + 3, first - 1}) {
    expect_ok(session->truncate(place));
    const Status refused = session->feed_messages(kAskAgain, kBegin, "");
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr("are cut"));
    // Text behind the cut does not make up for it.
    expect_ok(session->feed_text(std::string(50, 'x'), false, true));
    EXPECT_EQ(session->feed_messages(kAskAgain, kBegin, "").code(), Code::kInvalidArgument);
    expect_ok(session->discard_pending());
    // To where these messages began it works.
    expect_ok(session->truncate(place > first ? first : 0));
    expect_ok(session->feed_messages(place > first ? kAskAgain : kAsk, kBegin, "chatml"));
    expect_ok(session->discard_pending());
  }
  expect_ok(session->reset());
  expect_ok(session->feed_messages(kAsk, kBegin, "llama3"));  // as new: another template
}

TEST(Conversation, DiscardedMessagesLeaveWhatWasBefore) {
  const auto session = make();
  expect_ok(session->feed_messages(kAsk, kBegin, "chatml"));
  expect_ok(run(session, generating(3)).status);
  const int64_t n_tokens = position(*session).tokens;
  expect_ok(session->feed_messages(kAskAgain, kBegin, ""));
  const int64_t n_pending = position(*session).pending;
  expect_ok(session->discard_pending());
  EXPECT_EQ(position(*session), (Position{n_tokens, 0}));
  expect_ok(session->feed_messages(kAskAgain, kBegin, ""));
  EXPECT_EQ(position(*session).pending, n_pending);
}

TEST(Conversation, MessagesFollowMessagesOrAnswers) {
  const auto refused = [](Session& session, std::string_view name) {
    const Position before = position(session);
    const Status status = session.feed_messages(kAskAgain, kBegin, name);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_EQ(position(session), before);
    return status.message();
  };
  const auto text = make();
  expect_ok(text->feed_text("one", false, true));
  EXPECT_THAT(refused(*text, "chatml"), HasSubstr("begins an empty session"));

  const auto silent = make();
  expect_ok(silent->feed_messages(kAsk, kSilent, "chatml"));
  expect_ok(silent->feed_text("one", false, true));
  EXPECT_THAT(refused(*silent, ""), HasSubstr("no answer had begun"));

  const auto other = make();
  expect_ok(other->feed_messages(kAsk, kBegin, "chatml"));
  EXPECT_THAT(refused(*other, "llama3"), HasSubstr("began with the chat template chatml"));
  expect_ok(other->feed_messages(kAskAgain, kBegin, "chatml"));

  const auto turns = make();
  expect_ok(turns->feed_messages(kAsk, kSilent, "llama2"));
  EXPECT_THAT(refused(*turns, ""), HasSubstr("messages[0] (user)"));
  EXPECT_THAT(refused(*turns, "llama2"), HasSubstr("in turn"));
}

TEST(Conversation, UnknownOrMissing) {
  const auto session = make();
  EXPECT_EQ(session->feed_messages(kAsk, kBegin, "").code(), Code::kNotFound);  // the checkpoint has no template
  EXPECT_EQ(session->feed_messages(kAsk, kBegin, "chat").code(), Code::kInvalidArgument);
  EXPECT_EQ(session->feed_messages({}, kBegin, "chatml").code(), Code::kInvalidArgument);
  const auto plain = make_session(load("text_256"), with_strategy("full"));
  EXPECT_EQ(plain->feed_messages(kAsk, kBegin, "chatml").code(), Code::kUnsupported);
  EXPECT_EQ(position(*session), (Position{0, 0}));

  expect_ok(session->feed_messages(kAsk, kBegin, "chatml"));
  const auto stream = take(GenerationStream::open(session, generating(5)));
  EXPECT_EQ(session->feed_messages(kAskAgain, kBegin, "").code(), Code::kBusy);
}

}  // namespace
}  // namespace quire::test
