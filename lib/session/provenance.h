// Provenance: which passages of what was fed an answer looked at.
//
// The rule. A token of the answer was chosen by what the token before it saw. Of each cell of 16 tokens, its peak is
// the greatest share of that token's attention that a query head of any layer gave it; the square of the peak is the
// cell's weight. Weights of the tokens that may be cited, in relation to their sum, are the shares of that answer's
// token, and their mean over tokens is the share of the answer. A mean over heads instead of the greatest would drown
// the few heads that look something up in the many that do not.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/session/cited_rows.h"
#include "lib/session/label_attention.h"
#include "lib/session/text_state.h"
#include "lib/strategy/strategy.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {

// Tokens of a passage at most: those that a feed, or a passage chosen before, cuts short have less.
constexpr int64_t kPassageTokens = 64;
// Tokens at the beginning that are never cited: attention sinks (Xiao et al. 2023, arXiv:2309.17453).
constexpr int64_t kSinkTokens = 4;
// Tokens before the answer that are not cited unless the caller says where the question begins.
constexpr int64_t kRecentTokens = 64;

struct Passage {
  int64_t first_token = 0;
  int64_t n_tokens = 0;
  int64_t feed = 0;
  int64_t begin = 0, end = 0;  // bytes of the feed's text
  int64_t label = -1;          // index of the label that has most of it; -1: none
  double share = 0;
};

// Adds the peaks of condensed entries to those of the tokens that they stand for, evenly.
// peaks: [n][n_cells text cells, then n_entries], of which [n][n_cells] is left.
void spread_entries(const Strategy& strategy, int64_t n_cells, int64_t n_entries, std::vector<float>& peaks);

// Rows of n_cells cells, of peaks of keys from range.first on to at least range.end, become rows of the range's cells.
// Where the last one has keys behind the range's end, it says nothing: what fell on which is not known.
void cut_cells(const CiteRange& range, int64_t n_cells, std::vector<float>& peaks);

// Shares of an answer, as a function of the place in the text.
class CitedShares {
 public:
  // Of the answer's tokens [first, first + n): rows of the tokens before them. fed: what was fed, ascending. kNotFound:
  // a row is missing.
  static Result<CitedShares> make(const CitedRows& rows, std::vector<FedTokens> fed, int64_t first, int64_t n);

  // Of all tokens before this one.
  double before(int64_t token) const;
  double of(int64_t begin, int64_t end) const { return before(end) - before(begin); }
  // The passages with the greatest shares, descending; they do not overlap. At most `most`; none without a share. Bytes
  // and labels are not set.
  std::vector<Passage> passages(int64_t most) const;

 private:
  int64_t citable_before(int64_t token) const;

  std::vector<FedTokens> citable_;    // ascending, each in a feed
  std::vector<int64_t> before_;       // tokens of those before each, and of all
  std::vector<double> cells_;         // share of a citable token of each cell
  std::vector<double> cells_before_;  // shares of the cells before each, and of all
};

// Sets the bytes of the passages. Errors: those of Tokenizer::append_bytes.
Status find_bytes(const Tokenizer& tokenizer, const TextState& text, std::span<Passage> passages);
// Sets their labels: of those with equally many of a passage's tokens the shortest.
void find_labels(std::span<const TokenLabel> labels, std::span<Passage> passages);
// Appends to `marks` where tokens, or the end of the text, are elsewhere than the bytes of the token before end; tokens
// count from the first of ids. starts: as Tokenizer::encode gives them. cancel: may be null. Errors: those of
// Tokenizer::append_bytes; kCancelled.
Status find_marks(const Tokenizer& tokenizer, std::string_view text, std::span<const int32_t> ids,
                  std::span<const int64_t> starts, std::vector<TextMark>& marks, const CancelToken* cancel = nullptr);
// The mark of token ids that begin a text: of a tokenizer with a dummy prefix, its space is no part of the text.
Status find_prefix_mark(const Tokenizer& tokenizer, std::span<const int32_t> ids, std::vector<TextMark>& marks);

}  // namespace quire
