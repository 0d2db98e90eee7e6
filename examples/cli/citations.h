// Where an answer came from: the passages that `quire run --cite` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "document.h"
#include "engine.h"

namespace cli {

// The document in a session's text.
struct CitedDocument {
  std::string name;
  int64_t end = 0;    // its tokens come before this one; 0: not known
  int64_t begin = 0;  // the byte of the first feed's text where it begins: before it a chat template may write more
  int64_t n_stripped = 0;               // its first bytes, of white space, which a chat template left out
  std::vector<quire_label> pages = {};  // of a document in messages, which have no labels
};

// Finds the document in the written messages of a session, with white space around it or without. Where the template
// changed more of it, or there is none, all of them may be cited, by the name "messages".
CitedDocument find_in_messages(const quire_tokenizer* tokenizer, const quire_session* session, const std::string& name,
                               const std::string& document);

struct Citation {
  quire_passage passage;
  int64_t page;      // that has most of it: the id of its label; 0: none
  std::string text;  // as its tokens spell it
};

// The passages of the document that the last answer looked at most, at most n; none if it has no tokens.
std::vector<Citation> get_citations(const quire_tokenizer* tokenizer, const quire_session* session,
                                    const CitedDocument& document, size_t n);
void print_citations(const std::vector<Citation>& citations, const CitedDocument& document);
Json citations_json(const std::vector<Citation>& citations, const CitedDocument& document);

}  // namespace cli
