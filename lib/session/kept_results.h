// What a session keeps of what was computed on it: the last logits, and what its last stream was asked to keep.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/ranked_logits.h"
#include "lib/session/cited_rows.h"
#include "lib/session/logits_row.h"
#include "lib/support/status.h"

namespace quire {

// The logits after a token: on the host, or on a device until somebody asks for them.
struct LastLogits {
  std::vector<float> on_host{};            // f32 [vocab_size]; empty: not there
  std::shared_ptr<LogitsRow> on_device{};  // null: not there
  RankedLogits ranked{};                   // what the device says of its row

  bool known() const { return on_device || !on_host.empty(); }
};

// What a block of tokens came to.
struct BlockResults {
  LastLogits last;            // after the block's last token
  std::vector<float> logits;  // f32 [n][vocab_size]: after each token; empty if not wanted
  std::vector<float> hidden;  // f32 [n][hidden_size]: last hidden states; likewise
  std::vector<float> scores;  // f32 [n]: log p of each token; likewise
  // By chunk of the selection: how often queries chose it. One for all tokens of the block, or one for each.
  std::vector<std::vector<int64_t>> choices;
  std::vector<float> peaks;  // f32 [tokens from the first that is asked for on][CiteRange::n_cells()]

  // The block has only its first n_kept of n tokens, but for `last`; n_cells: of a row of peaks.
  void cut(int64_t n_kept, int64_t n, int64_t n_cells);
};

// A value without locks. A change that fails leaves it as it was.
class KeptResults {
 public:
  KeptResults(int64_t vocab_size, int64_t hidden_size)
      : vocab_size_(static_cast<size_t>(vocab_size)), hidden_size_(static_cast<size_t>(hidden_size)) {}

  // A stream begins: results come from token `first` on, and choices count from token `choices_from` on, as do rows of
  // where tokens look, if `cited` is not empty. Forgets what the one before kept, but for the last logits.
  void begin(int64_t first, int64_t choices_from, CiteRange cited = {});
  // Takes the results of tokens [first, first + n), but for what is known already of those that are computed again.
  // `apart`: tokens may be forgotten one by one, so that the choices of each are remembered.
  void add(BlockResults block, int64_t first, int64_t n, bool apart);
  // Tokens before n_tokens stay for good: their choices need not be known apart any more.
  void confirm(int64_t n_tokens);
  // The text ends after n_tokens, of which n_computed are computed. Nothing that was kept of them is forgotten, but for
  // the last logits where they belong to another token.
  void cut(int64_t n_tokens, int64_t n_computed);
  void clear();

  // The logits after `token`, the last computed one, were kept elsewhere.
  void restore(LastLogits last, int64_t token) {
    last_ = std::move(last);
    last_token_ = token;
  }

  // After the last computed token.
  const LastLogits& last() const { return last_; }
  // All of them, f32 [vocab_size]; empty: not known. They are copied from the device when they are first asked for.
  Result<std::span<const float>> last_logits();
  // A row that was used before, and is nobody's now, for the logits of the next block; or null.
  std::shared_ptr<LogitsRow> take_spare_row() { return std::exchange(spare_row_, nullptr); }
  // Choices of the tokens from here on are to be counted.
  int64_t choices_from() const { return choices_from_; }
  std::span<const int64_t> choices() const { return choices_; }
  const CitedRows& cited() const { return cited_; }
  // n_rows rows, the first one after token first_token; -1: after the last one computed. kNotFound.
  Result<std::span<const float>> logits(int64_t first_token, int64_t n_rows);
  // Of n tokens from first_token on. kNotFound, here and below.
  Result<std::span<const float>> hidden_states(int64_t first_token, int64_t n) const;
  Result<std::span<const float>> scores(int64_t first_token, int64_t n) const;

 private:
  struct TokenChoices {
    int64_t token;
    std::vector<int64_t> choices;
  };

  // The part of `rows`, which are of `width` floats a token, that is of n tokens from first_token on.
  Result<std::span<const float>> kept_rows(const char* what, const std::vector<float>& rows, size_t width,
                                           int64_t first_token, int64_t n) const;

  size_t vocab_size_;
  size_t hidden_size_;
  LastLogits last_;
  int64_t last_token_ = -1;               // the one that last_ follow
  std::shared_ptr<LogitsRow> spare_row_;  // a block that fails leaves the last logits as they are, so there are two
  int64_t first_ = 0;                     // the token that the following three begin with
  std::vector<float> logits_;
  std::vector<float> hidden_;
  std::vector<float> scores_;
  int64_t choices_from_ = 0;       // those of earlier tokens are counted, or not wanted
  std::vector<int64_t> choices_;   // by chunk of the selection
  std::list<TokenChoices> apart_;  // counted in choices_ too, ascending
  CitedRows cited_;
};

}  // namespace quire
