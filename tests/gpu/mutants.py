"""Plants faults in the CUDA kernels and the plugin, one at a time, and shows that the emulated tests find them.

    mutants.py BUILD_DIR [SOURCE...]
    mutants.py --texts

--texts: only looks whether the sources still have each text, once. BUILD_DIR: a Ninja build with gpu_attention_test,
gpu_kernels_test, gpu_backend_test, gpu_runtime_test and gpu_races_test in it. Each fault is a text of a source of the plugin and what takes its
place; the source is compiled with it and linked into the test. SOURCE: only the faults of these sources. Ends with status 1 if a fault is not found.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "kernels/cuda"
OF_ATTENTION = ("attention.cu", "attention_by_keys.cu", "attention_by_warpgroups.cu", "attention_by_warps.cu", "attention_shares.cu")
OF_ROWS = ("matmul_rows.cu", "matmul_rows_quantized.cu")
UNITS = {**dict.fromkeys(("attention_tile.h", "attention_rows.h", "attention_narrow.h", "attention_block.h", "attention_kernel.h",
                           "warpgroup.h"), OF_ATTENTION), "matmul_kernels.h": OF_ROWS,
         "device.h": OF_ROWS[1:],  # of all that include it: launches of them all are alike
         "dequantize.h": (*OF_ROWS[1:], "dequantize_rows.cu"),
         "rotation.h": (*OF_ATTENTION[1:], "attend_in_chunks.cu", "representations.cu", "score_chunks.cu", "store_kv.cu")}  # which sources include a header
ATTENTION, ROWS, BACKEND, RUNTIME = "gpu_attention_test", "gpu_kernels_test", "gpu_backend_test", "gpu_runtime_test"
RACES = "gpu_races_test"
TESTS = (ATTENTION, ROWS, BACKEND, RUNTIME, RACES)
# (what, source, the text, what takes its place, test)
FAULTS = [
    ("no barrier between copies and their use", "attention_tile.h", "      wait_for_copies<Way::kAhead - 1>();\n      show_shared();",
     "      wait_for_copies<Way::kAhead - 1>();", ATTENTION),
    ("copies are used one group too early", "attention_tile.h", "wait_for_copies<Way::kAhead - 1>();",
     "wait_for_copies<Way::kAhead>();", ATTENTION),
    ("the next keys overwrite those in use", "attention_tile.h", "(stage + Way::kAhead) % kStages", "stage", ATTENTION),
    ("no barrier behind the turning of keys", "attention_tile.h", "        turn_keys(now, shared_.keys[stage]);\n"
     "        show_shared();", "        turn_keys(now, shared_.keys[stage]);", ATTENTION),
    ("no barrier between old ranks and new ones", "attention_tile.h", "shared_.rank[row] = -1;\n      __syncthreads();",
     "shared_.rank[row] = -1;", ATTENTION),
    ("the causal bound is off by one", "attention_rows.h", "to = i - span.min_lag + 1;", "to = i - span.min_lag;",
     ATTENTION),
    ("the window is one key too long", "attention_rows.h", "from = i - span.max_lag;", "from = i - span.max_lag - 1;", ATTENTION),
    ("the mask is skipped a key too early", "attention_rows.h", "first + Way::kKeysOfWarp <= seen_to_[side]",
     "first + Way::kKeysOfWarp - 1 <= seen_to_[side]", ATTENTION),
    ("spaced keys are all seen", "attention_rows.h", "find_every(keys_before(first, span.first_key, span.stride), span.stride);",
     "~0u;", ATTENTION),
    ("queries keep the angle of the piece before", "attention_tile.h", "begins = advance(now);",
     "begins = false;\n      advance(now);", ATTENTION),
    ("the cap of the query's position is not applied", "attention_rows.h", "return q > span.q_cap ? span.q_cap : q;", "return q;",
     ATTENTION),
    ("rows keep their positions of the span before", "attention_tile.h", "piece.span != span_of_turned_", "span_of_turned_ < 0", ATTENTION),
    ("queries are not turned by the piece's base", "attention_tile.h", "split_position(-piece.base)", "split_position(0.0)", ATTENTION),
    ("the base's sign is lost", "attention_tile.h", "split_position(-piece.base)", "split_position(piece.base)", ATTENTION),
    ("no barrier behind the turning of queries", "attention_tile.h", "    __syncthreads();\n    if (!has_rows_) return;",
     "    if (!has_rows_) return;", ATTENTION),
    ("pairs meet the angles of their neighbours", "attention_tile.h", "step * 16 + octet * 8 + 2 * t_", "step * 16 + octet * 8", ATTENTION),
    ("warps that share out keys have the same ones", "attention_rows.h", "kByKeys ? warp_of_block() * Way::kKeysOfWarp : 0", "0", ATTENTION),
    ("the results of a warp are left out", "attention_tile.h", "for (int w = 0; w < kWarpsOfBlock; ++w) {\n        const float max",
     "for (int w = 1; w < kWarpsOfBlock; ++w) {\n        const float max", ATTENTION),
    ("warps leave results where others still read keys", "attention_tile.h", "over the keys and values\n    __syncthreads();",
     "over the keys and values", ATTENTION),
    ("warps' results keep their scale", "attention_tile.h", "max == -INFINITY ? 0.0f : exp2_fast(max - greatest)", "1.0f", ATTENTION),
    ("results of a row are rescaled where the other row's are", "attention_tile.h", "kept[0] != 1 || kept[1] != 1", "kept[0] != 1",
     ATTENTION),
    ("narrow heads take the form of wide ones", "attention_kernel.h", "args.plain && args.shape.head_dim == kWidth", "args.plain", ATTENTION),
    ("a channel of parts that are merged is left out", "attention.cu", "if (c < d) store_element_of", "if (c + 1 < d) store_element_of",
     ATTENTION),
    ("the result is not rescaled", "attention_tile.h", "out_[c][e] *= kept[e / 2];", ";", ATTENTION),
    ("a row's maximum is of two lanes", "attention_tile.h",
     "greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 2));", "", ATTENTION),
    ("a row's sum is of two lanes", "attention_tile.h", "sum += __shfl_xor_sync(kWholeWarp, sum, 2);", "", ATTENTION),
    ("key fragments are swapped", "attention_tile.h", "multiply_tile(scores[n], queries, b[0], b[1], T());",
     "multiply_tile(scores[n], queries, b[1], b[0], T());", ATTENTION),
    ("steps of large heads have the queries of the first", "attention_tile.h", "load_turned(step, queries);", "load_turned(0, queries);",
     ATTENTION),
    ("what warpgroups multiply was not shown to them", "attention_tile.h", "if constexpr (kByWarpgroups) show_to_products();", "",
     ATTENTION),
    ("results are rescaled before the values of the block before are there", "attention_tile.h",
     "    if constexpr (kByWarpgroups) wait_for_products<0>(out_);\n", "", ATTENTION),
    ("the last block's values are left out", "attention_tile.h", "if (work_.first_piece < work_.end_piece) add_held_values();", ";",
     ATTENTION),
    ("weights meet the values of the next block", "attention_tile.h", "held_ = stage;", "held_ = (stage + 1) % kStages;", ATTENTION),
    ("scores are added to those of the block before", "attention_tile.h", "tile_of_keys(from), step > 0, T());",
     "tile_of_keys(from), true, T());", ATTENTION),
    ("both halves of a wide tile have the shares of the first one", "attention_rows.h", "% blocks_of_work(args) * kTileRows),", "* 0),",
     ATTENTION),
    ("copies overwrite values that wait", "attention_block.h", "kAhead = kStages - 2;", "kAhead = kStages - 1;", ATTENTION),
    ("rows are not exchanged as wgmma reads them", "attention_block.h", "((channel / 8 ^ row) & 7)", "(channel / 8 & 7)", ATTENTION),
    ("the second 64 channels of values follow 8 rows of the first", "warpgroup.h", "kRows * kRowOfTile, kRowsOfGroup",
     "kRowsOfGroup * kRowOfTile, kRowsOfGroup", ATTENTION),
    ("a part's weight is left out", "attention.cu", "value = fmaf(weight, values[p * floats + c], value);",
     "value += values[p * floats + c];", ATTENTION),
    ("rows that are not picked are seen", "attention_rows.h", "if (kSelects && tile_.selected && rank[row] < 0) to = from;", "",
     ATTENTION),
    ("keys of a chunk are used before they are there", "attend_in_chunks.cu", "          wait_for_copies<0>();\n"
     "          __syncthreads();", "          wait_for_copies<0>();", ROWS),
    ("a chunk's queries lose what rounding left", "attend_in_chunks.cu", "part < 2; ++part) {\n          multiply_tile",
     "part < 1; ++part) {\n          multiply_tile", ROWS),
    ("queries behind a chunk's end count", "attend_in_chunks.cu", "? 1 / sum : 0.0f;", "? 1 / sum : 1 / sum;", ROWS),
    ("keys behind a chunk's end count", "attend_in_chunks.cu", "key_of(n, e % 2) < left ? scores[n][e] * scale_ : "
     "-INFINITY;", "scores[n][e] * scale_;", ROWS),
    ("no barrier behind the warps' sums of weights", "attend_in_chunks.cu", "    __syncthreads();\n    const int j = block",
     "    const int j = block", ROWS),
    ("the second pass begins with the wrong keys", "attend_in_chunks.cu", "(block + 1) % n_blocks", "block", ROWS),
    ("no barrier before scores are replaced", "attend_in_chunks.cu", "__syncthreads();  // all warps know the greatest", "",
     ROWS),
    ("a norm of half the warps", "rms_norm.cu", "w < kThreads / kWarpSize; ++w", "w < kThreads / kWarpSize / 2; ++w", ROWS),
    ("a norm leaves out what a thread cannot keep", "rms_norm.cu", "j < width; j += kThreads) {\n    const float v",
     "j < 0; j += kThreads) {\n    const float v", ROWS),
    ("a norm of heads leaves out what a lane cannot keep", "rms_norm.cu", "j = kOthers + lane; j < head_dim; j += kWarpSize) {",
     "j = kOthers + lane; j < 0; j += kWarpSize) {", ROWS),
    ("a norm that is to be added is set", "rms_norm.cu", "if constexpr (kAdd) value += to_float(to);", "", ROWS),
    ("GELU without its cubic term", "elementwise.cu", "expf(-(z * z * 0.0713548163f + 1.5957691216f) * z)",
     "expf(-1.5957691216f * z)", ROWS),
    ("a norm without its barrier", "rms_norm.cu", "sums[warp_of_block()] = sum;\n  __syncthreads();",
     "sums[warp_of_block()] = sum;", ROWS),
    ("keys are turned the other way", "store_kv.cu", "split_position(static_cast<double>(position))",
     "split_position(-static_cast<double>(position))", ROWS),
    ("keys of a group are stored apart", "rotation.h", "static_cast<int>(offset) / static_cast<int>(stored_div)",
     "static_cast<int>(offset)", ROWS),
    ("keys are turned as if all were stored at their offsets", "attention_tile.h",
     "stored_position(offset, args_.stored_div[piece.kind])", "offset", ATTENTION),
    ("no barrier behind the positions of rows", "attention_tile.h", "    __syncthreads();\n    for (int i = thread_; i < n_rows_ * kTwos", "    for (int i = thread_; i < n_rows_ * kTwos",
     ATTENTION),
    ("a call forgets what the one before left", "attention_tile.h", "for_channels(side, [&](int channel, float& v) { v = "
     "from[2 + channel]; });", "", ATTENTION),
    ("the sum of the call before is lost", "attention_tile.h", "        sum_[side] = from[1];\n", "", ATTENTION),
    ("earlier shares keep their scale", "attention_shares.cu", "factor = exp2_fast(of.before - of.max) * share_factor",
     "factor = share_factor", ATTENTION),
    ("shares are not divided by the sum", "attention_tile.h", "return of.sum > 0 ? 1 / of.sum : 0.0f;", "return 1;",
     ATTENTION),
    ("keys that do not count have shares", "attention_tile.h", "if (j >= of.first_key && j < of.end_key) ", "", ATTENTION),
    ("a sum of NaN gives zeros", "attention_tile.h", "sum == 0 ? 0.0f : value / sum", "sum > 0 ? value / sum : 0.0f", ATTENTION),
    ("a merged sum of NaN gives zeros", "attention.cu", "sum == 0 ? 0.0f : value / sum", "sum > 0 ? value / sum : 0.0f", ATTENTION),
    ("parts with scores of NaN alone are left out", "attention.cu", "if (p < merge.n_parts) sum =", "if (weights[half] > 0) sum =", ATTENTION),
    ("the merge says nothing of its sums", "attention.cu", "{-INFINITY, greatest, sum};", "{-INFINITY, greatest, 1};",
     ATTENTION),
    ("moved keys are not turned", "store_kv.cu", "split_position(static_cast<double>(change))", "split_position(0.0)", BACKEND),
    ("moved values come from another token", "store_kv.cu", "to < n_first ? to + args.offset : to - n_first",
     "to < n_first ? to + args.offset - 1 : to - n_first", BACKEND),
    ("no barrier between the narrow bytes and the rows in their place", "attention_narrow.h",
     "      pairs[r][1] = pack(x[2], x[3], T());\n    }\n    __syncthreads();", "      pairs[r][1] = pack(x[2], x[3], T());\n    }",
     ATTENTION),
    ("no barrier behind the rows of old text", "attention_tile.h", "        widen(now, stage);\n        show_shared();",
     "        widen(now, stage);", ATTENTION),
    ("a token of int8 has another one's scale", "attention_narrow.h", "channel + e : row]", "channel + e : row / 2]", ATTENTION),
    ("the halves of int4 codes are read in each other's place", "attention_narrow.h", "k / kHalf * 4) & 15u",
     "(1 - k / kHalf) * 4) & 15u", ATTENTION),
    ("chosen chunks that are old are read as they were", "list_chosen.cu", "begin < keys.old_before ? kNarrowRecord : kTextRecord",
     "kTextRecord", ATTENTION),
    ("of 64 rows those from 32 on choose for the others", "list_chosen.cu", ".words[row / 32], 1u", ".words[0], 1u", ATTENTION),
    ("no barrier before chosen chunks are looked at", "list_chosen.cu", "    __syncthreads();\n    const int64_t chunk = first",
     "    const int64_t chunk = first", ATTENTION),
    ("all tiles list what the first queries chose", "list_chosen.cu", "tile.place + int64_t{row / tile.heads}", "int64_t{row / tile.heads}",
     ATTENTION),
    ("the second block's tiles see what the first one's see", "list_chosen.cu", "args.spans[keys.first_span + s]", "args.spans[s]",
     ATTENTION),
    ("no barrier before a page's vectors are used", "score_chunks.cu", "  __syncthreads();\n  const int chunk = thread",
     "  const int chunk = thread", ROWS),
    ("the vectors of a block's rows meet the first page", "score_chunks.cu", "args.vectors.pages[place.of_chunks]) + head",
     "args.vectors.pages[0]) + head", ROWS),
    ("a block's queries are all its first one", "score_chunks.cu", "to_float(from[r * args.queries.stride + c])", "to_float(from[c])",
     ROWS),
    ("both sides of a block score the even rows", "score_chunks.cu", "queries + (2 * r + side) * width", "queries + 2 * r * width", ROWS),
    ("a query's own chunk is scored", "score_chunks.cu", "chunk < i / args.chunk;", "chunk <= i / args.chunk;", ROWS),
    ("no barrier before chunks' positions are used", "score_chunks.cu", "    __syncthreads();\n    for (int at", "    for (int at", ROWS),
    ("no barrier before chunks' angles are used", "score_chunks.cu", "    __syncthreads();\n  }\n  if (head", "  }\n  if (head", ROWS),
    ("scores leave out the pairs behind the first of each lane", "score_chunks.cu", "pair < half; pair += 2 * kWarpSize",
     "pair < half && pair < 2 * kWarpSize; pair += 2 * kWarpSize", ROWS),
    ("of heads with an odd number of pairs the last one is counted twice", "score_chunks.cu", "if (pair + e >= half) break;", "", ROWS),
    ("a negative channel meets the greatest of its chunk", "score_chunks.cu", "kBounds && q[side] >= 0", "kBounds", ROWS),
    ("a second block of heads scores for the first one's", "score_chunks.cu", "% groups * kScoredHeads +", "% groups +", ROWS),
    ("chunks that no span shows have scores", "score_chunks.cu", "kTurned ? positions[lane].high < INFINITY :", "", ROWS),
    ("random scores are those of the first head", "score_chunks.cu", "static_cast<uint64_t>(head),", "0,", ROWS),
    ("all chunks of equal score are taken", "choose_chunks.cu", "score == limit && of_equal.before < equal", "score == limit", ROWS),
    ("chunks of later rounds take the places of earlier ones", "choose_chunks.cu", "    place += of_taken.all;\n", "", ROWS),
    ("negative scores are in the wrong order", "choose_chunks.cu", "? ~bits :", "? bits ^ 0x80000000u :", ROWS),
    ("chunks beyond those that a block keeps are not counted", "choose_chunks.cu", "kKept * kThreads + thread; c < end;",
     "kKept * kThreads + thread; c < 0;", ROWS),
    ("a choice of many warps is of one", "choose_chunks.cu", "for (int w = 1; w < kWarps; ++w) value", "for (int w = 1; w < 1; ++w) value",
     ROWS),
    ("a channel's scale is that of one warp's keys", "narrow_kv.cu", "w < kWarps; ++w) own[c]", "w < 1; ++w) own[c]", ROWS),
    ("no barrier before the keys' scales", "narrow_kv.cu", "partial[warp * d + channel] = own[c];\n  }\n  __syncthreads();",
     "partial[warp * d + channel] = own[c];\n  }", ROWS),
    ("the halves of int4 codes are written in each other's place", "narrow_kv.cu", "k / kHalf * 4);", "(1 - k / kHalf) * 4);", ROWS),
    ("the last bytes of a piece are left out", "gather.cu", "if (tail < bytes) to[tail] = from[tail];", "", ROWS),
    ("16 bytes more are copied than a piece has", "gather.cu",
     "if (at < whole) load_16(&own[i], from + 16 * at);\n  }\n  QUIRE_UNROLL for (int i = 0; i < kAtOnce; ++i) {\n    const int64_t at = "
     "thread + i * kThreads;\n    if (at < whole)", "if (at <= whole) load_16(&own[i], from + 16 * at);\n  }\n  QUIRE_UNROLL for "
     "(int i = 0; i < kAtOnce; ++i) {\n    const int64_t at = thread + i * kThreads;\n    if (at <= whole)", ROWS),
    ("blocks begin each piece with the same stretch", "gather.cu", "    stretch -= end;\n", "    stretch = 0;\n", ROWS),
    ("a stretch is copied to the place of the first one", "gather.cu", "copy_stretch(from + begin, to + begin,",
     "copy_stretch(from + begin, to,", ROWS),
    ("blocks take every other stretch", "gather.cu", "stretch += gridDim.x", "stretch += 2 * gridDim.x", ROWS),
    ("the first piece is left out", "gather.cu", "  for (int c = 0; c < list.n; ++c) {\n    const auto* const from",
     "  for (int c = 1; c < list.n; ++c) {\n    const auto* const from", ROWS),
    ("counts are overwritten while others read them", "rank_logits.cu", "turn = 1 - turn;", "turn = 0;", ROWS),
    ("the search for the k-th greatest ends too early", "rank_logits.cu", "if (reached == k) break;", "if (reached <= k) break;",
     ROWS),
    ("the upper halves decide too early", "rank_logits.cu", "if (reached == k) return", "if (reached <= k) return", ROWS),
    ("the upper halves decide always", "rank_logits.cu", "Key limit = static_cast<Key>(upper) << 32;",
     "Key limit = static_cast<Key>(upper) << 32; return limit;", ROWS),
    ("a warp's keys are not counted", "rank_logits.cu", "lane_of_warp() < n_warps() ? shared.counts",
     "lane_of_warp() < n_warps() - 1 ? shared.counts", ROWS),
    ("no barrier behind what was chosen", "rank_logits.cu", "= keys[e];\n  }\n  __syncthreads();", "= keys[e];\n  }", ROWS),
    ("the zeros are not equal", "rank_logits.cu", "logit == 0 ? 0.0f : logit", "logit", ROWS),
    ("-infinity is a logit", "rank_logits.cu", "fabsf(logit) < INFINITY", "logit < INFINITY", ROWS),
    ("the slices' sums keep their scale", "rank_logits.cu", "sums[s].sum * weight", "sums[s].sum", ROWS),
    ("what rounding takes off a difference is lost", "rank_logits.cu", " + static_cast<double>(weight * lost)", "", ROWS),
    ("all rows leave their slices in one place", "rank_logits.cu", "own = row * slices.n + slice", "own = slice", ROWS),
    ("the weights behind the last whole 16 bytes are left out", "matmul_rows.cu", "if (at < args.w.k) {", "if (at < whole) {", ROWS),
    ("a lane's later loads are of its first place", "matmul_rows.cu", "load_16(loaded[i], row + first + i * kStep);",
     "load_16(loaded[i], row + first);", ROWS),
    ("rows that are not there are written", "matmul_kernels.h", "< n_rows && lane_of_warp() < args.n_rows;", "< n_rows;", ROWS),
    ("no barrier before warps' parts of a column are added", "matmul_rows.cu", "= own;\n    __syncthreads();", "= own;", ROWS),
    ("a warp's part of a column is left out", "matmul_rows.cu", "w < kWarps; ++w", "w < kWarps - 1; ++w", ROWS),
    ("all rows of x are the first one", "matmul_rows.cu", "(r < last_ ? r : last_) * stride_", "(r < 0 ? r : 0) * stride_", ROWS),
    ("the second part of x's 16 bytes is the first one", "matmul_rows.cu", "load_16(x + j, from + j);", "load_16(x + j, from);", ROWS),
    ("no barrier behind the staging of x", "matmul_rows_quantized.cu", "begin * kWarpSize, n);\n        __syncthreads();",
     "begin * kWarpSize, n);", ROWS),
    ("no barrier in front of the next part of x", "matmul_rows_quantized.cu", "        __syncthreads();\n        x.template", "        x.template", ROWS),
    ("the first part of x stays", "matmul_rows_quantized.cu", "staged = n == n_units;", "staged = true;", ROWS),
    ("blocks have no second pass", "matmul_rows_quantized.cu", "       column += stride) {", "       column = end) {", ROWS),
    ("a lane's later units are the first ones", "matmul_rows_quantized.cu", "load(i, tile + kLoads);", "load(i, 0);", ROWS),
    ("a lane's units meet the x of the first one", "matmul_rows_quantized.cu", "x.add(tile + i, v", "x.add(tile, v", ROWS),
    ("all rows of x are the first one, quantised weights", "matmul_rows_quantized.cu", "p.r < args.n_rows ? p.r : args.n_rows - 1", "p.r < 0 ? p.r : 0", ROWS),
    ("x is rounded to its low bytes", "matmul_rows_quantized.cu", "256 * dot(", "255 * dot(", ROWS),
    ("a warp's columns are the first one", "matmul_rows_quantized.cu", "? column + c : n_columns - 1", "? column : n_columns - 1", ROWS),
    ("low bytes have no sign", "matmul_rows_quantized.cu", "integers[0] + 128,", "integers[0],", ROWS),
    ("the codes' zero is forgotten", "matmul_rows_quantized.cu", "Unit::kZero == 0 ? product", "Unit::kZero >= 0 ? product", ROWS),
    ("offsets are not scaled", "matmul_rows_quantized.cu", "__float_as_uint(scale * sum)", "__float_as_uint(sum)", ROWS),
    ("what is not finite becomes so", "matmul_rows_quantized.cu", "(1 / kMost) : __uint_as_float(0x7fffffffu)", "(1 / kMost) : 1.0f", ROWS),
    ("the fifth bits are those of the vector before", "dequantize.h", "high >> (16 * v + 4 * i) & 15", "high >> 4 * i & 15", ROWS),
    ("a fifth bit comes to its neighbour", "dequantize.h", "0x00204081u", "0x00102041u", ROWS),
    ("both groups of a byte have one scale", "dequantize.h", "const int g = group + v,", "const int g = group,", ROWS),
    ("the high bits of q6_k are of the first run", "dequantize.h", "high[i] >> 2 * (run + 2 * v)", "high[i] >> 4 * v", ROWS),
    ("16 elements of q6_k have their neighbours' scale", "dequantize.h", "(run + 2 * v) * 2 + side]", "(run + 2 * v) * 2]", ROWS),
    ("levels are chosen by three bits", "dequantize.h", "0x3210u | (halves & 0x8888u) >> 1", "0x3210u", ROWS),
    ("levels of the high halves are those of the low ones", "dequantize.h", "v == 0 ? 0x6420u : 0x7531u);\n}\n\nstruct VectorScale",
     "v <= 1 ? 0x6420u : 0x7531u);\n}\n\nstruct VectorScale", ROWS),
    ("all groups of iq4_xs have the first one's low bits of scale", "dequantize.h", "load_4(scales + 4) >> 4 * own & 15",
     "load_4(scales + 4) & 15", ROWS),
    ("16 elements of q2_k have their neighbours' scale", "dequantize.h", "own_bytes(of_half.x, of_half.y, side)",
     "own_bytes(of_half.x, of_half.y, 0)", ROWS),
    ("offsets of q2_k have the scales' factor", "dequantize.h", "-(high_of(factors, f16())", "-(low_of(factors, f16())", ROWS),
    ("both halves of q3_k have the first one's high bits", "dequantize.h", "high[i] >>= 4 * half;", "high[i] >>= 0 * half;", ROWS),
    ("the high bits of scales of q3_k are those of the first eight", "dequantize.h", "own_bytes(last, last >> 2, side)",
     "own_bytes(last, last, side)", ROWS),
    ("parts of blocks begin a block too late", "dequantize.h", "(n_blocks * kBefore + b * kBytes)", "(n_blocks * kBefore + (b + (p > 0)) * kBytes)", ROWS),
    ("int8 codes are made floats without their sign", "dequantize.h", "byte_of(words[j / 4] ^ 0x80808080u, j % 4, 128)",
     "byte_of(words[j / 4], j % 4, 0)", ROWS),
    ("all stretches of a row are the first one", "dequantize_rows.cu",
     "static_cast<int>(blockIdx.y) * (kStretch / kElements) + lane_of_warp();\n  Unit", "lane_of_warp();\n  Unit", ROWS),
    ("all stretches of a row of floats are the first one", "dequantize_rows.cu",
     "static_cast<int>(blockIdx.y) * (kStretch / kElements) + lane_of_warp();\n  alignas", "lane_of_warp();\n  alignas", ROWS),
    ("a run is written to the place of the first one", "dequantize_rows.cu", "Unit::element(unit, v) +", "Unit::element(unit, 0) +", ROWS),
    ("units behind the end of a row are written", "dequantize_rows.cu",
     "    if (unit >= n_units) break;\n    QUIRE_UNROLL", "    QUIRE_UNROLL", ROWS),
    ("a row's last unit of floats is written whole", "dequantize_rows.cu", "if (at + kElements <= k)", "if (at < k)", ROWS),
    ("rows behind the last one are written", "dequantize_rows.cu", "  if (row >= w.n) return;\n", "", ROWS),
    ("rows of floats behind the last one are written", "dequantize_rows.cu", "  if (row >= n) return;\n", "", ROWS),
    ("rows of floats are as far apart as they are long", "dequantize_rows.cu", "w.row_bytes / static_cast<int64_t>(sizeof(T))",
     "w.k", ROWS),
    ("no barrier between copies and their use in products", "matmul_tiles.cu",
     "wait_for_copies<kStages - 2>();\n    __syncthreads();", "wait_for_copies<kStages - 2>();", ROWS),
    ("a product's operands are swapped in a tile", "matmul_tiles.cu", "multiply_tile(sums[n], a, b[0], b[1], bf16());",
     "multiply_tile(sums[n], a, b[1], b[0], bf16());", ROWS),
    ("all groups of a table's row are the first one", "elementwise.cu", "static_cast<int>(group),", "0,", BACKEND),
    ("what is not rotated begins a dimension too early", "elementwise.cu", "+ rotary_dim / 2 + j % still]",
     "+ rotary_dim / 2 - 1 + j % still]", ROWS),
    ("a mean of values has the order of keys", "attend_in_chunks.cu", "shared_.mean[place_of(channel)]",
     "shared_.mean[channel]", ROWS),
    ("the gate is the upper half too", "elementwise.cu", "x_stride + width + j]", "x_stride + j]", ROWS),
    ("what is added to rows takes their place", "elementwise.cu", "(add ? to_float(element) : 0.0f)", "0.0f", ROWS),
    ("a ring of rows has no end", "elementwise.cu", "blockIdx.x) % period;", "blockIdx.x);", ROWS),
    ("a chunk's first key is left out of its summary", "representations.cu", "j = offset; j <", "j = offset + 1; j <", ROWS),
    ("a summary's keys stay where they are stored", "representations.cu", "first % args.key_period - offset", "0", ROWS),
    ("more than 48 KiB of shared memory are not asked for", "device.h", "if (most_shared_bytes > kWithoutAsking)", "if (false)", ROWS),
    ("launches of a kernel change how much shared memory it may have", "device.h", "launch_within(most_shared_memory(), kernel,",
     "launch_within(shared_bytes, kernel,", RUNTIME),
    ("that the device cannot be asked is said of a later call", "device.h", "  if (!known) cudaGetLastError();", "", RUNTIME),
    ("kernels of a graph do not wait for each other", "graphs.cc", "before == nullptr ? 0 : 1", "0", RUNTIME),
    ("a graph of another shape is launched as it was", "graphs.cc", "if (!succeeded(cudaGraphExecUpdate(*graph, made, &info)))",
     "(void)succeeded(cudaGraphExecUpdate(*graph, made, &info));\n    if (false)", RUNTIME),
    ("a graph that cannot be changed is left", "graphs.cc", "(void)succeeded(cudaGraphExecDestroy(std::exchange(*graph, nullptr)));",
     "*graph = nullptr;", RUNTIME),
    ("what a graph was made of is left", "graphs.cc", "  (void)succeeded(cudaGraphDestroy(made));", "", RUNTIME),
    ("what failed without harm is said of a later call", "graphs.cc", "  if (error != cudaSuccess) cudaGetLastError();", "", RUNTIME),
    ("launches to other streams become parts of a graph", "graphs.cc", " || making.stream != stream", "", RUNTIME),
    ("all threads make one graph", "graphs.cc", "thread_local Making making;", "Making making;", RUNTIME),
    ("a graph that was made gets more kernels", "graphs.cc", "std::exchange(making, {}).graph", "making.graph", RUNTIME),
    ("what a call of the table says is said of a later one, too", "plugin.cc", "  if (error != cudaSuccess) cudaGetLastError();\n  return error;",
     "  return error;", RUNTIME),
    ("that an event is not done is said of a later call", "plugin.cc", "(cudaGetLastError(), 0)", "0", RUNTIME),
    ("captures of the host forbid calls", "plugin.cc", "mode_before = cudaStreamCaptureModeRelaxed;", "mode_before = cudaStreamCaptureModeGlobal;", RUNTIME),
    ("what captures of the host forbid is allowed for good", "plugin.cc", "  if (relaxed) {", "  if (false) {", RUNTIME),
    ("a thread of the host's keeps another context", "plugin.cc", 'call_driver("cuCtxSetCurrent", context)', "(void(context), 0)", RUNTIME),
    ("a thread's device stays the first one", "plugin.cc", "said(cudaSetDevice(device))", "said(cudaSetDevice(device * 0))", RUNTIME),
    ("streams wait for the default one", "plugin.cc", "(out, cudaStreamNonBlocking)", "(out, 0)", RUNTIME),
    ("an old driver is said to be none", "plugin.cc", "out->driver_version == 0 ?", "out->driver_version >= 0 ?", RUNTIME),
    ("code that the driver compiles runs on one architecture only", "plugin.cc", "return intermediate ? here >= number :", "return", RUNTIME),
    ("weights are not transposed, but rows", "blas.cc", "CUBLASLT_MATMUL_DESC_TRANSA", "CUBLASLT_MATMUL_DESC_TRANSB", RUNTIME),
    ("rows are as far apart as weights", "blas.cc", "shape.n_rows, shape.x_stride);", "shape.n_rows, shape.w_stride);", RUNTIME),
    ("results are as wide as f32 ones", "blas.cc", "layout(y_, shape.y_type,", "layout(y_, ElementType::kF32,", RUNTIME),
    ("an algorithm may want more working memory than it gets", "blas.cc", "uint64_t{kBlasWorkspace}", "2 * uint64_t{kBlasWorkspace}", RUNTIME),
    ("a product is told of more working memory than there is", "blas.cc", "                       kBlasWorkspace, stream);",
     "                       2 * kBlasWorkspace, stream);", RUNTIME),
    ("everything is said to be aligned as well as can be", "blas.cc", "(bits & -bits)", "(bits | kMost) & kMost", RUNTIME),
    ("rows and weights are said to be aligned as each other", "blas.cc", "MIN_ALIGNMENT_B_BYTES, shape.x_alignment", "MIN_ALIGNMENT_B_BYTES, shape.w_alignment",
     RUNTIME),
    ("of results nothing is said of how they are aligned", "blas.cc", "    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.y_alignment);\n", "",
     RUNTIME),
    ("products are found by shape alone", "blas.cc", "  uint32_t x_alignment, w_alignment, y_alignment;",
     "  struct Any {\n    uint32_t value;\n    auto operator<=>(const Any&) const { return std::strong_ordering::equal; }\n"
     "    bool operator==(const Any&) const { return true; }\n  };\n  Any x_alignment, w_alignment, y_alignment;", RUNTIME),
    ("a product makes the others forgotten", "blas.cc", "if (products_.size() >= kMost) products_", "products_", RUNTIME),
    ("products are never forgotten", "blas.cc", "if (products_.size() >= kMost) products_.clear();", "", RUNTIME),
    ("a bias is lost", "blas.cc", "  if (bias) {", "  if (false) {", RUNTIME),
    ("a bias is overwritten", "blas.cc", "add || bias != nullptr", "add", RUNTIME),
    ("products are always added", "blas.cc", "accumulate ? 1.0f : 0.0f", "accumulate ? 1.0f : 1.0f", RUNTIME),
    ("the second device's products have the first one's handle", "blas.cc", "handles_.find(shape.device)", "handles_.find(0)", RUNTIME),
    ("layouts are left", "blas.cc", "if (layout) f_.destroy_layout(layout);", ";", RUNTIME),
    ("preferences are left", "blas.cc", "    if (preference) f_.destroy_preference(preference);\n", "", RUNTIME),
    ("a product that cannot be made is kept", "blas.cc", "    } else if (status != CUBLAS_STATUS_SUCCESS) {\n      return error_of",
     "    } else if (status == CUBLAS_STATUS_ALLOC_FAILED) {\n      return error_of", RUNTIME),
    ("sums of parts are rounded", "blas.cc", "uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}",
     "uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK}", RUNTIME),
    ("a refused algorithm is tried again", "blas.cc", "  products().give_up(shape);\n", "", RUNTIME),
    ("a refused product has no bias", "blas.cc", "w, nullptr, shape.accumulate, y);", "w, nullptr, add, y);", RUNTIME),
    ("a product without an algorithm is none", "blas.cc", "if (!product) return matmul(stream, x, n_rows, w, bias, add, y);",
     "if (!product) return 0;", RUNTIME),
    ("that there is no algorithm is forgotten", "blas.cc", "      made.reset();\n", "      return cudaSuccess;\n", RUNTIME),
    ("a handle that cannot be made is kept", "blas.cc", "    if (status == CUBLAS_STATUS_SUCCESS) handles_.emplace", "    handles_.emplace", RUNTIME),
    ("the pool keeps all that is not in use", "device_memory.cc", "use.unused() > pool->most_unused", "false", RUNTIME),
    ("what the pool has does not count as free", "device_memory.cc", "static_cast<int64_t>(use_of(*pool).unused())", "0", RUNTIME),
    ("the pool gives nothing to others", "device_memory.cc", " && succeeded(cudaMemPoolTrimTo(pool->memory, 0))", "", RUNTIME),
    ("what the pool has released is not waited for", "device_memory.cc", "succeeded(cudaStreamSynchronize(pool->stream)) && succeeded(cudaMemPoolTrimTo(pool->memory, 0))", "succeeded(cudaMemPoolTrimTo(pool->memory, 0))", RUNTIME),
    ("a piece is released to the driver", "device_memory.cc", "if (pool == nullptr) return cudaFree", "if (true) return cudaFree", RUNTIME),
    ("a device has a pool that it does not support", "device_memory.cc", " || supported == 0) return", ") return", RUNTIME),
    ("a cuBLASLt that lacks a function is used", "blas.cc", "if (!function && obstacle_.empty())", "if (false)", RUNTIME),
    ("shares of a cell in two works are lost", "attention_tile.h", "atomicAdd(&shares[at], total)", "shares[at] += total", RACES),
    ("a row's state is written before all have read it", "attention_tile.h", "Purpose::kOutput) __syncwarp();", "Purpose::kOutput) {}", RACES),
    ("parts of queries are loaded before all lanes have stored theirs", "attend_in_chunks.cu",
     "kPairs + at, high);\n      }\n      __syncwarp();", "kPairs + at, high);\n      }", RACES),
    ("queries are overwritten that lanes have yet to load", "attend_in_chunks.cu", "      __syncwarp();  // the last ones were read\n", "",
     RACES),
    ("a channel beyond a block's threads has no sum", "attend_in_chunks.cu", "channel < d_; channel += kThreads", "channel < d_ && channel < kThreads; channel += kThreads",
     ROWS),
    ("what rounding takes off an angle is lost", "rotation.h", "(rest + (position.high", "(0.0f * rest + (position.high", ROWS),
]


def commands(build):
    """The compile command of each source of the emulated plugin, by whether it tells of its accesses, and the link command of each test."""
    compiling = {True: {}, False: {}}
    for c in json.loads((build / "compile_commands.json").read_text()):
        for tells, of in (True, "/quire_kernels_cuda_told.dir/"), (False, "/quire_kernels_cuda_emulated.dir/"):
            if of in c["command"]:
                compiling[tells][pathlib.Path(c["file"]).name] = c["command"]
    linking = {}
    for test in TESTS:
        out = subprocess.run(["ninja", "-C", build, "-t", "commands", test], check=True, capture_output=True, text=True)
        linking[test] = out.stdout.splitlines()[-1]
    return compiling, linking


def is_found(build, folder, fault, compiling, linking):
    _, name, text, other, test = fault
    program = folder / "mutant"
    mutant = folder / "kernels/cuda" / name
    mutant.parent.mkdir(parents=True, exist_ok=True)
    mutant.write_text((KERNELS / name).read_text().replace(text, other))
    made = []
    for unit in UNITS.get(name, (name,)):
        compile_ = shlex.split(compiling[test == RACES][unit])
        compile_ = [str(mutant) if a.endswith("/" + name) else a for a in compile_]
        compiler = next(i for i, a in enumerate(compile_) if "++" in pathlib.Path(a).name)
        compile_.insert(compiler + 1, f"-I{folder}")  # before the true header's folder
        made.append(str(folder / f"{unit}.o"))
        compile_[compile_.index("-o") + 1] = made[-1]
        subprocess.run([*compile_, "-w"], cwd=build, check=True)
    link = shlex.split(linking[test].removeprefix(": && ").removesuffix(" && :"))
    link[link.index("-o") + 1] = str(program)
    subprocess.run([*link[:1], *made, *link[1:]], cwd=build, check=True)
    mutant.unlink()
    try:
        orders = ["--gtest_filter=*/Forward"] if test == RACES else []  # races do not hang on them
        run = subprocess.run([program, "--gtest_brief=1", *orders], capture_output=True, timeout=600)
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--texts", action="store_true")
    arguments = parser.parse_args()
    if arguments.texts == (arguments.build is not None):
        parser.error("either BUILD_DIR or --texts is needed")
    faults = [fault for fault in FAULTS if not arguments.sources or fault[1] in arguments.sources]
    for _, name, text, _, _ in faults:
        count = (KERNELS / name).read_text().count(text)
        if count != 1:
            sys.exit(f"{name} has this {count} times, not once:\n{text}")
    if arguments.texts:
        return
    build = arguments.build.resolve()
    subprocess.run(["ninja", "-C", build, *TESTS], check=True, stdout=subprocess.DEVNULL)
    compiling, linking = commands(build)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for fault in faults:
            found = is_found(build, pathlib.Path(folder), fault, compiling, linking)
            missed += not found
            print("found " if found else "MISSED", fault[0], flush=True)
    print(f"{len(faults) - missed} of {len(faults)} faults found")
    sys.exit(missed > 0)


main()
