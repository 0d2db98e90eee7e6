// The CUDA backend on the emulated device: operations beside those of the CPU backend, queues, and what fails.

#include "lib/backend/cuda/cuda_backend.h"
#include "lib/backend/cuda/cuda_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "lib/support/quantization.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/gpu/runtime_fixture.h"
#include "tests/gpu/test_device.h"
#include "tests/unit/backend/backend_fixture.h"
#include "tests/unit/backend/page_copy.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr auto kF32 = ElementType::kF32;
constexpr auto kBF16 = ElementType::kBF16;

// The device's backend, with rows of any type.
struct Device {
  explicit Device(int index = 0, const cuda::DeviceApi& api = test_device(),
                  size_t most_dequantized_bytes = cuda::kMostDequantizedBytes) {
    emulation::set_launch_options({.schedule = emulation::Schedule::kRandom, .n_threads = 2});
    backend = take(cuda::create_cuda_backend(allocator, api, index,
                                             {.pool = &pool, .most_dequantized_bytes = most_dequantized_bytes}));
    queue = take(backend->create_queue());
  }
  ~Device() { emulation::set_device_faults({}); }

  std::unique_ptr<Buffer> bytes(const void* from, size_t n) {
    auto made = take(backend->allocate(n, MemoryKind::kDevice));
    check(backend->upload(*queue, from, *made, 0, n));
    check(finish_queue(*backend, *queue));
    return made;
  }
  std::unique_ptr<Buffer> elements(ElementType type, const std::vector<float>& values) {
    std::vector<std::byte> all(row_bytes(type, static_cast<int64_t>(values.size())));
    for (size_t i = 0; i < values.size(); ++i) store_element(type, all.data(), static_cast<int64_t>(i), values[i]);
    return bytes(all.data(), all.size());
  }
  std::vector<std::byte> read(const Buffer& buffer) {
    std::vector<std::byte> all(buffer.size());
    check(backend->download(*queue, buffer, 0, all.data(), all.size()));
    check(finish_queue(*backend, *queue));
    return all;
  }
  std::vector<float> values(ElementType type, const Buffer& buffer) {
    const std::vector<std::byte> all = read(buffer);
    std::vector<float> out(all.size() / element_bytes(type));
    for (size_t i = 0; i < out.size(); ++i) out[i] = load_element(type, all.data(), static_cast<int64_t>(i));
    return out;
  }
  Exec exec(const CancelToken* cancel = nullptr) { return {*queue, cancel}; }
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }

  Allocator allocator;
  ThreadPool pool{2};
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Queue> queue;
};

std::vector<float> rounded(ElementType type, std::vector<float> values) {
  for (float& v : values) {
    uint32_t element = 0;
    store_element(type, &element, 0, v);
    v = load_element(type, &element, 0);
  }
  return values;
}

// A matrix of parts of two types, whose rows come in pieces that know nothing of parts.
std::unique_ptr<Matrix> load_matrix(Backend& backend, const std::vector<float>& w, std::array<MatrixPart, 2> parts,
                                    int64_t k) {
  auto matrix = take(backend.create_matrix(parts, k));
  const int64_t n = parts[0].rows + parts[1].rows;
  EXPECT_EQ(matrix->bytes, backend.matrix_bytes(parts, k));
  for (int64_t row = 0; row < n;) {
    const int64_t rows = std::min<int64_t>(n - row, 40);
    Device::check(backend.load_rows(*matrix, kF32, &w[static_cast<size_t>(row * k)], row, rows));
    row += rows;
  }
  return matrix;
}

