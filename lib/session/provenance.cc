#include "lib/session/provenance.h"

#include <algorithm>
#include <string>

namespace quire {
namespace {

constexpr int64_t kCell = CiteRange::kCell;

Status append_text(const Tokenizer& tokenizer, int32_t id, std::string& bytes) {
  return tokenizer.append_bytes(id, ControlText::kNone, bytes);
}

bool goes_on(char byte) { return (byte & 0xC0) == 0x80; }  // of a character that began before

// How many of the first bytes belong to a character that began before.
int64_t count_rest(const std::string& bytes) {
  return std::find_if_not(bytes.begin(), bytes.end(), goes_on) - bytes.begin();
}

// Where tokens begin in what was fed. Asked for ascending tokens it looks at each token once.
class Places {
 public:
  Places(const Tokenizer& tokenizer, const TextState& text) : tokenizer_(tokenizer), text_(text) {}

  // Where `token` of a feed begins, at a code point: or, behind its last token, where that ends.
  Result<int64_t> byte_of(int64_t token, const FedTokens& feed) {
    const auto& marks = text_.marks();
    const auto mark = std::prev(std::partition_point(marks.begin(), marks.end(), [&](const TextMark& m) {
      return m.feed < feed.feed || (m.feed == feed.feed && m.token <= token);
    }));
    if (mark->token == token) return mark->byte;
    if (mark != mark_ || first_ > token) {
      mark_ = mark;
      first_ = token_ = mark->token;
      byte_ = mark->byte;
    }
    for (; token_ < token; ++token_) {
      QUIRE_TRY(read(token_));
      byte_ += static_cast<int64_t>(bytes_.size());
      first_ = token_ + 1;
    }
    // To the next character: what tokens before it have is of the one before.
    for (; token_ < feed.end; ++token_) {
      QUIRE_TRY(read(token_));
      const int64_t rest = count_rest(bytes_);
      if (rest < static_cast<int64_t>(bytes_.size())) return byte_ + rest;
      byte_ += rest;
    }
    return byte_;
  }

 private:
  Status read(int64_t token) {
    bytes_.clear();
    return append_text(tokenizer_, text_.tokens()[static_cast<size_t>(token)], bytes_);
  }

