// What a session is: its tokens, where they stand, which of them the model generated, and how far they are computed.
//
// Tokens pass through three states: pending (fed, not processed), settled (processed, or generated), and settled but
// not computed: not, or no longer, in the KV cache. That is the last generated token until the next one is wanted, and
// what a cut left to be read again.
//
// Messages that were fed stay known with the place where they stand, so that a conversation can go on from there.
//
// A value: a copy is the same text. Changes that can fail leave the text as it was. No locks: whoever owns it says who
// may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/chat/chat_format.h"
#include "lib/plan/text_positions.h"
#include "lib/session/label_attention.h"
#include "lib/strategy/strategy.h"
#include "lib/support/status.h"

namespace quire {

// Messages that were fed together.
struct FedMessages {
  int64_t begin = 0, end = 0;  // their tokens
  std::shared_ptr<const ChatFormat> format;
  ChatState state;   // of the conversation behind them
  bool cut = false;  // some of their tokens were forgotten, not all
};

// Where a token begins in what was fed. A feed has a mark at its first token; another one follows where a token, or the
// feed's end behind its last one, is not where the bytes of the token before end (a tokenizer may change a text, or
// leave out some of it).
struct TextMark {
  int64_t token = 0;
  int64_t feed = 0;  // feeds of at least one token, from 0 on
  int64_t byte = 0;  // of that feed's text
};

// Tokens [begin, end) that were fed together.
struct FedTokens {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t feed = 0;
};

class TextState {
 public:
  // All that a text is, for snapshots.
  struct Parts {
    std::vector<int32_t> tokens;
    int64_t n_settled = 0;
    int64_t n_computed = 0;
    int64_t reread_end = 0;           // settled tokens before this that are not computed were read before a cut
    std::vector<KeyRange> generated;  // runs of settled tokens that the model generated, ascending
    std::vector<TextPositions::Run> positions;
    std::vector<TokenLabel> labels;  // in the order fed
    std::vector<FedMessages> messages;
    std::vector<TextMark> marks;  // ascending by feed and token
    int64_t n_exact = kNoLimit;   // see TextState::n_exact
  };
  Parts parts() const;
  // kBadFile: they contradict each other; the message says which. Token ids are not looked at.
  static Result<TextState> make(Parts parts);

  // Settled tokens, then pending ones.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int32_t> settled() const { return tokens().first(static_cast<size_t>(n_settled_)); }
  int64_t n_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t n_settled() const { return n_settled_; }
  int64_t n_pending() const { return n_tokens() - n_settled_; }
  // Tokens in the KV cache: the first so many.
  int64_t n_computed() const { return n_computed_; }
  int64_t n_uncomputed() const { return n_tokens() - n_computed_; }
  // How many of the uncomputed tokens are prompt: pending, or read before a cut.
  int64_t n_unread() const;
  // So many of the first tokens have been in the KV cache, as they are, since mark_saved().
  int64_t n_unchanged() const { return n_unchanged_; }
  const TextPositions& positions() const { return positions_; }
  const std::vector<TokenLabel>& labels() const { return labels_; }
  bool is_generated(int64_t token) const;
  // kNoLimit: there is none.
  int64_t first_generated() const { return generated_.empty() ? kNoLimit : generated_.front().begin; }
  // Keys and values of so many of the first tokens are what computing the text gives. Those behind them were taken over
  // from elsewhere in an earlier text, or are random, or were computed behind such. kNoLimit: all are.
  int64_t n_exact() const { return n_exact_; }
  // How many of the first settled tokens were neither generated nor given positions of their own, and are exact.
  int64_t n_plain() const;
  const std::vector<TextMark>& marks() const { return marks_; }
  // The tokens that were fed, ascending; not those that the model generated.
  std::vector<FedTokens> fed() const;
  // Where the text is likely to be cut: before and behind what was fed together and what was generated together. Writes
  // the last of these places before token `end`, descending, each more than `apart` tokens before the one behind it.
  // Returns how many.
  size_t last_places(int64_t end, int64_t apart, std::span<int64_t> places) const;
  // The last of those that stand in the text; null: there are none.
  const FedMessages* last_messages() const { return messages_.empty() ? nullptr : &messages_.back(); }

  // Appends pending tokens. `labels`, `marks`: their tokens count from the first of these tokens; the mark of that one
  // is added here, and so are the numbers of the feed.
  void feed(std::span<const int32_t> ids, std::span<const TokenLabel> labels = {},
            std::span<const TextMark> marks = {});
  // The same for the tokens of messages, whose place is filled in here.
  void feed_messages(std::span<const int32_t> ids, FedMessages messages, std::span<const TextMark> marks = {});
  // The same at positions of their own, one for each id. kInvalidArgument: a position that does not increase, or a gap
  // too many; the offset is its index.
  Status feed_at(std::span<const int32_t> ids, std::span<const int64_t> positions,
                 std::span<const TextMark> marks = {});
  // The next n uncomputed tokens were computed: pending ones among them are settled now. Returns how many of the n were
  // prompt (see n_unread).
  int64_t computed(int64_t n);
  // The next n uncomputed tokens have keys and values of an earlier text; otherwise the same.
  int64_t moved(int64_t n);
  // Makes room for one generated token, so that adding it cannot fail.
  void reserve_generated();
  // Nothing must be pending.
  void add_generated(int32_t token);
  // Forgets the pending tokens from the n_tokens-th of the text on; n_tokens: at least n_settled().
  void cut_pending(int64_t n_tokens);
  // Forgets the tokens from n_tokens <= n_settled() on, pending ones too. Of the others the first n_computed stay
  // computed. Labels stay as they are where only generated tokens go.
  void cut(int64_t n_tokens, int64_t n_computed);
  // Of the computed tokens only the first n_computed stay so.
  void uncompute(int64_t n_computed);
  // The text becomes `next`, which was fed and is not processed, but for its first n_computed <= n_computed() tokens:
  // they are this text's, and stay computed.
  void become(TextState next, int64_t n_computed) noexcept;
  // What is in the KV cache was written to a snapshot, or read from one.
  void mark_saved() { n_unchanged_ = n_computed_; }
  // Reading the settled tokens that are not computed will count as prompt.
  void read_again() { reread_end_ = n_settled_; }
  // An empty text becomes this one. All but the last token count as computed, though their keys are random: none is
  // exact.
  void fill(std::vector<int32_t> tokens);

 private:
  void begin_feed(std::span<const TextMark> marks);
  void cut_labels(int64_t n_tokens);

  std::vector<int32_t> tokens_;
  int64_t n_settled_ = 0;
  int64_t n_computed_ = 0;
  int64_t n_exact_ = kNoLimit;       // at most n_computed_, or kNoLimit
  int64_t n_unchanged_ = 0;          // the least value of n_computed_ since mark_saved(); 0 without one
  int64_t reread_end_ = 0;           // settled tokens before this that are not computed were read before a cut
  std::vector<KeyRange> generated_;  // runs of settled tokens that the model generated, ascending
  TextPositions positions_;
  std::vector<TokenLabel> labels_;  // in the order fed
  std::vector<FedMessages> messages_;
  std::vector<TextMark> marks_;  // ascending by feed and token
};

}  // namespace quire
