// Attention of a tile of queries over pieces of keys, online softmax, products on tensor cores.
//
// A warp has 16 rows of the tile. Keys and values pass through shared memory in blocks of 64 or 32; where a tile has
// few rows, warps share out the keys of a block instead of rows. A head is padded to kWidth channels: its halves, which
// rotation pairs, begin at 0 and kWidth / 2.
#pragma once

#include "kernels/cuda/attention_narrow.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/rotation.h"
#include "kernels/cuda/types.h"
#include "kernels/cuda/warpgroup.h"

namespace quire::cuda {

__device__ __forceinline__ void store_element_of(const DeviceRows& rows, int64_t at, float v) {
  if (rows.type == ElementType::kF32) {
    static_cast<float*>(rows.data)[at] = v;
  } else if (rows.type == ElementType::kBF16) {
    from_float(v, static_cast<bf16*>(rows.data)[at]);
  } else {
    from_float(v, static_cast<f16*>(rows.data)[at]);
  }
}

// What exp2(score - max) is multiplied with to be a share: of the last call the rest of the softmax, before it nothing.
__device__ __forceinline__ float share_factor(const AttentionStats& of, bool pauses) {
  if (pauses) return 1;
  return of.sum > 0 ? 1 / of.sum : 0.0f;
}

// kPlain: Attention::plain, of heads as wide as kWidth.
template <int kWidth, typename T, Purpose kPurpose, typename Way, bool kPlain>
class TileRun : private TileRows<kPurpose, Way, kPlain> {
 public:
  using Rows = TileRows<kPurpose, Way, kPlain>;
  using Memory = Shared<kWidth, T, Way>;
  using KeyTile = typename Memory::KeyTile;
  static constexpr int kRow = Memory::kRow;
  static constexpr int kKeys = Way::kKeys, kStages = Way::kStages;
  static constexpr int kSteps = kWidth / 16;                          // of the product of queries and keys
  static constexpr int kHeldSteps = Way::kHoldsQueries ? kSteps : 1;  // whose queries are in registers
  static constexpr bool kByWarpgroups = Way::kTogether > 1, kByKeys = Rows::kByKeys;
  static constexpr bool kSelects = Rows::kSelects;
  // How begin_piece() turns queries: the second step is one of registers that hold them.
  static constexpr bool kTurnsInTwoSteps = !kByKeys && Way::kHoldsQueries;
  static constexpr int kOctets = Rows::kOctets;
  using typename Rows::Block;
  using Scores = typename Rows::Scores;
  static constexpr int kPairsAtOnce =
      kByWarpgroups ? 1 : 2;  // that turn_queries() works on: there are registers for more

  // shares: of that purpose alone.
  __device__ TileRun(const Attention& args, const AttentionCells* shares, Memory& shared)
      : Rows(args),
        cells_(shares),
        shared_(shared),
        half_(kPlain ? kWidth / 2 : args.shape.head_dim / 2),
        has_rows_(kByWarpgroups || first_row() + row_of_warp() < n_rows_),
        thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void run() {
    if constexpr (kPurpose == Purpose::kShares) {
      if (place_of(n_rows_ - 1) < cells_->first_row) return;  // the whole block
    }
    Block next = first_block(work_.first_piece), now = next;
    for (int stage = 0; stage < Way::kAhead; ++stage) load_ahead(next, stage);
    if constexpr (Way::kKeepsQueries) load_queries();  // while keys are on their way
    begin();
    int stage = 0;
    bool begins = true;  // its piece
    while (now.piece < work_.end_piece) {
      wait_for_copies<Way::kAhead - 1>();
      show_shared();
      load_ahead(next, (stage + Way::kAhead) % kStages);
      if (begins) begin_piece(now.piece);
      if (!kPlain && now.kind == kNarrowRecord) {
        widen(now, stage);
        show_shared();
      }
      if (!kPlain && turned_) {
        turn_keys(now, shared_.keys[stage]);
        show_shared();
      }
      if (has_rows_) attend(now, stage);
      begins = advance(now);
      stage = (stage + 1) % kStages;
    }
    wait_for_copies<0>();
    if constexpr (kByWarpgroups) {
      if (work_.first_piece < work_.end_piece) add_held_values();
    }
    if constexpr (kByKeys) {
      finish_together();
    } else if constexpr (kPurpose == Purpose::kOutput) {
      finish();
    }
  }