  const Tokenizer& tokenizer_;
  const TextState& text_;
  std::vector<TextMark>::const_iterator mark_{};
  int64_t token_ = -1, byte_ = 0;  // a token behind the mark, and where it begins
  int64_t first_ = -1;             // from here to that token no character begins
  std::string bytes_;
};

}  // namespace

void spread_entries(const Strategy& strategy, int64_t n_cells, int64_t n_entries, std::vector<float>& peaks) {
  if (n_entries == 0) return;
  const int64_t width = n_cells + n_entries;
  const int64_t n = static_cast<int64_t>(peaks.size()) / width;
  for (int64_t r = 0; r < n; ++r) {
    const float* from = peaks.data() + r * width;
    float* to = peaks.data() + r * n_cells;  // never behind what is still to be read
    const std::vector<float> entries(from + n_cells, from + width);
    std::copy(from, from + n_cells, to);
    for (int64_t e = 0; e < n_entries; ++e) {
      const KeyRange tokens = strategy.tokens_of_entry(e);
      for (int64_t begin = tokens.begin; begin < tokens.end;) {
        const int64_t cell = begin / kCell, end = std::min(tokens.end, (cell + 1) * kCell);
        if (cell < n_cells) {
          to[cell] += entries[static_cast<size_t>(e)] *
                      (static_cast<float>(end - begin) / static_cast<float>(tokens.end - tokens.begin));
        }
        begin = end;
      }
    }
  }
  peaks.resize(static_cast<size_t>(n * n_cells));
}

void cut_cells(const CiteRange& range, int64_t n_cells, std::vector<float>& peaks) {
  const int64_t left = range.n_cells();
  if (left == n_cells) return;
  const int64_t n = static_cast<int64_t>(peaks.size()) / n_cells;
  for (int64_t r = 0; r < n; ++r) {
    float* const to = peaks.data() + r * left;  // never behind what is still to be read
    std::copy_n(peaks.data() + r * n_cells, left, to);
    if (range.end % kCell != 0) to[left - 1] = 0;
  }
  peaks.resize(static_cast<size_t>(n * left));
}

Result<CitedShares> CitedShares::make(const CitedRows& rows, std::vector<FedTokens> fed, int64_t first, int64_t n) {
  CitedShares shares;
  const CiteRange& range = rows.range();
  const auto n_cells = static_cast<size_t>(range.n_cells());
  shares.before_.push_back(0);
  for (FedTokens part : fed) {
    part.begin = std::max(part.begin, range.first);
    part.end = std::min(part.end, range.end);
    if (part.begin >= part.end) continue;
    shares.citable_.push_back(part);
    shares.before_.push_back(shares.before_.back() + part.end - part.begin);
  }
  std::vector<double> counted(n_cells), citable(n_cells);  // tokens of a cell that have a share, and that may be cited
  for (size_t c = 0; c < n_cells; ++c) {
    const int64_t begin = static_cast<int64_t>(c) * kCell, end = std::min(begin + kCell, range.end);
    counted[c] = static_cast<double>(std::max<int64_t>(0, end - std::max(begin, range.first)));
    citable[c] = static_cast<double>(shares.citable_before(end) - shares.citable_before(begin));
  }
  shares.cells_.assign(n_cells, 0.0);
  std::vector<double> weights(n_cells);  // of a token in each cell
  for (int64_t token = first; token < first + n; ++token) {
    const auto row = rows.row(token - 1);
    if (row.empty()) {
      return Status(Code::kNotFound, "it is not known where token " + std::to_string(token) +
                                         " came from: a stream with QUIRE_STREAM_CITE knows it of the tokens that it "
                                         "generates, but for a first one whose logits were there before");
    }
    double all = 0;
    for (size_t c = 0; c < n_cells; ++c) {
      const double peak = row[c];
      weights[c] = counted[c] > 0 ? peak * peak / counted[c] : 0;
      all += weights[c] * citable[c];
    }
    for (size_t c = 0; all > 0 && c < n_cells; ++c) {
      shares.cells_[c] += weights[c] / all / static_cast<double>(n);
    }
  }
  shares.cells_before_.push_back(0);
  for (size_t c = 0; c < n_cells; ++c) {
    shares.cells_before_.push_back(shares.cells_before_.back() + shares.cells_[c] * citable[c]);
  }
  return shares;
}

int64_t CitedShares::citable_before(int64_t token) const {
  const auto after =
      std::partition_point(citable_.begin(), citable_.end(), [&](const FedTokens& part) { return part.end <= token; });
  const int64_t whole = before_[static_cast<size_t>(after - citable_.begin())];
  return after == citable_.end() ? whole : whole + std::max<int64_t>(0, token - after->begin);
}

double CitedShares::before(int64_t token) const {
  const auto n_cells = static_cast<int64_t>(cells_.size());
  const int64_t cell = std::clamp<int64_t>(token / kCell, 0, n_cells);
  const double whole = cells_before_[static_cast<size_t>(cell)];
  if (cell == n_cells) return whole;
  const int64_t in_cell = citable_before(token) - citable_before(cell * kCell);
  return whole + cells_[static_cast<size_t>(cell)] * static_cast<double>(in_cell);
}

std::vector<Passage> CitedShares::passages(int64_t most) const {
  std::vector<Passage> candidates, chosen;
  for (const FedTokens& part : citable_) {
    for (int64_t begin = part.begin; begin < part.end; begin = (begin / kCell + 1) * kCell) {
      const int64_t end = std::min(begin + kPassageTokens, part.end);
      candidates.push_back({.first_token = begin, .n_tokens = end - begin, .feed = part.feed, .share = of(begin, end)});
    }
  }
  const auto less = [](const Passage& a, const Passage& b) { return a.share < b.share; };
  while (static_cast<int64_t>(chosen.size()) < most) {
    const auto best = std::max_element(candidates.begin(), candidates.end(), less);  // the first of equal ones
    if (best == candidates.end() || !(best->share > 0)) break;
    const Passage passage = *best;
    chosen.push_back(passage);
    for (auto before = best; before != candidates.begin();) {  // those that reach into it end where it begins
      --before;
      const int64_t end = std::min(before->first_token + before->n_tokens, passage.first_token);
      if (before->feed != passage.feed || end - before->first_token == before->n_tokens) break;
      before->n_tokens = end - before->first_token;
      before->share = of(before->first_token, end);
    }
    const auto behind = std::find_if(best, candidates.end(), [&](const Passage& p) {
      return p.first_token >= passage.first_token + passage.n_tokens;
    });
    candidates.erase(best, behind);
  }
  return chosen;
}

Status find_bytes(const Tokenizer& tokenizer, const TextState& text, std::span<Passage> passages) {
  const std::vector<FedTokens> fed = text.fed();
  std::vector<Passage*> ascending;
  for (Passage& passage : passages) ascending.push_back(&passage);
  std::sort(ascending.begin(), ascending.end(),
            [](const Passage* a, const Passage* b) { return a->first_token < b->first_token; });
  Places places(tokenizer, text);
  for (Passage* passage : ascending) {
    const FedTokens& feed = fed[static_cast<size_t>(passage->feed)];
    QUIRE_ASSIGN(passage->begin, places.byte_of(passage->first_token, feed));
    QUIRE_ASSIGN(passage->end, places.byte_of(passage->first_token + passage->n_tokens, feed));
  }
  return {};
}

void find_labels(std::span<const TokenLabel> labels, std::span<Passage> passages) {
  for (Passage& passage : passages) {
    int64_t most = 0, length = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      const TokenLabel& label = labels[i];
      const int64_t common = std::min(label.first_token + label.n_tokens, passage.first_token + passage.n_tokens) -
                             std::max(label.first_token, passage.first_token);
      if (common < std::max<int64_t>(1, most) || (common == most && label.n_tokens >= length)) continue;
      most = common;
      length = label.n_tokens;
      passage.label = static_cast<int64_t>(i);
    }
  }
}

