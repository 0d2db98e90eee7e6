// What the operations of a backend are given.
//
// A step is one forward pass over rows of several sequences. What is the same in all its layers (plans, positions,
// counts) is prepared once, and a device keeps it in its own memory; the operations name a sequence of the step by its
// index.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/backend/kv_records.h"
#include "lib/plan/head_order.h"
#include "lib/plan/plan.h"
#include "lib/support/cancel.h"

namespace quire {

// Consecutive rows of a weight matrix that are kept in one type.
struct MatrixPart {
  int64_t rows = 0;
  ElementType type = ElementType::kF32;
  // What activations may be rounded to before they are multiplied: kInt8, of a quantised type, in groups of 32 elements
  // that share a scale; kBF16, of weights in bf16; kF32: not at all. A backend may compute more exactly.
  ElementType activations = ElementType::kF32;
};

// A weight matrix [n][k], applied as y = x W^T.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t n = 0;
  int64_t k = 0;
  size_t bytes = 0;
};

// Rows to look up by token id.
class Table {
 public:
  virtual ~Table() = default;
  int64_t rows = 0;
  int64_t columns = 0;
  size_t bytes = 0;
};

// Rotations of the sessions that have the same frequencies and chunk: angles of any position, and of the offsets inside
// a chunk. Immutable: any thread.
class Rope {
 public:
  virtual ~Rope() = default;
  size_t bytes = 0;  // from the runtime's allocator
};

// Where an operation is queued, and what may stop it. Once the cancel flag is set, operations may fail with kCancelled,
// which leaves their outputs undefined. The flag must live until the operation is done.
struct Exec {
  Queue& queue;
  const CancelToken* cancel = nullptr;
};

// ---- a step

// Rows of one sequence: they see keys by the plan, and leave keys and values of their own.
struct StepSequence {
  std::shared_ptr<const Plan> plan{};  // of these rows as queries, in this order
  int64_t n = 0;                       // rows
  int64_t first_key = 0;               // index of the first row's own key among those of its kind
  const Rope* rope = nullptr;
  int64_t stored_div = 1;  // where the text keys that they see are stored: stored_position
  OldText old{};
  KvGeometry geometry{};
  float scale = 1;  // of the logits, all constant factors included
};

// Made by Backend::prepare_step; must live until the step's operations are done.
class PreparedStep {
 public:
  virtual ~PreparedStep() = default;
};

// Stores the keys and values of a sequence's rows. Neither is changed.
struct StoreKvArgs {
  int sequence = 0;
  Rows keys{};    // [n][n_kv_heads * head_dim], not rotated
  Rows values{};  // the same
  KvRecords records{};
};

// Makes a record of two others: tokens [offset, chunk) of the first one, and behind them tokens [0, offset) of the
// second one; 0 < offset < chunk. Values are copied. Keys are turned from where they are stored to where they are at
// their new offsets.
struct MoveKvArgs {
  KvGeometry geometry{};
  const Rope* rope = nullptr;
  int64_t stored_div = 1;
  KvRecord first{};
  KvRecord second{};
  int64_t offset = 0;
  KvRecord to{};  // none of the others
};

// Makes the narrow records of the text's chunks [first_chunk, first_chunk + n_chunks), whose keys are all stored. The
// result depends on the full records alone.
struct NarrowArgs {
  int sequence = 0;
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;
  KvRecords records{};
  KvRecords out{};
};

// Keeps queries of a chunk in progress: of the sequence's tokens [first_row, first_row + n) the rows `from`, each in
// the row of `to` that is its token's place in its chunk. They lie in one chunk of `chunk` tokens.
struct KeepQueriesArgs {
  int sequence = 0;
  Rows from{};
  int64_t first_row = 0;
  int64_t n = 0;
  int64_t width = 0;
  int64_t chunk = 0;
  Rows to{};
};

// Represents the chunks [first_chunk, first_chunk + n_chunks) of the selection; their keys are stored.
struct RepresentArgs {
  int sequence = 0;
  ChunkSelection selection{};
  // [n_chunks * selection.chunk][n_query_heads * head_dim], not rotated: those of the chunks' tokens. Read for
  // kAttention only.
  Rows queries{};
  int64_t first_chunk = 0;
  int64_t n_chunks = 0;
  KvRecords records{};
  Representations out{};
  HeadOrder order{};  // of keys beside values: for kAttention, which multiplies one by the other
};

// Chooses chunks for the queries of the plan's blocks that are `selected`.
struct SelectArgs {
  int sequence = 0;
  int layer = 0;   // so that what is chosen at random differs from layer to layer
  Rows queries{};  // [n][n_query_heads * head_dim], not rotated
  Representations representations{};
  // int32 [n][n_query_heads][Plan::most_selected()]: ascending chunk indexes, -1 behind them; rows of other queries are
  // undefined. They begin so many int32s behind the buffer's beginning.
  Buffer* out = nullptr;
  int64_t out_offset = 0;
};

// Where rows look, for a call of attention that is asked to say it: of a row and query head, the share of its attention
// (of its softmax over all keys that it sees) that falls on each cell of keys. Asking changes no other result, and no
// share depends on windows or on the company.
struct AttentionShares {
  static constexpr int64_t kCell = 16;  // text keys of a cell, from a multiple of 16 on; a condensed entry is a cell