 private:
  using Rows::args_, Rows::work_, Rows::tile_, Rows::n_rows_, Rows::t_, Rows::scale_;
  using Rows::first_row, Rows::row_of_warp, Rows::key_of_warp, Rows::row_of, Rows::place_of, Rows::head_of,
      Rows::position_of, Rows::distance_of;

  // What threads wrote to keys and values is seen by all, and by their products.
  __device__ __forceinline__ void show_shared() const {
    if constexpr (kByWarpgroups) show_to_products();
    __syncthreads();
  }

  __device__ __forceinline__ Block first_block(int32_t piece) const {
    if (piece >= work_.end_piece) return {piece, 0, 0, 0, nullptr};
    const AttentionPiece& of = args_.pieces[piece];
    const int64_t first = of.chunk * args_.shape.chunk;
    return {piece, of.kind, static_cast<int32_t>((of.begin - first) / kKeys * kKeys),
            static_cast<int32_t>(of.end - first), args_.records[of.kind][of.chunk]};
  }
  // Says whether the next block is another piece's.
  __device__ __forceinline__ bool advance(Block& block) const {
    block.offset += kKeys;
    if (block.offset < block.end) return false;
    block = first_block(block.piece + 1);
    return true;
  }

  // Queries of other types are converted, which no asynchronous copy does.
  __device__ void load_queries() {
    if constexpr (kByKeys) {  // rows that are not there are not turned
      for (int i = 4 * thread_; i < Way::kRows * kRow; i += 4 * Way::kThreads) store_8(shared_.turned + i, uint2{0, 0});
    }
    with_queries([&](auto type) { load_queries_of<decltype(type)>(); });
  }
  // Several pairs of a thread are on their way at a time.
  template <typename In>
  __device__ __forceinline__ void load_queries_of() {
    constexpr int kPairs = kWidth / 2, kAll = Way::kRows * kPairs, kAtOnce = kByKeys ? 2 : 4;
    static_assert(kAll % (kAtOnce * Way::kThreads) == 0);
    const int end = kByKeys ? n_rows_ * kPairs : kAll;
    QUIRE_ROLLED for (int begin = thread_; begin < end; begin += kAtOnce * Way::kThreads) {
      float of[kAtOnce][2];
      QUIRE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        const int i = begin + j * Way::kThreads;
        const In* const from = queries_of_row<In>(i / kPairs);
        QUIRE_UNROLL for (int side = 0; side < 2; ++side) of[j][side] = query_at(from, side, i % kPairs);
      }
      QUIRE_UNROLL for (int j = 0; j < kAtOnce; ++j) {
        const int i = begin + j * Way::kThreads, at = i / kPairs * kRow + i % kPairs;
        from_float(of[j][0], shared_.queries[at]);
        from_float(of[j][1], shared_.queries[at + kPairs]);
      }
    }
  }
  // use(In()) with the type of the queries.
  template <typename Use>
  __device__ __forceinline__ void with_queries(const Use& use) const {
    if (args_.queries.type == ElementType::kF32) {
      use(float());
    } else if (args_.queries.type == ElementType::kBF16) {
      use(bf16());
    } else {
      use(f16());
    }
  }
  // Of a row of the block that is not there the tile's last one.
  template <typename In>
  __device__ __forceinline__ const In* queries_of_row(int in_block) const {
    const int wanted = first_row() + in_block, row = wanted < n_rows_ ? wanted : n_rows_ - 1;
    return static_cast<const In*>(args_.queries.data) + place_of(row) * args_.queries.stride + head_of(row) * 2 * half_;
  }
  // The first element of a pair, or the second; 0 where a head is narrower.
  template <typename In>
  __device__ __forceinline__ float query_at(const In* row, int side, int pair) const {
    return kPlain || pair < half_ ? to_float(row[side * half_ + pair]) : 0.0f;
  }

