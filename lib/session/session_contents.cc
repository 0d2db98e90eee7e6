#include "lib/session/session_contents.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lib/session/contain.h"

namespace quire {

namespace {

// Where the text may be cut far from its end, so that what is read there is kept.
constexpr size_t kMostPlaces = 4;

}  // namespace

SessionContents::SessionContents(const Strategy& strategy, const ModelConfig& config, Ropes ropes,
                                 std::unique_ptr<ChunkStore> kv)
    : kept(config.vocab_size, config.hidden_size), strategy_(strategy), ropes_(std::move(ropes)), kv_(std::move(kv)) {}

int64_t SessionContents::boundary(int64_t n_tokens) const {
  const int64_t most = std::max<int64_t>(0, std::min(text.n_computed(), n_tokens - 1));
  const int64_t chunk = kv_->geometry().chunk;
  int64_t boundary = kv_->exact_boundary(most);
  while (boundary > 0 && !kv_->can_go_on(boundary)) boundary = kv_->exact_boundary((boundary - 1) / chunk * chunk);
  return boundary;
}

Result<std::unique_ptr<SessionContents>> SessionContents::fork(const ModelConfig& config) {
  QUIRE_ASSIGN(auto kv, kv_->fork());
  auto forked = std::make_unique<SessionContents>(strategy_, config, ropes_, std::move(kv));
  forked->text = text;
  forked->sticky = sticky;
  forked->saved_as = saved_as;
  if (kept.last().known()) forked->kept.restore(kept.last(), text.n_computed() - 1);
  return forked;
}

Status SessionContents::restore(SavedText saved, const StoreSnapshot& kv, const SnapshotMark& mark) {
  text = std::move(saved.text);
  QUIRE_ASSIGN(sticky, StickyChunks::make(std::move(saved.sticky), strategy_.selection().chunk, text.n_tokens()));
  QUIRE_TRY(kv_->restore(kv, [&](int64_t chunk) { return chunk_ids(chunk); }));
  const int64_t n = text.n_computed();
  if (!kv_->holds_windows(n)) {
    return Status(Code::kBadFile, "keys and values of layers with a window are missing that the next token reads");
  }
  for (const KeyRange& range : strategy_.retained(n)) {
    const int64_t end = std::min(range.end, n);
    // In an approximate text reserve() makes full records where they are needed.
    const bool approximate = text.n_exact() < n;
    if (range.begin >= end || (approximate ? kv_->holds_any(range.begin, end) : kv_->holds_for(n, range.begin, end)))
      continue;
    return Status(Code::kBadFile, "keys and values are missing that the next token reads, of tokens " +
                                      std::to_string(range.begin) + " to " + std::to_string(end));
  }
  text.mark_saved();
  saved_as = mark;
  if (saved.last_logits.empty()) {
    text.uncompute(boundary(text.n_settled()));
    undo_block();
  } else {
    kept.restore({.on_host = std::move(saved.last_logits)}, text.n_computed() - 1);
  }
  return {};
}

void SessionContents::note_saved(const SessionContents& fork) {
  if (fork.text.n_computed() != text.n_computed()) return;
  saved_as = fork.saved_as;
  text.mark_saved();
}

void SessionContents::forget_from(int64_t n_tokens) {
  text.cut(n_tokens, boundary(n_tokens));
  text.read_again();
  sticky.cut(n_tokens);
  undo_block();
  kv_->drop_moves(0, n_tokens);
  kept.clear();
}

void SessionContents::cut_pending(int64_t n_tokens) {
  const bool goes_on = n_tokens > text.n_computed() || kept.last().known();
  const int64_t n_computed = goes_on ? text.n_computed() : boundary(n_tokens);
  text.cut_pending(n_tokens);
  kv_->drop_moves(0, n_tokens);
  if (goes_on) return;
  text.uncompute(n_computed);
  text.read_again();
  undo_block();
}

void SessionContents::forget_generated(int64_t n_tokens) {
  int64_t n_computed = text.n_computed();
  const bool computed = n_computed > n_tokens;
  if (computed) {
    const auto find = [&] {
      n_computed = boundary(n_tokens);
      return Status();
    };
    if (!contain(find).ok()) n_computed = 0;
  }
  text.cut(n_tokens, n_computed);
  kept.cut(n_tokens, n_computed);
  sticky.cut(n_tokens);
  if (computed) undo_block();
}

void SessionContents::undo_block() { kv_->truncate(text.n_computed(), strategy_.condensed_entries(text.n_computed())); }

void SessionContents::add_sticky(int64_t token, std::span<const int32_t> chunks) {
  const int64_t last = sticky.last_token();
  if (token <= last) return;
  if (last >= 0 && !text.is_generated(last + 1)) sticky.cut(last);
  sticky.add(token, chunks);
}

void SessionContents::offer_chunks(int64_t n_tokens, bool again) noexcept {
  (void)contain([&] {
    kv_->enter_prefixes(again ? 0 : kv_->n_prefixes(), n_tokens / kv_->geometry().chunk,
                        [&](int64_t chunk) { return chunk_ids(chunk); });
    return Status();
  });
}

std::vector<int32_t> SessionContents::chunk_ids(int64_t chunk) const {
  const int64_t n = kv_->geometry().chunk, first = chunk * n;
  const auto gaps = text.positions().runs();
  if (!gaps.empty() && gaps.front().first_token < first + n) return {};
  if (text.n_exact() < first + n) return {};
  const auto tokens = text.tokens().subspan(static_cast<size_t>(first), static_cast<size_t>(n));
  std::vector<int32_t> ids(tokens.begin(), tokens.end());
  for (int64_t i = 0; strategy_.plans_generated_apart() && i < n; ++i) {
    if (text.is_generated(first + i)) ids[static_cast<size_t>(i)] = ~ids[static_cast<size_t>(i)];
  }
  return ids;
}

ChunkStore::KeptKeys SessionContents::kept_keys(int64_t next_query) const {
  if (!kv_->passes(next_query)) return {.next_query = next_query};
  std::array<int64_t, kMostPlaces> places;
  const size_t n = text.last_places(kv_->spare_places_from(next_query), kv_->geometry().chunk, places);
  return kv_->kept_keys(next_query, std::span(places).first(n));
}

}  // namespace quire
