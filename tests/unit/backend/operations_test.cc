// The backend's other operations against plain loops, and what a set cancel flag does to each.

#include <gtest/gtest.h>

#include <array>
#include <numbers>

#include "kernels/cpu/kernels.h"
#include "lib/support/element.h"
#include "lib/support/quantization.h"
#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {
namespace {

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};

// Values as `type` holds them, and their bytes.
struct Rounded {
  Rounded(ElementType type, const std::vector<float>& x) : bytes(x.size() * element_bytes(type)), values(x.size()) {
    cpu::scalar::convert(ElementType::kF32, x.data(), type, bytes.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) values[i] = load_element(type, bytes.data(), static_cast<int64_t>(i));
  }
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

struct Product {
  int64_t m, n, k;
  ElementType type;
  bool bias, accumulate;
};

void check_matmul(Random& random, const Product& p) {
  SCOPED_TRACE("m " + std::to_string(p.m) + " n " + std::to_string(p.n) + " k " + std::to_string(p.k) + " " +
               element_name(p.type) + (p.bias ? " bias" : "") + (p.accumulate ? " accumulate" : ""));
  const auto x = random.normal(p.m * (p.k + 3)), w = random.normal(p.n * p.k), b = random.normal(p.n);
  const auto y = random.normal(p.m * (p.n + 5));
  const Rounded weights(p.type, w);
  std::vector<float> first;
  for (const int threads : {1, 2, 4}) {
    Machine machine(threads);
    auto matrix = take(machine.backend->create_matrix(std::array{MatrixPart{p.n, p.type}}, p.k));
    // Two sources, as of a fused projection; the second begins inside a panel.
    const int64_t cut = p.n / 3;
    const auto* bytes = weights.bytes.data();
    ASSERT_TRUE(machine.backend->load_rows(*matrix, p.type, bytes, 0, cut).ok());
    ASSERT_TRUE(
        machine.backend
            ->load_rows(*matrix, p.type, bytes + static_cast<size_t>(cut * p.k) * element_bytes(p.type), cut, p.n - cut)
            .ok());
    const auto xs = machine.buffer(x), ys = machine.buffer(y), bs = machine.buffer(b);
    ASSERT_TRUE(machine.backend
                    ->matmul(machine.exec(), {xs.get(), 0, p.k + 3}, p.m, *matrix, p.bias ? bs.get() : nullptr,
                             p.accumulate ? Write::kAdd : Write::kSet, {ys.get(), 0, p.n + 5})
                    .ok());
    const auto out = machine.values(*ys);
    if (first.empty()) first = out;
    expect_same_bits(first, out, std::to_string(threads) + " threads");
  }
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t c = 0; c < p.n + 5; ++c) {
      const auto at = static_cast<size_t>(r * (p.n + 5) + c);
      if (c >= p.n) {
        ASSERT_EQ(first[at], y[at]) << "wrote beyond a row";
        continue;
      }
      double sum = (p.accumulate ? y[at] : 0) + (p.bias ? b[static_cast<size_t>(c)] : 0);
      double magnitude = std::fabs(sum);
      for (int64_t k = 0; k < p.k; ++k) {
        const double term =
            x[static_cast<size_t>(r * (p.k + 3) + k)] * weights.values[static_cast<size_t>(c * p.k + k)];
        sum += term, magnitude += std::fabs(term);
      }
      ASSERT_NEAR(first[at], sum, 1e-6 * magnitude + 1e-6) << "row " << r << " column " << c;
    }
  }
}

TEST(Operations, MatmulIsTheProductForAnyThreads) {
  Random random;
  SCOPED_TRACE(random.trace());
  for (const ElementType type : kTypes) {
    for (const int64_t m : {1, 2, 16, 17, 100}) {
      check_matmul(random, {m, 97, 65, type, true, true});
      check_matmul(random, {m, 64, 48, type, false, false});
      if (testing::Test::HasFatalFailure()) return;
    }
    check_matmul(random, {1, 1000, 33, type, false, true});
  }
}

