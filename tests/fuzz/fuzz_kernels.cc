// The CPU kernels on shapes and numbers of the input: every instruction set of this CPU gives the bits of the scalar
// references. Input: the operation, its shape, and numbers, in bytes; behind its end go on made-up ones.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"
#include "lib/support/quantization.h"
#include "tests/fuzz/require.h"

namespace {

using namespace quire;
using namespace quire::cpu;

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  uint32_t byte() {
    if (data_ != end_) return *data_++;
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 56);
  }
  // In [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(byte() | byte() << 8) % (high - low + 1);
  }
  // Most often a usual number, else any finite one: subnormal, huge, of either sign.
  float number() {
    const uint32_t choice = byte();
    if (choice < 200) return (static_cast<float>(choice) - 100) / 37;
    uint32_t bits = 0;
    for (int b = 0; b < 4; ++b) bits |= byte() << (8 * b);
    float any;
    std::memcpy(&any, &bits, sizeof any);
    return std::isfinite(any) ? any : 0;
  }
  // Neither subnormal nor such that a product or a sum of products is.
  float middling() {
    const float any = number();
    return std::fabs(any) < 0x1p-20f || std::fabs(any) > 0x1p20f ? 0.5f : any;
  }
  std::vector<float> numbers(int64_t n) {
    std::vector<float> all(static_cast<size_t>(n));
    for (float& x : all) x = number();
    return all;
  }
  std::vector<char> bytes(size_t n) {
    std::vector<char> all(n);
    for (char& b : all) b = static_cast<char>(byte());
    return all;
  }

 private:
  const uint8_t* data_;
  const uint8_t* end_;
  uint64_t state_ = 1;
};

using Floats = std::vector<float>;

// One NaN is as good as another.
void require_same(const Floats& a, const Floats& b) {
  FUZZ_REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    FUZZ_REQUIRE(std::memcmp(&a[i], &b[i], sizeof(float)) == 0 || (std::isnan(a[i]) && std::isnan(b[i])));
  }
}

// run(out) by the reference, and on every instruction set.
template <typename Reference, typename Kernel>
void compare(const Floats& start, const Reference& reference, const Kernel& kernel) {
  Floats expected = start;
  reference(expected.data());
  for (const Target one : supported_targets()) {
    use_target(one);
    Floats got = start;
    kernel(got.data());
    require_same(got, expected);
  }
}

constexpr ElementType kFloat[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};
constexpr ElementType kQuantized[] = {ElementType::kQ8_0, ElementType::kQ4_0,   ElementType::kQ4_1,
                                      ElementType::kQ5_0, ElementType::kQ5_1,   ElementType::kQ4_K,
                                      ElementType::kQ5_K, ElementType::kQ6_K,   ElementType::kQ2_K,
                                      ElementType::kQ3_K, ElementType::kIQ4_NL, ElementType::kIQ4_XS};

// A packed matrix of a type.
struct Weights {
  ElementType type;
  int64_t n, k;
  std::vector<char> packed;

  Weights(ElementType of, int64_t rows, int64_t columns)
      : type(of), n(rows), k(columns), packed(packed_bytes(of, n, k)) {}
  void pack(ElementType from, const void* source) { pack_rows(from, source, k, n, k, type, packed.data(), 0); }
};

struct Product {
  int64_t m, n, first_panel, end_panel, ldy;
  bool accumulate;
  Floats bias, start;

  explicit Product(Input& in)
      : m(in.between(1, 60)), n(in.between(1, 70)), accumulate((in.byte() & 1) != 0), bias(in.numbers(n)) {
    const int64_t panels = ceil_div(n, kPanel);
    first_panel = in.between(0, panels - 1);
    end_panel = in.between(first_panel + 1, panels);
    ldy = n + in.between(0, 3);
    start = in.numbers(m * ldy);
  }
  const float* added() const { return accumulate ? bias.data() : nullptr; }
};

void check_gemm(Input& in) {
  const Product p(in);
  const int64_t choice = in.between(0, std::ssize(kFloat) + std::ssize(kQuantized) - 1);
  const bool quantized = choice > 2;
  const ElementType type = quantized ? kQuantized[choice - 3] : kFloat[choice];
  const int64_t block = quantized ? block_format(type).elements : 1;
  const int64_t k = block * in.between(1, block == 256 ? 2 : quantized ? 5 : 70), ldx = k + in.between(0, 3);
  const Floats x = in.numbers(p.m * ldx);
  Weights w(type, p.n, k);
  if (quantized) {
    w.pack(type, in.bytes(row_bytes(type, p.n * k)).data());
  } else {
    w.pack(ElementType::kF32, in.numbers(p.n * k).data());
  }
  const auto by = [&](const auto& product) {
    return [&](float* y) {
      product(x.data(), ldx, p.m, type, w.packed.data(), p.n, k, p.first_panel, p.end_panel, p.added(), p.accumulate, y,
              p.ldy);
    };
  };
  compare(p.start, by(scalar::gemm), by(gemm));
}

