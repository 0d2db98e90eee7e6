#include "tests/differential/traced_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace quire::test {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

#define EXPECT_STATUS(expected, call)                                                                                 \
  do {                                                                                                                \
    Outcome outcome;                                                                                                  \
    quire_error* const err = &outcome.error;                                                                          \
    outcome.status = (call);                                                                                          \
    EXPECT_EQ(quire_get_status_name(outcome.status), std::string(quire_get_status_name(expected))) << outcome.text(); \
  } while (0)

}  // namespace

TracedSession::TracedSession(quire_model* model, const quire_tokenizer* tokenizer, SessionPlan plan)
    : plan_(std::move(plan)),
      tokenizer_(tokenizer),
      vocab_(quire_tokenizer_get_vocab_size(tokenizer)),
      session_(make_session(model, plan_.options())) {}

// ---- calls while no stream is open

void TracedSession::append(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    positions_.push_back(positions_.empty() ? 0 : positions_.back() + 1);
    ids_.push_back(id);
  }
}

void TracedSession::feed_tokens(const std::vector<int32_t>& ids) {
  EXPECT_STATUS(QUIRE_OK, quire_session_feed_tokens(session_.get(), ids.data(), ids.size(), err));
  append(ids);
  check_counts();
}

void TracedSession::feed_text(const std::string& text, uint32_t flags) {
  const uint32_t encode = flags | (ids_.empty() ? 0 : QUIRE_TEXT_CONTINUE);
  std::vector<int32_t> ids(text.size() + 8);
  size_t n = 0;
  EXPECT_STATUS(QUIRE_OK,
                quire_tokenizer_encode(tokenizer_, text.data(), text.size(), encode, ids.data(), ids.size(), &n, err));
  ids.resize(n);
  EXPECT_STATUS(QUIRE_OK, quire_session_feed_text(session_.get(), text.data(), text.size(), flags, err));
  append(ids);
  check_counts();
}

void TracedSession::feed_positions(const std::vector<int32_t>& ids, int64_t gap) {
  std::vector<int64_t> positions;
  const int64_t first = (positions_.empty() ? 0 : positions_.back() + 1) + gap;
  for (size_t i = 0; i < ids.size(); ++i) positions.push_back(first + static_cast<int64_t>(i));
  EXPECT_STATUS(QUIRE_OK, quire_session_feed_positions(session_.get(), ids.data(), positions.data(), ids.size(), err));
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  positions_.insert(positions_.end(), positions.begin(), positions.end());
  check_counts();
}

void TracedSession::open(const StreamPlan& plan) {
  stream_plan_ = plan;
  n_generated_ = 0;
  const quire_stream_options options = stream_plan_.options();
  quire_stream* stream = nullptr;
  const bool nothing = plan.max_tokens > 0 && ids_.empty();
  EXPECT_STATUS(nothing ? QUIRE_ERROR_EMPTY : QUIRE_OK, quire_stream_open(session_.get(), &options, &stream, err));
  stream_.reset(stream);
}

void TracedSession::cut(int64_t n_tokens) {
  ids_.resize(static_cast<size_t>(n_tokens));
  positions_.resize(static_cast<size_t>(n_tokens));
  logits_.erase(logits_.lower_bound(n_tokens), logits_.end());
  scores_.erase(scores_.lower_bound(n_tokens), scores_.end());
  greedy_.erase(greedy_.lower_bound(n_tokens), greedy_.end());
}

void TracedSession::truncate(int64_t n_tokens) {
  EXPECT_STATUS(QUIRE_ERROR_INVALID_ARGUMENT, quire_session_truncate(session_.get(), length() + 1, err));
  EXPECT_STATUS(QUIRE_OK, quire_session_truncate(session_.get(), n_tokens, err));
  cut(n_tokens);
  check_counts();
  EXPECT_EQ(n_read_, std::min(n_read_, n_tokens));
}

void TracedSession::discard_pending() {
  EXPECT_STATUS(QUIRE_OK, quire_session_discard_pending(session_.get(), err));
  cut(n_read_);
  check_counts();
}

void TracedSession::reset() {
  EXPECT_STATUS(QUIRE_OK, quire_session_reset(session_.get(), err));
  cut(0);
  check_counts();
}

// ---- calls while one is open