TEST(CudaBackend, ProductsAreThoseOfTheCpu) {
  Random random;
  SCOPED_TRACE(random.trace());
  Device device;
  Machine cpu;
  // The second type's rows are in one matrix with rows of the first one.
  const std::pair<ElementType, ElementType> types[] = {
      {kF32, kBF16},
      {ElementType::kF16, kBF16},
      {ElementType::kQ8_0, ElementType::kQ4_0},
      {ElementType::kQ4_1, ElementType::kQ5_0},
      {ElementType::kQ5_1, ElementType::kQ8_0},
      {ElementType::kQ4_K, ElementType::kQ6_K},
      {ElementType::kQ5_K, ElementType::kQ6_K},
      {ElementType::kQ2_K, ElementType::kQ3_K},
      {ElementType::kIQ4_XS, ElementType::kIQ4_NL},
  };
  for (const auto& [first, second] : types) {
    const bool super = block_format(first).elements == 256;
    const int64_t k = super ? 512 : is_quantized(first) ? 96 : 83;
    const std::array<MatrixPart, 2> parts = {MatrixPart{37, first}, MatrixPart{30, second}};
    const int64_t n = 67;
    const auto w = random.normal(n * k), bias = random.normal(n);
    const auto there = load_matrix(*device.backend, w, parts, k), here = load_matrix(*cpu.backend, w, parts, k);
    const auto there_bias = device.elements(kF32, bias);
    const auto here_bias = cpu.buffer(bias);
    for (const int64_t m : {int64_t{3}, int64_t{21}}) {
      for (const auto& [x_type, y_type] : {std::pair{kBF16, kF32}, {kBF16, kBF16}, {kF32, kBF16}}) {
        SCOPED_TRACE(std::string(element_name(first)) + " and " + element_name(second) + ", rows " + std::to_string(m));
        const auto x = rounded(kBF16, random.normal(m * (k + 5)));
        const auto y = rounded(y_type, random.normal(m * (n + 3)));
        const Write write = m == 3 ? Write::kAdd : Write::kSet;
        const auto xs = device.elements(x_type, x), ys = device.elements(y_type, y);
        ASSERT_TRUE(device.backend
                        ->matmul(device.exec(), {xs.get(), 0, k + 5, x_type}, m, *there, there_bias.get(), write,
                                 {ys.get(), 0, n + 3, y_type})
                        .ok());
        const auto cpu_x = cpu.buffer(x), cpu_y = cpu.buffer(y);
        ASSERT_TRUE(
            cpu.backend
                ->matmul(cpu.exec(), {cpu_x.get(), 0, k + 5}, m, *here, here_bias.get(), write, {cpu_y.get(), 0, n + 3})
                .ok());
        const auto got = device.values(y_type, *ys), expected = cpu.values(*cpu_y);
        // Many rows: weights are rounded to bf16, whose errors in a sum of k normal products have a spread of some
        // sqrt(k) / 600. There are 30,000 sums: a bound of five times the spread fails now and then.
        const double relative = y_type == kBF16 ? 1.0 / 256 : 0;
        // Few rows with quantised weights: x is rounded to 16 bits, with a spread of some sqrt(k) / 50,000.
        const double of_few_rows = is_quantized(first) ? 1e-4 : 1e-5;
        const double absolute = std::sqrt(static_cast<double>(k)) * (m > cuda::kFewRows ? 1.0 / 96 : of_few_rows);
        for (size_t e = 0; e < got.size(); ++e) {
          if (static_cast<int64_t>(e) % (n + 3) >= n) {
            ASSERT_EQ(got[e], y[e]) << "wrote beyond a row";
          } else {
            ASSERT_NEAR(got[e], expected[e], relative * std::fabs(expected[e]) + absolute) << e;
          }
        }
      }
    }
  }
}

// W's elements as cuBLASLt gets them: rounded to the type, and to bf16.
std::vector<float> as_dequantized(ElementType type, const std::vector<float>& w) {
  std::vector<std::byte> stored(row_bytes(type, static_cast<int64_t>(w.size())));
  std::vector<float> values(w.size());
  if (is_quantized(type)) {
    quantize(w.data(), static_cast<int64_t>(w.size()), type, stored.data());
    dequantize(type, stored.data(), static_cast<int64_t>(w.size()), values.data());
  } else {
    values = rounded(type, w);
  }
  return rounded(kBF16, values);
}

// A product's operands on the host: x [m][x_stride], weights [n][k], y as it was [m][y_stride].
struct Product {
  int64_t m, n, k, x_stride, y_stride;
  const std::vector<float>&x, &weights, &y;
  const std::vector<float>* bias;
  bool add;
  ElementType y_type;

  // Every element is near its sum in double, what lies between rows is as it was, and the whole is nearer than its
  // single elements need be.
  void expect(const std::vector<float>& got) const {
    const auto at = [](const std::vector<float>& v, int64_t i) { return double{v[static_cast<size_t>(i)]}; };
    const bool narrow = y_type == kBF16;
    double error = 0, norm = 0;
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t j = n; j < y_stride; ++j) ASSERT_EQ(at(got, r * y_stride + j), at(y, r * y_stride + j)) << r;
      for (int64_t j = 0; j < n; ++j) {
        const double before = add ? at(y, r * y_stride + j) : 0, offset = bias ? at(*bias, j) : 0;
        double expected = before + offset, magnitude = std::fabs(before) + std::fabs(offset);
        for (int64_t i = 0; i < k; ++i) {
          const double product = at(x, r * x_stride + i) * at(weights, j * k + i);
          expected += product;
          magnitude += std::fabs(product);
        }
        // A bias may be rounded to y's type before the products are added.
        const double rounding = narrow ? (std::fabs(expected) + std::fabs(before) + std::fabs(offset)) / 128 : 0;
        const double difference = at(got, r * y_stride + j) - expected;
        ASSERT_LE(std::fabs(difference), rounding + 1e-5 * magnitude) << r << " " << j;
        error += difference * difference;
        norm += expected * expected;
      }
    }
    EXPECT_LE(std::sqrt(error / norm), narrow ? 4e-3 : 1e-5);
  }
};

