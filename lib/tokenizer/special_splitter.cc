#include "lib/tokenizer/special_splitter.h"

#include <algorithm>
#include <functional>

namespace quire {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";

}  // namespace

void SpecialSplitter::add(int32_t id, const AddedToken& token) {
  if (!tokens_.emplace(token.text, Token{id, token.strip_left, token.strip_right}).second) return;
  auto& lengths = lengths_[static_cast<uint8_t>(token.text[0])];
  const auto at = std::lower_bound(lengths.begin(), lengths.end(), token.text.size(), std::greater<>());
  if (at == lengths.end() || *at != token.text.size()) lengths.insert(at, token.text.size());
}

const SpecialSplitter::Token* SpecialSplitter::match(std::string_view text, size_t at, size_t& length) const {
  for (const size_t candidate : lengths_[static_cast<uint8_t>(text[at])]) {
    if (candidate > text.size() - at) continue;
    const auto found = tokens_.find(text.substr(at, candidate));
    if (found == tokens_.end()) continue;
    length = candidate;
    return &found->second;
  }
  return nullptr;
}

std::vector<SpecialSplitter::Part> SpecialSplitter::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t begin = 0;  // of the ordinary text not yet in `parts`
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const Token* token = match(text, at, length);
    if (!token) {
      ++at;
      continue;
    }
    std::string_view before = text.substr(begin, at - begin);
    if (token->strip_left) before = before.substr(0, before.find_last_not_of(kSpaces) + 1);
    if (!before.empty()) parts.push_back({before, -1});
    parts.push_back({text.substr(at, length), token->id});
    at += length;
    if (token->strip_right) at = std::min(text.find_first_not_of(kSpaces, at), text.size());
    begin = at;
  }
  if (begin < text.size()) parts.push_back({text.substr(begin), -1});
  return parts;
}

}  // namespace quire
