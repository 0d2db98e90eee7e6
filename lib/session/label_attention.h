// Labels: parts of the text that the caller has names for, and how much an answer looked at each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// A part of a fed text: bytes [begin, end).
struct TextLabel {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t id = 0;
};

// The same part in tokens: those that begin in it.
struct TokenLabel {
  int64_t id = 0;
  int64_t first_token = 0;
  int64_t n_tokens = 0;
};

// How much of what the heads chose to look at lay in a labelled part.
struct LabelAttention {
  int64_t id = 0;
  int64_t first_token = 0;  // its tokens: those that begin in it
  int64_t n_tokens = 0;
  double share = 0;  // of all choices
};

// Sets `share` of each label. choices: by chunk of `chunk` tokens, from the beginning of the text. A chunk that lies in
// a label in part counts in part. The work is one pass over the chunks and one over the labels.
void share_choices(std::span<const int64_t> choices, int64_t chunk, std::span<LabelAttention> labels);

}  // namespace quire
