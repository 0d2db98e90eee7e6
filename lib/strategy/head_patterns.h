// Sparse attention patterns that differ from head to head: which keys each head sees, at true distances. What s2,
// scca_fixed, scca_flow, sda and long_mixed have in common.
//
// The papers cut a training sequence of N tokens; here lengths are fixed numbers of tokens, or every new token would
// cut the text anew. No key after the query is ever seen.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/strategy/arguments.h"
#include "lib/strategy/methods.h"
#include "lib/strategy/strategy.h"

namespace quire {

// What one head of query i sees, c = i div w being its chunk. All but kDilated see the query's own key besides.
struct HeadPattern {
  enum class Kind {
    kLocal,    // keys of its chunk up to i; with `shifted`, of chunks that begin half a chunk later
    kRolled,   // keys and values rolled right by w / 2: keys [c w - w / 2, c w + w / 2) up to i
    kEarlier,  // keys of chunk c - shift; before there is one, none (or, with `wraps_local`, as kLocal)
    kDilated,  // keys j <= i with j mod dilation = residue
  };
  Kind kind = Kind::kLocal;
  bool shifted = false;  // kLocal
  int64_t shift = 0;     // kEarlier: at least 1
  bool wraps_local = false;
  int64_t dilation = 1;  // kDilated
  int64_t residue = 0;
  bool computes_all = false;  // queries of other residues see those keys and their own; else nothing (output 0)
};

struct HeadPatternOptions {
  int64_t chunk = 0;       // w; even where a kind halves it
  int64_t full_below = 0;  // queries with a lower index see every key before them
  // Mask by slots of the rolled sequence, as a program that rolls and then masks has it: of rolled and earlier keys,
  // only those whose slot does not come after the query's, without the query's own key; slots that hold the sequence's
  // end count as masked.
  bool by_slot = false;
};

// One pattern per query head. With a dilated one distances grow with the text, which then ends at train_len.
std::unique_ptr<Strategy> make_head_patterns(std::vector<HeadPattern> heads, const HeadPatternOptions& options,
                                             int64_t train_len);

// Reads `name`= (w: even, default train_len / parts; `span` chunks must fit the trained length) and full_below=, and
// writes them to `canonical`.
Result<HeadPatternOptions> read_chunk(const Arguments& arguments, std::string_view name, int64_t train_len,
                                      int64_t parts, double span, CanonicalTerm& canonical);

// Reads and writes mask=absolute|slot.
Status read_mask(const Arguments& arguments, HeadPatternOptions* options, CanonicalTerm& canonical);

}  // namespace quire