void check_gemm_bf16(Input& in) {
  const Product p(in);
  const int64_t k = in.between(1, 80), ldx = bf16_row_stride(k);
  std::vector<uint16_t> x(static_cast<size_t>(p.m * ldx));
  Floats row(static_cast<size_t>(k)), weights(static_cast<size_t>(p.n * k));
  for (int64_t r = 0; r < p.m; ++r) {
    for (float& v : row) v = in.middling();
    round_row_bf16(row.data(), k, x.data() + r * ldx);
  }
  for (float& v : weights) v = in.middling();
  Weights w(ElementType::kBF16, p.n, k);
  w.pack(ElementType::kF32, weights.data());
  const auto by = [&](const auto& product) {
    return [&](float* y) {
      product(x.data(), ldx, p.m, w.packed.data(), p.n, k, p.first_panel, p.end_panel, p.added(), p.accumulate, y,
              p.ldy);
    };
  };
  compare(p.start, by(scalar::gemm_bf16), by(gemm_bf16));
}

void check_gemm_int8(Input& in) {
  const Product p(in);
  const ElementType type = kQuantized[in.between(0, std::ssize(kQuantized) - 1)];
  const int64_t block = block_format(type).elements, k = block * in.between(1, block == 256 ? 2 : 9);
  const Floats rows = in.numbers(p.m * k);
  Weights w(type, p.n, k);
  w.pack(type, in.bytes(row_bytes(type, p.n * k)).data());
  std::vector<int8_t> codes(rows.size());
  std::vector<Int8Group> groups(rows.size() / 32);
  const Int8Rows x{codes.data(), groups.data(), p.m, k};
  const auto by = [&](const auto& quantize, const auto& product) {
    return [&](float* y) {
      for (int64_t r = 0; r < p.m; ++r) quantize(rows.data() + r * k, r, x);
      product(x, 0, p.m, type, w.packed.data(), p.n, p.first_panel, p.end_panel, p.added(), p.accumulate, y, p.ldy);
    };
  };
  compare(p.start, by(scalar::quantize_row, scalar::gemm_int8), by(quantize_row, gemm_int8));
}

void check_rows(Input& in) {
  const int64_t n = in.between(1, 150), half = in.between(1, 70);
  const Floats x = in.numbers(2 * std::max(n, half)), y = in.numbers(2 * std::max(n, half));
  const float factor = in.number();
  const auto by = [&](const auto& norm, const auto& add_norm, const auto& glu, const auto& turn, const auto& add) {
    return [&, norm, add_norm, glu, turn, add](float* out) {
      norm(x.data(), y.data(), 1e-6f, n, out);
      add_norm(x.data(), y.data(), 1e-6f, n, out);
      glu(x.data(), n, out + n);
      turn(x.data(), y.data(), y.data() + half, factor, 2 * half, out + 2 * n);
      add(x.data(), factor, n, out + 2 * n + 2 * half);
    };
  };
  const bool silu = in.between(0, 1) == 1;
  compare(in.numbers(3 * n + 2 * half),
          by(scalar::rms_norm, scalar::add_rms_norm, silu ? scalar::swiglu : scalar::geglu, scalar::rotate,
             scalar::add_scaled),
          by(rms_norm, add_rms_norm, silu ? swiglu : geglu, rotate, add_scaled));
  for (const ElementType type : kFloat) {
    const auto narrow = [&](const auto& to) {
      return [&, to](float* out) {
        std::vector<char> elements(row_bytes(type, n));
        to(ElementType::kF32, x.data(), type, elements.data(), n);
        to(type, elements.data(), ElementType::kF32, out, n);
      };
    };
    compare(Floats(static_cast<size_t>(n)), narrow(scalar::convert), narrow(convert));
  }
}