// The product of m rows x (row_stride k + 3) and the rows w of a part, by the scalar references.
std::vector<float> product_of_part(const MatrixPart& part, ElementType rounding, const float* x, int64_t m,
                                   const float* w, int64_t k) {
  const int64_t n = part.rows, panels = ceil_div(n, cpu::kPanel), ldx = k + 3;
  std::vector<std::byte> packed(cpu::packed_bytes(part.type, n, k));
  cpu::scalar::pack_rows(ElementType::kF32, w, k, n, k, part.type, packed.data(), 0);
  std::vector<float> y(static_cast<size_t>(m * n));
  if (rounding == ElementType::kInt8) {
    std::vector<int8_t> codes(static_cast<size_t>(m * k));
    std::vector<cpu::Int8Group> groups(codes.size() / kQuantizedGroup);
    const cpu::Int8Rows rows = {codes.data(), groups.data(), m, k};
    for (int64_t r = 0; r < m; ++r) cpu::scalar::quantize_row(x + r * ldx, r, rows);
    cpu::scalar::gemm_int8(rows, 0, m, part.type, packed.data(), n, 0, panels, nullptr, false, y.data(), n);
  } else if (rounding == ElementType::kBF16) {
    const int64_t stride = cpu::bf16_row_stride(k);
    std::vector<uint16_t> rows(static_cast<size_t>(m * stride));
    for (int64_t r = 0; r < m; ++r) cpu::scalar::round_row_bf16(x + r * ldx, k, rows.data() + r * stride);
    cpu::scalar::gemm_bf16(rows.data(), stride, m, packed.data(), n, k, 0, panels, nullptr, false, y.data(), n);
  } else {
    cpu::scalar::gemm(x, ldx, m, part.type, packed.data(), n, k, 0, panels, nullptr, false, y.data(), n);
  }
  return y;
}

// Runs of one matrix: rows are rounded for those parts that allow it and whose type has such a product.
TEST(Operations, MatmulRoundsRowsForThePartsThatAllowIt) {
  Random random;
  SCOPED_TRACE(random.trace());
  const int64_t n = 40, k = 544;
  using enum ElementType;
  const std::array parts = {MatrixPart{n, kQ4_0},        MatrixPart{n, kQ4_0, kInt8}, MatrixPart{n, kF32, kInt8},
                            MatrixPart{n, kBF16, kInt8}, MatrixPart{n, kBF16, kBF16}, MatrixPart{n, kQ4_0, kBF16}};
  const std::array rounding = {kF32, kInt8, kF32, kF32, kBF16, kF32};
  const auto all = static_cast<int64_t>(parts.size()) * n;
  const auto w = random.normal(all * k);
  for (const int64_t m : {1, 5, 150}) {
    const auto x = random.normal(m * (k + 3));
    for (const int threads : {1, 3}) {
      Machine machine(threads);
      auto matrix = take(machine.backend->create_matrix(parts, k));
      ASSERT_TRUE(machine.backend->load_rows(*matrix, kF32, w.data(), 0, all).ok());
      const auto xs = machine.buffer(x), y = machine.buffer(std::vector<float>(static_cast<size_t>(m * all)));
      ASSERT_TRUE(
          machine.backend
              ->matmul(machine.exec(), {xs.get(), 0, k + 3}, m, *matrix, nullptr, Write::kSet, {y.get(), 0, all})
              .ok());
      EXPECT_EQ(static_cast<size_t>(machine.backend->workspace_bytes()),
                machine.backend->matmul_workspace_bytes(parts, k, m));
      const std::vector<float> out = machine.values(*y);
      for (size_t part = 0; part < parts.size(); ++part) {
        const auto first = static_cast<int64_t>(part) * n;
        std::vector<float> own;
        for (int64_t r = 0; r < m; ++r) {
          own.insert(own.end(), out.begin() + r * all + first, out.begin() + r * all + first + n);
        }
        const auto expected = product_of_part(parts[part], rounding[part], x.data(), m, w.data() + first * k, k);
        expect_same_bits(own, expected, ("part " + std::to_string(part)).c_str());
      }
    }
  }
  Machine machine(1);
  EXPECT_EQ(machine.backend->matmul_workspace_bytes(std::array{parts[0], parts[2], parts[3]}, k, 100), 0u);
}

TEST(Operations, MatmulRowsDoNotDependOnTheCall) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const int64_t m = 130, n = 160, k = 96;
  auto matrix = take(machine.backend->create_matrix(std::array{MatrixPart{n, ElementType::kBF16}}, k));
  const auto w = random.normal(n * k);
  ASSERT_TRUE(machine.backend->load_rows(*matrix, ElementType::kF32, w.data(), 0, n).ok());
  const auto x = machine.buffer(random.normal(m * k));
  std::vector<float> whole;
  for (const int64_t step : {m, int64_t{1}, int64_t{7}, int64_t{16}, int64_t{64}}) {
    const auto y = machine.buffer(std::vector<float>(static_cast<size_t>(m * n)));
    for (int64_t r = 0; r < m; r += step) {
      ASSERT_TRUE(machine.backend
                      ->matmul(machine.exec(), Rows{x.get(), 0, k}.at(r), std::min(step, m - r), *matrix, nullptr,
                               Write::kSet, Rows{y.get(), 0, n}.at(r))
                      .ok());
    }
    if (whole.empty()) whole = machine.values(*y);
    expect_same_bits(whole, machine.values(*y), "calls of " + std::to_string(step));
  }
}

