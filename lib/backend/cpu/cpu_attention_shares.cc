// Where rows look: the shares of their attention that fall on cells of keys (AttentionShares).
//
// A piece leaves the sums of its cells relative to its own maximum. When the row's maximum is known they are brought to
// one scale, a power of two: exp(m) is 2^k f with f in [1, 2), and cells are kept relative to 2^k of the row's maximum
// so far. To go from one such scale to another is exact, so windows change no bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/kernels.h"
#include "lib/backend/cpu/cpu_sequence_attention.h"

namespace quire::cpu {
namespace {

constexpr int64_t kCell = AttentionShares::kCell;
static_assert(kCell == kKeyBlock);

// exp(m) = 2^exponent * factor, m finite. One is made for each piece and row: the functions of <cmath> that are not
// called here would be the greater part of what citing costs.
struct Scale {
  explicit Scale(float m) : log2(std::clamp(static_cast<double>(m) * std::numbers::log2e, -1e6, 1e6)) {
    exponent = static_cast<int>(log2);
    exponent -= log2 < exponent ? 1 : 0;
  }
  float factor() const { return std::exp2(static_cast<float>(log2 - exponent)); }
  double log2;
  int exponent;
};

// x * 2^shift, shift <= 0.
float scaled(float x, int shift) {
  return shift < -126 ? std::ldexp(x, shift) : x * std::bit_cast<float>(static_cast<uint32_t>(127 + shift) << 23);
}

// A cell's sum is at most kCell, and a factor below 2: with a lesser shift the product is 0.
constexpr int kLeastShift = -155;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

}  // namespace

// The piece's keys that count.
KeyBounds SequenceRun::counted(const Piece& piece) const {
  if (piece.span->kind == KvKind::kCondensed) return {piece.begin, std::min(piece.end, args_.shares.n_entries)};
  return {std::max(piece.begin, args_.shares.first_key), std::min(piece.end, args_.shares.end_key)};
}

int64_t SequenceRun::n_cells(const Piece& piece) const {
  const auto [begin, end] = counted(piece);
  if (begin >= end) return 0;
  return piece.span->kind == KvKind::kCondensed ? end - begin : ceil_div(end, kCell) - begin / kCell;
}

size_t SequenceRun::cell_floats(const Tile& tile, const Piece& piece, PickSpan rows) const {
  if (!asked(tile)) return 0;
  const int64_t n = n_cells(piece);
  if (n == 0 || rows.empty()) return 0;
  auto n_rows = static_cast<int64_t>(rows.size());
  if (!asked(tile, rows.front().row))  // they ascend
    n_rows = std::count_if(rows.begin(), rows.end(), [&](const Pick& pick) { return asked(tile, pick.row); });
  return static_cast<size_t>(n_rows * (n + 1));
}

size_t SequenceRun::cell_floats(const Work& work) const {
  size_t floats = 0;
  if (!asked(*work.tile)) return 0;
  for (int32_t p = work.first; p < work.end; ++p) {
    floats += cell_floats(*work.tile, work.piece(p), rows_of(work, work.piece(p)));
  }
  return floats;
}

// Sums of the piece's cells over the keys [from, to). p[0] belongs to key `origin`, the first one of a cell.
void SequenceRun::sum_cells(const Piece& piece, const float* p, int64_t origin, int64_t from, int64_t to,
                            float* sums) const {
  const auto [begin, end] = counted(piece);
  std::fill_n(sums, n_cells(piece), 0.0f);
  from = std::max(from, begin);
  to = std::min(to, end);
  if (from >= to) return;
  if (piece.span->kind == KvKind::kCondensed) {
    std::copy(p + (from - origin), p + (to - origin), sums + (from - begin));
  } else {
    sum_blocks(p, from - origin, to - origin, sums + (from / kCell - begin / kCell));
  }
}

float* SequenceRun::shares_of(const Tile& tile, int64_t row) const {
  const AttentionShares& shares = args_.shares;
  const int64_t head = tile.first_head + row % tile.heads;
  return static_cast<float*>(shares.out->host()) +
         ((tile.place(row) - shares.first_row) * n_heads_ + head) * shares.n_cells();
}

// Brings what earlier windows left to the scale of the row's maximum.
void SequenceRun::begin_shares(const Tile& tile, const Partial& state) const {
  const int64_t n = args_.shares.n_cells();
  for (int64_t row = 0; row < tile.rows(); ++row) {
    if (!asked(tile, row)) continue;
    float* to = shares_of(tile, row);
    if (args_.window.first) {
      std::fill_n(to, n, 0.0f);
      continue;
    }
    const float before = saved(tile, row)[0];
    if (before == kNothing || before == state.max[row]) continue;
    const int shift = Scale(before).exponent - Scale(state.max[row]).exponent;
    if (shift == 0) continue;
    const float factor = scaled(1.0f, shift);
    for (int64_t c = 0; c < n; ++c) to[c] *= factor;
  }
}

void SequenceRun::add_shares(const Tile& tile, const Piece& piece, PickSpan rows, const float* cells,
                             const Partial& state) const {
  const int64_t n = n_cells(piece);
  if (n == 0) return;
  const int64_t begin = counted(piece).begin;
  const int64_t first = piece.span->kind == KvKind::kCondensed ? args_.shares.n_text_cells() + begin : begin / kCell;
  for (const Pick& pick : rows) {
    if (!asked(tile, pick.row)) continue;
    const float max = *cells++;
    if (max != kNothing) {
      const Scale scale(max);
      const int shift = scale.exponent - Scale(state.max[pick.row]).exponent;
      if (shift >= kLeastShift) {
        const float factor = scaled(scale.factor(), shift);
        float* to = shares_of(tile, pick.row) + first;
        for (int64_t c = 0; c < n; ++c) to[c] += factor * cells[c];
      }
    }
    cells += n;
  }
}

// Of a row that sees no key all shares are 0.
void SequenceRun::end_shares(const Tile& tile, const Partial& state) const {
  if (!args_.window.last) return;
  for (int64_t row = 0; row < tile.rows(); ++row) {
    if (!asked(tile, row) || !(state.sum[row] > 0)) continue;
    const float factor = 1 / (state.sum[row] * Scale(state.max[row]).factor());
    float* to = shares_of(tile, row);
    for (int64_t c = 0; c < args_.shares.n_cells(); ++c) to[c] *= factor;
  }
}

}  // namespace quire::cpu
