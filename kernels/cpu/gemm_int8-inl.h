// The matrix product of 8-bit rows and quantised weights. Few rows: codes go from the packed block to the products in
// registers. Many: a stretch of a panel is unpacked into the first-level cache and multiplied with all rows of a block
// before the next one, and the sums wait in memory between stretches. Both add the same terms in the same order, and so
// do tile registers, where there are such.
#if defined(QUIRE_KERNELS_CPU_GEMM_INT8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_GEMM_INT8_INL_H_
#undef QUIRE_KERNELS_CPU_GEMM_INT8_INL_H_
#else
#define QUIRE_KERNELS_CPU_GEMM_INT8_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/byte_product-inl.h"
#include "kernels/cpu/gemm_tile-inl.h"
#include "kernels/cpu/tile_registers.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu::HWY_NAMESPACE {
#if QUIRE_CPU_VECTORS
namespace {

constexpr int64_t kBlockRows = 48;  // rows whose sums wait together
constexpr int64_t kFewRows = 16;    // up to four at once, of a panel that is in the second-level cache after the first
constexpr int kFewSums = HWY_TARGET == HWY_AVX2 ? 1 : 8;  // of few rows, that are added to together
constexpr int kTileVectors = 2;                           // of columns
#if QUIRE_SMALL_TILES
constexpr int kTileRows = 2;
#define QUIRE_CPU_UNROLL(n)
#else
constexpr int kTileRows = HWY_TARGET == HWY_AVX2 ? 3 : 6;  // integer and float sums, and the operands, in registers
#define QUIRE_CPU_UNROLL(n) HWY_UNROLL(n)
#endif

// What the terms of some formats are made of.
template <int kScaleCount, bool kHasOffset, int kBits, bool kDot>
struct Terms {
  static constexpr int kScales = kScaleCount;
  static constexpr int kQuads = kGroupQuads / kScales;  // that share a scale
  static constexpr bool kOffset = kHasOffset;
  using Sum = ProductSum<kBits, kQuads, kDot>;
};

template <ElementType kElement, bool kDot>
struct Format : Terms<scales_of(kElement), has_offset(kElement), code_bits(kElement), kDot> {
  using Base = Terms<scales_of(kElement), has_offset(kElement), code_bits(kElement), kDot>;
  static constexpr ElementType kType = kElement;
  static constexpr bool kSigned = kSubtracts128<kDot>;
  static constexpr int kZero = code_bits(kElement) == 8 && kSigned ? 0 : zero_code(kElement);
};

// Where the integer sum of `part` of a group begins: so that `zero` is taken from each code.
template <class F>
HWY_INLINE IntVector first_sum(const Int8Group& x, int part, int zero) {
  const int32_t codes = F::kScales == 1 ? x.code_sum[0] + x.code_sum[1] : x.code_sum[part];
  return hn::Set(Ints(), -zero * codes);
}

HWY_INLINE Vector add_part(Vector sum, IntVector products, Vector scale, const Int8Group& x) {
  return hn::MulAdd(real(products), hn::Mul(hn::Set(Floats(), x.scale), scale), sum);
}
template <class F>
HWY_INLINE Vector add_offset(Vector sum, Vector offset, const Int8Group& x, int part) {
  const float of_part = F::kScales == 1 ? x.sum : x.scale * static_cast<float>(x.code_sum[part]);
  return hn::MulAdd(hn::Set(Floats(), of_part), offset, sum);
}

HWY_INLINE QuadVector quad_of_row(const int8_t* codes) {
  uint32_t quad;
  std::memcpy(&quad, codes, sizeof quad);
  return hn::Set(Quads(), quad);
}

// Rows of a stretch: row r has its codes at codes + r * n_groups * kGroup, its groups at groups + r * n_groups.
struct StretchRows {
  const int8_t* codes;
  const Int8Group* groups;
  int64_t n_groups;
};

HWY_INLINE StretchRows stretch_of(const Int8Rows& x, int64_t row, int64_t j) {
  const int64_t groups = (x.k - j < kInt8Stretch ? x.k - j : kInt8Stretch) / kGroup;
  return {x.codes_of(row, j), &x.group(row, j / kGroup), groups};
}

// The rows of y from the first one of a call on, at a panel's first column.
struct Output {
  const float* bias;
  bool accumulate;
  int64_t columns;
  float* y;
  int64_t ldy;

