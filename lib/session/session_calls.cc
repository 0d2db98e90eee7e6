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

}  // namespace

Status Session::feed_text(std::string_view text, bool parse_special, bool add_bos, std::span<const TextLabel> labels) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  QUIRE_TRY(check_labels(labels, text.size()));
  const bool first = contents_->text.n_tokens() == 0;
  std::vector<int64_t> starts;
  QUIRE_ASSIGN(const auto ids, model_->tokenizer->tokenizer().encode(text, {first, add_bos, parse_special},
                                                                     labels.empty() ? nullptr : &starts));
  std::vector<TokenLabel> added;
  for (const TextLabel& label : labels) {
    const auto from = std::lower_bound(starts.begin(), starts.end(), label.begin);
    const auto to = std::lower_bound(from, starts.end(), label.end);
    added.push_back({label.id, from - starts.begin(), to - from});
  }
  contents_->text.feed(ids, added);
  return {};
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
  contents_->text.feed(ids);
  return {};
}

Status Session::feed_positions(std::span<const int32_t> ids, std::span<const int64_t> positions) {
  QUIRE_TRY(check_ids(ids));
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (!strategy_->takes_positions()) {
    return Status(Code::kUnsupported, strategy_->canonical() + " sets distances of its own; positions are for full");
  }
  return contents_->text.feed_at(ids, positions);
}

Status Session::discard_pending() {
  const Call call(*this);
  QUIRE_TRY(call.status());
  contents_->text.cut_pending(contents_->text.n_settled());
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
    contents_->text.cut_pending(n_tokens);
  } else {
    contents_->forget_from(n_tokens);
  }
  return {};
}

Status Session::logits(int64_t first_token, int64_t n_rows, float* out, size_t capacity) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  const auto vocab = static_cast<size_t>(model_->llama->config().vocab_size);
  if (n_rows < 1) return Status(Code::kInvalidArgument, "n_rows is " + std::to_string(n_rows) + "; expected 1 or more");
  if (capacity / vocab < static_cast<size_t>(n_rows)) {
    return Status(Code::kBufferTooSmall, std::to_string(n_rows) + " rows of " + std::to_string(vocab) +
                                             " logits do not fit in " + std::to_string(capacity) + " floats");
  }
  QUIRE_ASSIGN(const auto rows, contents_->kept.logits(first_token, n_rows));
  std::copy(rows.begin(), rows.end(), out);
  return {};
}

Status Session::hidden_states(int64_t first_token, int64_t n_rows, float* out) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (n_rows < 1) return Status(Code::kInvalidArgument, "n_rows is " + std::to_string(n_rows) + "; expected 1 or more");
  QUIRE_ASSIGN(const auto rows, contents_->kept.hidden_states(first_token, n_rows));
  std::copy(rows.begin(), rows.end(), out);
  return {};
}

Status Session::scores(int64_t first_token, int64_t n, float* out) const {
  const Call call(*this);
  QUIRE_TRY(call.status());
  if (n < 1) return Status(Code::kInvalidArgument, "n is " + std::to_string(n) + "; expected 1 or more");
  QUIRE_ASSIGN(const auto scores, contents_->kept.scores(first_token, n));
  std::copy(scores.begin(), scores.end(), out);
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
  share_choices(contents_->kept.choices(), strategy_->kv_chunk(), *labels);
  return {};
}

}  // namespace quire
