#include "lib/session/kept_results.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lib/support/make_room.h"

namespace quire {

void KeptResults::begin(int64_t first, int64_t choices_from, CiteRange cited) {
  cited_.begin(cited, choices_from);
  first_ = first;
  logits_.clear();
  hidden_.clear();
  scores_.clear();
  choices_from_ = choices_from;
  choices_.clear();
  apart_.clear();
}

void BlockResults::cut(int64_t n_kept, int64_t n, int64_t n_cells) {
  for (auto* rows : {&logits, &hidden, &scores})
    rows->resize(rows->size() / static_cast<size_t>(n) * static_cast<size_t>(n_kept));
  if (choices.size() > 1) choices.resize(static_cast<size_t>(n_kept));
  const auto gone = static_cast<size_t>((n - n_kept) * n_cells);
  peaks.resize(peaks.size() - std::min(gone, peaks.size()));
}

void KeptResults::add(BlockResults block, int64_t first, int64_t n, bool apart) {
  // Of the block's rows, those that are known already, or come before the stream's first token, are left out.
  struct Rows {
    std::vector<float>& kept;
    std::vector<float>& added;
    size_t width;
  };
  const Rows all[] = {
      {logits_, block.logits, vocab_size_}, {hidden_, block.hidden, hidden_size_}, {scores_, block.scores, 1}};
  // What can fail comes first.
  for (const Rows& rows : all) make_room(rows.kept, rows.added.size());
  for (const auto& choices : block.choices) {
    if (choices.size() > choices_.size()) choices_.resize(choices.size());
  }
  cited_.reserve(block.peaks.size());
  std::list<TokenChoices> more;
  for (size_t i = 0; apart && i < block.choices.size(); ++i) {
    if (!block.choices[i].empty()) more.push_back({first + static_cast<int64_t>(i), block.choices[i]});
  }

  apart_.splice(apart_.end(), more);
  cited_.add(block.peaks, first + n);
  for (const auto& choices : block.choices) {
    for (size_t c = 0; c < choices.size(); ++c) choices_[c] += choices[c];
  }
  choices_from_ = std::max(choices_from_, first + n);
  for (const Rows& rows : all) {
    if (rows.added.empty()) continue;
    const auto n_kept = static_cast<int64_t>(rows.kept.size() / rows.width);
    const auto known = std::clamp<int64_t>(first_ + n_kept - first, 0, n) * static_cast<int64_t>(rows.width);
    rows.kept.insert(rows.kept.end(), rows.added.begin() + known, rows.added.end());
  }
  // One that another session has too stays as it is.
  if (last_.on_device && last_.on_device.use_count() == 1) spare_row_ = std::move(last_.on_device);
  last_ = std::move(block.last);
  last_token_ = first + n - 1;
}

void KeptResults::confirm(int64_t n_tokens) {
  while (!apart_.empty() && apart_.front().token < n_tokens) apart_.pop_front();
}

void KeptResults::cut(int64_t n_tokens, int64_t n_computed) {
  while (!apart_.empty() && apart_.back().token >= n_tokens) {
    const auto& gone = apart_.back().choices;
    for (size_t c = 0; c < gone.size(); ++c) choices_[c] -= gone[c];
    apart_.pop_back();
  }
  choices_from_ = std::min(choices_from_, n_tokens);
  cited_.cut(n_tokens);
  const auto n = static_cast<size_t>(std::max<int64_t>(0, n_tokens - first_));
  if (logits_.size() > n * vocab_size_) logits_.resize(n * vocab_size_);
  if (hidden_.size() > n * hidden_size_) hidden_.resize(n * hidden_size_);
  if (scores_.size() > n) scores_.resize(n);
  if (last_token_ != n_computed - 1) {
    last_ = {};
    last_token_ = -1;
  }
}

void KeptResults::clear() {
  begin(0, 0);
  last_ = {};
  last_token_ = -1;
}

Result<std::span<const float>> KeptResults::last_logits() {
  if (last_.on_host.empty() && last_.on_device) {
    QUIRE_ASSIGN(last_.on_host, last_.on_device->read());
  }
  return std::span<const float>(last_.on_host);
}

Result<std::span<const float>> KeptResults::logits(int64_t first_token, int64_t n_rows) {
  const auto kept = static_cast<int64_t>(logits_.size() / vocab_size_);
  if (first_token == -1 || first_token == last_token_) {
    if (n_rows == 1 && last_.known()) return last_logits();
  } else if (first_token >= first_ && n_rows <= kept && first_token - first_ <= kept - n_rows) {
    return std::span<const float>(logits_).subspan(static_cast<size_t>(first_token - first_) * vocab_size_,
                                                   static_cast<size_t>(n_rows) * vocab_size_);
  }
  return Status(Code::kNotFound, "no logits are kept for " + std::to_string(n_rows) + " rows from token " +
                                     std::to_string(first_token) + "; kept: the last, and " + std::to_string(kept) +
                                     " from " + std::to_string(first_));
}

Result<std::span<const float>> KeptResults::kept_rows(const char* what, const std::vector<float>& rows, size_t width,
                                                      int64_t first_token, int64_t n) const {
  const auto kept = static_cast<int64_t>(rows.size() / width);
  if (n <= kept && first_token >= first_ && first_token - first_ <= kept - n) {
    return std::span(rows).subspan(static_cast<size_t>(first_token - first_) * width, static_cast<size_t>(n) * width);
  }
  return Status(Code::kNotFound, std::string("no ") + what + " are kept for " + std::to_string(n) +
                                     " tokens from token " + std::to_string(first_token) +
                                     "; kept: " + std::to_string(kept) + " from " + std::to_string(first_));
}

Result<std::span<const float>> KeptResults::hidden_states(int64_t first_token, int64_t n) const {
  return kept_rows("hidden states", hidden_, hidden_size_, first_token, n);
}

Result<std::span<const float>> KeptResults::scores(int64_t first_token, int64_t n) const {
  return kept_rows("scores", scores_, 1, first_token, n);
}

}  // namespace quire
