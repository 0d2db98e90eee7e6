// Whole models on the emulated device, beside the CPU backend: every strategy, through sessions.
//
// How near they must be. The device rounds activations, queries and keys to bf16 (8 bits) where the CPU has f32, at
// some ten places a layer; each is an independent relative error of up to 2^-9, and the residual stream, to which
// layers add, stays f32. So logits differ by a few times 2^-9 of their usual size: 2^-5 of the root mean square of a
// row's logits would be many such errors in one direction. A wrong distance, mask or head is an error of the logits'
// own size.

#include <gtest/gtest.h>

#include <cmath>

#include "lib/backend/cuda/cuda_backend.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

constexpr double kNear = 1.0 / 64;

Devices::Wrap emulated() {
  return [](std::unique_ptr<Backend>) {
    static Allocator allocator;
    return take(cuda::create_cuda_backend(allocator, emulation::device_api(), 0));
  };
}

std::shared_ptr<Model> on_device(const std::string& name) {
  emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 2});
  RuntimeOptions options;
  options.n_threads = 1;
  options.wrap_backend = emulated();
  return load(name, std::move(options));
}

// The root mean square of the differences beside that of the logits, of all rows and of the worst one.
struct Distance {
  double all = 0, worst = 0;
};
Distance distance(const Logits& expected, const Logits& got, const Model& model) {
  EXPECT_EQ(expected.size(), got.size());
  const auto vocab = static_cast<size_t>(vocab_size(model));
  Distance distance;
  double error = 0, square = 0;
  for (size_t row = 0; row + vocab <= expected.size(); row += vocab) {
    double row_error = 0, row_square = 0;
    for (size_t i = row; i < row + vocab; ++i) {
      row_error += (static_cast<double>(got[i]) - expected[i]) * (static_cast<double>(got[i]) - expected[i]);
      row_square += static_cast<double>(expected[i]) * expected[i];
    }
    const double relative = std::sqrt(row_error / row_square);
    distance.worst = std::isnan(distance.worst) || relative <= distance.worst ? distance.worst : relative;
    error += row_error;
    square += row_square;
  }
  distance.all = std::sqrt(error / square);
  return distance;
}

void expect_near(const Logits& expected, const Logits& got, const Model& model) {
  const Distance d = distance(expected, got, model);
  std::printf("distance %g, worst row %g\n", d.all, d.worst);
  EXPECT_LE(d.all, kNear);
  EXPECT_LE(d.worst, 3 * kNear);
}

struct StrategyCase {
  std::string name;
  std::string strategy;
  std::string model = "short_128";
};

class OnEmulatedDevice : public testing::TestWithParam<StrategyCase> {};

// A prompt in odd blocks, then single tokens.
Logits compute(const std::shared_ptr<Model>& model, const SessionOptions& options, const Tokens& tokens,
               size_t n_single) {
  const auto session = make_session(model, options);
  const size_t n_prompt = tokens.size() - n_single;
  Logits all;
  const auto feed = [&](size_t first, size_t n) {
    expect_ok(session->feed_tokens(std::span(tokens).subspan(first, n)));
    StreamOptions keep;
    keep.keep_logits = true;
    expect_ok(run(session, keep).status);
    const Logits part = kept_logits(*session, static_cast<int64_t>(first), static_cast<int64_t>(n));
    all.insert(all.end(), part.begin(), part.end());
  };
  feed(0, n_prompt);
  for (size_t i = 0; i < n_single; ++i) feed(n_prompt + i, 1);
  return all;
}

TEST_P(OnEmulatedDevice, LogitsAreNearThoseOfTheCpu) {
  const auto cpu = load(GetParam().model, 1), device = on_device(GetParam().model);
  ASSERT_EQ(device->llama->backend().name(), "cuda:0/emulated");
  SessionOptions options = with_strategy(GetParam().strategy);
  options.prefill_block = 61;
  const Tokens tokens = random_tokens(*cpu, 203);
  const Logits expected = compute(cpu, options, tokens, 4), got = compute(device, options, tokens, 4);
  expect_near(expected, got, *cpu);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, OnEmulatedDevice,
    testing::Values(
        StrategyCase{"full", "full"}, StrategyCase{"gqa", "full", "gqa_longrope"},
        StrategyCase{"biases", "full", "gqa_biases_bf16"}, StrategyCase{"heads24", "full", "mha_dynamic"},
        StrategyCase{"window", "full", "mistral_window_64"}, StrategyCase{"qk_norm", "full", "qwen3"},
        StrategyCase{"nope", "full", "smollm3_yarn"}, StrategyCase{"f16", "full", "mha_yarn_f16"},
        StrategyCase{"dca", "dca"}, StrategyCase{"dca_small", "dca(chunk=40, cap=55)"},
        StrategyCase{"rerope", "rerope(window=40)"}, StrategyCase{"self_extend", "self_extend(group=4, window=40)"},
        StrategyCase{"lm_infinite", "lm_infinite(sinks=4, recent=60)"},
        StrategyCase{"streaming_llm", "streaming_llm(sinks=3, recent=50)"},
        StrategyCase{"s2", "s2(group=32, kv_chunk=16)", "text_256"},
        StrategyCase{"scca_fixed", "scca_fixed(chunk=32, kv_chunk=16)", "text_256"},
        StrategyCase{"scca_flow", "scca_flow(chunks=4, kv_chunk=16)", "text_256"},
        StrategyCase{"sda", "sda(dilation=3)"}, StrategyCase{"beacon", "beacon(ratio=2, kv_chunk=16)", kWithBeacons},
        StrategyCase{"ntk", "full + ntk(factor=4)"}, StrategyCase{"longheads", "longheads(chunk=16, chunks=4)"},
        StrategyCase{"longheads_dca", "longheads(chunk=16, chunks=4, positions=dca, dca_chunk=60)"},
        StrategyCase{"first_layer", "longheads(chunk=16, chunks=4, select=first_layer)"},
        StrategyCase{"dca_topk", "dca_topk(chunk=16, chunks=4, one_in=5, dca_chunk=64, reading=selected)"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace quire::test