TEST(Operations, LowRankIsTwoProductsAndRowsDoNotDependOnTheCall) {
  Random random;
  SCOPED_TRACE(random.trace());
  const int64_t m = 70, in = 65, out = 97;
  for (const int64_t rank : {1, 8, 33}) {
    const auto x = random.normal(m * in), a = random.normal(rank * in), b = random.normal(out * rank);
    const auto y = random.normal(m * out);
    const float scale = -0.75f;
    std::vector<float> whole;
    for (const int64_t step : {m, int64_t{1}, int64_t{9}}) {
      Machine machine(step == m ? 3 : 2);
      auto a_matrix = take(machine.backend->create_matrix(std::array{MatrixPart{rank, ElementType::kF32}}, in));
      auto b_matrix = take(machine.backend->create_matrix(std::array{MatrixPart{out, ElementType::kF32}}, rank));
      ASSERT_TRUE(machine.backend->load_rows(*a_matrix, ElementType::kF32, a.data(), 0, rank).ok());
      ASSERT_TRUE(machine.backend->load_rows(*b_matrix, ElementType::kF32, b.data(), 0, out).ok());
      const auto xs = machine.buffer(x), ys = machine.buffer(y);
      const auto work = machine.buffer(std::vector<float>(static_cast<size_t>(m * (rank + 2))));
      for (int64_t r = 0; r < m; r += step) {
        ASSERT_TRUE(machine.backend
                        ->add_low_rank(machine.exec(), {.x = Rows{xs.get(), 0, in}.at(r),
                                                        .n = std::min(step, m - r),
                                                        .a = a_matrix.get(),
                                                        .b = b_matrix.get(),
                                                        .scale = scale,
                                                        .work = {work.get(), 0, rank + 2},
                                                        .y = Rows{ys.get(), 0, out}.at(r)})
                        .ok());
      }
      if (whole.empty()) whole = machine.values(*ys);
      expect_same_bits(whole, machine.values(*ys), "calls of " + std::to_string(step));
    }
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < out; ++c) {
        const auto at = static_cast<size_t>(r * out + c);
        double sum = y[at], magnitude = std::fabs(sum);
        for (int64_t j = 0; j < rank; ++j) {
          for (int64_t k = 0; k < in; ++k) {
            const double term = scale * double{x[static_cast<size_t>(r * in + k)]} *
                                a[static_cast<size_t>(j * in + k)] * b[static_cast<size_t>(c * rank + j)];
            sum += term, magnitude += std::fabs(term);
          }
        }
        ASSERT_NEAR(whole[at], sum, 1e-6 * magnitude + 1e-6) << "row " << r << " column " << c;
      }
    }
  }
}

TEST(Operations, RmsNorm) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const int64_t n = 37, width = 100;
  const auto x = random.normal(n * width), weight = random.normal(width);
  const auto xs = machine.buffer(x), ws = machine.buffer(weight);
  const auto out = machine.buffer(std::vector<float>(static_cast<size_t>(n * width))), sum = machine.buffer(x);
  const auto normalise = [&](Write write, Buffer& to) {
    return machine.backend->rms_norm(machine.exec(), {xs.get(), 0, width}, *ws, 1e-5f, n, width, write,
                                     {&to, 0, width});
  };
  ASSERT_TRUE(normalise(Write::kSet, *out).ok());
  ASSERT_TRUE(normalise(Write::kAdd, *sum).ok());
  const auto result = machine.values(*out), added = machine.values(*sum);
  for (int64_t r = 0; r < n; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += std::pow(x[static_cast<size_t>(r * width + c)], 2.0);
    for (int64_t c = 0; c < width; ++c) {
      const auto at = static_cast<size_t>(r * width + c);
      const double expected = x[at] * weight[static_cast<size_t>(c)] / std::sqrt(squares / width + 1e-5);
      ASSERT_NEAR(result[at], expected, 1e-6 * std::fabs(expected) + 1e-9);
      ASSERT_NEAR(added[at], x[at] + expected, 1e-6 * (std::fabs(x[at]) + std::fabs(expected)) + 1e-9);
    }
  }
}