// Two runs of a matrix, one of three slabs, and one of two if it is not bf16, of which the last one is short.
TEST(CudaBackend, ProductsOfManyRowsAreMadeOfSlabsOfWeights) {
  Random random;
  SCOPED_TRACE(random.trace());
  const cuda::DeviceApi& api = wants_gpu() ? test_device() : emulation::device_api_with_blas();
  constexpr int64_t kColumns = 128, kFirst = 3 * kColumns, kSecond = kColumns + 44, n = kFirst + kSecond;
  const std::pair<ElementType, ElementType> types[] = {
      {ElementType::kQ8_0, ElementType::kQ4_0},
      {ElementType::kQ4_1, ElementType::kQ5_0},
      {ElementType::kQ5_1, kBF16},
      {ElementType::kQ4_K, ElementType::kQ6_K},
      {ElementType::kQ5_K, ElementType::kF16},
      {kF32, ElementType::kF16},
      {ElementType::kQ2_K, ElementType::kQ3_K},
      {ElementType::kIQ4_XS, ElementType::kIQ4_NL},
  };
  for (const auto& [first, second] : types) {
    const bool super = block_format(first).elements == 256;
    const int64_t k = super ? 512 : is_quantized(first) ? 96 : 83;
    const int64_t x_stride = round_up(k, 8) + 8, y_stride = n + 4;
    const size_t slab = row_bytes(kBF16, kColumns * round_up(k, 8));
    Device device(0, api, slab);
    const std::array<MatrixPart, 2> parts = {MatrixPart{kFirst, first}, MatrixPart{kSecond, second}};
    const auto w = random.normal(n * k), bias = random.normal(n);
    const auto matrix = load_matrix(*device.backend, w, parts, k);
    const auto border = w.begin() + kFirst * k;
    std::vector<float> weights = as_dequantized(first, {w.begin(), border});
    for (const float v : as_dequantized(second, {border, w.end()})) weights.push_back(v);
    const auto biases = device.elements(kF32, bias);
    for (const int64_t m : {cuda::kRowsOfTile, cuda::kRowsOfTile + 1}) {
      for (const auto& [y_type, write, with_bias] :
           {std::tuple{kF32, Write::kAdd, true}, {kBF16, Write::kSet, true}, {kBF16, Write::kAdd, false}}) {
        SCOPED_TRACE(std::string(element_name(first)) + " and " + element_name(second) + ", rows " + std::to_string(m) +
                     " of " + element_name(y_type));
        const auto x = rounded(kBF16, random.normal(m * x_stride)), y = rounded(y_type, random.normal(m * y_stride));
        const auto xs = device.elements(kBF16, x), ys = device.elements(y_type, y);
        const int64_t before = emulation::device_use().n_blas_products;
        Device::check(device.backend->matmul(device.exec(), {xs.get(), 0, x_stride, kBF16}, m, *matrix,
                                             with_bias ? biases.get() : nullptr, write,
                                             {ys.get(), 0, y_stride, y_type}));
        const int64_t products = emulation::device_use().n_blas_products - before;
        // A run of bf16 is multiplied as it is, however many rows there are.
        const bool whole = second == kBF16;
        const int64_t expected = m > cuda::kRowsOfTile ? (whole ? 4 : 5) : (whole ? 1 : 0);
        if (!wants_gpu()) {
          EXPECT_EQ(products, expected);
        }
        const Product product{
            m, n, k, x_stride, y_stride, x, weights, y, with_bias ? &bias : nullptr, write == Write::kAdd, y_type};
        product.expect(device.values(y_type, *ys));
        if (HasFatalFailure()) return;
      }
    }
    if (wants_gpu()) continue;
    // Working memory grows in steps of 256 KiB.
    const auto planned = static_cast<int64_t>(device.backend->matmul_workspace_bytes(parts, k, cuda::kRowsOfTile + 1));
    EXPECT_EQ(planned, static_cast<int64_t>(cuda::kBlasWorkspace + slab));
    EXPECT_EQ(device.backend->workspace_bytes(), round_up(planned, int64_t{256} << 10));
  }
}

TEST(CudaBackend, LooksUpRowsOfEveryType) {
  Random random;
  SCOPED_TRACE(random.trace());
  Device device;
  Machine cpu;
  constexpr int64_t kRows = 9, kColumns = 256;
  for (int32_t t = 1; t <= kLastElementType; ++t) {
    const auto type = static_cast<ElementType>(t);
    SCOPED_TRACE(element_name(type));
    const auto values = random.normal(kRows * kColumns);
    std::vector<std::byte> table(row_bytes(type, kRows * kColumns));
    if (is_quantized(type)) {
      quantize(values.data(), kRows * kColumns, type, table.data());
    } else {
      for (int64_t i = 0; i < kRows * kColumns; ++i)
        store_element(type, table.data(), i, values[static_cast<size_t>(i)]);
    }
    const std::vector<int32_t> tokens = {4, 0, 8, 8, 1};
    const auto there = take(device.backend->create_table(kRows, kColumns, type, table.data(), nullptr));
    const auto here = take(cpu.backend->create_table(kRows, kColumns, type, table.data(), nullptr));
    const auto ids = device.bytes(tokens.data(), tokens.size() * sizeof(int32_t));
    const auto out = device.elements(kF32, std::vector<float>(4 * kColumns));
    const auto cpu_ids = cpu.ids(tokens);
    const auto cpu_out = cpu.buffer(std::vector<float>(4 * kColumns));
    for (const float scale : {1.0f, 54.5f}) {
      ASSERT_TRUE(device.backend->embed(device.exec(), *there, *ids, 1, 4, scale, {out.get(), 0, kColumns}).ok());
      ASSERT_TRUE(cpu.backend->embed(cpu.exec(), *here, *cpu_ids, 1, 4, scale, {cpu_out.get(), 0, kColumns}).ok());
      expect_same_bits(cpu.values(*cpu_out), device.values(kF32, *out), element_name(type));
    }
  }
}

