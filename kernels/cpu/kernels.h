// CPU compute kernels: what the CPU backend calls. Highway SIMD, chosen once per process for the CPU it runs on.
//
// The reduction-order rule. Each output element is the sum of its terms in one order, fixed by absolute indexes: it
// does not depend on the number of rows in the call, on tiles, or on threads. In matrix products SIMD lanes run over
// output columns and the sum runs over k = 0, 1, 2, ... with fused multiply-adds; in attention scores lanes run over
// keys and the sum over d = 0, 1, 2, ...; in the value product lanes run over d and the sum over keys ascending.
// Tests compare results with memcmp.
//
// Pointers need no alignment unless said; buffers do not overlap unless said. No function allocates or throws. All
// functions: any thread. namespace quire::cpu::scalar has a plain-loop reference of each, with the same signature.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lib/support/types.h"

namespace quire::cpu {

// ---- Matrices ---------------------------------------------------------------------------------------------------

// A weight matrix W [n][k] is packed in panels of kPanel output columns:
//   f32, f16: [n / kPanel][k][kPanel];   bf16: [n / kPanel][ceil(k / 2)][kPanel][2] (pairs of k together, as
//   dot-product instructions want them);   quantised types: [n / kPanel][units of a row's blocks][kPanel][bytes of the
//   unit]. A unit is one of a block's f16 numbers, or a quad: four bytes of the rest. (k is a multiple of the type's
//   block. Some types have some bits in another order, packed_block.h.) n is padded with zero rows to a
//   multiple of kPanel, an odd k of bf16 with zeros.
constexpr int64_t kPanel = 32;

// The name of all that: files keep packed rows under it (Backend::matrix_layout). Another order of bytes is another
// number; tests/unit/kernels/pack_test.cc notices.
constexpr const char* kPackedLayout = "cpu 1";

size_t packed_bytes(ElementType type, int64_t n, int64_t k);

// Packs rows [0, rows) of `source` (row-major, row_stride in elements) as rows [first_row, first_row + rows) of the
// packed matrix, converting from source_type (round to nearest even; to a quantised type as `quantize` of
// lib/support/quantization.h). row_stride is whole blocks. Any first_row: a matrix may be assembled of
// several sources. Rows never written must be zeroed by the caller (memset of the packed memory).
void pack_rows(ElementType source_type, const void* source, int64_t row_stride, int64_t rows, int64_t k,
               ElementType packed_type, void* packed, int64_t first_row);

// y[r][c] = (accumulate ? y[r][c] : 0) + (sum_k x[r][k] * W[c][k] + bias[c]) for r in [0, m) and the columns of panels
// [panel_begin, panel_end), c < n. x: f32 [m][ldx]; y: f32 [m][ldy]; bias: f32 [n] or null. The sum is formed
// from zero in f32 over ascending k by FMA; then bias is added, then y. W's elements are widened to f32 exactly, or
// dequantised (lib/support/quantization.h): the result is that of the f32 matrix of these values.
void gemm(const float* x, int64_t ldx, int64_t m, ElementType type, const void* packed, int64_t n, int64_t k,
          int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy);

// Rows rounded to bf16, for products with bf16 weights. Elements between the beginnings of rows of k: whole cache
// lines, an odd number of them, so that rows that are multiplied together do not share cache sets.
constexpr int64_t bf16_row_stride(int64_t k) {
  constexpr int64_t kLine = 32;
  return (ceil_div(k, kLine) | 1) * kLine;
}

// Rounds `source`, f32 [k], to nearest even; behind the last element of an odd k is a zero.
void round_row_bf16(const float* source, int64_t k, uint16_t* row);

// As gemm, of rows rounded to bf16 ([m][ldx], ldx even) and bf16 weights. The sum is formed from zero in f32 over
// ascending pairs of k by FMA, in each pair its second element first: sum = x[0] * w[0] + (x[1] * w[1] + sum). This is
// what dot-product instructions compute, which may take subnormal numbers as zeros.
void gemm_bf16(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k, int64_t panel_begin,
               int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy);

// Rows as 8-bit numbers, for products with quantised weights in integers. Element j of a group of 32 is scale *
// code[j], codes of [-127, 127].
struct Int8Group {
  float scale;          // the greatest magnitude / 127; NaN if an element is not finite
  float sum;            // scale * the sum of all codes
  int32_t code_sum[2];  // of the first 16 codes, of the others
};

constexpr int64_t kInt8Stretch = 128;  // elements of a row that lie together, before those of the next row

// Memory of the caller for n rows of k elements, k a multiple of 32: codes [ceil(k / kInt8Stretch)][n][kInt8Stretch],
// and their groups in the same order. The last stretch may be shorter.
struct Int8Rows {
  int8_t* codes;      // [n * k]
  Int8Group* groups;  // [n * k / 32]
  int64_t n, k;