// Each head is a row of its own; what lies between the heads and the next row stays.
TEST(Operations, HeadNormIsTheNormOfEachHead) {
  Random random;
  SCOPED_TRACE(random.trace());
  const int64_t n = 21, heads = 3, d = 24, column = 8, stride = column + heads * d + 5;
  const auto x = random.normal(n * stride), weight = random.normal(d);
  for (const int threads : {1, 3}) {
    Machine machine(threads);
    const auto xs = machine.buffer(x), whole = machine.buffer(x), ws = machine.buffer(weight);
    const Rows rows = Rows{xs.get(), 0, stride}.column(column);
    ASSERT_TRUE(machine.backend->head_norm(machine.exec(), rows, *ws, 1e-5f, n, heads, d).ok());
    for (int64_t h = 0; h < heads; ++h) {
      const Rows head = Rows{whole.get(), 0, stride}.column(column + h * d);
      ASSERT_TRUE(machine.backend->rms_norm(machine.exec(), head, *ws, 1e-5f, n, d, Write::kSet, head).ok());
    }
    expect_same_bits(machine.values(*whole), machine.values(*xs), std::to_string(threads) + " threads");
    EXPECT_NE(machine.values(*xs), x);
  }
}

// What is rotated, what lies between the heads and the next row, and rows behind the n stay.
TEST(Operations, ScaleUnrotatedLeavesTheOthers) {
  Random random;
  SCOPED_TRACE(random.trace());
  const int64_t n = 11, heads = 3, d = 24, rotary = 18, column = 8, stride = column + heads * d + 5;
  const auto x = random.normal((n + 1) * stride);
  for (const int threads : {1, 3}) {
    Machine machine(threads);
    const auto xs = machine.buffer(x);
    const Rows rows = Rows{xs.get(), 0, stride}.column(column);
    ASSERT_TRUE(machine.backend->scale_unrotated(machine.exec(), rows, n, {heads, d, rotary}, 0.7f).ok());
    const auto result = machine.values(*xs);
    for (int64_t i = 0; i < (n + 1) * stride; ++i) {
      const int64_t in_heads = i % stride - column;
      const bool scaled = i < n * stride && in_heads >= 0 && in_heads < heads * d && in_heads % (d / 2) >= rotary / 2;
      const float own = x[static_cast<size_t>(i)];
      ASSERT_EQ(result[static_cast<size_t>(i)], scaled ? 0.7f * own : own) << i;
    }
  }
}

TEST(Operations, GatedLinearUnits) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const int64_t n = 19, width = 75;
  const auto x = random.normal(n * 2 * width, 2.0f);
  for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
    const auto xs = machine.buffer(x);
    const Rows rows{xs.get(), 0, 2 * width};
    ASSERT_TRUE(machine.backend->gated_linear_unit(machine.exec(), activation, rows, n, width, rows).ok());
    const auto result = machine.values(*xs);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const auto at = static_cast<size_t>(r * 2 * width + c);
        const double gate = x[at], up = x[at + static_cast<size_t>(width)];
        const double argument = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
        const double silu = gate / (1 + std::exp(-gate)), gelu = gate * (1 + std::tanh(argument)) / 2;
        const double expected = (activation == Activation::kSilu ? silu : gelu) * up;
        ASSERT_NEAR(result[at], expected, 2e-6 * std::fabs(expected) + 1e-6);
      }
    }
  }
}

