// longheads: each head of each token attends to a few chunks, chosen by its own query.
//
// Idea        A head attends to at most `chunks` chunks of `chunk` keys: the first, the last ones, and those whose
//             representation matches its query best; they are packed to consecutive positions, so that no distance
//             leaves the trained range. Training-free.
// Paper       Lu et al. 2024, "LongHeads: Multi-Head Attention is Secretly a Long Context Processor", section 2: Eq.
// 1-2
//             (chunk representation), Eq. 3 (selection), position remapping.
// Here        Forced chunks: first, previous and own (`code`, as the authors' program has it) or first and own
//             (`paper`). The query sees itself in prefill as in decode. Queries before `begin` see plain attention.
//             With grouped KV heads each query head has its own representation and selection; `select=group` shares
//             one selection in a group, by the sum of its heads' scores. `init=full`: given tokens see plain attention,
//             only generated ones select (the paper's NTK and PI initialisations, with such a scaling).
// Invariants  At most chunk * chunks keys per query and head, no distance at or beyond chunk * chunks <= train_len;
//             texts of up to `begin` tokens see plain attention.
// Complexity  O(chunk * chunks) keys and n / chunk scores per token and head.
// Memory      Keys and values of all tokens (they may be spilled); per chunk, layer and query head a vector of head_dim
//             floats, which stays in memory.
#include <algorithm>

#include "lib/strategy/methods.h"

namespace quire {
namespace {

constexpr int64_t kChunkStep = 16;  // backends lay keys out in blocks of 16
constexpr std::string_view kForced[] = {"code", "paper"};
constexpr std::string_view kSelect[] = {"head", "group"};
constexpr std::string_view kInit[] = {"none", "full"};

class LongHeads final : public Strategy {
 public:
  LongHeads(const ChunkSelection& selection, int64_t begin, bool init_full, int64_t train_len)
      : selection_(selection), begin_(begin), init_full_(init_full) {
    kv_chunk_ = selection.chunk;
    selects_chunks_ = true;
    if (init_full) reach_ = train_len;
  }

  void plan(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    append(first_query, n_queries, init_full_ ? kNoLimit : begin_, plan);
  }
  void plan_generated(int64_t first_query, int64_t n_queries, Plan& plan) const override {
    append(first_query, n_queries, begin_, plan);
  }
  bool plans_generated_apart() const override { return init_full_; }

  std::vector<KeyRange> retained(int64_t) const override { return {{0, kNoLimit}}; }

 private:
  // Queries before `dense_end` see everything.
  void append(int64_t first_query, int64_t n_queries, int64_t dense_end, Plan& plan) const {
    const int64_t end = first_query + n_queries;
    const int64_t middle = std::clamp(dense_end, first_query, end);
    Span span;
    if (middle > first_query) {
      span.count = middle;
      plan.add_block(first_query, middle - first_query, {span});
    }
    if (end > middle) {
      span.count = end;
      span.ranked = true;
      plan.add_block(middle, end - middle, {span}, true);
    }
    plan.selection = selection_;
  }

  ChunkSelection selection_;
  int64_t begin_;
  bool init_full_;
};

}  // namespace

Result<std::unique_ptr<Strategy>> make_longheads(const Arguments& arguments, int64_t train_len,
                                                 CanonicalTerm& canonical) {
  constexpr int64_t kDefaultChunk = 256, kDefaultChunks = 16, kLeastChunks = 3;
  if (train_len < kLeastChunks * kChunkStep) {
    return arguments.refuse(
        "train_len", "train_len is " + std::to_string(train_len) + "; longheads needs at least 3 chunks of 16 tokens");
  }
  const int64_t usual_chunk = std::clamp(train_len / 8 / kChunkStep * kChunkStep, kChunkStep, kDefaultChunk);
  QUIRE_ASSIGN(const int64_t chunk, arguments.integer("chunk", kChunkStep, train_len / kLeastChunks, usual_chunk));
  if (chunk % kChunkStep != 0) {
    return arguments.refuse("chunk", "chunk is " + std::to_string(chunk) + "; expected a multiple of 16");
  }
  const int64_t most = train_len / chunk;  // chunk * chunks positions are used
  QUIRE_ASSIGN(const int64_t chunks, arguments.integer("chunks", kLeastChunks, most, std::min(kDefaultChunks, most)));
  QUIRE_ASSIGN(const int64_t begin, arguments.integer("begin", chunk * chunks, train_len, chunk * chunks));
  QUIRE_ASSIGN(const size_t forced, arguments.choice("forced", kForced));
  QUIRE_ASSIGN(const size_t select, arguments.choice("select", kSelect));
  QUIRE_ASSIGN(const size_t init, arguments.choice("init", kInit));
  canonical.add_integer("chunk", chunk)
      .add_integer("chunks", chunks)
      .add_integer("begin", begin)
      .add("forced", kForced[forced])
      .add("select", kSelect[select])
      .add("init", kInit[init]);
  const ChunkSelection selection{chunk, chunks, forced == 0 ? 2 : 1, select == 1};
  return std::unique_ptr<Strategy>(std::make_unique<LongHeads>(selection, begin, init == 1, train_len));
}

}  // namespace quire