  HWY_INLINE void finish(int64_t r, const Vector* sums) const {
    finish_row(sums, bias, accumulate, columns, y + r * ldy);
  }
  Output from(int64_t r) const { return {bias, accumulate, columns, y + r * ldy, ldy}; }
};

// ---- few rows

// Adds the products of part `part` of group `group` of a stretch, which is group g of its packed block, to the sums of
// kVectors vectors of columns from `first` on. Each quad of a row is loaded once for all of them.
template <class F, int kRows, int kVectors>
HWY_INLINE void add_products(const StretchRows& rows, int64_t group, const uint8_t* block, int g, int part, int first,
                             Vector (*sums)[kRows]) {
  const auto group_of_row = [&](int r) -> const Int8Group& { return rows.groups[r * rows.n_groups + group]; };
  Vector scales[kVectors];
  for (int v = 0; v < kVectors; ++v) scales[v] = group_scale<F::kType>(BlockColumns(block, first + v), g, part);
  typename F::Sum products[kVectors][kRows];
  for (int r = 0; r < kRows; ++r) {
    const auto start = first_sum<F>(group_of_row(r), part, F::kZero);
    for (int v = 0; v < kVectors; ++v) products[v][r].begin(start);
  }
  QUIRE_CPU_UNROLL(8)
  for (int i = part * F::kQuads; i < (part + 1) * F::kQuads; ++i) {
    QuadVector x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = quad_of_row(rows.codes + (r * rows.n_groups + group) * kGroup + 4 * i);
    for (int v = 0; v < kVectors; ++v) {
      const auto codes = group_quad<F::kType, F::kSigned>(BlockColumns(block, first + v), g, i);
      for (int r = 0; r < kRows; ++r) products[v][r].add(i - part * F::kQuads, codes, x[r]);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int r = 0; r < kRows; ++r) {
      sums[first + v][r] = add_part(sums[first + v][r], products[v][r].sum(), scales[v], group_of_row(r));
    }
  }
}

// The same of all parts, and the offsets.
template <class F, int kRows, int kVectors>
HWY_INLINE void add_group(const StretchRows& rows, int64_t group, const uint8_t* block, int g, int first,
                          Vector (*sums)[kRows]) {
  if constexpr (F::kScales == 2 && (code_bits(F::kType) < 4 || HWY_TARGET == HWY_AVX2)) {
    // The compiler knows the quads' numbers now: where codes of two bits lie in their bytes depends on them. With the
    // registers of AVX2 that is faster for q6_k, too; others were not measured.
    add_products<F, kRows, kVectors>(rows, group, block, g, 0, first, sums);
    add_products<F, kRows, kVectors>(rows, group, block, g, 1, first, sums);
  } else {
    for (int part = 0; part < F::kScales; ++part) {
      add_products<F, kRows, kVectors>(rows, group, block, g, part, first, sums);
    }
  }
  if constexpr (F::kOffset) {
    for (int part = 0; part < F::kScales; ++part) {
      for (int v = 0; v < kVectors; ++v) {
        const auto offset = group_offset<F::kType>(BlockColumns(block, first + v), g, part);
        for (int r = 0; r < kRows; ++r) {
          Vector& sum = sums[first + v][r];
          sum = add_offset<F>(sum, offset, rows.groups[r * rows.n_groups + group], part);
        }
      }
    }
  }
}

// Bytes of a group of a packed block, of all columns.
template <class F>
constexpr int64_t kGroupBytes = int64_t{block_format(F::kType).bytes} * kPanel /
                                (block_format(F::kType).elements / kGroup);

// Asks for what lies more than a block behind group g of a block of several groups, whose bits lie far from each other.
// Behind the matrix that does nothing.
template <class F>
HWY_INLINE void prefetch_group(const uint8_t* block, int g) {
  const char* const from = reinterpret_cast<const char*>(block) + g * kGroupBytes<F> + 2 * kPrefetchDistance;
  for (int64_t b = 0; b < kGroupBytes<F>; b += 64) hwy::Prefetch(from + b);
}

// A block of q4_k or q5_k has eight groups, four in a stretch. To find the bits of a group is much of the work with one
// row, and less if the code is the group's own. (For q6_k, and with the registers of AVX2, that was slower.)
constexpr int kStretchGroups = static_cast<int>(kInt8Stretch) / kGroup;
template <class F>
constexpr bool groups_apart() {
  return block_format(F::kType).elements == 2 * kInt8Stretch && F::kOffset && kFewSums > 1;
}

// Adds the groups of a stretch of one row, which are those from kFirst on of the block. The branches of the prefetcher
// stand between them: without any, gcc 12 mixes the groups and runs out of registers, which takes twice the time.
template <class F, int kFirst, int... kGroups>
HWY_INLINE void add_groups_apart(const StretchRows& row, const uint8_t* block, Prefetcher& prefetcher,
                                 Vector (*sums)[1], std::integer_sequence<int, kGroups...>) {
  ((prefetcher.step(), add_group<F, 1, kPanelVectors>(row, kGroups, block, kFirst + kGroups, 0, sums)), ...);
}

// The sums of kRows rows over a panel, [kPanelVectors][kRows], from zero.
template <class F, int kRows>
HWY_INLINE void multiply_few(const Int8Rows& x, int64_t row, const uint8_t* panel, Vector (*sums)[kRows]) {
  constexpr BlockFormat kBlock = block_format(F::kType);
  constexpr int64_t kGroups = kBlock.elements / kGroup, kBytes = kGroups * kGroupBytes<F>;
  // Where codes are simple, one vector is faster.
  constexpr int kVectors = kGroups == 1 || kFewSums <= kRows ? 1 : std::min(kFewSums / kRows, kPanelVectors);
  for (int v = 0; v < kPanelVectors; ++v) {
    for (int r = 0; r < kRows; ++r) sums[v][r] = hn::Zero(Floats());
  }
  Prefetcher prefetcher{reinterpret_cast<uintptr_t>(panel) + kPrefetchDistance, UINTPTR_MAX,
                        ceil_div(kGroupBytes<F>, 64)};
  for (int64_t j = 0; j < x.k; j += kInt8Stretch) {
    const StretchRows rows = stretch_of(x, row, j);
    if constexpr (kRows == 1 && groups_apart<F>()) {
      const uint8_t* const block = panel + j / kBlock.elements * kBytes;
      constexpr auto kAll = std::make_integer_sequence<int, kStretchGroups>();
      if (j % kBlock.elements == 0) {
        add_groups_apart<F, 0>(rows, block, prefetcher, sums, kAll);
      } else {
        add_groups_apart<F, kStretchGroups>(rows, block, prefetcher, sums, kAll);
      }
    } else {
      for (int64_t i = 0; i < rows.n_groups; ++i) {
        const int64_t group = j / kGroup + i;
        const uint8_t* const block = panel + group / kGroups * kBytes;
        const int g = static_cast<int>(group % kGroups);
        if constexpr (kGroups == 1) {
          prefetcher.step();
        } else {
          prefetch_group<F>(block, g);
        }
        QUIRE_CPU_UNROLL(8)
        for (int v = 0; v < kPanelVectors; v += kVectors) add_group<F, kRows, kVectors>(rows, i, block, g, v, sums);
      }
    }
  }
}

template <class F, int kRows>
HWY_INLINE int64_t rows_at_once(const Int8Rows& x, int64_t row, const uint8_t* panel, const Output& out) {
  Vector sums[kPanelVectors][kRows];
  multiply_few<F, kRows>(x, row, panel, sums);
  for (int r = 0; r < kRows; ++r) {
    Vector of_row[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) of_row[v] = sums[v][r];
    out.finish(r, of_row);
  }
  return kRows;
}

// The same as a function of its own, for which gcc finds more registers.
template <class F, int kRows>
HWY_NOINLINE int64_t rows_apart(const Int8Rows& x, int64_t row, const uint8_t* panel, const Output& out) {
  return rows_at_once<F, kRows>(x, row, panel, out);
}

// As many of n rows as go together; returns how many these are.
template <class F>
int64_t few_rows(const Int8Rows& x, int64_t row, int64_t n, const uint8_t* panel, const Output& out) {
  if (n >= 4) return rows_apart<F, 4>(x, row, panel, out);
  if (n == 3) return rows_apart<F, 3>(x, row, panel, out);
  if (n >= 2) return rows_apart<F, 2>(x, row, panel, out);
  if constexpr (groups_apart<F>()) return rows_at_once<F, 1>(x, row, panel, out);  // as measured
  return rows_apart<F, 1>(x, row, panel, out);
}

// ---- many rows

// Continues the sums [kRows][kPanel] with a stretch, in the columns of vectors [first, first + kTileVectors). zero:
// taken from each code.
template <class F, int kRows>
void continue_tile(const StretchRows& rows, const UnpackedGroup<kPanel>* stretch, int zero, int first, float* sums) {
  const Floats d;
  Vector total[kRows][kTileVectors];
  QUIRE_CPU_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    QUIRE_CPU_UNROLL(2)
    for (int v = 0; v < kTileVectors; ++v) total[r][v] = hn::Load(d, sums + r * kPanel + (first + v) * kLanes);
  }
  for (int64_t g = 0; g < rows.n_groups; ++g) {
    const UnpackedGroup<kPanel>& group = stretch[g];
    const auto group_of_row = [&](int r) -> const Int8Group& { return rows.groups[r * rows.n_groups + g]; };
    QUIRE_CPU_UNROLL(2)
    for (int part = 0; part < F::kScales; ++part) {
      typename F::Sum products[kRows][kTileVectors];
      QUIRE_CPU_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        const auto start = first_sum<F>(group_of_row(r), part, zero);
        QUIRE_CPU_UNROLL(2)
        for (int v = 0; v < kTileVectors; ++v) products[r][v].begin(start);
      }
      QUIRE_CPU_UNROLL(8)
      for (int i = part * F::kQuads; i < (part + 1) * F::kQuads; ++i) {
        QuadVector w[kTileVectors];
        QUIRE_CPU_UNROLL(2)
        for (int v = 0; v < kTileVectors; ++v) {
          w[v] = hn::Load(Quads(), reinterpret_cast<const uint32_t*>(group.codes[i][(first + v) * kLanes]));
        }
        QUIRE_CPU_UNROLL(6)
        for (int r = 0; r < kRows; ++r) {
          const auto x = quad_of_row(rows.codes + (r * rows.n_groups + g) * kGroup + 4 * i);
          QUIRE_CPU_UNROLL(2)
          for (int v = 0; v < kTileVectors; ++v) {
            products[r][v].add(i - part * F::kQuads, w[v], x);
          }
        }
      }
      Vector scale[kTileVectors];
      QUIRE_CPU_UNROLL(2)
      for (int v = 0; v < kTileVectors; ++v) scale[v] = hn::Load(d, group.scales[part] + (first + v) * kLanes);
      QUIRE_CPU_UNROLL(6)
      for (int r = 0; r < kRows; ++r) {
        QUIRE_CPU_UNROLL(2)
        for (int v = 0; v < kTileVectors; ++v) {
          total[r][v] = add_part(total[r][v], products[r][v].sum(), scale[v], group_of_row(r));
        }
      }
    }
    if constexpr (F::kOffset) {
      QUIRE_CPU_UNROLL(2)
      for (int part = 0; part < F::kScales; ++part) {
        QUIRE_CPU_UNROLL(2)
        for (int v = 0; v < kTileVectors; ++v) {
          const auto offset = hn::Load(d, group.offsets[part] + (first + v) * kLanes);
          QUIRE_CPU_UNROLL(6)
          for (int r = 0; r < kRows; ++r) total[r][v] = add_offset<F>(total[r][v], offset, group_of_row(r), part);
        }
      }
    }
  }
  QUIRE_CPU_UNROLL(6)
  for (int r = 0; r < kRows; ++r) {
    QUIRE_CPU_UNROLL(2)
    for (int v = 0; v < kTileVectors; ++v) hn::Store(total[r][v], d, sums + r * kPanel + (first + v) * kLanes);
  }
}