  int64_t index(int64_t row, int64_t j) const {
    const int64_t in_stretch = j % kInt8Stretch, begin = j - in_stretch;
    return begin * n + row * (k - begin < kInt8Stretch ? k - begin : kInt8Stretch) + in_stretch;
  }
  int8_t* codes_of(int64_t row, int64_t j) const { return codes + index(row, j); }
  Int8Group& group(int64_t row, int64_t group) const { return groups[index(row, group * 32) / 32]; }
};

// Rounds `source`, f32 [x.k], to row `row` of x: code = source / scale, to nearest even. Elements of a group whose
// greatest magnitude is below kLeastMagnitude become zeros.
constexpr float kLeastMagnitude = 1e-30f;
void quantize_row(const float* source, int64_t row, const Int8Rows& x);

// As gemm, of rows [row, row + m) of x and a quantised type; y begins at the first of these. The sum is formed from
// zero in f32 over ascending groups of 32 by FMA. Of each group: float(sum_j x_code[j] * (code[j] - zero_code)) *
// (x.scale * scale), where the integer sum is exact (two such terms, of 16 elements each, if the type has two scales);
// then x.sum * offset, if it has offsets.
void gemm_int8(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
               int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy);

// ---- Rows -------------------------------------------------------------------------------------------------------

// out[j] = source[j] widened or rounded to nearest even. (Overflow to f16 gives infinity.) This and what follows: types
// that are not quantised.
void convert(ElementType source_type, const void* source, ElementType type, void* out, int64_t n);

// out = x * weight / sqrt(mean(x^2) + eps) for one row of n.  out may be x.
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out);
// The same, added to y.
void add_rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y);

// out[j] = silu(gate_up[j]) * gate_up[n + j], silu(z) = z / (1 + exp(-z)), for one row of n. Relative error of exp
// below 4e-7.  out may be gate_up.
void swiglu(const float* gate_up, int64_t n, float* out);
// The same with gelu(z) = z / (1 + exp(-2 sqrt(2 / pi) (z + 0.044715 z^3))), which is its tanh form.
void geglu(const float* gate_up, int64_t n, float* out);

// Half-split rotation of one head: (x[a], x[a + d/2]) -> (x[a] c[a] - x[a + d/2] s[a], x[a + d/2] c[a] + x[a] s[a]),
// times `scale`. cos, sin: f32 [d/2].  out may be x.  Any even d.
void rotate(const float* x, const float* cos, const float* sin, float scale, int64_t d, float* out);

// y[j] = x[j] * factor + y[j], by FMA.
void add_scaled(const float* x, float factor, int64_t n, float* y);

// True if every element is finite.
bool all_finite(const float* x, int64_t n);

// What a stretch of a row of logits has of the row's softmax.
struct LogitsPart {
  bool finite;  // every logit is; otherwise nothing else means anything
  float max;
  double sum;  // of exp(logit - max), relative error below 1e-6; terms in f32, added in f64 by index % kSumLanes
};

constexpr int64_t kLogitsBlock = 64;  // logits of which the greatest one is told

// Of logits [0, n), n > 0. maxima: f32 [ceil(n / kLogitsBlock)], the greatest logit of each block.
LogitsPart look_at_logits(const float* logits, int64_t n, float* maxima);

// ---- KV records ---------------------------------------------------------------------------------------------------