Status find_marks(const Tokenizer& tokenizer, std::string_view text, std::span<const int32_t> ids,
                  std::span<const int64_t> starts, std::vector<TextMark>& marks, const CancelToken* cancel) {
  constexpr size_t kBetweenPolls = 4096;
  const auto size = static_cast<int64_t>(text.size());
  // Bytes of each token, and how many of it and those behind it belong to a character that began before; then those of
  // the text's end.
  std::vector<int64_t> sizes(ids.size() + 1), rests(ids.size() + 1);
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % kBetweenPolls == 0 && cancel && cancel->cancelled()) return encoding_cancelled();
    bytes.clear();
    QUIRE_TRY(append_text(tokenizer, ids[i], bytes));
    sizes[i] = static_cast<int64_t>(bytes.size());
    rests[i] = count_rest(bytes);
  }
  for (size_t i = ids.size(); i-- > 0;) {
    if (rests[i] == sizes[i]) rests[i] += rests[i + 1];
  }
  int64_t byte = 0;
  for (size_t i = 0; i <= ids.size(); ++i) {
    // At a character: that which a token goes on with belongs to the one before.
    int64_t start = i < ids.size() ? starts[i] : size;
    const bool goes_on_itself = sizes[i] > 0 && rests[i] > 0;
    if (goes_on_itself && start < size && !goes_on(text[static_cast<size_t>(start)])) ++start;
    while (start < size && goes_on(text[static_cast<size_t>(start)])) ++start;
    if (i > 0 && start != byte + rests[i]) marks.push_back({static_cast<int64_t>(i), 0, byte = start});
    byte += sizes[i];
  }
  return {};
}

Status find_prefix_mark(const Tokenizer& tokenizer, std::span<const int32_t> ids, std::vector<TextMark>& marks) {
  if (!tokenizer.has_dummy_prefix()) return {};
  std::string bytes;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    QUIRE_TRY(append_text(tokenizer, ids[i], bytes));
    if (bytes.empty()) continue;
    if (bytes[0] == ' ') marks.push_back({static_cast<int64_t>(i) + 1, 0, static_cast<int64_t>(bytes.size()) - 1});
    return {};
  }
  return {};
}

}  // namespace quire