TEST(Operations, EmbedScalesAndKeepsTheirRows) {
  Random random;
  SCOPED_TRACE(random.trace());
  Machine machine(2);
  const int64_t rows = 50, columns = 33;
  const auto x = random.normal(rows * columns);
  for (const ElementType type : kTypes) {
    const Rounded source(type, x);
    for (const bool keep : {false, true}) {
      const float scale = keep ? 1 : 0.7f;
      auto bytes = std::make_shared<std::vector<std::byte>>(source.bytes);
      const std::weak_ptr<std::vector<std::byte>> watch = bytes;
      const void* data = bytes->data();
      auto table = take(machine.backend->create_table(rows, columns, type, data,
                                                      keep ? std::shared_ptr<const void>(bytes) : nullptr));
      bytes.reset();
      EXPECT_EQ(watch.expired(), !keep);
      const std::vector<int32_t> tokens = {7, 0, 49, 7, 12, 3, 4, 5, 6, 8, 9};
      const auto out = machine.buffer(std::vector<float>(tokens.size() * static_cast<size_t>(columns)));
      const auto ids = machine.ids(tokens);
      const auto n = static_cast<int64_t>(tokens.size()), first = n / 2;  // in two calls, as of two sequences
      ASSERT_TRUE(machine.backend->embed(machine.exec(), *table, *ids, 0, first, scale, {out.get(), 0, columns}).ok());
      ASSERT_TRUE(
          machine.backend
              ->embed(machine.exec(), *table, *ids, first, n - first, scale, Rows{out.get(), 0, columns}.at(first))
              .ok());
      const auto result = machine.values(*out);
      for (size_t t = 0; t < tokens.size(); ++t) {
        for (int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(result[t * static_cast<size_t>(columns) + static_cast<size_t>(c)],
                    static_cast<float>(source.values[static_cast<size_t>(tokens[t] * columns + c)]) * scale);
        }
      }
      table.reset();
      EXPECT_TRUE(watch.expired());
    }
  }
}

TEST(Operations, CancelledOperationsSayCancelled) {
  Machine machine(2);
  CancelToken cancel;
  cancel.cancel();
  const Exec exec = machine.exec(&cancel);
  const auto x = machine.buffer(std::vector<float>(64 * 64)), weight = machine.buffer(std::vector<float>(64));
  const Rows rows{x.get(), 0, 64};
  auto matrix = take(machine.backend->create_matrix(std::array{MatrixPart{64, ElementType::kF32}}, 64));
  const std::vector<float> zeros(64 * 64);
  auto table = take(machine.backend->create_table(64, 64, ElementType::kF32, zeros.data(), nullptr));
  const KvGeometry geometry{1, 64, 64, ElementType::kF16};
  const Records records(*machine.backend, machine.backend->kv_record_bytes(geometry), 1);
  StoreKvArgs store;
  store.keys = store.values = rows;
  store.records = {records.chunks, 0};
  const auto step = machine.storing_step({.n = 5, .geometry = geometry});
  const auto ids = machine.ids({1, 2});
  EXPECT_EQ(machine.backend->embed(exec, *table, *ids, 0, 2, 1, rows).code(), Code::kCancelled);
  EXPECT_EQ(machine.backend->rms_norm(exec, rows, *weight, 1e-5f, 4, 64, Write::kSet, rows).code(), Code::kCancelled);
  EXPECT_EQ(machine.backend->head_norm(exec, rows, *weight, 1e-5f, 4, 1, 64).code(), Code::kCancelled);
  EXPECT_EQ(machine.backend->scale_unrotated(exec, rows, 4, {1, 64, 32}, 0.5f).code(), Code::kCancelled);
  EXPECT_EQ(machine.backend->matmul(exec, rows, 4, *matrix, nullptr, Write::kSet, rows).code(), Code::kCancelled);
  const LowRankArgs low_rank{rows, 4, matrix.get(), matrix.get(), 1, rows, rows};
  EXPECT_EQ(machine.backend->add_low_rank(exec, low_rank).code(), Code::kCancelled);
  EXPECT_EQ(machine.backend->gated_linear_unit(exec, Activation::kSilu, rows, 4, 32, rows).code(), Code::kCancelled);
  EXPECT_EQ(machine.backend->store_kv(exec, *step, store).code(), Code::kCancelled);
}

void* no_memory(void*, size_t, size_t) { return nullptr; }
void no_free(void*, void*, size_t, size_t) {}

TEST(Operations, ARefusingAllocatorGivesOutOfMemory) {
  Allocator allocator(no_memory, no_free, nullptr);
  ThreadPool pool(1);
  const auto backend = cpu::create_cpu_backend(allocator, pool);
  EXPECT_EQ(backend->allocate(100, MemoryKind::kDevice).status().code(), Code::kOutOfMemory);
  EXPECT_EQ(backend->create_matrix(std::array{MatrixPart{64, ElementType::kF32}}, 64).status().code(),
            Code::kOutOfMemory);
  const float row[4] = {};
  EXPECT_EQ(backend->create_table(1, 4, ElementType::kF32, row, nullptr).status().code(), Code::kOutOfMemory);
  EXPECT_EQ(allocator.bytes(), 0);
}

}  // namespace
}  // namespace quire::test