// Keys and values of both types, keys stored in several ways, in uneven parts; then a record of two of them.
TEST(CudaBackend, RecordsAreThoseOfTheCpu) {
  Random random;
  SCOPED_TRACE(random.trace());
  Device device;
  Machine cpu;
  for (const ElementType type : {ElementType::kF16, kBF16}) {
    for (const int64_t stored_div : {1, 0, 4}) {
      SCOPED_TRACE(std::string(element_name(type)) + ", stored_div " + std::to_string(stored_div));
      const KvGeometry g{2, 24, 32, type};
      RopeTable table;
      for (int a = 0; a < g.head_dim / 2; ++a) table.theta.push_back(std::pow(10000.0, -2.0 * a / g.head_dim));
      constexpr int64_t kTokens = 64, kWidth = 48;
      const auto keys = rounded(kBF16, random.normal(kTokens * kWidth));
      const auto values = rounded(kBF16, random.normal(kTokens * kWidth));
      // Two chunks and one that is made of them.
      std::vector<std::byte> neutral[2];
      Backend* const backends[] = {cpu.backend.get(), device.backend.get()};
      for (const int b : {0, 1}) {
        Backend& backend = *backends[b];
        Queue& queue = b == 0 ? *cpu.queue : *device.queue;
        const ElementType rows = backend.row_type();
        const auto ks = b == 0 ? cpu.buffer(keys) : device.elements(kBF16, keys);
        const auto vs = b == 0 ? cpu.buffer(values) : device.elements(kBF16, values);
        const size_t bytes = backend.kv_record_bytes(g);
        const auto page = take(backend.allocate(4 * bytes, MemoryKind::kDevice));
        const KvRecord records[] = {{page.get(), 2 * bytes}, {page.get(), 0}, {page.get(), 3 * bytes}};
        const auto rope = take(backend.create_rope(table, g.chunk));
        for (int64_t first = 0, n = 0; first < kTokens; first += n) {
          n = std::min<int64_t>(kTokens - first, 27);
          const StepSequence sequence{
              .plan = std::make_shared<Plan>(), .n = n, .first_key = first, .rope = rope.get(), .geometry = g};
          const auto step = take(backend.prepare_step({queue}, 2, {&sequence, 1}));
          ASSERT_TRUE(backend
                          .store_kv({queue}, *step,
                                    {.keys = Rows{ks.get(), 0, kWidth, rows}.at(first),
                                     .values = Rows{vs.get(), 0, kWidth, rows}.at(first),
                                     .records = {records, stored_div}})
                          .ok());
          ASSERT_TRUE(finish_queue(backend, queue).ok());
        }
        ASSERT_TRUE(backend
                        .move_kv({queue}, {.geometry = g,
                                           .rope = rope.get(),
                                           .stored_div = stored_div,
                                           .first = records[0],
                                           .second = records[1],
                                           .offset = 11,
                                           .to = records[2]})
                        .ok());
        std::vector<std::byte> record(bytes);
        for (const KvRecord& from : records) {
          ASSERT_TRUE(backend.download(queue, *from.page, from.offset, record.data(), bytes).ok());
          ASSERT_TRUE(finish_queue(backend, queue).ok());
          const size_t at = neutral[b].size();
          neutral[b].resize(at + kv_neutral_bytes(g));
          backend.to_neutral(g, record.data(), neutral[b].data() + at);
          std::vector<std::byte> again(bytes);
          backend.from_neutral(g, neutral[b].data() + at, again.data());
          std::vector<std::byte> once_more(kv_neutral_bytes(g));
          backend.to_neutral(g, again.data(), once_more.data());
          EXPECT_TRUE(std::equal(once_more.begin(), once_more.end(), neutral[b].begin() + static_cast<int64_t>(at)));
        }
      }
      ASSERT_EQ(neutral[0].size(), neutral[1].size());
      // Angles differ by 1e-6, which may round to another neighbour.
      const double one = type == kBF16 ? 1.0 / 128 : 1.0 / 1024;
      for (size_t e = 0; e < neutral[0].size() / 2; ++e) {
        const double a = load_element(type, neutral[0].data(), static_cast<int64_t>(e));
        const double b = load_element(type, neutral[1].data(), static_cast<int64_t>(e));
        ASSERT_NEAR(a, b, one * std::fabs(a) + 1e-5) << e;
      }
    }
  }
}

