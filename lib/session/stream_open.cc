// Opening a stream: checks what is asked of the session, and what is to be said first.
#include <algorithm>
#include <utility>

#include "lib/session/provenance.h"
#include "lib/session/stream_block.h"

namespace quire {
namespace {

int64_t saturating_add(int64_t a, int64_t b) { return a > kNoLimit - b ? kNoLimit : a + b; }

// `next`: where the first generated token will stand.
Status overflow_status(const Session& session, int64_t prompt, int64_t next, int64_t max_tokens, int64_t reach) {
  return Status(Code::kOverflow,
                std::to_string(prompt) + " tokens of prompt" +
                    (next > prompt ? ", up to position " + std::to_string(next - 1) + "," : "") + " and " +
                    std::to_string(max_tokens) + " to generate exceed the " + std::to_string(reach) + " tokens that " +
                    session.strategy() + " can serve; choose another strategy or an overflow policy",
                saturating_add(next, max_tokens));
}

Status check_bias(const SamplingOptions& sampling, int32_t vocab) {
  for (size_t i = 0; i < sampling.logit_bias.size(); ++i) {
    const int32_t token = sampling.logit_bias[i].first;
    if (token >= 0 && token < vocab) continue;
    return Status(Code::kInvalidToken,
                  "logit_bias[" + std::to_string(i) + "] names token " + std::to_string(token) +
                      ", which is outside the vocabulary of " + std::to_string(vocab),
                  static_cast<int64_t>(i));
  }
  return {};
}

// Marks the tokens whose text contains a breaker, and control tokens.
Status find_breakers(const Tokenizer& tokenizer, StreamOptions& options) {
  auto& marks = options.sampling.dry_breakers;
  marks.assign(static_cast<size_t>(tokenizer.size()), false);
  std::string bytes;
  for (int32_t token = 0; token < tokenizer.size(); ++token) {
    bytes.clear();
    QUIRE_TRY(tokenizer.append_bytes(token, ControlText::kNone, bytes));
    marks[static_cast<size_t>(token)] =
        tokenizer.is_control(token) || std::any_of(options.dry_breakers.begin(), options.dry_breakers.end(),
                                                   [&](const auto& b) { return bytes.find(b) != std::string::npos; });
  }
  return {};
}

CiteRange cite_range(const StreamOptions& options, int64_t prompt) {
  if (!options.cite) return {};
  const int64_t end = options.cite_end > 0 ? options.cite_end : prompt - kRecentTokens;
  return {kSinkTokens, std::max(kSinkTokens, end)};
}

}  // namespace

Result<std::shared_ptr<GenerationStream>> GenerationStream::open(const std::shared_ptr<Session>& session,
                                                                 StreamOptions options) {
  QUIRE_ASSIGN(Session::Work work, session->begin_work());
  SessionContents& contents = work.contents();
  const TextState& text = contents.text;
  const Strategy& strategy = contents.strategy();
  const LlamaModel& llama = *session->model().llama;
  const int64_t prompt = text.n_tokens();
  if (options.max_tokens > 0 && prompt == 0) {
    return Status(Code::kEmpty, "nothing was fed: there is no text to continue");
  }
  const int64_t next = text.positions().position(prompt);
  const int64_t reach = text.positions().consecutive() ? strategy.reach() : strategy.reach_with_gaps();
  const bool beyond = saturating_add(next, options.max_tokens) > reach;
  const OverflowPolicy policy = session->options().overflow;
  if (policy == OverflowPolicy::kError && beyond) {
    return overflow_status(*session, prompt, next, options.max_tokens, reach);
  }
  const auto& steps = options.sampling.steps;
  if (std::any_of(steps.begin(), steps.end(), [](const auto& s) { return s.kind == SamplerStep::Kind::kDry; })) {
    QUIRE_TRY(find_breakers(session->model().tokenizer->tokenizer(), options));
  }
  if (options.cite_end > prompt) {
    return Status(Code::kInvalidArgument, "cite_end is " + std::to_string(options.cite_end) + "; the text has " +
                                              std::to_string(prompt) + " tokens before the answer");
  }
  QUIRE_TRY(check_bias(options.sampling, llama.config().vocab_size));
  const int64_t limit = policy == OverflowPolicy::kExtrapolate ? kNoLimit : text.positions().tokens_below(reach);
  const auto due = session->due_messages();
  std::list<SessionMessage> messages(due.begin(), due.end());
  if (policy == OverflowPolicy::kExtrapolate && beyond) {
    messages.push_back({MessageCode::kUntrainedPositions, "positions beyond " + std::to_string(reach) +
                                                              " were never trained: expect worse answers there"});
  }
  std::shared_ptr<GenerationStream> stream(
      new GenerationStream(session, std::move(options), limit, text, std::move(messages)));
  // Answers to messages end with the turn. The scheduler does not know the stream yet.
  const FedMessages* messages_before = text.last_messages();
  if (messages_before && messages_before->state.answering && !stream->options_.ignore_eos) {
    stream->generator_.add_stops({.ids = {messages_before->format->end_of_turn()}, .strings = {}});
  }
  contents.kept.begin(text.n_computed(), std::max<int64_t>(0, prompt - 1), cite_range(stream->options_, prompt));
  QUIRE_TRY(work.open_stream(stream));
  return stream;
}

GenerationStream::GenerationStream(std::shared_ptr<Session> session, StreamOptions options, int64_t limit,
                                   const TextState& text, std::list<SessionMessage> messages)
    : session_(std::move(session)),
      options_(std::move(options)),
      limit_(limit),
      first_settled_(text.n_settled()),
      prompt_total_(text.n_unread()),
      started_(Clock::now()),
      step_(std::make_unique<std::optional<Step>>()),
      generator_(*session_->model().tokenizer, options_),
      drafts_(options_.draft_tokens > 0 && !options_.constrain) {
  events_.messages = std::move(messages);
  n_stop_ids_ = options_.stop.ids.size();
  n_stop_strings_ = options_.stop.strings.size();
}

GenerationStream::~GenerationStream() = default;

}  // namespace quire
