// SPDX-License-Identifier: MIT
//
// Sessions: a model, a strategy, and the text read so far.
#pragma once

#include "quire/snapshot.hpp"

namespace quire {
inline namespace v0 {

using Label = quire_label;
using LabelAttention = quire_label_attention;
using Passage = quire_passage;
using EditResult = quire_edit_result;
using SessionStats = quire_session_stats;
using TierStats = quire_tier_stats;
using SessionProbes = quire_session_probes;

// As quire_edit_options.
struct EditOptions {
  EditReuse reuse = EditReuse::kExact;
  bool parse_special = false;
  bool add_bos = true;
  std::int64_t reread_tokens = 0;
  std::vector<Label> labels = {};
};

struct TokenCounts {
  std::int64_t n_tokens = 0;   // read: processed prompt and delivered tokens
  std::int64_t n_pending = 0;  // fed, and waiting for a stream
};

// A text that is being read and continued. One thread at a time, but for what C's header calls
// any-thread: close, token_counts, stats, tier_stats, strategy, fingerprint, probes. While a stream
// is open most other calls return kBusy.
class Session : public Handle<quire_session, quire_session_retain, quire_session_release> {
 public:
  using Handle::Handle;

  static Result<Session> create(const Model& model, const SessionOptions& options = {}) {
    const detail::CSessionOptions c(options);
    return detail::made<Session>(quire_session_create, model.get(), c.get());
  }
  // A session that goes on where a saved one stood. The file must stay as it is meanwhile.
  static Result<Session> load(const Model& model, std::string_view path,
                              const SessionOptions& options = {}) {
    const detail::CSessionOptions c(options);
    return detail::made<Session>(quire_session_load, model.get(), path.data(), path.size(),
                                 c.get());
  }
  // The reader is copied, and the copy kept as long as a session needs it.
  static Result<Session> load(const Model& model, const SnapshotReader& reader,
                              const SessionOptions& options = {}) {
    const detail::CSessionOptions c(options);
    auto kept = std::make_unique<detail::CReader>(reader);
    const auto from = kept->convert(detail::destroy<detail::CReader>);
    auto session = detail::made<Session>(quire_session_load_from, model.get(), &from, c.get());
    if (!session) return kept->thrown().result(std::move(session));
    (void)kept.release();
    return session;
  }

  // Cancels an open stream, waits, and frees the KV cache. Not from a callback.
  Result<void> close() { return detail::call(quire_session_close, get()); }

  // Feeding queues text; a stream computes. Each call is a segment of its own: tokens never span
  // two. Labels are bytes [begin, end) of this text.
  Result<void> feed_text(std::string_view text, const TextOptions& options = {}) {
    return detail::call(quire_session_feed_text, get(), text.data(), text.size(),
                        detail::flags(options));
  }
  Result<void> feed_labelled(std::string_view text, Span<const Label> labels,
                             const TextOptions& options = {}) {
    return detail::call(quire_session_feed_labelled, get(), text.data(), text.size(),
                        detail::flags(options), labels.data(), labels.size());
  }
  Result<void> feed_tokens(Span<const std::int32_t> ids) {
    return detail::call(quire_session_feed_tokens, get(), ids.data(), ids.size());
  }
  // One position for each id, strictly increasing.
  Result<void> feed_positions(Span<const std::int32_t> ids, Span<const std::int64_t> positions) {
    if (ids.size() != positions.size()) {
      return Error(Status::kInvalidArgument, std::to_string(positions.size()) + " positions for " +
                                                 std::to_string(ids.size()) + " ids");
    }
    return detail::call(quire_session_feed_positions, get(), ids.data(), positions.data(),
                        ids.size());
  }
  Result<void> feed_messages(Span<const Message> messages, const ChatOptions& options = {}) {
    const auto all = detail::convert(messages);
    const auto c = detail::convert(options);
    return detail::call(quire_session_feed_messages, get(), all.data(), all.size(), &c);
  }

  // Forgets what was fed and not yet processed; everything; the tokens from the n_tokens-th on.
  Result<void> discard_pending() { return detail::call(quire_session_discard_pending, get()); }
  Result<void> reset() { return detail::call(quire_session_reset, get()); }
  Result<void> truncate(std::int64_t n_tokens) {
    return detail::call(quire_session_truncate, get(), n_tokens);
  }

  // The session's text becomes another one, of which it keeps what it can.
  Result<EditResult> edit_text(std::string_view text, const EditOptions& options = {}) {
    const auto c = convert(options);
    auto result = detail::initialised(quire_edit_result_init);
    return with(result, detail::call(quire_session_edit_text, get(), text.data(), text.size(), &c,
                                     &result));
  }
  Result<EditResult> edit_tokens(Span<const std::int32_t> ids, const EditOptions& options = {}) {
    const auto c = convert(options);
    auto result = detail::initialised(quire_edit_result_init);
    return with(result, detail::call(quire_session_edit_tokens, get(), ids.data(), ids.size(), &c,
                                     &result));
  }

  Result<TokenCounts> token_counts() const {
    TokenCounts counts;
    return with(counts, detail::call(quire_session_get_token_counts, get(), &counts.n_tokens,
                                     &counts.n_pending));
  }
  // The ids of all tokens, pending ones last.
  Result<std::vector<std::int32_t>> tokens() const {
    return detail::copied<std::vector<std::int32_t>>(quire_session_get_tokens, get());
  }
  // n_rows rows of vocab_size floats, the first one computed after token first_token; -1: after the
  // last processed one.
  Result<std::vector<float>> logits(std::int64_t first_token = -1, std::int64_t n_rows = 1) const {
    return detail::copied<std::vector<float>>(quire_session_get_logits, get(), first_token, n_rows);
  }
  // log p of n tokens, of a stream with StreamOptions::score.
  Result<std::vector<float>> scores(std::int64_t first_token, std::int64_t n) const {
    return detail::copied<std::vector<float>>(quire_session_get_scores, get(), first_token, n);
  }
  // Embeddings: n_rows rows of hidden_size floats, of a stream with StreamOptions::keep_hidden.
  Result<std::vector<float>> hidden_states(std::int64_t first_token,
                                           std::int64_t n_rows = 1) const {
    return detail::copied<std::vector<float>>(quire_session_get_hidden_states, get(), first_token,
                                              n_rows);
  }

  // For each label, in the order fed: how the strategy's choices of chunks fell on it.
  Result<std::vector<LabelAttention>> label_attention() const {
    return detail::copied<std::vector<LabelAttention>>(quire_session_get_label_attention, get());
  }
  // Which passages the last stream's answer looked at (StreamOptions::cite), or some of its tokens;
  // -1 and 0: all of it. The same shares by label.
  Result<std::vector<Passage>> passages(std::int32_t max_passages, std::int64_t first_token = -1,
                                        std::int64_t n_tokens = 0) const {
    return detail::copied<std::vector<Passage>>(quire_session_get_passages, get(), first_token,
                                                n_tokens, max_passages);
  }
  Result<std::vector<LabelAttention>> label_shares(std::int64_t first_token = -1,
                                                   std::int64_t n_tokens = 0) const {
    return detail::copied<std::vector<LabelAttention>>(quire_session_get_label_shares, get(),
                                                       first_token, n_tokens);
  }

  Result<SessionStats> stats() const {
    return detail::filled<SessionStats>(quire_session_get_stats, get());
  }
  Result<TierStats> tier_stats(Tier tier) const {
    return detail::filled<TierStats>(quire_session_get_tier_stats, get(),
                                     static_cast<std::int32_t>(tier));
  }
  // In canonical form.
  Result<std::string> strategy() const {
    return detail::copied<std::string>(quire_session_get_strategy, get());
  }
  // Names all that keys and values depend on beside the tokens.
  Result<std::string> fingerprint() const {
    return detail::copied<std::string>(quire_session_get_fingerprint, get());
  }

  // Another session that stands where this one does, and shares with it what both hold.
  Result<Session> fork() { return detail::made<Session>(quire_session_fork, get()); }
  // Writes the session to a file, or where a writer says.
  Result<void> save(std::string_view path, const SnapshotOptions& options = {}) {
    const detail::CSnapshotOptions c(options);
    return c.call().result(
        detail::call(quire_session_save, get(), path.data(), path.size(), c.get()));
  }
  Result<void> save(const SnapshotWriter& writer, const SnapshotOptions& options = {}) {
    const detail::CSnapshotOptions c(options);
    detail::CWriter w(writer);
    const auto to = w.convert();
    return c.call().result(
        w.thrown().result(detail::call(quire_session_save_to, get(), &to, c.get())));
  }

  // For benchmarks and tests (experimental in quire.h).
  Result<void> fill_random(std::int64_t n_tokens, std::uint64_t seed) {
    return detail::call(quire_session_fill_random, get(), n_tokens, seed);
  }
  Result<SessionProbes> probes() const {
    return detail::filled<SessionProbes>(quire_session_get_probes, get());
  }

 private:
  template <typename T>
  static Result<T> with(const T& value, const Result<void>& done) {
    if (!done) return done.error();
    return value;
  }
  static quire_edit_options convert(const EditOptions& options) {
    auto c = detail::initialised(quire_edit_options_init);
    c.flags = detail::flags(TextOptions{options.parse_special, options.add_bos});
    c.reuse = static_cast<std::int32_t>(options.reuse);
    c.reread_tokens = options.reread_tokens;
    c.labels = detail::data_or_null(options.labels);
    c.n_labels = options.labels.size();
    return c;
  }
};

}  // namespace v0
}  // namespace quire