// Rows that lie anywhere, of one slice and of several.
TEST(CudaBackend, RanksLogits) {
  Random random;
  SCOPED_TRACE(random.trace());
  Device device;
  for (const int64_t width : {int64_t{70}, int64_t{9000}}) {
    constexpr int64_t kRows = 3, kFirst = 2, kRanked = 5;
    const int64_t stride = width + 4;
    auto logits = random.normal((kRows + kFirst) * stride);
    logits[static_cast<size_t>((kFirst + 1) * stride)] = std::numeric_limits<float>::infinity();
    const auto rows = device.elements(kF32, logits);
    const RankedRows layout{kRows, kRanked};
    ASSERT_GE(device.backend->most_ranked(width), kRanked);
    const auto out = take(device.backend->allocate(layout.bytes(), MemoryKind::kDevice));
    const Rows from{rows.get(), kFirst * stride, stride};
    ASSERT_TRUE(device.backend->rank_logits(device.exec(), from, kRows, width, kRanked, *out).ok());
    const std::vector<std::byte> memory = device.read(*out);
    for (int64_t r = 0; r < kRows; ++r) {
      const RankedLogits found = layout.row(memory.data(), r, width);
      EXPECT_EQ(found.finite, r != 1);
      if (r == 1) continue;
      const float* const row = &logits[static_cast<size_t>((kFirst + r) * stride)];
      std::vector<int32_t> order(static_cast<size_t>(width));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return row[a] > row[b]; });
      double sum = 0;
      for (const int32_t i : order) sum += std::exp(static_cast<double>(row[i]));
      EXPECT_EQ(found.width, width);
      EXPECT_NEAR(found.log_sum(), std::log(sum), 1e-6);
      ASSERT_EQ(found.best.size(), static_cast<size_t>(kRanked));
      for (size_t i = 0; i < found.best.size(); ++i) {
        EXPECT_EQ(found.best[i].token, order[i]);
        EXPECT_EQ(found.best[i].logit, row[order[i]]);
      }
    }
  }
  EXPECT_EQ(device.backend->most_ranked(int64_t{1} << 40), 0);
}

// ---- queues

TEST(CudaBackend, CopiesRepresentationsByChunks) {
  Random random;
  SCOPED_TRACE(random.trace());
  Device device;
  expect_copies_of_chunks(*device.backend, *device.queue, random);
}

TEST(CudaQueue, AFailedOneRunsNothingMore) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Device device;
  const auto x = device.elements(kBF16, std::vector<float>(64, 1.0f)), y = device.elements(kBF16, {1, 2, 3, 4});
  const Rows rows{x.get(), 0, 32, kBF16}, out{y.get(), 0, 2, kBF16};
  const auto before = take(device.backend->record(*device.queue));
  emulation::set_device_faults({.launch = 1});
  EXPECT_EQ(device.backend->copy_rows(device.exec(), rows, 2, 2, out).code(), Code::kDevice);
  EXPECT_EQ(device.backend->copy_rows(device.exec(), rows, 2, 2, out).code(), Code::kDevice);
  const auto behind = take(device.backend->record(*device.queue));
  EXPECT_TRUE(behind->done());
  EXPECT_THAT(behind->wait().message(), HasSubstr("too many resources"));
  EXPECT_TRUE(before->wait().ok());
  device.queue.reset();  // fences outlive it
  EXPECT_FALSE(behind->wait().ok());
  device.queue = take(device.backend->create_queue());
  EXPECT_EQ(device.values(kBF16, *y), (std::vector<float>{1, 2, 3, 4}));
}

TEST(CudaQueue, WhatFailsLateIsSaidByTheNextFence) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Device device;
  const auto x = device.elements(kBF16, std::vector<float>(4, 7.0f)), y = device.elements(kBF16, {1, 2, 3, 4});
  const Rows rows{x.get(), 0, 2, kBF16}, out{y.get(), 0, 2, kBF16};
  emulation::set_device_faults({.kernel = 1});
  EXPECT_TRUE(device.backend->copy_rows(device.exec(), rows, 1, 2, out).ok());
  EXPECT_TRUE(device.backend->copy_rows(device.exec(), rows, 2, 2, out).ok());
  const auto fence = take(device.backend->record(*device.queue));
  EXPECT_EQ(fence->wait().code(), Code::kDevice);
  EXPECT_TRUE(fence->done());
  device.queue = take(device.backend->create_queue());
  EXPECT_EQ(device.values(kBF16, *y), (std::vector<float>{1, 2, 3, 4}));
}

TEST(CudaQueue, WhereNoFenceCanBeMadeAllIsDone) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Device device;
  const std::vector<float> values{1, 2, 3, 4};
  const auto x = device.elements(kF32, values);
  std::set<std::string> failed;
  for (int64_t n = 1; n < 8; ++n) {
    std::vector<float> got(values.size());
    EXPECT_TRUE(device.backend->download(*device.queue, *x, 0, got.data(), got.size() * sizeof(float)).ok());
    emulation::set_device_faults({.call = n});
    auto fence = device.backend->record(*device.queue);
    emulation::set_device_faults({});
    if (fence.ok()) {
      EXPECT_TRUE((*fence)->wait().ok());
      continue;
    }
    failed.insert(emulation::failed_call());
    EXPECT_EQ(got, values) << emulation::failed_call();
    EXPECT_TRUE(finish_queue(*device.backend, *device.queue).ok());
  }
  EXPECT_THAT(failed, testing::IsSupersetOf({"cudaEventCreateWithFlags", "cudaEventRecord"}));
}

