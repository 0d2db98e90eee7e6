// What SpecialSplitter promises, written down without regard to speed.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tokenizer/special_splitter.h"

namespace quire {

using SplitParts = std::vector<std::pair<std::string_view, int32_t>>;  // text, id or -1

// Whether the bytes are one white space character of Unicode.
inline bool is_white_space(std::string_view bytes) {
  if (bytes.size() == 1) return bytes[0] == ' ' || (bytes[0] >= '\t' && bytes[0] <= '\r');
  if (bytes.size() == 2) return bytes == "\u0085" || bytes == "\u00A0";
  return (bytes >= "\u2000" && bytes <= "\u200A") || bytes == "\u1680" || bytes == "\u2028" || bytes == "\u2029" ||
         bytes == "\u202F" || bytes == "\u205F" || bytes == "\u3000";
}

// How many bytes the white space character takes that the text begins with, or ends with; 0: none.
inline size_t space_at_begin(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    if (is_white_space(text.substr(0, n))) return n;
  }
  return 0;
}

inline size_t space_at_end(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    if (is_white_space(text.substr(text.size() - n))) return n;
  }
  return 0;
}

inline SplitParts naive_split(const std::vector<SpecialSplitter::Token>& tokens, std::string_view text) {
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
    std::string_view before = text.substr(begin, at - begin);
    while (longest->strip_left && space_at_end(before) > 0) before.remove_suffix(space_at_end(before));
    if (!before.empty()) parts.emplace_back(before, -1);
    parts.emplace_back(text.substr(at, longest->text.size()), longest->id);
    at += longest->text.size();
    while (longest->strip_right && space_at_begin(text.substr(at)) > 0) at += space_at_begin(text.substr(at));
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
