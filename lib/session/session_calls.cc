// The calls of a session that work on its contents: each holds the session's turn meanwhile.
#include <algorithm>

#include "lib/session/session.h"

namespace quire {
namespace {

Status check_labels(std::span<const TextLabel> labels, size_t text_size) {
  for (size_t i = 0; i < labels.size(); ++i) {
    const TextLabel& label = labels[i];
    if (label.begin >= 0 && label.begin <= label.end && label.end <= static_cast<int64_t>(text_size)) continue;
    return Status(Code::kInvalidArgument,
                  "labels[" + std::to_string(i) + "] is bytes " + std::to_string(label.begin) + " to " +
                      std::to_string(label.end) + " of a text of " + std::to_string(text_size),
                  static_cast<int64_t>(i));
  }
  return {};
}

// Whether messages can follow a text of n_tokens whose last ones are `last`.
Status check_messages_follow(const FedMessages& last, int64_t n_tokens, std::string_view template_name) {
  const auto refuse = [](const std::string& why) { return Status(Code::kInvalidArgument, why); };
  const std::string_view own = last.format->chat_template().name();
  if (!template_name.empty() && template_name != own) {
    return refuse("the conversation began with the chat template " + std::string(own) + "; it cannot go on with " +
                  std::string(template_name));
  }
  const std::string place = "tokens " + std::to_string(last.begin) + " to " + std::to_string(last.end);
  if (last.cut) {
    return refuse("messages that were fed as " + place + " of the text are cut: truncate the session to " +
                  std::to_string(last.begin) + " tokens, or reset it");
  }
  if (!last.state.answering && n_tokens > last.end) {
    return refuse(std::to_string(n_tokens - last.end) + " tokens follow the messages that were fed as " + place +
                  " of the text, but no answer had begun there; messages must follow messages, or an answer");
  }
  return {};
}

}  // namespace

// Tokens, marks and labels of a text that is fed at once, to the end of another one. `first`: that is empty.
Status Session::encode_feed(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels,
                            bool first, TextState* to) const {
  QUIRE_TRY(check_labels(labels, text.size()));
  const Tokenizer& tokenizer = model_->tokenizer->tokenizer();
  std::vector<int64_t> starts;
  const EncodeOptions options{
      .first_segment = first, .add_bos = add_bos, .parse_special = parse_special, .cancel = &closing_};
  QUIRE_ASSIGN(const auto ids, tokenizer.encode(text, options, &starts));
  std::vector<TextMark> marks;
  QUIRE_TRY(find_marks(tokenizer, text, ids, starts, marks, &closing_));
  std::vector<TokenLabel> added;
  for (const TextLabel& label : labels) {
    auto from = std::lower_bound(starts.begin(), starts.end(), label.begin);
    const int64_t n = std::lower_bound(from, starts.end(), label.end) - from;
    // A label in which no token begins stands at the last one that begins before it, and goes with that.
    if (n == 0 && from != starts.begin()) --from;
    added.push_back({label.id, from - starts.begin(), n});
  }
  to->feed(ids, added, marks);
  return {};
}

Status Session::feed_text(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const bool first = contents_->text.n_tokens() == 0;
  return unless_closed(encode_feed(text, parse_special, add_bos, labels, first, &contents_->text));
}

Status Session::check_ids(std::span<const int32_t> ids) const {
  const int32_t vocab = model_->llama->config().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    return Status(Code::kInvalidToken,
                  "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                      " is outside the vocabulary of " + std::to_string(vocab),
                  static_cast<int64_t>(i));
  }
  return {};
}

Status Session::feed_tokens(std::span<const int32_t> ids) {
  QUIRE_TRY(check_ids(ids));
  const Call call(*this);
  QUIRE_TRY(call.status());
  std::vector<TextMark> marks;
  if (contents_->text.n_tokens() == 0) QUIRE_TRY(find_prefix_mark(model_->tokenizer->tokenizer(), ids, marks));
  contents_->text.feed(ids, {}, marks);
  return {};
}

Status Session::feed_messages(std::span<const ChatMessage> messages, const ChatOptions& options,
                              std::string_view template_name) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  TextState& text = contents_->text;
  FedMessages next;
  if (const FedMessages* last = text.last_messages()) {
    QUIRE_TRY(check_messages_follow(*last, text.n_tokens(), template_name));
    next.format = last->format;
    next.state = last->state;
  } else {
    if (text.n_tokens() > 0) {
      return Status(Code::kInvalidArgument, "the session holds " + std::to_string(text.n_tokens()) +
                                                " tokens that are no messages; a conversation begins an empty session");
    }
    QUIRE_ASSIGN(const ChatTemplate* chosen, choose_chat_template(*model_->tokenizer, template_name));
    QUIRE_ASSIGN(next.format, ChatFormat::make(*chosen, *model_->tokenizer));
  }
  const int32_t before = text.n_tokens() == 0 ? -1 : text.tokens().back();
  const auto encoded = next.format->encode(messages, options, before, next.state, &closing_);
  if (!encoded.ok()) return unless_closed(encoded.status());
  const std::vector<int32_t>& ids = encoded.value();
  std::vector<TextMark> marks;
  if (text.n_tokens() == 0) QUIRE_TRY(find_prefix_mark(model_->tokenizer->tokenizer(), ids, marks));
  text.feed_messages(ids, std::move(next), marks);
  return {};
}