TEST(CudaQueue, ACancelledOneSaysSo) {
  Device device;
  const auto x = device.elements(kBF16, std::vector<float>(4, 7.0f));
  const Rows rows{x.get(), 0, 2, kBF16};
  CancelToken cancel;
  EXPECT_TRUE(device.backend->copy_rows(device.exec(&cancel), rows, 1, 2, rows.at(1)).ok());
  cancel.cancel();
  EXPECT_EQ(device.backend->copy_rows(device.exec(&cancel), rows, 1, 2, rows.at(1)).code(), Code::kCancelled);
  EXPECT_EQ(take(device.backend->record(*device.queue))->wait().code(), Code::kCancelled);
}

TEST(CudaQueue, OneWaitsForAnother) {
  Device device;
  const auto other = take(device.backend->create_queue());
  const auto buffer = device.elements(kF32, {0, 0});
  const float first = 1, second = 2;
  ASSERT_TRUE(device.backend->upload(*device.queue, &first, *buffer, 0, sizeof first).ok());
  const auto fence = take(device.backend->record(*device.queue));
  ASSERT_TRUE(device.backend->wait(*other, *fence).ok());
  ASSERT_TRUE(device.backend->upload(*other, &second, *buffer, 0, sizeof second).ok());
  ASSERT_TRUE(finish_queue(*device.backend, *other).ok());
  EXPECT_EQ(device.values(kF32, *buffer), (std::vector<float>{2, 0}));
}

// The emulation ends the program where a thread uses what is not of the device that it has chosen.
TEST(CudaQueue, AThreadUsesThoseOfTwoDevicesInTurn) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Device devices[] = {Device(0), Device(1)};
  std::unique_ptr<Buffer> buffers[] = {devices[0].elements(kBF16, {1, 2, 3, 4}),
                                       devices[1].elements(kBF16, {5, 6, 7, 8})};
  const auto rows = [&](int i) { return Rows{buffers[i].get(), 0, 2, kBF16}; };
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(devices[i].backend->copy_rows(devices[i].exec(), rows(i), 1, 2, rows(i).at(1)).ok());
  }
  std::unique_ptr<Fence> fences[2];
  for (int i = 0; i < 2; ++i) fences[i] = take(devices[i].backend->record(*devices[i].queue));
  for (const auto& fence : fences) EXPECT_TRUE(fence->wait().ok());
  for (int i = 0; i < 2; ++i) {
    const float first = static_cast<float>(1 + 4 * i);
    EXPECT_EQ(devices[i].values(kBF16, *buffers[i]), (std::vector<float>{first, first + 1, first, first + 1}));
  }
}

// They are known by where the records' list lies and by its version, and an array is used again for another list.
TEST(CudaQueue, ArraysOfAddressesAreThoseOfTheirVersion) {
  Device device;
  auto& queue = static_cast<cuda::CudaQueue&>(*device.queue);
  const auto page = take(device.backend->allocate(4096, MemoryKind::kDevice));
  const auto addresses_of = [](const std::vector<KvRecord>& records) {
    std::vector<void*> all;
    for (const KvRecord& record : records) all.push_back(cuda::address(record));
    return all;
  };
  const auto on_device = [&](const std::vector<KvRecord>& records, uint64_t version) {
    std::vector<void*> all(records.size());
    void* const* const there = take(queue.records({records, false, version}));
    Device::check(queue.read(there, all.data(), all.size() * sizeof(void*)));
    return all;
  };
  std::vector<KvRecord> first = {{page.get(), 0}, {}, {page.get(), 512}}, second = {{page.get(), 1024}};
  const std::vector<void*> before = addresses_of(first);
  EXPECT_EQ(on_device(first, 7), before);
  EXPECT_EQ(on_device(second, 7), addresses_of(second));
  first[1] = {page.get(), 2048};
  EXPECT_EQ(on_device(first, 7), before) << "compared again";
  EXPECT_EQ(on_device(first, 8), addresses_of(first));
  first[1] = {};
  EXPECT_EQ(on_device(first, 0), addresses_of(first));
  EXPECT_EQ(on_device(first, 8), addresses_of(first));

  // Sessions take turns, and each finds its array.
  constexpr int64_t kSteps = cuda::CudaQueue::kStepsOfTables;
  std::vector<KvRecord> third = {{page.get(), 3072}};
  queue.begin_step(1);
  EXPECT_EQ(on_device(third, 7), addresses_of(third));
  queue.begin_step(1);
  const emulation::DeviceUse use = emulation::device_use();
  EXPECT_EQ(on_device(first, 8), addresses_of(first));
  EXPECT_EQ(emulation::device_use().n_uploads, use.n_uploads);

  // The array that was used longest ago, long enough, is that of the list that comes next.
  for (int64_t i = 0; i < kSteps; ++i) queue.begin_step(1);
  std::vector<KvRecord> fourth = {{page.get(), 512}};
  EXPECT_EQ(on_device(fourth, 7), addresses_of(fourth));
  EXPECT_EQ(emulation::device_use().n_allocations, use.n_allocations);
  EXPECT_EQ(on_device(third, 8), addresses_of(third));

  // An array of other addresses takes the place of a list that was freed.
  std::vector<void*> others = {nullptr};
  void* found = page.get();
  Device::check(queue.read(take(queue.table(third.data(), others)), &found, sizeof found));
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(on_device(third, 8), addresses_of(third));
}