// Keys of one KV head and chunk: blocks of kKeyBlock keys, [ceil(l / kKeyBlock)][d][kKeyBlock]; lane = key % kKeyBlock.
// Values: rows, [l][d]. Of kInt8 in pairs, since products are added two at a time: keys of two channels,
// [ceil(l / kKeyBlock)][d / 2][kKeyBlock][2], values of two tokens, [ceil(l / 2)][d][2].
constexpr int64_t kKeyBlock = 16;

constexpr int64_t key_elements(int64_t l, int64_t d) { return round_up(l, kKeyBlock) * d; }
constexpr int64_t value_elements(ElementType type, int64_t l, int64_t d) {
  return type == ElementType::kInt8 ? round_up(l, 2) * d : l * d;
}

// Where channel i of key, or of value, j lies, in elements. Not of kInt4.
constexpr int64_t key_place(ElementType type, int64_t j, int64_t i, int64_t d) {
  const int64_t block = j / kKeyBlock * d * kKeyBlock, lane = j % kKeyBlock;
  return block + (type == ElementType::kInt8 ? i / 2 * 2 * kKeyBlock + 2 * lane + i % 2 : i * kKeyBlock + lane);
}
constexpr int64_t value_place(ElementType type, int64_t j, int64_t i, int64_t d) {
  return type == ElementType::kInt8 ? (j / 2 * d + i) * 2 + j % 2 : j * d + i;
}

// Stores one key (f32 [d]) as key `index` of the chunk.
void store_key(const float* key, int64_t d, ElementType type, void* keys, int64_t index);
// Reads it back as f32 [d]; of kInt8 (below) its integers.
void load_key(ElementType type, const void* keys, int64_t index, int64_t d, float* key);

// Turns keys [begin, end) of a chunk of f32, f16 or bf16, pairs (i, d / 2 + i), each key by angles of its own, and
// leaves them in f32. turns: f32 [ceil(l / kKeyBlock)][d / 2][2][kKeyBlock], cos and sin. out: f32, the chunk's first
// key; may be `keys`. The other lanes of those blocks are turned too (garbage the caller ignores).
void turn_keys(ElementType type, const void* keys, int64_t begin, int64_t end, int64_t d, const float* turns,
               float* out);

// Chunks of kInt8: integers of [-127, 127], each a number divided by the scale that it shares, rounded to nearest even;
// those of keys and values that are missing are 0. Scales are f32: of keys one for each channel of the head's keys in
// the chunk, [d]; of values one for each token, [l]. A scale is the greatest magnitude of its numbers, divided by 127;
// 0: they are all zeros. Whoever computes with the integers brings in the scales: those of keys go with the query's
// elements, those of values with the probabilities. So no copy is dequantised.

// Chunks of kInt4: groups of codes with their scales and minima, of keys of a channel's 32 consecutive keys, of values
// of a token's 32 consecutive channels (lib/support/int4.h). Kernels read the numbers that they stand for.

// Narrows n whole keys or values of one KV head. from_type: not quantised. A scale of numbers that are not all finite
// is not finite either; the numbers of a group of kInt4 are then NaN.
void quantize_keys(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow, float* scales);
void quantize_values(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow, float* scales);
void quantize_keys_int4(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow);
void quantize_values_int4(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow);

// The numbers of kInt4 as f32, in the layouts of f32: keys of the blocks that touch [begin, end), values [begin, end).
// out: the chunk's first key or value.
void widen_int4_keys(const void* keys, int64_t begin, int64_t end, int64_t d, float* out);
void widen_int4_values(const void* values, int64_t begin, int64_t end, int64_t d, float* out);

// ---- Attention ------------------------------------------------------------------------------------------------------

// scores[r * ld + (j - j0)] = sum_d q[r][d] * K[j][d], f32, d ascending by FMA, for queries r in [0, n_q) and all keys
// j of the blocks that touch [key_begin, key_end): j0 = key_begin rounded down to kKeyBlock; scores of the other lanes
// of those blocks are written too (garbage the caller ignores).  q: f32 [n_q][d]; ld >= covered keys. `keys` is the
// chunk's first one. Each key is read once for all queries (in groups of as many queries as registers hold). Not of
// kInt8.
void attention_scores(const float* q, int64_t n_q, int64_t d, ElementType type, const void* keys, int64_t key_begin,
                      int64_t key_end, float* scores, int64_t ld);

