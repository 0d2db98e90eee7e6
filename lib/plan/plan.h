// An attention plan: which keys each query sees, and at which distances. Data only: a strategy writes it, an executor
// runs it, a test prints it.
//
// Keys are counted from 0 among those of their kind. A key j of a chunk whose first key is c0 is stored rotated at
// stored_position(j - c0, stored_div), with the divisor of its store. The executor splits a span at chunk edges and
// rotates the query once per chunk to its distance from c0, so no boundary of a plan needs to coincide with a chunk
// edge. Keys that the span wants elsewhere than they are stored (Span::as_stored) are turned when they are read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lib/support/element.h"
#include "lib/support/status.h"

namespace quire {

enum class KvKind : int32_t {
  kText = 0,       // keys and values of the tokens that were fed or generated
  kCondensed = 1,  // of the entries that text was condensed into (Activation Beacon)
  // Those of the text once more, in the narrower type in which old text is read. Records alone have this kind: a span
  // of text is read in the type that its distance from the query gives.
  kNarrow = 2,
};
constexpr int kKvKinds = 3;
constexpr KvKind kAllKvKinds[] = {KvKind::kText, KvKind::kCondensed, KvKind::kNarrow};

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Keys or tokens [begin, end).
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Where the key at `offset` of its chunk is stored: rotated at this position. stored_div 0: not rotated.
constexpr int64_t stored_position(int64_t offset, int64_t stored_div) {
  return stored_div == 0 ? 0 : offset / stored_div;
}

// A run of keys as a block of queries sees it. For query i (its index in the text) and key j of the run
// { first_key + t * stride : 0 <= t < count }:
//   visible   iff  min_lag <= i - j <= max_lag  and  lag_stride divides i - j
//   distance       Q(i) - P(j), with  Q(i) = min(i / q_div + q_offset, q_cap)
//                                     P(j) = (j - key_base) / key_div            (key_div 0: P = 0)
//                                     P(j) = (j - key_base) mod key_period       (with a key_period)
// i / q_div is floored if q_floor is set, else real; so is (j - key_base) / key_div by key_floor.
struct Span {
  KvKind kind = KvKind::kText;
  int64_t first_key = 0;
  int64_t count = 0;
  int64_t stride = 1;
  int64_t min_lag = 0;
  int64_t max_lag = kNoLimit;
  int64_t lag_stride = 1;
  double q_div = 1;
  bool q_floor = true;
  double q_offset = 0;
  double q_cap = std::numeric_limits<double>::infinity();
  int64_t key_base = 0;
  int64_t key_div = 1;
  bool key_floor = true;
  // Key positions begin anew every so many keys; 0: never. The executor splits such a span where they do. With key_div
  // 1, of keys that are stored so.
  int64_t key_period = 0;
  // Of blocks with a selection: distances by rank instead (ChunkSelection::distance).
  bool ranked = false;
  // The t-th query of the block sees key first_key + t alone, at distance 0.
  bool diagonal = false;

  double query_position(int64_t i) const;
  double key_position(int64_t j) const;
  // The key from which the positions of key j and of those up to the period's end count.
  int64_t base_of(int64_t j) const;
  bool visible(int64_t i, int64_t j) const;
  double distance(int64_t i, int64_t j) const { return query_position(i) - key_position(j); }
  // Whether keys of a store with this divisor and chunks of `chunk` keys stand as far from each other as P has them.
  bool as_stored(int64_t stored_div, int64_t chunk) const;
};

// Queries that share their span lists, with the indexes first_query + t * step. A list's spans are disjoint and sorted
// by (kind, first_key); an empty list gives output 0.
struct QueryBlock {
  int64_t first_query = 0;
  int64_t n_queries = 0;
  int64_t step = 1;  // 0 and others: of new condensed entries, in a plan of one block
  // Lists [first_list, first_list + 1) for all heads, or one per query head if per_head.
  int32_t first_list = 0;
  bool per_head = false;
  // Of the keys in its spans, a query sees those of the chunks that its head selects (Plan::selection); one list for
  // all heads, text keys only.
  bool selected = false;
};

// How a query's head selects chunks of `chunk` text keys. They divide the stored chunks; a stored chunk is chosen whole
// where `chunk` is as long (kAttention needs that). Of the chunks up to its own it takes all if they are at most
// most(query); else the first one, the last `n_last` ones (its own included), and of those between them the ones with
// the highest scores (Representation); the lower index where scores are equal. Packed, the n chunks it takes stand at
// consecutive positions: key j of the u-th one (u = 0 is the first in the text) has distance
// (n - 1 - u) * chunk + i mod chunk - j mod chunk from query i. The values of Pick and First that are not their first
// are for ablations.
struct ChunkSelection {
  enum class Sharing {
    kHead,        // each query head for itself
    kGroup,       // one selection for the query heads of a KV head, by the sum of their scores
    kLayer,       // one for all heads of a layer, by the sum
    kFirstLayer,  // each head as the first layer's
  };
  // What stands for a complete chunk, and its score. kMean and kBounds: keys are rotated at j mod key_period, and the
  // query to the distances of the block's spans, in which key positions begin anew nowhere but at multiples of
  // key_period. What is summed where heads choose together is each head's softmax over the chunks before the query's
  // own of its logits' scale times the score: its estimate of how its attention is shared out.
  enum class Representation {
    kAttention,  // a vector per query head, of two small attentions (LongHeads, Eq. 1-2): query . vector, unrotated
    kMean,       // a vector per KV head, the mean of the chunk's keys: query . mean
    // Two vectors per KV head, the least and the greatest of each channel over the chunk's keys (Quest,
    // arXiv:2406.10774): sum over channels of max(q * least, q * greatest), which no product of the query with a key of
    // the chunk exceeds, save by the rounding of the vectors.
    kBounds,
  };
  enum class Pick { kBest, kWorst, kRandom };
  enum class First { kForced, kFree, kNever };  // the first chunk: taken, like others, never