  // A thread's number, or a lane's. Where registers are scarce, what is made of it is made anew for each block of keys.
  __device__ __forceinline__ static int for_block(int of) { return Way::kHoldsQueries ? of : made_anew(of); }

  // Begins to load the next block of keys and values, and goes one further. Where there is none, the group is empty.
  __device__ __forceinline__ void load_ahead(Block& next, int stage) {
    if (next.piece < work_.end_piece) {
      if (!kPlain && next.kind == kNarrowRecord) {
        copy_narrow(next, stage);
      } else {
        copy_full(next, stage);
      }
      advance(next);
    }
    commit_copies();
  }
  __device__ __forceinline__ void copy_full(const Block& block, int stage) const {
    const int64_t chunk = args_.shape.chunk, width = 2 * half_;
    const T* const keys = static_cast<const T*>(block.record) + (2 * tile_.kv_head * chunk + block.offset) * width;
    const T* const values = keys + chunk * width;
    const int n = block.n_keys(), thread = for_block(thread_);
    copy_rows<KeyTile, Way::kThreads>(shared_.keys[stage], keys, n, half_, thread);
    if constexpr (kPurpose == Purpose::kOutput) {
      copy_rows<KeyTile, Way::kThreads>(shared_.values[stage], values, n, half_, thread);
    }
  }
  __device__ __forceinline__ void copy_narrow(const Block& block, int stage) const {
    const int n = block.n_keys(), kv_head = tile_.kv_head;
    narrow(shared_.keys[stage]).template copy<KvPart::kKeys>(block.record, kv_head, block.offset, n);
    if constexpr (kPurpose == Purpose::kOutput) {
      narrow(shared_.values[stage]).template copy<KvPart::kValues>(block.record, kv_head, block.offset, n);
    }
  }
  // Makes rows of a block's narrow keys and values, which have arrived.
  __device__ __forceinline__ void widen(const Block& block, int stage) const {
    const int n = block.n_keys();
    narrow(shared_.keys[stage]).template widen<KvPart::kKeys>(n);
    if constexpr (kPurpose == Purpose::kOutput) narrow(shared_.values[stage]).template widen<KvPart::kValues>(n);
  }
  __device__ __forceinline__ NarrowTile<KeyTile, Way::kThreads, T> narrow(T* tile) const {
    return {args_, for_block(thread_), tile};
  }

  // Turns the queries to where this piece wants them, and says which of its keys they see. All threads call it, behind
  // a barrier.
  //
  // A row wants its position in the span less the piece's base. The former is the same for all pieces of the span, the
  // latter for all rows: so where there are many rows, each is turned to its position once a span, in shared memory,
  // and from there by one angle for all rows, in registers.
  __device__ void begin_piece(int32_t index) {
    const AttentionPiece& piece = args_.pieces[index];
    const AttentionSpan& span = args_.spans[piece.span];
    const bool in_two_steps = kTurnsInTwoSteps && !Rows::has_own_distances(span);
    turned_ = span.turned;
    if (kSelects && tile_.selected) {
      for (int row = thread_; row < Way::kRows; row += Way::kThreads) shared_.rank[row] = -1;
      __syncthreads();
      for (int i = thread_; i < piece.n_picks; i += Way::kThreads) {
        const AttentionPick pick = args_.picks[piece.first_pick + i];
        shared_.rank[pick.row] = pick.rank;
      }
      __syncthreads();
    }
    if constexpr (kByKeys) {
      turn_queries_together(piece, span);
    } else if (!in_two_steps || piece.span != span_of_turned_) {
      if (has_rows_) turn_queries(piece, span, in_two_steps);
      span_of_turned_ = in_two_steps ? piece.span : -1;
    }
    if (in_two_steps && thread_ < kWidth / 2) shared_.turn[thread_] = angle_of(thread_, split_position(-piece.base));
    __syncthreads();
    if (!has_rows_) return;
    if constexpr (Way::kHoldsQueries) {
      QUIRE_UNROLL for (int step = 0; step < kSteps; ++step) load_turned(step, queries_[step]);
      if (in_two_steps) turn_loaded_queries();
    }
    Rows::find_seen(piece, span, shared_.rank);
  }
  // The warp's turned queries, for a step of the product.
  __device__ __forceinline__ void load_turned(int step, unsigned (&queries)[4]) const {
    load_tiles(queries,
               shared_.turned + (row_of_warp() + lane_of_warp() % 16) * kRow + lane_of_warp() / 16 * 8 + step * 16);
  }

