#include "lib/tokenizer/special_splitter.h"

#include <algorithm>
#include <deque>
#include <iterator>

namespace quire {
namespace {

// Unicode's White_Space, which `tokenizers` strips.
constexpr std::string_view kSpaces[] = {" ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\u0085",
                                        "\u00A0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004",
                                        "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200A", "\u2028",
                                        "\u2029", "\u202F", "\u205F", "\u3000"};
// A text is searched in blocks. A search begins a token's length behind its block, so that blocks of many times this
// length cost little more than the text.
constexpr size_t kMinBlockBytes = 1 << 16, kBlockTokens = 16;

}  // namespace

std::string_view without_last_spaces(std::string_view text) {
  for (;;) {
    const auto space = std::find_if(std::begin(kSpaces), std::end(kSpaces), [&](auto s) { return text.ends_with(s); });
    if (space == std::end(kSpaces)) return text;
    text.remove_suffix(space->size());
  }
}

std::string_view without_first_spaces(std::string_view text) {
  for (;;) {
    const auto space =
        std::find_if(std::begin(kSpaces), std::end(kSpaces), [&](auto s) { return text.starts_with(s); });
    if (space == std::end(kSpaces)) return text;
    text.remove_prefix(space->size());
  }
}

Result<SpecialSplitter> SpecialSplitter::make(const std::vector<Token>& tokens) {
  SpecialSplitter splitter;
  std::vector<std::pair<std::string, int32_t>> backwards;
  for (const Token& token : tokens) {
    backwards.emplace_back(std::string(token.text.rbegin(), token.text.rend()),
                           static_cast<int32_t>(splitter.tokens_.size()));
    splitter.tokens_.push_back(
        {token.id, static_cast<uint32_t>(token.text.size()), token.strip_left, token.strip_right});
    splitter.longest_ = std::max(splitter.longest_, token.text.size());
  }
  std::sort(backwards.begin(), backwards.end());
  const auto same_text = [](const auto& a, const auto& b) { return a.first == b.first; };
  backwards.erase(std::unique(backwards.begin(), backwards.end(), same_text), backwards.end());
  size_t n_bytes = 0;
  for (const auto& [text, index] : backwards) n_bytes += text.size();
  if (n_bytes > kMaxBytes) {
    return Status(Code::kBadFile, "the texts of the control and added tokens have " + std::to_string(n_bytes) +
                                      " bytes together; expected at most " + std::to_string(kMaxBytes));
  }
  splitter.build(backwards, n_bytes);
  return splitter;
}

// The sorted texts that begin with a state's bytes are neighbours: states are made from such ranges, shortest first.
void SpecialSplitter::build(const std::vector<std::pair<std::string, int32_t>>& backwards, size_t n_bytes) {
  byte_.reserve(n_bytes + 1);
  shorter_.reserve(n_bytes + 1);
  token_.reserve(n_bytes + 1);
  first_child_.reserve(n_bytes + 2);
  struct Range {
    size_t begin, end, length;
  };
  std::deque<Range> ranges{{0, backwards.size(), 0}};  // of the states from `state` on
  int64_t n_steps = 0;
  const auto add = [&](uint8_t byte, State shorter) {
    byte_.push_back(byte);
    shorter_.push_back(shorter);
    token_.push_back(kNoToken);
  };
  add(0, 0);
  for (State state = 0; !ranges.empty(); ++state) {
    const Range range = ranges.front();
    ranges.pop_front();
    first_child_.push_back(static_cast<State>(byte_.size()));
    size_t at = range.begin;
    token_[state] = token_[shorter_[state]];
    if (state != 0 && backwards[at].first.size() == range.length) token_[state] = backwards[at++].second;
    while (at < range.end) {
      const size_t begin = at;
      const char byte = backwards[begin].first[range.length];
      while (at < range.end && backwards[at].first[range.length] == byte) ++at;
      add(static_cast<uint8_t>(byte), state == 0 ? 0 : next(shorter_[state], byte, n_steps));
      ranges.push_back({begin, at, range.length + 1});
    }
  }
  first_child_.push_back(static_cast<State>(byte_.size()));
  byte_.shrink_to_fit();  // tokens with the same end share states
  shorter_.shrink_to_fit();
  token_.shrink_to_fit();
  first_child_.shrink_to_fit();
}

SpecialSplitter::State SpecialSplitter::child(State state, char byte) const {
  const auto begin = byte_.begin() + first_child_[state], end = byte_.begin() + first_child_[state + 1];
  const auto at = std::lower_bound(begin, end, static_cast<uint8_t>(byte));
  return at != end && *at == static_cast<uint8_t>(byte) ? static_cast<State>(at - byte_.begin()) : 0;
}

SpecialSplitter::State SpecialSplitter::next(State state, char byte, int64_t& n_steps) const {
  for (;; state = shorter_[state]) {
    ++n_steps;
    const State longer = child(state, byte);
    if (longer != 0 || state == 0) return longer;
  }
}

void SpecialSplitter::find(std::string_view text, size_t begin, size_t end, std::vector<int32_t>& longest,
                           int64_t& n_steps) const {
  longest.resize(end - begin);
  State state = 0;
  for (size_t at = std::min(text.size(), end + longest_); at-- > begin;) {
    state = next(state, text[at], n_steps);
    if (at < end) longest[at - begin] = token_[state];
  }
}

Status SpecialSplitter::split(std::string_view text, const std::function<Status(const Part&)>& visit,
                              int64_t* n_steps) const {
  const size_t block_bytes = std::max(kMinBlockBytes, kBlockTokens * longest_);
  std::vector<int32_t> longest;  // of the block from block_begin on
  size_t block_begin = 0;
  int64_t steps = 0;
  size_t begin = 0;  // of the ordinary text that is not given out
  for (size_t at = 0; at < text.size();) {
    if (at >= block_begin + longest.size()) {
      block_begin = at;
      find(text, at, std::min(text.size(), at + block_bytes), longest, steps);
    }
    const int32_t index = longest[at - block_begin];
    if (index == kNoToken) {
      ++at;
      continue;
    }
    const Found& token = tokens_[static_cast<size_t>(index)];
    std::string_view before = text.substr(begin, at - begin);
    if (token.strip_left) before = without_last_spaces(before);
    if (!before.empty()) QUIRE_TRY(visit({before, -1}));
    QUIRE_TRY(visit({text.substr(at, token.n_bytes), token.id}));
    at += token.n_bytes;
    if (token.strip_right) at = text.size() - without_first_spaces(text.substr(at)).size();
    begin = at;
  }
  if (n_steps) *n_steps += steps;
  if (begin < text.size()) QUIRE_TRY(visit({text.substr(begin), -1}));
  return {};
}

}  // namespace quire