  int64_t chunk = 0;
  int64_t count = 0;  // chunks that a query takes at most, in a text of up to one_in * count chunks; 0: no selection
  int64_t n_last = 1;
  Sharing sharing = Sharing::kHead;
  Pick pick = Pick::kBest;
  First first = First::kForced;
  Representation representation = Representation::kAttention;
  int64_t key_period = 0;  // of kMean and kBounds: a multiple of `chunk`
  int64_t one_in = 0;      // in longer texts it takes one chunk in so many; 0: never more than `count`
  // Of its free choices so many beside the near ones are those that the last given token looked at most
  // (Plan::sticky). 0: no chunk is sticky.
  int64_t n_sticky = 0;
  ElementType attention_type = ElementType::kF32;  // of kAttention's vectors; the others' are of the keys' type

  int n_vectors(int n_query_heads, int n_kv_heads) const {
    if (representation == Representation::kAttention) return n_query_heads;
    return (representation == Representation::kBounds ? 2 : 1) * n_kv_heads;
  }
  // Whether they are made of the chunk's queries too.
  bool keeps_queries() const { return count > 0 && representation == Representation::kAttention; }
  ElementType vector_type(ElementType kv_type) const {
    return representation == Representation::kAttention ? attention_type : kv_type;
  }

  // Chunks that a query takes, where there are so many. It does not fall with the query's index.
  int64_t most(int64_t query) const { return one_in == 0 ? count : std::max(count, (query / chunk + 1) / one_in); }
  // Chunks a selecting query takes by score: n_free() of [first_free(), own + 1 - n_last).
  int64_t n_free(int64_t query) const { return most(query) - n_last - (first == First::kForced ? 1 : 0); }
  int64_t first_free() const { return first == First::kFree ? 0 : 1; }

  // Of the chunks that the query selected, those in this range were its free choice.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Range free_chunks(int64_t query) const {
    const int64_t own = query / chunk;
    if (own + 1 <= most(query)) return {};
    return {first_free(), own + 1 - n_last};
  }

  int64_t n_selected(int64_t query) const { return std::min(query / chunk + 1, most(query)); }
  // Of ranked spans: the distance of key `key`, whose chunk is the rank-th that the query's head selected.
  int64_t distance(int64_t query, int64_t rank, int64_t key) const {
    return (n_selected(query) - 1 - rank) * chunk + query % chunk - key % chunk;
  }
};

// Of the keys in a block's spans.
enum class KeysSeen {
  kAll,
  kSelected,  // those of the chunks that a query's head selects (QueryBlock::selected)
};

struct Plan {
  struct List {
    int32_t begin = 0;  // spans [begin, end)
    int32_t end = 0;
  };

  std::vector<QueryBlock> blocks;  // ascending, together all planned queries
  std::vector<List> lists;
  std::vector<Span> spans;
  // Factor on the logits of each planned query, in block order; empty: 1 (methods whose temperature grows with i).
  std::vector<float> query_scale;
  ChunkSelection selection;  // of the blocks that are `selected`
  // Ascending chunks of the selection: of those among a query's free choices it takes these first, the lower index
  // where there are more of them than choices; and then the others by their scores.
  std::vector<int32_t> sticky;

  // Most chunks that a query of those blocks takes; 0: there is none.
  int64_t most_selected() const;
  void clear();
  // Appends a block with one list for all heads.
  void add_block(int64_t first_query, int64_t n_queries, const std::vector<Span>& spans,
                 KeysSeen seen = KeysSeen::kAll);
  // Appends a block with one list per head.
  void add_block_per_head(int64_t first_query, int64_t n_queries, const std::vector<std::vector<Span>>& spans);
  const List& list(const QueryBlock& block, int head) const {
    return lists[static_cast<size_t>(block.first_list + (block.per_head ? head : 0))];
  }
};

// Checks the invariants above for queries [first_query, first_query + n_queries) of n_heads heads.
Status validate(const Plan& plan, int64_t first_query, int64_t n_queries, int n_heads);

// The chunks of `chunk` text keys that the spans of blocks without a selection touch, ascending.
std::vector<int64_t> touched_chunks(const Plan& plan, int64_t chunk, int n_heads);

// How many keys a query sees, in the mean over the plan's queries and heads; selections are of their full size. Of
// spans with a stride or a lag_stride to within one key each.
double visible_keys(const Plan& plan, int n_heads);

// matrix[r * n_keys + j] = distance between query r (counted from the plan's first) and key j of the kind in head
// `head`, NaN where not visible. Selections are shown as they are when all scores are equal.
void position_matrix(const Plan& plan, int head, int64_t n_keys, double* matrix, KvKind keys = KvKind::kText);

}  // namespace quire