// One query's softmax over scores of keys [begin, end) counted as in `scores` (whose element 0 is a lane-0 key):
// turns scores[begin..end) into exp(score - max) and returns max and their sum. The sum is formed in kKeyBlock
// partial sums by lane (index % kKeyBlock), ascending, then those by halves (8, 4, 2, 1): elements outside [begin, end)
// add exactly nothing. If a score is NaN, or positive infinity, both are NaN, so that no merge takes the part for an
// empty one.  begin < end.  block_sums: if not null, what sum_blocks() gives of the new scores.
void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum, float* block_sums = nullptr);

// sums[b - begin / kKeyBlock] = sum of p[j] over the keys j of block b in [begin, end), for the blocks b that touch
// [begin, end), each by halves (8, 4, 2, 1) over its kKeyBlock lanes: elements outside [begin, end) add
// exactly nothing.  begin < end;  p's element 0 is a lane-0 key, and p has the whole last block.
void sum_blocks(const float* p, int64_t begin, int64_t end, float* sums);

// out[r][0..d) += sum over keys [begin, end) of p[r * ld + key] * V[key][d], keys ascending by FMA, for n_q queries
// that all see these keys.  out: f32 [n_q][d]; p's element 0 belongs to the key at `values`. Of kInt4: that key's index
// in its chunk is a multiple of kKeyBlock. Not of kInt8.
void accumulate_values(const float* p, int64_t ld, int64_t n_q, int64_t d, ElementType type, const void* values,
                       int64_t begin, int64_t end, float* out);

// Attention over kInt8, in integers: rows of queries, times the scales of keys, and of probabilities, times those of
// values, are rounded to 16 bits.
constexpr int64_t kInt8Products = 512;  // of an integer and a code, whose sum is exact in 32 bits
constexpr float kMostInt16 = 32767;
static_assert(kInt8Products * 32767 * 127 <= INT32_MAX);

// Of a query: codes[j] = x[j] * factors[j] / *scale, to nearest even, for j in [0, n). The scale is the greatest
// magnitude of those products / kMostInt16. If that magnitude is below kLeastMagnitude it is 0, and NaN if a product is
// not finite; then all codes are 0.
void quantize_row_int16(const float* x, const float* factors, int64_t n, int16_t* codes, float* scale);

// Of probabilities, all of [0, 1]: their codes are for the chunk's scales of values, scales [n], in units of the
// greatest scale / kMostInt16, which is returned: 0 and NaN as above. factors[j] = scales[j] / that unit; all 0 if
// there is none.
float weight_factors_int16(const float* scales, int64_t n, float* factors);
// codes[j] = p[j] * factors[j], to nearest even, for j in [0, n).
void round_weights_int16(const float* p, const float* factors, int64_t n, int16_t* codes);

// As attention_scores, of codes q [n_q][d] and their scales [n_q]: the score is formed from zero in f32 over ascending
// stretches of kInt8Products channels, by FMA: q_scale * float(sum of the stretch's products) + score.
void attention_scores_int8(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys,
                           int64_t key_begin, int64_t key_end, float* scores, int64_t ld);

// As accumulate_values, of codes p [n_q][ld] and their scales [n_q], onto what `out` holds, over ascending stretches of
// kInt8Products of the chunk's keys: p_scale * float(sum of the stretch's products) + out.  values, and p's element 0:
// the chunk's first key. Where begin or end is odd, that key's neighbour in the pair has a code too, of 0.
void accumulate_values_int8(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d,
                            const int8_t* values, int64_t begin, int64_t end, float* out);

// What a row's blocks of keys have of its softmax, as its partial results are merged: `running` [n_running], of all its
// blocks, is relative to exp(running_max) as the running sum is, and 0 at first. sums [n] are those of the partial
// result (sum_blocks), whose blocks begin at `first`.
struct BlockShares {
  const float* sums;
  int64_t first;
  int64_t n;
  float* running;
  int64_t n_running;
};

