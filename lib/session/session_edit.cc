// A session whose text becomes another one, of which much may be the same.
#include <algorithm>
#include <utility>

#include "lib/session/common_runs.h"
#include "lib/session/session.h"

namespace quire {
namespace {

// Why the records of a chunk mean nothing elsewhere.
Status check_movable(const Strategy& strategy) {
  const auto refuse = [&](const char* why) {
    return Status(Code::kUnsupported, strategy.canonical() + " can take over no chunks from elsewhere in a text: " +
                                          why + "; edit with exact reuse");
  };
  if (strategy.condenses()) return refuse("its condensed entries were made of all the text before them");
  if (strategy.selection().keeps_queries()) return refuse("it represents chunks by their queries, which are not kept");
  return {};
}

}  // namespace

// ---- the contents

Status SessionContents::edit(TextState next, EditReuse reuse, int64_t reread, EditResult* result) {
  if (reuse == EditReuse::kApproximate) QUIRE_TRY(check_movable(strategy_));
  // Old tokens whose keys the new text could have.
  int64_t n_old = text.n_computed();
  if (!text.positions().consecutive()) n_old = std::min(n_old, text.positions().runs().front().first_token);
  if (strategy_.plans_generated_apart()) n_old = std::min(n_old, text.first_generated());
  const int64_t n_usable = reuse == EditReuse::kExact ? std::min(n_old, text.n_exact()) : n_old;
  const auto old_ids = text.tokens().first(static_cast<size_t>(n_usable)), new_ids = next.tokens();
  const int64_t n_new = next.n_tokens();
  const int64_t n_same =
      std::mismatch(old_ids.begin(), old_ids.end(), new_ids.begin(), new_ids.end()).first - old_ids.begin();

  // If all was kept, the logits after the last token are those of the new text's last one, or it goes on.
  const bool keeps_all = n_same == text.n_computed() && (n_new > n_same || kept.last().known());
  const int64_t n_kept = keeps_all ? n_same : boundary(std::min(n_new, n_same + 1));
  std::vector<ChunkStore::Move> moves;
  if (reuse == EditReuse::kApproximate && !keeps_all) moves = find_moves(next, n_kept, n_old, reread);
  int64_t n_moves = std::ssize(moves);

  if (keeps_all) {
    // What an edit before is still to take over stays to be, as far as both texts are the same.
    const auto pending = text.tokens();
    const int64_t n_common =
        std::mismatch(pending.begin(), pending.end(), new_ids.begin(), new_ids.end()).first - pending.begin();
    kv_->drop_moves(0, reuse == EditReuse::kApproximate ? std::min(n_common, n_new - 1) : 0);
    n_moves = kv_->n_moves();
    kept.begin(0, 0);
  } else {
    kv_->truncate_for_moves(n_kept, strategy_.condensed_entries(n_kept), std::move(moves));
    kept.clear();
    sticky.cut(0);  // a list comes with the text's last token, and no generated one stays
  }
  *result = {n_new, n_kept, n_moves * kv_->geometry().chunk};
  text.become(std::move(next), n_kept);
  return {};
}

std::vector<ChunkStore::Move> SessionContents::find_moves(const TextState& next, int64_t n_kept, int64_t n_old,
                                                          int64_t reread) const {
  const int64_t chunk = kv_->geometry().chunk;
  // The chunk where the kept text ends goes on with other tokens; the records of those behind it are free.
  const int64_t first_old = ceil_div(n_kept, chunk) * chunk;
  if (first_old >= n_old) return {};
  const auto old_ids = text.tokens().subspan(static_cast<size_t>(first_old), static_cast<size_t>(n_old - first_old));
  const auto new_ids = next.tokens().subspan(static_cast<size_t>(n_kept));
  std::vector<ChunkStore::Move> moves;
  for (const CommonRun& run : find_common_runs(old_ids, new_ids, chunk)) {
    const int64_t from = first_old + run.from, to = n_kept + run.to;
    // One token at least is left to be computed, for the logits after the text.
    const int64_t end = std::min(to + run.n, next.n_tokens() - 1);
    const int64_t skipped = from == 0 && to == 0 ? 0 : reread;  // a text's beginning depends on nothing before
    for (int64_t c = ceil_div(to + skipped, chunk); (c + 1) * chunk <= end; ++c) {
      const int64_t first = from + c * chunk - to;
      if (kv_->can_move(first)) moves.push_back({c, first});
    }
  }
  return moves;
}

// ---- the calls

Status Session::edit(TextState next, EditReuse reuse, int64_t reread, EditResult* result) {
  if (contents_->text.last_messages()) {
    return Status(Code::kUnsupported,
                  "the session holds a conversation: messages are fed one behind the other, and cannot be edited");
  }
  return contents_->edit(std::move(next), reuse, reread, result);
}

Status Session::edit_text(std::string_view text, const EditOptions& options, EditResult* result) {
  const Call call(*this);
  QUIRE_TRY(call.status());
  TextState next;
  QUIRE_TRY(unless_closed(encode_feed(text, options.parse_special, options.add_bos, options.labels, true, &next)));
  return edit(std::move(next), options.reuse, options.reread, result);
}

Status Session::edit_tokens(std::span<const int32_t> ids, const EditOptions& options, EditResult* result) {
  QUIRE_TRY(check_ids(ids));
  const Call call(*this);
  QUIRE_TRY(call.status());
  TextState next;
  std::vector<TextMark> marks;
  QUIRE_TRY(find_prefix_mark(model_->tokenizer->tokenizer(), ids, marks));
  next.feed(ids, {}, marks);
  return edit(std::move(next), options.reuse, options.reread, result);
}

}  // namespace quire