  // By the angle that all rows are turned by.
  __device__ __forceinline__ void turn_loaded_queries() {
    QUIRE_UNROLL for (int step = 0; step < kSteps / 2; ++step) {
      QUIRE_UNROLL for (int octet = 0; octet < 2; ++octet) {
        alignas(16) Angle by[2];  // of two pairs
        load_16(by, shared_.turn + step * 16 + octet * 8 + 2 * t_);
        QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
          unsigned &first = queries_[step][2 * octet + side], &second = queries_[step + kSteps / 2][2 * octet + side];
          turn(first, second, by[0], by[1]);
        }
      }
    }
  }
  // Two neighbouring pairs: their first elements, and their second ones.
  __device__ __forceinline__ static void turn(unsigned& first, unsigned& second, Angle low, Angle high) {
    const float a0 = low_of(first, T()), a1 = high_of(first, T());
    const float b0 = low_of(second, T()), b1 = high_of(second, T());
    first = pack(a0 * low.cosine - b0 * low.sine, a1 * high.cosine - b1 * high.sine, T());
    second = pack(b0 * low.cosine + a0 * low.sine, b1 * high.cosine + a1 * high.sine, T());
  }

  // Writes the warp's queries, turned to the piece's first key or to_span: to their positions in the span. Two lanes
  // have a row, and no other warp reads it.
  __device__ __forceinline__ void turn_queries(const AttentionPiece& piece, const AttentionSpan& span, bool to_span) {
    const int row = warp_of_block() * 16 + lane_of_warp() / 2;
    const Position position = split_position(to_span ? position_of(first_row() + row, span)
                                                     : distance_of(first_row() + row, piece, span, shared_.rank));
    __syncwarp();  // the last piece's were read
    const auto turn_row = [&](const auto& two_of) {
      QUIRE_UNROLL_BY(kPairsAtOnce) for (int pair = lane_of_warp() % 2 * 2; pair < kWidth / 2; pair += 4) {
        turn_two_pairs(row, pair, position, two_of(0, pair), two_of(1, pair));
      }
    };
    if constexpr (Way::kKeepsQueries) {
      turn_row([&](int side, int pair) { return kept_queries(row, side, pair); });
    } else {
      with_queries([&](auto type) {
        const auto* const from = queries_of_row<decltype(type)>(row);
        turn_row(
            [&](int side, int pair) { return pack(query_at(from, side, pair), query_at(from, side, pair + 1), T()); });
      });
    }
    __syncwarp();
  }
  // Writes those of the block's rows that are there. All threads call it, all have read the last ones, and a barrier is
  // to follow. A row's position takes divisions in double precision: one thread finds it.
  __device__ __forceinline__ void turn_queries_together(const AttentionPiece& piece, const AttentionSpan& span) {
    constexpr int kTwos = kWidth / 4;  // of a row
    if (thread_ < n_rows_) {
      shared_.position[thread_] = split_position(distance_of(thread_, piece, span, shared_.rank));
    }
    __syncthreads();
    for (int i = thread_; i < n_rows_ * kTwos; i += Way::kThreads) {
      const int row = i / kTwos, pair = i % kTwos * 2;
      turn_two_pairs(row, pair, shared_.position[row], kept_queries(row, 0, pair), kept_queries(row, 1, pair));
    }
  }
  // Of a row of the block two neighbouring pairs: their first elements, or their second ones.
  __device__ __forceinline__ unsigned kept_queries(int row, int side, int pair) const {
    return load_4(shared_.queries + row * kRow + side * (kWidth / 2) + pair);
  }
  __device__ __forceinline__ void turn_two_pairs(int row, int pair, Position position, unsigned first,
                                                 unsigned second) {
    T* const to = shared_.turned + row * kRow + pair;
    turn(first, second, angle_of(pair, position), angle_of(pair + 1, position));
    store_4(to, first);
    store_4(to + kWidth / 2, second);
  }

  __device__ __forceinline__ Angle angle_of(int pair, Position position) const {
    return pair < half_ ? angle_near(args_.turns[pair], position) : Angle{1, 0};
  }

  // Turns the keys of a block, which have arrived, to where the span wants them, counted from the chunk's first key. A
  // thread has one key, whose position it finds once, and some of its pairs.
  __device__ void turn_keys(const Block& block, T* keys) const {
    constexpr int kOfKey = Way::kThreads / kKeys;  // threads
    static_assert(Way::kThreads % kKeys == 0);
    const AttentionPiece& piece = args_.pieces[block.piece];
    const int row = for_block(thread_) / kOfKey, offset = block.offset + row;
    const double wanted = wanted_from_first(args_.spans[piece.span], piece.chunk * args_.shape.chunk, offset);
    const Position by =
        split_position(wanted - static_cast<double>(stored_position(offset, args_.stored_div[piece.kind])));
    for (int pair = for_block(thread_) % kOfKey; pair < half_; pair += kOfKey) {
      const Angle angle = angle_at(args_.turns[pair], by);
      T &first = keys[KeyTile::at(row, pair)], &second = keys[KeyTile::at(row, kWidth / 2 + pair)];
      const float a = to_float(first), b = to_float(second);
      from_float(a * angle.cosine - b * angle.sine, first);
      from_float(b * angle.cosine + a * angle.sine, second);
    }
  }
  // How far from a chunk's first key the span wants the one at `offset`.
  __device__ __forceinline__ static double wanted_from_first(const AttentionSpan& span, int64_t chunk_first,
                                                             int offset) {
    if (span.key_div == 0) return 0;
    if (span.key_div == 1) return offset;
    const auto wanted = [&](int64_t j) {
      const double p = static_cast<double>(j - span.key_base) / static_cast<double>(span.key_div);
      return span.key_floor ? floor(p) : p;
    };
    return wanted(chunk_first + offset) - wanted(chunk_first);
  }

  __device__ void attend(const Block& block, int stage) {
    Scores scores;
    if constexpr (kByWarpgroups) {
      multiply_keys_together(scores, stage);
    } else {
      multiply_keys(scores, shared_.keys[stage]);
    }
    Rows::mask(scores, block);
    if constexpr (kPurpose == Purpose::kShares) {
      const AttentionPiece& piece = args_.pieces[block.piece];
      add_shares(scores, piece.chunk * args_.shape.chunk + block.offset, piece);
    } else {
      add_output(scores, stage);
    }
  }

  // The values of a block, weighted by the softmax of its scores; of warpgroups, those of the block before.
  __device__ __forceinline__ void add_output(Scores& scores, int stage) {
    float kept[2];
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) kept[side] = weigh(scores, side);
    if constexpr (kByWarpgroups) wait_for_products<0>(out_);
    // Of warpgroups there is no register for the question.
    if (kByWarpgroups || __any_sync(kWholeWarp, kept[0] != 1 || kept[1] != 1)) {  // a row's maximum has grown
      QUIRE_UNROLL for (int c = 0; c < kWidth / 8; ++c) {
        QUIRE_UNROLL for (int e = 0; e < 4; ++e) out_[c][e] *= kept[e / 2];
      }
    }
    QUIRE_UNROLL for (int step = 0; step < kOctets / 2; ++step) {
      QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
        const float* const two = &scores[2 * step + i / 2][i % 2 * 2];
        weights_[step][i] = pack(two[0], two[1], T());
      }
    }
    if constexpr (kByWarpgroups) {
      held_ = stage;
    } else {
      add_values(shared_.values[stage]);
    }
  }

  __device__ __forceinline__ void multiply_keys(Scores& scores, const T* keys) const {
    QUIRE_UNROLL for (int n = 0; n < kOctets; ++n) { QUIRE_UNROLL for (int e = 0; e < 4; ++e) scores[n][e] = 0; }
    if constexpr (Way::kHoldsQueries) {
      QUIRE_UNROLL for (int step = 0; step < kSteps; ++step) multiply_step(scores, queries_[step], keys, step);
    } else {
      QUIRE_UNROLL_BY(4) for (int step = 0; step < kSteps; ++step) {
        unsigned queries[4];
        load_turned(step, queries);
        multiply_step(scores, queries, keys, step);
      }
    }
  }
  __device__ __forceinline__ void multiply_step(Scores& scores, const unsigned (&queries)[4], const T* keys,
                                                int step) const {
    QUIRE_UNROLL for (int n = 0; n < kOctets; n += 2) {
      unsigned b[4];
      load_tiles(b, keys + KeyTile::at(key_of_warp() + n * 8 + lane_of_warp() % 8 + lane_of_warp() / 16 * 8,
                                       step * 16 + lane_of_warp() / 8 % 2 * 8));
      multiply_tile(scores[n], queries, b[0], b[1], T());
      multiply_tile(scores[n + 1], queries, b[2], b[3], T());
    }
  }

  // With values of the block before on their way behind it.
  __device__ __forceinline__ void multiply_keys_together(Scores& scores, int stage) {
    begin_products(scores);
    begin_products(out_);
    QUIRE_UNROLL for (int step = 0; step < kSteps; ++step) {
      const T* const from = shared_.keys[stage] + KeyTile::at(0, step * 16);
      multiply_rows_together<false>(scores, queries_[step], tile_of_keys(from), step > 0, T());
    }
    commit_products();
    multiply_held_values();
    commit_products();
    wait_for_products<1>(scores);
  }
  __device__ __forceinline__ void multiply_held_values() {
    QUIRE_UNROLL for (int step = 0; step < kKeys / 16; ++step) {
      const T* const from = shared_.values[held_] + KeyTile::at(step * 16, 0);
      multiply_rows_together<true>(out_, weights_[step], tile_of_values<kKeys>(from), true, T());
    }
  }
  __device__ __forceinline__ void add_held_values() {
    begin_products(out_);
    multiply_held_values();
    commit_products();
    wait_for_products<0>(out_);
  }

  // The softmax of the scores of one of the thread's rows, as far as the keys have come; returns what earlier results
  // are multiplied with.
  __device__ __forceinline__ float weigh(Scores& scores, int side) {
    float greatest = -INFINITY;
    QUIRE_UNROLL for (int n = 0; n < kOctets; ++n) {
      QUIRE_UNROLL for (int e = 0; e < 2; ++e) greatest = fmaxf(greatest, scores[n][2 * side + e]);
    }
    // The four lanes of a row.
    greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(kWholeWarp, greatest, 2));
    greatest = fmaxf(max_[side], greatest * scale_[side]);
    const float base = greatest == -INFINITY ? 0.0f : greatest;
    const float kept = exp2_fast(max_[side] - base);
    float sum = 0;
    QUIRE_UNROLL for (int n = 0; n < kOctets; ++n) {
      QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
        float& score = scores[n][2 * side + e];
        score = exp2_fast(fmaf(score, scale_[side], -base));
        sum += score;
      }
    }
    // Here and not at the end, so that it does not matter where one call ends and another one goes on.
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    max_[side] = greatest;
    sum_[side] = sum_[side] * kept + sum;
    return kept;
  }

  __device__ __forceinline__ void add_values(const T* values) {
    const int lane = for_block(lane_of_warp());
    QUIRE_UNROLL for (int step = 0; step < kOctets / 2; ++step) {
      QUIRE_UNROLL for (int c = 0; c < kWidth / 8; c += 2) {
        unsigned b[4];
        load_tiles_transposed(b, values + KeyTile::at(key_of_warp() + step * 16 + lane % 16, c * 8 + lane / 16 * 8));
        multiply_tile(out_[c], weights_[step], b[0], b[1], T());
        multiply_tile(out_[c + 1], weights_[step], b[2], b[3], T());
      }
    }
  }

  // Adds to each cell the shares of its keys. A cell of a row is of one work alone, and its pieces come in order; but
  // where spans end within a cell, two works may have a part of it each, at the same time.
  __device__ __forceinline__ void add_shares(const Scores& scores, int64_t first, const AttentionPiece& piece) const {
    constexpr int kCell = static_cast<int>(kCellKeys);
    const AttentionCells& of = *cells_;
    const int64_t n_text = (of.end_key + kCell - 1) / kCell;
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const int row = row_of(side);
      const bool asked = row < n_rows_ && place_of(row) >= of.first_row;
      float* const shares =
          asked ? of.shares + ((place_of(row) - of.first_row) * args_.n_query_heads + head_of(row)) * of.n_cells()
                : nullptr;
      const auto share = [&](int n, int e) {
        return exp2_fast(fmaf(scores[n][2 * side + e], scale_[side], -max_[side])) * sum_[side];
      };
      if (piece.kind == kCondensedRecord) {  // a condensed entry is a cell
        QUIRE_UNROLL for (int n = 0; n < kKeys / 8; ++n) {
          QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
            const int64_t j = first + n * 8 + 2 * t_ + e;
            if (asked && j < of.n_entries && scores[n][2 * side + e] != -INFINITY) shares[n_text + j] += share(n, e);
          }
        }
        continue;
      }
      QUIRE_UNROLL for (int cell = 0; cell < kKeys / kCell; ++cell) {
        float total = 0;
        QUIRE_UNROLL for (int n = cell * kCell / 8; n < (cell + 1) * kCell / 8; ++n) {
          QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
            const int64_t j = first + n * 8 + 2 * t_ + e;
            if (j >= of.first_key && j < of.end_key) total += share(n, e);
          }
        }
        total += __shfl_xor_sync(kWholeWarp, total, 1);
        total += __shfl_xor_sync(kWholeWarp, total, 2);
        // The keys may reach beyond the piece's, into cells that another block of threads adds to.
        const int64_t at = first / kCell + cell;
        const bool own = at * kCell < piece.end && (at + 1) * kCell > piece.begin;
        if (asked && own && t_ == 0 && at < n_text) atomicAdd(&shares[at], total);
      }
    }
  }

  // Calls use(channel of the head, value) for the thread's values of one of its rows.
  template <typename Use>
  __device__ __forceinline__ void for_channels(int side, const Use& use) {
    QUIRE_UNROLL for (int c = 0; c < kWidth / 8; ++c) {
      QUIRE_UNROLL for (int e = 0; e < 2; ++e) {
        const int padded = c * 8 + 2 * t_ + e, pair = padded % (kWidth / 2);
        if (pair < half_) use(padded / (kWidth / 2) * half_ + pair, out_[c][2 * side + e]);
      }
    }
  }

  // Of a row: in `state` and in `stats`.
  __device__ __forceinline__ int64_t place_in_state(int row) const {
    return place_of(row) * args_.n_query_heads + head_of(row);
  }

  // Where the rows begin: from nothing, or from what an earlier call left. For shares: by which numbers they are
  // brought to one scale.
  __device__ __forceinline__ void begin() {
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const int row = row_of(side);
      scale_[side] = Rows::scale_of(row);
      if (row >= n_rows_) continue;
      if constexpr (kPurpose == Purpose::kShares) {
        const AttentionStats& of = args_.stats[place_in_state(row)];
        max_[side] = of.max == -INFINITY ? 0.0f : of.max;
        sum_[side] = share_factor(of, args_.pauses);
      } else if (args_.resumes) {
        const float* const from = args_.state + place_in_state(row) * (2 * half_ + 2);
        max_[side] = from[0];
        sum_[side] = from[1];
        for_channels(side, [&](int channel, float& v) { v = from[2 + channel]; });
      }
    }
    // All lanes of a row have read what one of them writes in finish(), which comes at once where there are no keys.
    if constexpr (kPurpose == Purpose::kOutput) __syncwarp();
  }

  // The greatest score before this call, until finish() leaves it.
  __device__ __forceinline__ float max_before(int row) const {
    return args_.resumes ? args_.state[place_in_state(row) * (2 * half_ + 2)] : -INFINITY;
  }

  // Merges the warps' results, and leaves them as finish() does.
  __device__ void finish_together() {
    constexpr int kWarpsOfBlock = Way::kThreads / kWarpSize;
    struct Results {  // of a warp
      float max[Way::kRows], sum[Way::kRows], values[Way::kRows][kWidth];
    };
    static_assert(kWarpsOfBlock * sizeof(Results) <= sizeof(shared_.keys) + sizeof(shared_.values));
    Results* const results = reinterpret_cast<Results*>(&shared_);  // over the keys and values
    __syncthreads();
    Results& own = results[warp_of_block()];
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const int row = row_of(side);
      if (t_ == 0) {
        own.max[row] = max_[side];
        own.sum[row] = sum_[side];
      }
      if (row < n_rows_) for_channels(side, [&](int channel, float v) { own.values[row][channel] = v; });
    }
    __syncthreads();
    const int width = 2 * half_;
    float* const part = work_.part < 0 ? nullptr : args_.parts + work_.part * attention_part_floats(width);
    for (int i = thread_; i < n_rows_ * width; i += Way::kThreads) {
      const int row = i / width, channel = i % width;
      float greatest = -INFINITY, sum = 0, value = 0;
      QUIRE_UNROLL for (int w = 0; w < kWarpsOfBlock; ++w) greatest = fmaxf(greatest, results[w].max[row]);
      QUIRE_UNROLL for (int w = 0; w < kWarpsOfBlock; ++w) {
        const float max = results[w].max[row];
        const float factor = max == -INFINITY ? 0.0f : exp2_fast(max - greatest);
        sum = fmaf(factor, results[w].sum[row], sum);
        value = fmaf(factor, results[w].values[row][channel], value);
      }
      if (part != nullptr) {
        part[2 * kTileRows + row * width + channel] = value;
        if (channel == 0) {
          part[row] = greatest;
          part[kTileRows + row] = sum;
        }
        continue;
      }
      const int64_t at = place_of(row) * args_.out.stride + head_of(row) * width + channel;
      store_element_of(args_.out, at, sum == 0 ? 0.0f : value / sum);  // a sum of NaN shows
      if (args_.stats != nullptr && channel == 0) args_.stats[place_in_state(row)] = {-INFINITY, greatest, sum};
    }
  }

  __device__ void finish() {
    QUIRE_UNROLL for (int side = 0; side < 2; ++side) {
      const float sum = sum_[side];
      const int row = row_of(side);
      if (row >= n_rows_) continue;
      if (!kByWarpgroups && work_.part >= 0) {
        float* const part = args_.parts + work_.part * attention_part_floats(2 * half_);
        if (t_ == 0) {
          part[row] = max_[side];
          part[kTileRows + row] = sum;
        }
        for_channels(side, [&](int channel, float v) { part[2 * kTileRows + row * 2 * half_ + channel] = v; });
        continue;
      }
      if (args_.stats != nullptr && t_ == 0) {
        args_.stats[place_in_state(row)] = {max_before(row), max_[side], sum};
      }
      if (args_.pauses) {
        float* const to = args_.state + place_in_state(row) * (2 * half_ + 2);
        if (t_ == 0) {
          to[0] = max_[side];
          to[1] = sum;
        }
        for_channels(side, [&](int channel, float v) { to[2 + channel] = v; });
        continue;
      }
      const float factor = sum > 0 ? 1 / sum : 0.0f;
      const int64_t at = place_of(row) * args_.out.stride + head_of(row) * 2 * half_;
      for_channels(side, [&](int channel, float v) { store_element_of(args_.out, at + channel, v * factor); });
    }
  }

  const AttentionCells* const cells_;
  Memory& shared_;
  const int half_;
  const bool has_rows_;  // the warp; all where they compute together
  const int thread_;
  bool turned_ = false;          // the piece's keys are to be turned
  int32_t span_of_turned_ = -1;  // where Shared::turned has the queries; -1: of none, or where a piece wanted them
  unsigned queries_[kHeldSteps][4];
  // The weights of a block's values. Of warpgroups, those of the block before, in stage held_: at first those of the
  // first block, with weights of 0, so that all blocks are alike.
  unsigned weights_[kOctets / 2][4] = {};
  int held_ = 0;
  // Of rows g and g + 8 of the warp, the same in the four lanes of a row. For shares: what scores are relative to, and
  // the factor of exp2 of that.
  float max_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0, 0};
  float out_[kWidth / 8][4] = {};
};

}  // namespace quire::cuda