// Merges the partial result (max, sum, out [d]) into the running one: running = running + partial, log-sum-exp.
// running_max = -infinity means empty.  (strategies: G-LSE)  blocks: null, if nobody asks for shares.
void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out, const BlockShares* blocks = nullptr);

// blocks[b] *= factor, and peaks[b] = the greater one of blocks[b] and peaks[b], for n blocks.
void scale_blocks(float factor, float* blocks, int64_t n);
void keep_peaks(const float* blocks, int64_t n, float* peaks);

// Name of the instruction set in use, such as "AVX3".
const char* target_name();

namespace scalar {
void pack_rows(ElementType source_type, const void* source, int64_t row_stride, int64_t rows, int64_t k,
               ElementType packed_type, void* packed, int64_t first_row);
void gemm(const float* x, int64_t ldx, int64_t m, ElementType type, const void* packed, int64_t n, int64_t k,
          int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy);
void round_row_bf16(const float* source, int64_t k, uint16_t* row);
void gemm_bf16(const uint16_t* x, int64_t ldx, int64_t m, const void* packed, int64_t n, int64_t k, int64_t panel_begin,
               int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy);
void quantize_row(const float* source, int64_t row, const Int8Rows& x);
void gemm_int8(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
               int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy);
void convert(ElementType source_type, const void* source, ElementType type, void* out, int64_t n);
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out);
void add_rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y);
void swiglu(const float* gate_up, int64_t n, float* out);
void geglu(const float* gate_up, int64_t n, float* out);
void rotate(const float* x, const float* cos, const float* sin, float scale, int64_t d, float* out);
void add_scaled(const float* x, float factor, int64_t n, float* y);
bool all_finite(const float* x, int64_t n);
LogitsPart look_at_logits(const float* logits, int64_t n, float* maxima);
void store_key(const float* key, int64_t d, ElementType type, void* keys, int64_t index);
void load_key(ElementType type, const void* keys, int64_t index, int64_t d, float* key);
void turn_keys(ElementType type, const void* keys, int64_t begin, int64_t end, int64_t d, const float* turns,
               float* out);
void quantize_keys(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow, float* scales);
void quantize_values(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow, float* scales);
void quantize_keys_int4(ElementType from_type, const void* keys, int64_t n, int64_t d, void* narrow);
void quantize_values_int4(ElementType from_type, const void* values, int64_t n, int64_t d, void* narrow);
void widen_int4_keys(const void* keys, int64_t begin, int64_t end, int64_t d, float* out);
void widen_int4_values(const void* values, int64_t begin, int64_t end, int64_t d, float* out);
void attention_scores(const float* q, int64_t n_q, int64_t d, ElementType type, const void* keys, int64_t key_begin,
                      int64_t key_end, float* scores, int64_t ld);
void softmax_partial(float* scores, int64_t begin, int64_t end, float* max, float* sum, float* block_sums = nullptr);
void sum_blocks(const float* p, int64_t begin, int64_t end, float* sums);
void accumulate_values(const float* p, int64_t ld, int64_t n_q, int64_t d, ElementType type, const void* values,
                       int64_t begin, int64_t end, float* out);
void quantize_row_int16(const float* x, const float* factors, int64_t n, int16_t* codes, float* scale);
float weight_factors_int16(const float* scales, int64_t n, float* factors);
void round_weights_int16(const float* p, const float* factors, int64_t n, int16_t* codes);
void attention_scores_int8(const int16_t* q, const float* q_scales, int64_t n_q, int64_t d, const int8_t* keys,
                           int64_t key_begin, int64_t key_end, float* scores, int64_t ld);
void accumulate_values_int8(const int16_t* p, int64_t ld, const float* p_scales, int64_t n_q, int64_t d,
                            const int8_t* values, int64_t begin, int64_t end, float* out);
void merge_partial(float max, float sum, const float* out, int64_t d, float* running_max, float* running_sum,
                   float* running_out, const BlockShares* blocks = nullptr);
void scale_blocks(float factor, float* blocks, int64_t n);
void keep_peaks(const float* blocks, int64_t n, float* peaks);
}  // namespace scalar

}  // namespace quire::cpu
