#include "lib/session/text_state.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <string>
#include <utility>

#include "lib/support/make_room.h"

namespace quire {

TextState::Parts TextState::parts() const {
  const auto runs = positions_.runs();
  return {tokens_, n_settled_, n_computed_, reread_end_, generated_, {runs.begin(), runs.end()},
          labels_, messages_,  marks_,      n_exact_};
}

Result<TextState> TextState::make(Parts parts) {
  const auto bad = [](const std::string& what) { return Status(Code::kBadFile, "a text with " + what); };
  TextState text;
  const auto n = static_cast<int64_t>(parts.tokens.size());
  if (parts.n_settled < 0 || parts.n_settled > n || parts.n_computed < 0 || parts.n_computed > parts.n_settled ||
      parts.reread_end < 0 || parts.reread_end > parts.n_settled) {
    return bad(std::to_string(n) + " tokens, " + std::to_string(parts.n_settled) + " of them processed, " +
               std::to_string(parts.n_computed) + " computed, " + std::to_string(parts.reread_end) + " read before");
  }
  if (parts.n_exact != kNoLimit && (parts.n_exact < 0 || parts.n_exact >= parts.n_computed)) {
    return bad(std::to_string(parts.n_computed) + " computed tokens, of which " + std::to_string(parts.n_exact) +
               " and not all are exact");
  }
  int64_t end = 0;
  for (const KeyRange& run : parts.generated) {
    if (run.begin < end || run.end <= run.begin || run.end > parts.n_settled) {
      return bad("generated tokens " + std::to_string(run.begin) + " to " + std::to_string(run.end));
    }
    end = run.end;
  }
  constexpr int64_t kMostShift = int64_t{1} << 40;
  TextPositions::Run before{-1, 0};
  for (const TextPositions::Run& run : parts.positions) {
    if (run.first_token <= before.first_token || run.first_token >= n || run.shift <= before.shift ||
        run.shift > kMostShift || text.positions_.n_gaps() == TextPositions::kMaxGaps) {
      return bad("a gap of positions at token " + std::to_string(run.first_token));
    }
    const int64_t position = run.first_token + run.shift;
    text.positions_.append(run.first_token, {&position, 1});
    before = run;
  }
  for (const TokenLabel& label : parts.labels) {
    if (label.first_token < 0 || label.first_token > n || label.n_tokens < 0 ||
        label.n_tokens > n - label.first_token) {
      return bad("a label of tokens from " + std::to_string(label.first_token) + " on");
    }
  }
  end = 0;
  for (const FedMessages& m : parts.messages) {
    if (m.begin < end || m.end < m.begin || (m.end > n && !m.cut) || !m.format || m.state.n_turns < 0) {
      return bad("messages from token " + std::to_string(m.begin) + " on");
    }
    end = m.begin;
  }
  constexpr int64_t kMostBytes = int64_t{1} << 48;  // so that places behind a mark can be counted
  TextMark last{-1, -1, 0};
  for (const TextMark& mark : parts.marks) {
    const bool begins = mark.feed == last.feed + 1 && mark.byte == 0;
    const bool goes_on = mark.feed == last.feed && mark.byte >= 0 && mark.byte <= kMostBytes;
    const bool ascends = mark.token > last.token || (begins && mark.token == last.token && mark.feed > 0);
    if (!ascends || mark.token > n - (begins ? 1 : 0) || (!begins && !goes_on)) {
      return bad("a mark at token " + std::to_string(mark.token) + " of feed " + std::to_string(mark.feed));
    }
    last = mark;
  }
  text.tokens_ = std::move(parts.tokens);
  text.marks_ = std::move(parts.marks);
  text.n_settled_ = parts.n_settled;
  text.n_computed_ = parts.n_computed;
  text.n_exact_ = parts.n_exact;
  text.reread_end_ = parts.reread_end;
  text.generated_ = std::move(parts.generated);
  text.labels_ = std::move(parts.labels);
  text.messages_ = std::move(parts.messages);
  return text;
}

int64_t TextState::n_unread() const { return n_pending() + std::max<int64_t>(0, reread_end_ - n_computed_); }

bool TextState::is_generated(int64_t token) const {
  const auto after = std::upper_bound(generated_.begin(), generated_.end(), token,
                                      [](int64_t t, const KeyRange& run) { return t < run.begin; });
  return after != generated_.begin() && token < std::prev(after)->end;
}

int64_t TextState::n_plain() const {
  int64_t n = std::min(n_settled_, n_exact_);
  n = std::min(n, first_generated());
  if (!positions_.consecutive()) n = std::min(n, positions_.runs().front().first_token);
  return n;
}

std::vector<FedTokens> TextState::fed() const {
  std::vector<FedTokens> all;
  for (const TextMark& mark : marks_) {
    if (all.empty() || all.back().feed != mark.feed) {
      if (!all.empty()) all.back().end = mark.token;
      all.push_back({mark.token, n_tokens(), mark.feed});
    }
  }
  // Generated tokens follow a feed's.
  auto run = generated_.begin();
  for (FedTokens& feed : all) {
    while (run != generated_.end() && run->begin < feed.begin) ++run;
    if (run != generated_.end()) feed.end = std::min(feed.end, run->begin);
  }
  return all;
}

size_t TextState::last_places(int64_t end, int64_t apart, std::span<int64_t> places) const {
  size_t n = 0, m = marks_.size(), g = 2 * generated_.size();  // of marks, and of ends of runs, those not looked at
  const auto begins_feed = [&](size_t i) { return i == 0 || marks_[i].feed != marks_[i - 1].feed; };
  const auto edge = [&](size_t i) { return i % 2 == 0 ? generated_[i / 2].begin : generated_[i / 2].end; };
  while (n < places.size()) {
    while (m > 0 && !begins_feed(m - 1)) --m;
    if (m == 0 && g == 0) break;
    const bool of_feed = g == 0 || (m > 0 && marks_[m - 1].token >= edge(g - 1));
    const int64_t place = of_feed ? marks_[--m].token : edge(--g);
    if (place < end && (n == 0 || places[n - 1] - place > apart)) places[n++] = place;
  }
  return n;
}

// Of the feed whose tokens come next; make_room was called.
void TextState::begin_feed(std::span<const TextMark> marks) {
  const int64_t before = n_tokens(), feed = marks_.empty() ? 0 : marks_.back().feed + 1;
  marks_.push_back({before, feed, 0});
  for (const TextMark& mark : marks) marks_.push_back({before + mark.token, feed, mark.byte});
}

void TextState::feed(std::span<const int32_t> ids, std::span<const TokenLabel> labels,
                     std::span<const TextMark> marks) {
  const int64_t before = n_tokens();
  make_room(labels_, labels.size());
  make_room(marks_, marks.size() + 1);
  make_room(tokens_, ids.size());
  if (!ids.empty()) begin_feed(marks);
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  for (TokenLabel label : labels) {
    label.first_token += before;
    labels_.push_back(label);
  }
}

void TextState::feed_messages(std::span<const int32_t> ids, FedMessages messages, std::span<const TextMark> marks) {
  make_room(messages_, 1);
  messages.begin = n_tokens();
  feed(ids, {}, marks);
  messages.end = n_tokens();
  messages_.push_back(std::move(messages));
}

Status TextState::feed_at(std::span<const int32_t> ids, std::span<const int64_t> positions,
                          std::span<const TextMark> marks) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const int64_t before = n_tokens();
  int64_t least = positions_.position(before), gaps = positions_.n_gaps();
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < least || positions[i] >= kMost) {
      return Status(Code::kInvalidArgument,
                    "positions[" + std::to_string(i) + "] is " + std::to_string(positions[i]) + "; expected " +
                        std::to_string(least) + " or more, and less than " + std::to_string(kMost),
                    static_cast<int64_t>(i));
    }
    if (positions[i] > least && ++gaps > TextPositions::kMaxGaps) {
      return Status(Code::kInvalidArgument,
                    "positions[" + std::to_string(i) + "] comes after one gap too many; a text has at most " +
                        std::to_string(TextPositions::kMaxGaps),
                    static_cast<int64_t>(i));
    }
    least = positions[i] + 1;
  }
  TextPositions longer = positions_;
  longer.append(before, positions);
  make_room(marks_, marks.size() + 1);
  make_room(tokens_, ids.size());
  if (!ids.empty()) begin_feed(marks);
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  positions_ = std::move(longer);
  return {};
}