using ContinueTile = void (*)(const StretchRows&, const UnpackedGroup<kPanel>*, int, int, float*);

template <class F, int... kRowsLess1>
constexpr std::array<ContinueTile, sizeof...(kRowsLess1)> tile_functions(std::integer_sequence<int, kRowsLess1...>) {
  return {continue_tile<F, kRowsLess1 + 1>...};
}

// The same for as many rows as a tile register has, in all columns of the panel, with the products of the registers.
template <class F, class Tiles>
void continue_registers(Tiles& tiles, const StretchRows& rows, const UnpackedGroup<kPanel>* stretch, int zero,
                        float* sums) {
  constexpr int kMostParts = static_cast<int>(kInt8Stretch) / kGroup * F::kScales;
  HWY_ALIGN int32_t products[kMostParts][kTileRegisterRows][kPanel];
  const int64_t n_parts = rows.n_groups * F::kScales, row_bytes = rows.n_groups * kGroup;
  const auto multiply = [&](int64_t i, auto set) {
    tiles.template multiply<decltype(set)::value>(rows.codes + i * 4 * F::kQuads, row_bytes,
                                                  stretch[i / F::kScales].codes[i % F::kScales * F::kQuads][0],
                                                  4 * kPanel, products[i][0], 4 * kPanel);
  };
  for (int64_t i = 0; i < n_parts; i += 2) {
    multiply(i, std::integral_constant<int, 0>());
    if (i + 1 < n_parts) multiply(i + 1, std::integral_constant<int, 1>());
  }
  const Floats d;
  for (int v = 0; v < kPanelVectors; ++v) {
    Vector total[kTileRegisterRows];
    QUIRE_CPU_UNROLL(16)
    for (int r = 0; r < kTileRegisterRows; ++r) total[r] = hn::Load(d, sums + r * kPanel + v * kLanes);
    for (int64_t g = 0; g < rows.n_groups; ++g) {
      const auto group_of_row = [&](int r) -> const Int8Group& { return rows.groups[r * rows.n_groups + g]; };
      for (int part = 0; part < F::kScales; ++part) {
        const auto scale = hn::Load(d, stretch[g].scales[part] + v * kLanes);
        QUIRE_CPU_UNROLL(16)
        for (int r = 0; r < kTileRegisterRows; ++r) {
          const auto product = hn::Load(Ints(), products[g * F::kScales + part][r] + v * kLanes);
          const auto from_zero = hn::Add(product, first_sum<F>(group_of_row(r), part, zero));
          total[r] = add_part(total[r], from_zero, scale, group_of_row(r));
        }
      }
      if constexpr (F::kOffset) {
        for (int part = 0; part < F::kScales; ++part) {
          const auto offset = hn::Load(d, stretch[g].offsets[part] + v * kLanes);
          QUIRE_CPU_UNROLL(16)
          for (int r = 0; r < kTileRegisterRows; ++r) {
            total[r] = add_offset<F>(total[r], offset, group_of_row(r), part);
          }
        }
      }
    }
    QUIRE_CPU_UNROLL(16)
    for (int r = 0; r < kTileRegisterRows; ++r) hn::Store(total[r], d, sums + r * kPanel + v * kLanes);
  }
}