// True: that was the end.
bool TracedSession::deliver(const quire_event& event) {
  if (event.kind == QUIRE_EVENT_TOKEN) {
    if (stream_plan_.plain_greedy()) greedy_[length()] = event.token;
    append({event.token});
    ++n_generated_;
    EXPECT_EQ(event.n_tokens, length());
    EXPECT_LE(n_generated_, stream_plan_.max_tokens);
  }
  if (event.kind != QUIRE_EVENT_END) return false;
  EXPECT_LE(event.n_tokens, length());
  EXPECT_EQ(event.finish_reason == QUIRE_FINISH_MAX_TOKENS,
            n_generated_ == stream_plan_.max_tokens && event.finish_reason != QUIRE_FINISH_CANCELLED);
  return true;
}

void TracedSession::read(int64_t n_tokens) {
  const int64_t wanted = n_generated_ + n_tokens;
  quire_event event;
  while (n_generated_ < wanted) {
    Outcome outcome;
    const quire_status status = next(stream_.get(), &event, &outcome);
    if (status == QUIRE_OK && !deliver(event)) continue;
    // A budget without a spill file ends somewhere.
    EXPECT_TRUE(status == QUIRE_OK || (status == QUIRE_ERROR_BUDGET && plan_.budget_bytes > 0)) << outcome.text();
    EXPECT_EQ(next(stream_.get(), &event), QUIRE_END);
    stream_ended();
    return;
  }
}

void TracedSession::cancel() {
  EXPECT_STATUS(QUIRE_OK, quire_stream_cancel(stream_.get(), err));
  const int64_t before = n_generated_;
  read(INT64_MAX - before);
  EXPECT_EQ(n_generated_, before);  // nothing is delivered after a cancel
}

void TracedSession::close_stream() {
  EXPECT_STATUS(QUIRE_OK, quire_stream_close(stream_.get(), err));
  quire_event event;
  EXPECT_EQ(next(stream_.get(), &event), QUIRE_ERROR_CLOSED);
  stream_ended();
}

void TracedSession::release_stream() {
  stream_.reset();
  // The next call that needs the session waits for it.
  EXPECT_STATUS(QUIRE_OK, quire_session_feed_tokens(session_.get(), nullptr, 0, err));
  stream_ended();
}

