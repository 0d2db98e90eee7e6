// Drafts for speculative decoding that need no second model: prompt lookup (Saxena 2023, "Prompt Lookup Decoding"; Yang
// et al. 2023, "Inference with Reference", arXiv:2304.04487). Where the last tokens of a text stood before, what
// followed them there may follow again: an answer quotes the document, and repeats names.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// The tokens that followed the last ones of `text` elsewhere in it: at the place where the most of them stood before,
// of equal places the latest. At most `most`, and at most as many as stood there, so that much is drafted only where
// much speaks for it. Where the place overlaps the end of the text, which repeats itself then, so does the draft. None:
// there is no place with `least` of them (at least 1).
std::vector<int32_t> find_draft(std::span<const int32_t> text, int64_t most, int64_t least);

}  // namespace quire
