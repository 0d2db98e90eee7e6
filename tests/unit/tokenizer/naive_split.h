// What SpecialSplitter promises, written down without regard to speed.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tokenizer/special_splitter.h"

namespace quire {

using SplitParts = std::vector<std::pair<std::string_view, int32_t>>;  // text, id or -1

inline SplitParts naive_split(const std::vector<SpecialSplitter::Token>& tokens, std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  SplitParts parts;
  size_t begin = 0, at = 0;
  while (at < text.size()) {
    const SpecialSplitter::Token* longest = nullptr;
    for (const auto& token : tokens) {
      if (text.substr(at).starts_with(token.text) && (!longest || token.text.size() > longest->text.size())) {
        longest = &token;
      }
    }
    if (!longest) {
      ++at;
      continue;
    }
    size_t end = at;
    while (longest->strip_left && end > begin && is_space(text[end - 1])) --end;
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin), -1);
    parts.emplace_back(text.substr(at, longest->text.size()), longest->id);
    at += longest->text.size();
    while (longest->strip_right && at < text.size() && is_space(text[at])) ++at;
    begin = at;
  }
  if (begin < text.size()) parts.emplace_back(text.substr(begin), -1);
  return parts;
}

inline SplitParts split(const SpecialSplitter& splitter, std::string_view text, int64_t* n_steps = nullptr) {
  SplitParts parts;
  const Status status = splitter.split(
      text,
      [&](const SpecialSplitter::Part& part) {
        parts.emplace_back(part.text, part.id);
        return Status();
      },
      n_steps);
  return status.ok() ? parts : SplitParts();
}

}  // namespace quire