void TracedSession::expect_busy() {
  const int32_t id = 3;
  std::vector<float> row(static_cast<size_t>(vocab_));
  quire_stream* stream = nullptr;
  const quire_stream_options options = stream_plan_.options();
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_feed_tokens(session_.get(), &id, 1, err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_feed_text(session_.get(), "a", 1, 0, err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_truncate(session_.get(), 0, err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_discard_pending(session_.get(), err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_reset(session_.get(), err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_fill_random(session_.get(), 5, 1, err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY,
                quire_session_get_logits(session_.get(), -1, 1, row.data(), row.size(), nullptr, err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_session_get_scores(session_.get(), 0, 1, row.data(), row.size(), nullptr, err));
  EXPECT_STATUS(QUIRE_ERROR_BUSY, quire_stream_open(session_.get(), &options, &stream, err));
}

void TracedSession::stream_ended() {
  stream_.reset();
  check_counts();
  record_rows();
}

// ---- what the session says

void TracedSession::check_counts() {
  const auto [n_tokens, n_pending] = position(session_.get());
  EXPECT_EQ(n_tokens + n_pending, length());
  n_read_ = n_tokens;
  const quire_session_stats now = stats(session_.get());
  EXPECT_EQ(now.n_tokens, n_tokens);
  EXPECT_EQ(now.n_pending, n_pending);
  const quire_tier_stats host = tier_stats(session_.get(), QUIRE_TIER_HOST);
  EXPECT_LE(host.bytes, host.bytes_peak);
  EXPECT_LE(host.n_chunks, now.kv_chunks);
  if (plan_.budget_bytes > 0) {
    EXPECT_LE(host.bytes_peak, plan_.budget_bytes);
  }
}

// Rows are facts of the text before them, whatever comes after.
void TracedSession::record_rows() {
  std::vector<float> row(static_cast<size_t>(vocab_));
  for (int64_t t = 0; t < length(); ++t) {
    if (quire_session_get_logits(session_.get(), t, 1, row.data(), row.size(), nullptr, nullptr) == QUIRE_OK) {
      const auto [known, added] = logits_.try_emplace(t, row);
      EXPECT_TRUE(added || same_bits(known->second, row)) << "logits after token " << t << " changed";
    }
    float score = 0;
    if (quire_session_get_scores(session_.get(), t, 1, &score, 1, nullptr, nullptr) == QUIRE_OK && !std::isnan(score)) {
      const auto [known, added] = scores_.try_emplace(t, score);
      EXPECT_TRUE(added || known->second == score) << "the score of token " << t << " changed";
    }
  }
}

// ---- against a fresh session

TracedSession::Run TracedSession::run(quire_session* session, const StreamPlan& plan) {
  Run run;
  const auto stream = open_stream(session, plan.options());
  quire_event event;
  while (stream && next(stream.get(), &event, &run.outcome) == QUIRE_OK) {
    if (event.kind == QUIRE_EVENT_TOKEN) run.tokens.push_back(event.token);
    if (event.kind == QUIRE_EVENT_TOKEN || event.kind == QUIRE_EVENT_END) run.text.append(event.text, event.text_len);
    if (event.kind == QUIRE_EVENT_END) run.finish = event.finish_reason, run.ending = event.token;
  }
  return run;
}

void TracedSession::compare(quire_model* other, const StreamPlan& last) {
  if (busy()) close_stream();
  if (ids_.empty()) return;
  SessionPlan plain;
  plain.strategy = plan_.strategy;
  plain.kv_type = plan_.kv_type;
  const auto fresh = make_session(other, plain.options());
  Outcome outcome;
  outcome.status = takes_positions() ? quire_session_feed_positions(fresh.get(), ids_.data(), positions_.data(),
                                                                    ids_.size(), &outcome.error)
                                     : quire_session_feed_tokens(fresh.get(), ids_.data(), ids_.size(), &outcome.error);
  ASSERT_EQ(outcome.status, QUIRE_OK) << outcome.text();
  StreamPlan keeping = last;
  keeping.flags |= QUIRE_STREAM_KEEP_LOGITS | QUIRE_STREAM_SCORE;
  const Run expected = run(fresh.get(), keeping);
  ASSERT_EQ(expected.outcome.status, QUIRE_END) << expected.outcome.text();
  compare_rows(fresh.get(), length());
  const Run found = run(session_.get(), last);
  if (found.outcome.status == QUIRE_ERROR_BUDGET && plan_.budget_bytes > 0) return;
  ASSERT_EQ(found.outcome.status, QUIRE_END) << found.outcome.text();
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.text, expected.text);
  EXPECT_EQ(found.finish, expected.finish);
  EXPECT_EQ(found.ending, expected.ending);
  EXPECT_TRUE(same_bits(last_logits(session_.get(), vocab_), last_logits(fresh.get(), vocab_)));
  const quire_session_stats here = stats(session_.get()), there = stats(fresh.get());
  if (here.kv_chunks_dropped == 0 && there.kv_chunks_dropped == 0) {
    EXPECT_EQ(here.kv_chunks, there.kv_chunks);  // nothing is left of what was undone
  }
}

void TracedSession::compare_rows(quire_session* fresh, int64_t n) {
  const auto width = static_cast<size_t>(vocab_);
  std::vector<float> rows(static_cast<size_t>(n) * width), scores(static_cast<size_t>(n));
  EXPECT_STATUS(QUIRE_OK, quire_session_get_logits(fresh, 0, n, rows.data(), rows.size(), nullptr, err));
  EXPECT_STATUS(QUIRE_OK, quire_session_get_scores(fresh, 0, n, scores.data(), scores.size(), nullptr, err));
  const auto row = [&](int64_t t) { return rows.begin() + t * vocab_; };
  for (const auto& [t, logits] : logits_) {
    EXPECT_TRUE(same_bits(logits, {row(t), row(t) + vocab_})) << "logits after token " << t << " of " << n;
  }
  for (const auto& [t, score] : scores_) EXPECT_EQ(score, scores[static_cast<size_t>(t)]) << "score of token " << t;
  for (const auto& [t, token] : greedy_) {
    EXPECT_EQ(std::max_element(row(t - 1), row(t - 1) + vocab_) - row(t - 1), token) << "generated token " << t;
  }
}

}  // namespace quire::test