int64_t TextState::computed(int64_t n) {
  assert(n <= n_uncomputed());
  const int64_t first = n_computed_;
  n_computed_ += n;
  const int64_t from_pending = std::max<int64_t>(0, n_computed_ - n_settled_);
  n_settled_ += from_pending;
  const int64_t n_reread = std::clamp<int64_t>(reread_end_ - first, 0, n - from_pending);
  if (n_computed_ >= reread_end_) reread_end_ = 0;
  return from_pending + n_reread;
}

int64_t TextState::moved(int64_t n) {
  n_exact_ = std::min(n_exact_, n_computed_);
  return computed(n);
}

void TextState::reserve_generated() {
  make_room(tokens_, 1);
  make_room(generated_, 1);
}

void TextState::add_generated(int32_t token) {
  assert(n_pending() == 0);
  if (generated_.empty() || generated_.back().end != n_settled_) generated_.push_back({n_settled_, n_settled_});
  ++generated_.back().end;
  tokens_.push_back(token);
  ++n_settled_;
}

// Labels end where the text ends. One that begins there belongs to what is forgotten, unless nothing is that was fed.
void TextState::cut_labels(int64_t n_tokens) {
  const bool ends_generated = !generated_.empty() && generated_.back().end == this->n_tokens();
  const int64_t fed_end = ends_generated ? generated_.back().begin : this->n_tokens();
  const int64_t end = n_tokens > 0 && n_tokens >= fed_end ? n_tokens + 1 : n_tokens;
  std::erase_if(labels_, [&](const TokenLabel& label) { return label.first_token >= end; });
  for (TokenLabel& label : labels_) label.n_tokens = std::min(label.n_tokens, n_tokens - label.first_token);
}

