#include "citations.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "output.h"
#include "pages.h"

namespace cli {
namespace {

constexpr size_t kShownBytes = 100;
constexpr int32_t kMostPassages = 1024;

std::string decode(const quire_tokenizer* tokenizer, const int32_t* ids, size_t n) {
  return get_text([&](char* buf, size_t cap, size_t* needed,
                      quire_error* err) { return quire_tokenizer_decode(tokenizer, ids, n, 0, buf, cap, needed, err); },
                  "reading the text of tokens");
}

// Of ASCII, as chat templates strip it.
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f'); }

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The first words on one line. A passage may begin inside a word, which is left out then.
std::string first_words(const std::string& text, bool begins_text) {
  size_t at = 0;
  if (!begins_text) at = static_cast<size_t>(std::find_if(text.begin(), text.end(), is_space) - text.begin());
  if (at == text.size()) at = 0;
  std::string words;
  for (; at < text.size(); ++at) {
    if (!is_space(text[at])) {
      words += text[at];
    } else if (words.size() >= kShownBytes) {
      break;
    } else if (!words.empty() && words.back() != ' ') {
      words += ' ';
    }
  }
  while (!words.empty() && words.back() == ' ') words.pop_back();
  return at < text.size() ? words + " ..." : words;
}

// The bytes in the document, where it is in the first feed.
int64_t in_document(const quire_passage& passage, int64_t byte, const CitedDocument& document) {
  return passage.feed == 0 ? byte - document.begin + document.n_stripped : byte;
}

int64_t find_page(const quire_passage& passage, const CitedDocument& document) {
  if (passage.label >= 0) return passage.label_id;
  if (passage.feed > 0) return 0;
  return page_of(document.pages, in_document(passage, passage.begin, document),
                 in_document(passage, passage.end, document));
}

}  // namespace

CitedDocument find_in_messages(const quire_tokenizer* tokenizer, const quire_session* session, const std::string& name,
                               const std::string& document) {
  const std::vector<int32_t> ids = tokens_of(session);
  const std::string all = decode(tokenizer, ids.data(), ids.size());
  std::string_view written = document;
  size_t begin = all.find(written);
  if (begin == std::string::npos) {
    written = strip(document);
    begin = all.find(written);
  }
  if (written.empty() || begin == std::string::npos) return {"messages"};
  CitedDocument found{name};
  found.begin = static_cast<int64_t>(begin);
  found.n_stripped = written.data() - document.data();
  found.pages = find_pages(document);
  // The least number of tokens that hold it: texts of more tokens are no shorter.
  size_t low = 0, high = ids.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (decode(tokenizer, ids.data(), middle).size() < begin + written.size()) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  found.end = static_cast<int64_t>(low);
  return found;
}

std::vector<Citation> get_citations(const quire_tokenizer* tokenizer, const quire_session* session,
                                    const CitedDocument& document, size_t n) {
  Error error;
  std::vector<quire_passage> passages(kMostPassages);
  size_t found = 0;
  const quire_status status =
      quire_session_get_passages(session, -1, 0, kMostPassages, passages.data(), passages.size(), &found, error.get());
  if (status == QUIRE_ERROR_NOT_FOUND) return {};  // the answer is empty
  error.check(status, "cannot say where the answer came from");
  const std::vector<int32_t> ids = tokens_of(session);
  std::vector<Citation> citations;
  for (size_t i = 0; i < found && citations.size() < n; ++i) {
    if (passages[i].feed == 0 && passages[i].begin < document.begin) continue;
    const auto first = static_cast<size_t>(passages[i].first_token);
    citations.push_back({passages[i], find_page(passages[i], document),
                         decode(tokenizer, &ids[first], static_cast<size_t>(passages[i].n_tokens))});
  }
  return citations;
}

void print_citations(const std::vector<Citation>& citations, const CitedDocument& document) {
  print("\nlooked at:\n");
  if (citations.empty()) print("  nothing that may be cited\n");
  for (const Citation& c : citations) {
    const quire_passage& p = c.passage;
    std::string name = document.name;
    if (c.page > 0) name += ", page " + std::to_string(c.page);
    if (p.feed > 0) name += ", part " + std::to_string(p.feed + 1);
    print("%4.0f %%  %s, bytes %lld to %lld: \"%s\"\n", 100 * p.share, name.c_str(),
          static_cast<long long>(in_document(p, p.begin, document)),
          static_cast<long long>(in_document(p, p.end, document)), first_words(c.text, p.begin == 0).c_str());
  }
  flush_output();
}

Json citations_json(const std::vector<Citation>& citations, const CitedDocument& document) {
  Json list = Json::array();
  for (const Citation& c : citations) {
    const quire_passage& p = c.passage;
    list.push_back({{"document", document.name},
                    {"page", c.page > 0 ? Json(c.page) : Json()},
                    {"part", p.feed},
                    {"begin", in_document(p, p.begin, document)},
                    {"end", in_document(p, p.end, document)},
                    {"first_token", p.first_token},
                    {"n_tokens", p.n_tokens},
                    {"share", p.share},
                    {"text", c.text}});
  }
  return list;
}

}  // namespace cli