// One span of keys: scores, softmax, values.
void check_attention(Input& in) {
  const ElementType type = kFloat[in.between(0, 2)];
  const int64_t n_q = in.between(1, 20), n_keys = in.between(1, 70), d = 2 * in.between(1, 40);
  const int64_t begin = in.between(0, n_keys - 1), end = in.between(begin + 1, n_keys);
  const int64_t first = begin / kKeyBlock * kKeyBlock, ld = round_up(n_keys, kKeyBlock);
  Floats q(static_cast<size_t>(n_q * d)), key(static_cast<size_t>(d));
  for (float& v : q) v = in.middling();
  std::vector<char> keys(row_bytes(type, ld * d)), values(row_bytes(type, n_keys * d));
  for (int64_t j = 0; j < ld; ++j) {
    for (float& v : key) v = in.middling();
    scalar::store_key(key.data(), d, type, keys.data(), j);
  }
  for (int64_t e = 0; e < n_keys * d; ++e) store_element(type, values.data(), e, in.middling());
  const auto by = [&](const auto& score, const auto& softmax, const auto& add) {
    return [&, score, softmax, add](float* out) {  // [n_q][max, sum, d]
      Floats scores(static_cast<size_t>(n_q * ld));
      score(q.data(), n_q, d, type, keys.data(), begin, end, scores.data(), ld);
      for (int64_t r = 0; r < n_q; ++r) {
        float* const own = out + r * (d + 2);
        float* const p = scores.data() + r * ld;
        softmax(p, begin - first, end - first, &own[0], &own[1], nullptr);
        add(p, ld, 1, d, type, values.data() + row_bytes(type, first * d), begin - first, end - first, own + 2);
      }
    };
  };
  compare(Floats(static_cast<size_t>(n_q * (d + 2))),
          by(scalar::attention_scores, scalar::softmax_partial, scalar::accumulate_values),
          by(attention_scores, softmax_partial, accumulate_values));
}

// The same in integers, from numbers that are narrowed first.
void check_attention_int8(Input& in) {
  const int64_t n_q = in.between(1, 20), n_keys = in.between(1, 70), d = 2 * in.between(1, 40);
  const int64_t begin = in.between(0, n_keys - 1), end = in.between(begin + 1, n_keys);
  const int64_t first = begin / kKeyBlock * kKeyBlock, ld = round_up(n_keys, kKeyBlock);
  Floats q(static_cast<size_t>(n_q * d)), keys(static_cast<size_t>(key_elements(n_keys, d)));
  Floats values(static_cast<size_t>(n_keys * d));
  for (Floats* all : {&q, &keys, &values}) {
    for (float& v : *all) v = in.middling();
  }
  const auto by = [&](const auto& narrow_keys, const auto& narrow_values, const auto& round_query, const auto& score,
                      const auto& softmax, const auto& prepare, const auto& round, const auto& add) {
    return [&, narrow_keys, narrow_values, round_query, score, softmax, prepare, round, add](float* out) {
      std::vector<int8_t> k(keys.size()), v(static_cast<size_t>(value_elements(ElementType::kInt8, n_keys, d)));
      Floats k_scales(static_cast<size_t>(d)), v_scales(static_cast<size_t>(n_keys)), factors(v_scales.size());
      narrow_keys(ElementType::kF32, keys.data(), n_keys, d, k.data(), k_scales.data());
      narrow_values(ElementType::kF32, values.data(), n_keys, d, v.data(), v_scales.data());
      std::vector<int16_t> q_codes(q.size()), p_codes(static_cast<size_t>(n_q * ld));
      Floats q_scales(static_cast<size_t>(n_q)), scores(static_cast<size_t>(n_q * ld));
      for (int64_t r = 0; r < n_q; ++r) {
        round_query(q.data() + r * d, k_scales.data(), d, q_codes.data() + r * d, &q_scales[static_cast<size_t>(r)]);
      }
      score(q_codes.data(), q_scales.data(), n_q, d, k.data(), begin, end, scores.data(), ld);
      const Floats units(static_cast<size_t>(n_q), prepare(v_scales.data(), n_keys, factors.data()));
      for (int64_t r = 0; r < n_q; ++r) {
        float* const own = out + r * (d + 2);
        float* const p = scores.data() + r * ld;
        softmax(p, begin - first, end - first, &own[0], &own[1], nullptr);
        round(p + (begin - first), factors.data() + begin, end - begin, p_codes.data() + r * ld + begin);
        add(p_codes.data() + r * ld, ld, units.data(), 1, d, v.data(), begin, end, own + 2);
      }
    };
  };
  compare(Floats(static_cast<size_t>(n_q * (d + 2))),
          by(scalar::quantize_keys, scalar::quantize_values, scalar::quantize_row_int16, scalar::attention_scores_int8,
             scalar::softmax_partial, scalar::weight_factors_int16, scalar::round_weights_int16,
             scalar::accumulate_values_int8),
          by(quantize_keys, quantize_values, quantize_row_int16, attention_scores_int8, softmax_partial,
             weight_factors_int16, round_weights_int16, accumulate_values_int8));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  static constexpr std::array kChecks = {check_gemm, check_gemm_bf16, check_gemm_int8,
                                         check_rows, check_attention, check_attention_int8};
  kChecks[in.byte() % kChecks.size()](in);
  return 0;
}