// n <= kBlockRows. Tiles: which tile registers there are.
template <class F, class Tiles>
void many_rows(const Int8Rows& x, int64_t row, int64_t n, const uint8_t* panel, const Output& out) {
  static constexpr auto kTiles = tile_functions<typename F::Base>(std::make_integer_sequence<int, kTileRows>());
  constexpr BlockFormat kBlock = block_format(F::kType);
  constexpr int64_t kGroups = kBlock.elements / kGroup, kBytes = static_cast<int64_t>(kBlock.bytes) * kPanel;
  const int64_t in_registers = Tiles::kExist ? n / kTileRegisterRows * kTileRegisterRows : 0;
  const int64_t others = n - in_registers, n_tiles = ceil_div(others, kTileRows);
  [[maybe_unused]] Tiles tiles(F::kQuads);
  HWY_ALIGN float sums[kBlockRows * kPanel];
  std::memset(sums, 0, static_cast<size_t>(n * kPanel) * sizeof(float));
  UnpackedGroup<kPanel> stretch[kInt8Stretch / kGroup];
  for (int64_t j = 0; j < x.k; j += kInt8Stretch) {
    const StretchRows rows = stretch_of(x, row, j);
    for (int64_t i = 0; i < rows.n_groups; ++i) {
      const int64_t group = j / kGroup + i;
      unpack_group<F::kType, F::kSigned>(panel + group / kGroups * kBytes, static_cast<int>(group % kGroups),
                                         stretch[i]);
    }
    const auto from_row = [&](int64_t r) {
      return StretchRows{rows.codes + r * rows.n_groups * kGroup, rows.groups + r * rows.n_groups, rows.n_groups};
    };
    if constexpr (Tiles::kExist) {
      for (int64_t r = 0; r < in_registers; r += kTileRegisterRows) {
        continue_registers<typename F::Base>(tiles, from_row(r), stretch, F::kZero, sums + r * kPanel);
      }
    }
    for (int64_t t = 0; t < n_tiles; ++t) {
      const int64_t first = in_registers + others * t / n_tiles, last = in_registers + others * (t + 1) / n_tiles;
      const StretchRows tile = from_row(first);
      for (int v = 0; v < kPanelVectors; v += kTileVectors) {
        kTiles[static_cast<size_t>(last - first - 1)](tile, stretch, F::kZero, v, sums + first * kPanel);
      }
    }
  }
  for (int64_t r = 0; r < n; ++r) {
    Vector of_row[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) of_row[v] = hn::Load(Floats(), sums + r * kPanel + v * kLanes);
    out.finish(r, of_row);
  }
}