// More than the pinned memory takes at once, from memory that is overwritten after each call.
TEST(CudaQueue, SmallUploadsNeedNotWait) {
  Device device;
  constexpr size_t kBytes = 100'000, kUploads = 100;
  const auto buffer = take(device.backend->allocate(kBytes * kUploads, MemoryKind::kDevice));
  std::vector<unsigned char> source(kBytes);
  for (size_t i = 0; i < kUploads; ++i) {
    std::fill(source.begin(), source.end(), static_cast<unsigned char>(i));
    ASSERT_TRUE(device.backend->upload(*device.queue, source.data(), *buffer, i * kBytes, kBytes).ok());
  }
  const std::vector<std::byte> all = device.read(*buffer);
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(static_cast<size_t>(all[i]), i / kBytes) << i;
}

// Small pieces of pinned memory go by one launch for 128 of them. The device reads them late, and where they lie.
TEST(CudaQueue, ManySmallUploadsAreOneLaunch) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Device device;
  constexpr size_t kLarge = size_t{1} << 20, kSmall = 4016, kPieces = 130;
  emulation::set_device_faults({.host_allocation = 2});
  const auto pinned = take(device.backend->allocate(kLarge + kPieces * kSmall, MemoryKind::kStaging));
  const auto plain = take(device.backend->allocate(100, MemoryKind::kStaging));  // there was no more of it
  emulation::set_device_faults({});
  auto* const from = static_cast<unsigned char*>(pinned->host());
  const auto buffer = take(device.backend->allocate(pinned->size() + plain->size(), MemoryKind::kDevice));
  std::vector<StagedUpload> all;
  std::vector<std::byte> expected(buffer->size());
  const auto add = [&](const Buffer& source, size_t offset, size_t to, size_t bytes) {
    all.push_back({&source, offset, buffer.get(), to, bytes});
    std::memcpy(expected.data() + to, static_cast<const std::byte*>(source.host()) + offset, bytes);
  };
  for (size_t i = 0; i < pinned->size(); ++i) from[i] = static_cast<unsigned char>(i / 3 + i / kSmall);
  std::memset(plain->host(), 7, plain->size());
  for (size_t p = 0; p < kPieces; ++p) add(*pinned, kLarge + p * kSmall, kLarge + (kPieces - 1 - p) * kSmall, kSmall);
  auto before = emulation::device_use();
  const auto counted = [&] {
    const auto now = emulation::device_use();
    const std::array<int64_t, 3> counts = {now.n_launches - before.n_launches, now.n_gathers - before.n_gathers,
                                           now.n_uploads - before.n_uploads};
    before = now;
    return counts;
  };
  Device::check(device.backend->upload_all(*device.queue, all));
  EXPECT_EQ(counted(), (std::array<int64_t, 3>{2, 2, 0}));
  all.clear();
  add(*pinned, 0, 0, kLarge - 40);
  Device::check(device.backend->upload_all(*device.queue, all));
  EXPECT_EQ(counted(), (std::array<int64_t, 3>{1, 1, 0}));
  // Others are copies: what is large, what the device cannot read, and what lies where the kernel cannot begin.
  all.clear();
  add(*pinned, 0, 0, kLarge);
  add(*plain, 0, pinned->size(), plain->size());
  add(*pinned, 8, kLarge + 16, 32);
  Device::check(device.backend->upload_all(*device.queue, all));
  EXPECT_EQ(counted(), (std::array<int64_t, 3>{0, 0, 3}));
  Device::check(device.backend->upload_all(*device.queue, {}));
  EXPECT_EQ(counted(), (std::array<int64_t, 3>{0, 0, 0}));
  EXPECT_EQ(device.read(*buffer), expected);
}

// A thread that has used no device has none again when it leaves them, and may come back.
TEST(CudaBackend, AThreadThatLeavesTheDevicesHasWhatItHadBefore) {
  const cuda::DeviceApi& api = test_device();
  std::thread([&api] {
    void *before = &before, *during = nullptr, *afterwards = nullptr, *again = nullptr;
    ASSERT_EQ(api.get_context(&before), 0);
    EXPECT_EQ(before, nullptr);
    for (void** const place : {&during, &again}) {
      ASSERT_EQ(api.use_device(0), 0);
      ASSERT_EQ(api.get_context(place), 0);
      EXPECT_NE(*place, nullptr);
      ASSERT_EQ(api.leave_devices(before), 0);
      ASSERT_EQ(api.get_context(&afterwards), 0);
      EXPECT_EQ(afterwards, before);
    }
    EXPECT_EQ(again, during);
  }).join();
}

// ---- failures of the CUDA runtime

