#include "haystack.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <stdexcept>

namespace cli {
namespace {

constexpr size_t kLongPiece = 1000;  // bytes; then any blank ends it

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Whether the text before a blank ends a sentence: . ! or ?, perhaps in quotes or brackets.
bool ends_sentence(std::string_view before) {
  const size_t last = before.find_last_not_of("\"')]");
  return last != std::string_view::npos && std::string_view(".!?").find(before[last]) != std::string_view::npos;
}

std::string assemble(const std::vector<std::string>& pieces, size_t first_piece, size_t n_pieces, size_t n_before,
                     const Task& task, const std::string& lead = "") {
  std::string text = kPrefix + lead;
  const auto add_needle = [&] { text += task.needle + (is_blank(text.back()) && text.back() != '\n' ? " " : "\n"); };
  for (size_t i = 0; i < n_pieces; ++i) {
    if (i == n_before) add_needle();
    text += pieces[(first_piece + i) % pieces.size()];
  }
  if (n_before >= n_pieces) add_needle();
  if (text.back() != '\n') text += '\n';
  return text + task.question;
}

bool is_word(char c) {
  const auto u = static_cast<unsigned char>(c);
  return std::isalnum(u) != 0 || u >= 0x80;
}

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

std::string generate(quire_session* session, const std::string& prompt, int64_t max_tokens,
                     const std::function<void(int64_t done)>& show,
                     const std::function<bool(const std::string&)>& enough) {
  feed_text(session, prompt);
  auto options = initialised(quire_stream_options_init);
  options.max_tokens = max_tokens;
  std::string text;
  const int32_t finish = run_stream(session, options, [&](const quire_event& event) {
    if (event.kind == QUIRE_EVENT_PREFILL) show(event.reused + event.done);
    if (event.kind != QUIRE_EVENT_TOKEN && event.kind != QUIRE_EVENT_END) return true;
    if (event.text_len > 0) text.append(event.text, event.text_len);
    return !enough(text);
  });
  if (finish == QUIRE_FINISH_CANCELLED) throw Interrupted();
  if (finish == QUIRE_FINISH_REACH && text.empty()) {
    throw std::runtime_error("the document is longer than the strategy's reach");
  }
  return text;
}

}  // namespace

uint64_t draw(uint64_t seed, uint64_t trial, uint64_t n) {
  uint64_t x = seed;
  for (const uint64_t word : {trial, n}) {  // SplitMix64's finaliser
    x += 0x9e3779b97f4a7c15u * (word + 1);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

std::string draw_key(uint64_t seed, uint64_t trial) { return std::to_string(10000 + draw(seed, trial, 0) % 90000); }

std::string fill_in(std::string text, const std::string& key) {
  constexpr std::string_view kMark = "{key}";
  for (size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + key.size())) {
    text.replace(at, kMark.size(), key);
  }
  return text;
}

int64_t count_tokens(const quire_tokenizer* tokenizer, std::string_view text, uint32_t flags) {
  return static_cast<int64_t>(encode(tokenizer, text, flags).size());
}

std::vector<std::string> split_sentences(std::string_view text) {
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    if (!is_blank(text[i])) {
      // A text without blanks is cut, too, between code points.
      if (i - begin >= 2 * kLongPiece && !is_continuation(text[i])) {
        pieces.emplace_back(text.substr(begin, i - begin));
        begin = i;
      }
      ++i;
      continue;
    }
    size_t after = i, n_newlines = 0;
    for (; after < text.size() && is_blank(text[after]); ++after) n_newlines += text[after] == '\n' ? 1 : 0;
    if (n_newlines > 1 || i - begin >= kLongPiece || ends_sentence(text.substr(begin, i - begin))) {
      pieces.emplace_back(text.substr(begin, after - begin));
      begin = after;
    }
    i = after;
  }
  if (begin < text.size()) pieces.emplace_back(text.substr(begin));
  if (!pieces.empty() && !is_blank(pieces.back().back())) pieces.back() += '\n';
  return pieces;
}

std::string end_of_piece(const quire_tokenizer* tokenizer, const std::string& piece, int64_t n_tokens) {
  for (size_t at = 1; at < piece.size(); ++at) {
    if (!is_blank(piece[at - 1]) || is_blank(piece[at])) continue;
    const std::string end = piece.substr(at);
    if (count_tokens(tokenizer, end, QUIRE_TEXT_CONTINUE) <= n_tokens) return end;
  }
  return "";
}

Document make_document(const quire_tokenizer* tokenizer, const std::vector<std::string>& pieces, size_t first_piece,
                       const Task& task, const Placement& place) {
  const int64_t most = task.length - task.answer_tokens;
  const int64_t bare = count_tokens(tokenizer, assemble(pieces, 0, 0, 0, task));
  if (bare > most) {
    throw UsageError("--tokens " + std::to_string(task.length) + " is too short: needle, question and answer take " +
                     std::to_string(bare + task.answer_tokens));
  }
  const int64_t limit = std::max(bare, most - task.shorter.value_or(0));
  // Tokens might join differently across pieces, so this may be a piece too much, seldom more.
  std::vector<int64_t> tokens;
  for (int64_t total = bare; total <= limit;) {
    const std::string& piece = pieces[(first_piece + tokens.size()) % pieces.size()];
    tokens.push_back(std::max<int64_t>(1, count_tokens(tokenizer, piece, QUIRE_TEXT_CONTINUE)));
    total += tokens.back();
  }
  Document document;
  const auto write = [&](const std::string& lead) {
    const int64_t n_lead = lead.empty() ? 0 : count_tokens(tokenizer, lead, QUIRE_TEXT_CONTINUE);
    const size_t n_before = place(tokens);
    document.text = assemble(pieces, first_piece, tokens.size(), n_before, task, lead);
    document.n_tokens = count_tokens(tokenizer, document.text);
    const auto middle = tokens.begin() + static_cast<std::ptrdiff_t>(n_before);
    const auto n_all = std::accumulate(tokens.begin(), tokens.end(), n_lead);
    const auto n_until = std::accumulate(tokens.begin(), middle, n_lead);
    document.depth = n_all > 0 ? static_cast<double>(n_until) / static_cast<double>(n_all) : 0;
    return document.n_tokens <= limit;
  };
  while (!write("")) tokens.pop_back();
  if (!task.shorter) return document;
  const std::string& before = pieces[(first_piece + pieces.size() - 1) % pieces.size()];
  for (int64_t room = limit - document.n_tokens; room > 0; --room) {
    const std::string lead = end_of_piece(tokenizer, before, room);
    if (write(lead)) break;
  }
  return document;
}

std::string ask(quire_session* session, const std::string& prompt, int64_t max_tokens,
                const std::function<void(int64_t done)>& show, const std::function<bool(const std::string&)>& enough) {
  reset(session);
  return generate(session, prompt, max_tokens, show, enough);
}

std::string go_on(quire_session* session, const std::string& text, int64_t max_tokens) {
  return generate(
      session, text, max_tokens, [](int64_t) {}, [](const std::string&) { return false; });
}

bool says(const std::string& said, const std::string& expected) {
  const std::string text = lower(said), answer = lower(expected);
  for (size_t at = text.find(answer); at != std::string::npos; at = text.find(answer, at + 1)) {
    const size_t end = at + answer.size();
    const bool begins = at == 0 || !is_word(text[at - 1]) || !is_word(answer.front());
    const bool ends = end == text.size() || !is_word(text[end]) || !is_word(answer.back());
    if (begins && ends) return true;
  }
  return false;
}

}  // namespace cli