template <class F, class Tiles>
void multiply(const Int8Rows& x, int64_t row, int64_t m, const uint8_t* packed, int64_t n, int64_t panel_begin,
              int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  const int64_t panel_bytes = static_cast<int64_t>(row_bytes(F::kType, x.k)) * kPanel;
  for (int64_t r0 = 0; r0 < m; r0 += kBlockRows) {
    const int64_t rows = m - r0 < kBlockRows ? m - r0 : kBlockRows;
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const uint8_t* const panel = packed + p * panel_bytes;
      const int64_t c = p * kPanel;
      const Output out = {bias != nullptr ? bias + c : nullptr, accumulate, n - c < kPanel ? n - c : kPanel,
                          y + r0 * ldy + c, ldy};
      if (rows > kFewRows) {
        many_rows<F, Tiles>(x, row + r0, rows, panel, out);
        continue;
      }
      for (int64_t r = 0; r < rows;) r += few_rows<F>(x, row + r0 + r, rows - r, panel, out.from(r));
    }
  }
}

// use(Format) for the type.
template <bool kDot, class Use>
void with_format(ElementType type, const Use& use) {
  switch (type) {
    case ElementType::kQ8_0:
      return use(Format<ElementType::kQ8_0, kDot>());
    case ElementType::kQ4_0:
      return use(Format<ElementType::kQ4_0, kDot>());
    case ElementType::kQ4_1:
      return use(Format<ElementType::kQ4_1, kDot>());
    case ElementType::kQ5_0:
      return use(Format<ElementType::kQ5_0, kDot>());
    case ElementType::kQ5_1:
      return use(Format<ElementType::kQ5_1, kDot>());
    case ElementType::kQ4_K:
      return use(Format<ElementType::kQ4_K, kDot>());
    case ElementType::kQ5_K:
      return use(Format<ElementType::kQ5_K, kDot>());
    case ElementType::kQ6_K:
      return use(Format<ElementType::kQ6_K, kDot>());
    case ElementType::kQ2_K:
      return use(Format<ElementType::kQ2_K, kDot>());
    case ElementType::kQ3_K:
      return use(Format<ElementType::kQ3_K, kDot>());
    case ElementType::kIQ4_NL:
      return use(Format<ElementType::kIQ4_NL, kDot>());
    case ElementType::kIQ4_XS:
      return use(Format<ElementType::kIQ4_XS, kDot>());
    default:
      return;  // types that are not quantised have no such product
  }
}

// gemm_int8, with products by dot products of bytes or not and with these tile registers, if there are any.
template <bool kDot, class Tiles>
void gemm_int8_with(const Int8Rows& x, int64_t row, int64_t m, ElementType type, const void* packed, int64_t n,
                    int64_t panel_begin, int64_t panel_end, const float* bias, bool accumulate, float* y, int64_t ldy) {
  with_format<kDot>(type, [&](auto format) {
    multiply<decltype(format), Tiles>(x, row, m, static_cast<const uint8_t*>(packed), n, panel_begin, panel_end, bias,
                                      accumulate, y, ldy);
  });
}

#undef QUIRE_CPU_UNROLL
}  // namespace
#endif  // QUIRE_CPU_VECTORS
}  // namespace quire::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