void TextState::cut_pending(int64_t n_tokens) {
  assert(n_tokens >= n_settled_ && n_tokens <= this->n_tokens());
  cut_labels(n_tokens);
  tokens_.resize(static_cast<size_t>(n_tokens));
  positions_.cut(n_tokens);
  const auto begins_feed = [&] { return marks_.size() == 1 || marks_[marks_.size() - 2].feed != marks_.back().feed; };
  while (!marks_.empty() && marks_.back().token >= n_tokens && (marks_.back().token > n_tokens || begins_feed())) {
    marks_.pop_back();
  }
  // Messages may have no tokens of their own; those that stand before the first token go with it.
  std::erase_if(messages_,
                [&](const FedMessages& m) { return n_tokens == 0 || (m.end > n_tokens && m.begin >= n_tokens); });
  if (!messages_.empty() && messages_.back().end > n_tokens) messages_.back().cut = true;
}

void TextState::cut(int64_t n_tokens, int64_t n_computed) {
  assert(n_tokens <= n_settled_ && n_computed <= n_tokens && n_computed <= n_computed_);
  n_settled_ = n_tokens;
  uncompute(n_computed);
  reread_end_ = std::min(reread_end_, n_tokens);
  cut_pending(n_tokens);
  while (!generated_.empty() && generated_.back().begin >= n_tokens) generated_.pop_back();
  if (!generated_.empty()) generated_.back().end = std::min(generated_.back().end, n_tokens);
}

void TextState::uncompute(int64_t n_computed) {
  n_computed_ = n_computed;
  n_unchanged_ = std::min(n_unchanged_, n_computed);
  if (n_computed <= n_exact_) n_exact_ = kNoLimit;
}

void TextState::become(TextState next, int64_t n_computed) noexcept {
  assert(next.n_settled_ == 0 && n_computed <= n_computed_ && n_computed <= next.n_tokens());
  uncompute(n_computed);
  next.n_settled_ = next.n_computed_ = n_computed;
  next.n_unchanged_ = n_unchanged_;
  next.n_exact_ = n_exact_;
  *this = std::move(next);
}

void TextState::fill(std::vector<int32_t> tokens) {
  assert(tokens_.empty() && !tokens.empty());
  tokens_ = std::move(tokens);
  n_settled_ = n_tokens();
  n_computed_ = n_settled_ - 1;
  if (n_computed_ > 0) n_exact_ = 0;
}

}  // namespace quire