Status Session::feed_positions(std::span<const int32_t> ids, std::span<const int64_t> positions) {
  QUIRE_TRY(check_ids(ids));
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (!strategy_->takes_positions()) {
    return Status(Code::kUnsupported, strategy_->canonical() + " sets distances of its own; positions are for full");
  }
  std::vector<TextMark> marks;
  if (contents_->text.n_tokens() == 0) QUIRE_TRY(find_prefix_mark(model_->tokenizer->tokenizer(), ids, marks));
  return contents_->text.feed_at(ids, positions, marks);
}

Status Session::discard_pending() {
  const Call call(*this);
  QUIRE_TRY(call.status());
  contents_->cut_pending(contents_->text.n_settled());
  return {};
}

Status Session::reset() {
  const Call call(*this);
  QUIRE_TRY(call.status());
  contents_->forget_from(0);
  return {};
}

Status Session::truncate(int64_t n_tokens) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const int64_t all = contents_->text.n_tokens();
  if (n_tokens < 0 || n_tokens > all) {
    return Status(Code::kInvalidArgument,
                  "n_tokens is " + std::to_string(n_tokens) + "; expected 0 to " + std::to_string(all));
  }
  if (n_tokens >= contents_->text.n_settled()) {
    contents_->cut_pending(n_tokens);
  } else {
    contents_->forget_from(n_tokens);
  }
  return {};
}

Status Session::tokens(std::vector<int32_t>* ids) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const auto all = contents_->text.tokens();
  ids->assign(all.begin(), all.end());
  return {};
}

Status Session::logits(int64_t first_token, int64_t n_rows, float* out) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (n_rows < 1) return Status(Code::kInvalidArgument, "n_rows is " + std::to_string(n_rows) + "; expected 1 or more");
  QUIRE_ASSIGN(const auto rows, contents_->kept.logits(first_token, n_rows));
  if (out) std::copy(rows.begin(), rows.end(), out);
  return {};
}

Status Session::hidden_states(int64_t first_token, int64_t n_rows, float* out) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (n_rows < 1) return Status(Code::kInvalidArgument, "n_rows is " + std::to_string(n_rows) + "; expected 1 or more");
  QUIRE_ASSIGN(const auto rows, contents_->kept.hidden_states(first_token, n_rows));
  if (out) std::copy(rows.begin(), rows.end(), out);
  return {};
}

Status Session::scores(int64_t first_token, int64_t n, float* out) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (n < 1) return Status(Code::kInvalidArgument, "n is " + std::to_string(n) + "; expected 1 or more");
  QUIRE_ASSIGN(const auto scores, contents_->kept.scores(first_token, n));
  if (out) std::copy(scores.begin(), scores.end(), out);
  return {};
}

Status Session::label_attention(std::vector<LabelAttention>* labels) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (!strategy_->selects_chunks()) {
    return Status(Code::kUnsupported, strategy_->canonical() + " sees what it sees by position: it chooses no chunks");
  }
  labels->clear();
  for (const TokenLabel& label : contents_->text.labels()) {
    labels->push_back({label.id, label.first_token, label.n_tokens, 0});
  }
  share_choices(contents_->kept.choices(), strategy_->selection().chunk, *labels);
  return {};
}

Result<CitedShares> Session::cited_shares(int64_t first, int64_t n) const {
  const CitedRows& rows = contents_->kept.cited();
  const int64_t end = contents_->text.n_settled();  // of the answer; the row of its last token is of none
  if (rows.range().end == 0) {
    return Status(Code::kNotFound, "the last stream was not opened with QUIRE_STREAM_CITE, or the text was cut since");
  }
  const int64_t begin = rows.from() + 1;
  if (begin >= end) return Status(Code::kNotFound, "the last stream generated no tokens");
  if (first == -1) {
    first = std::min(rows.first() + 1, end - 1);
    n = end - first;
  }
  if (n < 1 || first < 0 || first >= end || n > end - first) {
    return Status(Code::kNotFound, "the last stream generated no tokens from token " + std::to_string(first) +
                                       " on, or less than " + std::to_string(n) + "; its answer is tokens " +
                                       std::to_string(begin) + " to " + std::to_string(end));
  }
  return CitedShares::make(rows, contents_->text.fed(), first, n);
}

Status Session::passages(int64_t first, int64_t n, int64_t most, std::vector<Passage>* passages,
                         std::vector<int64_t>* label_ids) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  QUIRE_ASSIGN(const CitedShares shares, cited_shares(first, n));
  *passages = shares.passages(most);
  QUIRE_TRY(find_bytes(model_->tokenizer->tokenizer(), contents_->text, *passages));
  const auto& labels = contents_->text.labels();
  find_labels(labels, *passages);
  label_ids->clear();
  for (const Passage& p : *passages) label_ids->push_back(p.label < 0 ? 0 : labels[static_cast<size_t>(p.label)].id);
  return {};
}

Status Session::label_shares(int64_t first, int64_t n, std::vector<LabelAttention>* labels) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  QUIRE_ASSIGN(const CitedShares shares, cited_shares(first, n));
  labels->clear();
  for (const TokenLabel& label : contents_->text.labels()) {
    const double share = shares.of(label.first_token, label.first_token + label.n_tokens);
    labels->push_back({label.id, label.first_token, label.n_tokens, share});
  }
  return {};
}

}  // namespace quire