// What comes of 1 in a backend's whole life, in which a step comes again, and is a graph then.
Result<float> live_with(Allocator& allocator) {
  constexpr size_t kBytes = 64;
  constexpr int64_t kWidth = kBytes / sizeof(float);
  QUIRE_ASSIGN(const auto backend, cuda::create_cuda_backend(allocator, emulation::device_api(), 0));
  QUIRE_ASSIGN(const auto staging, backend->allocate(kBytes, MemoryKind::kStaging));
  QUIRE_ASSIGN(const auto buffer, backend->allocate(3 * kBytes, MemoryKind::kDevice));
  // They end before the memory that they work on.
  QUIRE_ASSIGN(const auto queue, backend->create_queue());
  QUIRE_ASSIGN(const auto other, backend->create_queue());
  const Exec exec{*queue, nullptr};
  const auto row = [&](int64_t i) { return Rows{buffer.get(), i * kWidth, kWidth, kF32}; };
  std::fill_n(static_cast<float*>(staging->host()), kWidth, 1.0f);
  QUIRE_TRY(backend->upload(*queue, staging->host(), *buffer, 0, kBytes));
  for (int step = 0; step < 4; ++step) {
    cuda::cuda_queue(*queue).begin_step(1);
    QUIRE_TRY(backend->copy_rows(exec, row(0), 1, kWidth, row(1)));
    QUIRE_TRY(backend->copy_rows(exec, row(1), 1, kWidth, row(2)));
    QUIRE_ASSIGN(const auto fence, backend->record(*queue));
    (void)fence->done();
    QUIRE_TRY(fence->wait());
    QUIRE_TRY(backend->wait(*other, *fence));
  }
  QUIRE_TRY(backend->download(*other, *buffer, 2 * kBytes, staging->host(), kBytes));
  QUIRE_TRY(finish_queue(*backend, *other));
  return static_cast<const float*>(staging->host())[kWidth - 1];
}

// Each call of the runtime fails in turn: the status names the device, what was done, and the error; or the result is
// there all the same. Nothing is left behind.
TEST(CudaBackend, EachFailureOfTheRuntimeIsSaid) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Allocator allocator;
  const Held at_first = held();
  EXPECT_EQ(take(live_with(allocator)), 1);  // a thread's first life has one call more
  const int64_t calls_before = emulation::device_use().n_calls;
  EXPECT_EQ(take(live_with(allocator)), 1);
  const int64_t n_calls = emulation::device_use().n_calls - calls_before;
  int n_failures = 0;
  for (int64_t n = 1; n <= n_calls; ++n) {
    emulation::set_device_faults({.call = n});
    const Result<float> got = live_with(allocator);
    SCOPED_TRACE("call " + std::to_string(n) + ", " + emulation::failed_call());
    EXPECT_EQ(emulation::device_faults().call, 0);
    emulation::set_device_faults({});
    if (got.ok()) {
      EXPECT_EQ(got.value(), 1);
    } else {
      ++n_failures;
      EXPECT_EQ(got.status().code(), Code::kDevice);
      EXPECT_THAT(got.status().message(), testing::MatchesRegex("cuda:0: [a-z0-9 ]+: unknown error"));
    }
    EXPECT_EQ(held(), at_first);
    EXPECT_EQ(allocator.bytes(), 0);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  EXPECT_GT(n_failures, n_calls / 2);
}

// ---- memory

TEST(CudaBackend, StagingMemoryNeedNotBePinned) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  Device device;
  emulation::set_device_faults({.host_allocation = 1});
  const auto staging = take(device.backend->allocate(1000, MemoryKind::kStaging));
  emulation::set_device_faults({});
  ASSERT_NE(staging->host(), nullptr);
  EXPECT_EQ(device.allocator.bytes(), 1000);
  std::fill_n(static_cast<char*>(staging->host()), 1000, 'x');
  const auto buffer = device.bytes(staging->host(), 1000);
  EXPECT_EQ(device.read(*buffer), std::vector<std::byte>(1000, std::byte{'x'}));
  EXPECT_EQ(buffer->host(), nullptr);
  emulation::set_device_faults({.allocation = 1});
  EXPECT_EQ(device.backend->allocate(1000, MemoryKind::kDevice).status().code(), Code::kOutOfMemory);
}

TEST(CudaBackend, EqualRotationsAreOneObject) {
  Device device;
  const RopeTable table{{1, 0.5, 0.25}, 1}, other{{1, 0.5, 0.125}, 1};
  const auto one = take(device.backend->create_rope(table, 64)), same = take(device.backend->create_rope(table, 64));
  EXPECT_EQ(one, same);
  EXPECT_NE(one, take(device.backend->create_rope(table, 32)));
  EXPECT_NE(one, take(device.backend->create_rope(other, 64)));
}

TEST(CudaBackend, DevicesThatCannotBeUsedAreRefused) {
  Allocator allocator;
  EXPECT_EQ(cuda::create_cuda_backend(allocator, emulation::device_api(), 7).status().code(), Code::kDevice);
  cuda::DeviceApi old = emulation::device_api();
  old.describe = [](int, cuda::DeviceFacts* facts) {
    *facts = {.name = "old", .major = 7, .minor = 5};
    return 0;
  };
  const Status refused = cuda::create_cuda_backend(allocator, old, 0).status();
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("7.5"));
}

}  // namespace
}  // namespace quire::test