  // f32 [n - first_row][n_query_heads][n_cells()]: text cells, then condensed ones. Null: nobody asks.
  Buffer* out = nullptr;
  int64_t first_row = 0;  // of the rows from here on
  // Text keys [first_key, end_key) count in their cells, others in none. The stored chunk is whole cells.
  int64_t first_key = 0;
  int64_t end_key = 0;
  int64_t n_entries = 0;  // condensed ones

  int64_t n_text_cells() const { return ceil_div(end_key, kCell); }
  int64_t n_cells() const { return n_text_cells() + n_entries; }
};

// One sequence's attention in one layer.
struct AttentionArgs {
  int sequence = 0;
  Rows queries{};                             // [n][n_query_heads * head_dim], not rotated
  Rows out{};                                 // the same shape; may be `queries` if no shares are wanted
  std::array<KvRecords, kKvKinds> records{};  // of text: those that StepSequence::old gives each query
  const Buffer* selection = nullptr;          // SelectArgs::out; needed if a block is selected
  int64_t selection_offset = 0;               // SelectArgs::out_offset

  AttentionShares shares{};

  // Keys that are not all in memory at once: several calls with ascending windows of text chunks that together hold
  // all, and the same `state` of attention_state_floats() floats and the same shares. `out` and the shares are complete
  // after the last call. Windows change no bit.
  struct Window {
    int64_t first_chunk = 0;
    int64_t end_chunk = kNoLimit;
    bool first = true;
    bool last = true;
  };
  Window window{};
  Buffer* state = nullptr;  // may be null if there is one window
};

// Of each row and query head: the softmax's maximum and sum, and the sum of the weighted values.
inline int64_t attention_state_floats(int64_t n, int n_query_heads, int head_dim) {
  return n * n_query_heads * (head_dim + 2);
}

// ---- products

enum class Write { kSet, kAdd };

// y += scale * (x A^T) B^T (LoRA: Hu et al. 2021, arXiv:2106.09685, eq. 3).
struct LowRankArgs {
  Rows x{};  // [n][a->k]
  int64_t n = 0;
  const Matrix* a = nullptr;  // [rank][in]; nullptr: `work` holds x A^T already
  const Matrix* b = nullptr;  // [out][rank]
  float scale = 1;
  Rows work{};  // [n][rank], overwritten
  Rows y{};     // [n][b->n]
};

// out = x / rms(x) * weight, or that much is added, for consecutive runs of rows that each have a weight.
struct NormArgs {
  struct Run {
    int64_t n = 0;
    const Buffer* weight = nullptr;  // f32 [width]
  };
  Rows x{};
  std::span<const Run> runs{};  // none: no norm
  float eps = 0;
  int64_t width = 0;
  Rows out{};
  Write write = Write::kSet;
};

// x = x / rms(x) * weight for each of `heads` consecutive runs of head_dim elements, in place; runs of rows as above.
struct HeadNormArgs {
  Rows x{};
  std::span<const NormArgs::Run> runs{};  // none: no norm
  float eps = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
};

// The heads of a row, and how many dimensions of each are rotated.
struct HeadShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
};

// What is not rotated of the queries in consecutive runs of rows is multiplied by a factor each
// (Backend::scale_unrotated).
struct UnrotatedScaleArgs {
  struct Run {
    int64_t n = 0;
    float by = 1;
  };
  Rows x{};
  std::span<const Run> runs{};  // none: nothing is done
  HeadShape shape{};
};

// y = x W^T + bias, plus low-rank terms of some rows.
struct LinearArgs {
  struct LowRankTerm {
    int64_t first_row = 0;
    int64_t n = 0;
    const Matrix* a = nullptr;
    const Matrix* b = nullptr;
    float scale = 1;
    int64_t column = 0;  // of y, where the term begins
  };
  Rows x{};  // [n][matrix->k]
  int64_t n = 0;
  const Matrix* matrix = nullptr;
  const Buffer* bias = nullptr;  // f32 [matrix->n], or none
  Write write = Write::kSet;
  std::span<const LowRankTerm> low_rank{};
  Rows work{};  // [n][largest rank], if there are terms
  Rows y{};     // [n][matrix->n]
};

// ---- coarse operations: what a device may run as one

// Normalises, projects to queries, keys and values, normalises the heads of queries and keys where the model does,
// scales what is not rotated of queries, and stores the keys and values of the sequences.
struct ProjectQkvArgs {
  NormArgs norm{};
  LinearArgs qkv{};
  HeadNormArgs query_norm{};  // in qkv.y, and so the next
  HeadNormArgs key_norm{};
  UnrotatedScaleArgs query_scale{};  // in qkv.y
  std::span<const StoreKvArgs> stores{};
};

// Normalises, projects to gate and up, multiplies activation(gate) with up, projects down, and normalises that where
// the model does.
struct MlpArgs {
  NormArgs norm{};
  LinearArgs gate_up{};  // y: [n][2 width]
  int64_t width = 0;
  LinearArgs down{};  // x: gate_up.y
  NormArgs down_norm{};
  Activation activation = Activation::kSilu;
};

// Normalises the last hidden states and projects them to logits.
struct HeadArgs {
  NormArgs norm{};
  LinearArgs head{};
};

}  // namespace quire
