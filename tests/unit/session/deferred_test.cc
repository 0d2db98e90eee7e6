// Every strategy gives the same bits over a device that works late, whose memory the host cannot touch, as over the
// CPU; with all keys in memory, and with some in a file.

#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class Deferred : public testing::TestWithParam<std::string> {
 protected:
  struct Answer {
    Tokens tokens;
    std::vector<float> logprobs;
    Logits logits;  // of all positions
    int64_t kv_bytes = 0, n_from_file = 0;
  };

  static std::shared_ptr<Model> load_over(Devices::Wrap wrap) {
    RuntimeOptions options;
    options.n_threads = 2;
    options.wrap_backend = std::move(wrap);
    const bool needs_even_heads = GetParam().starts_with("s2") || GetParam().starts_with("scca");
    return load(needs_even_heads ? "text_256" : model_for(GetParam()), std::move(options));
  }
  // A prompt of several blocks, then sampled tokens. kv_budget 0: all in memory.
  static Answer answer(const std::shared_ptr<Model>& model, int64_t kv_budget) {
    SessionOptions options = with_strategy(GetParam());
    options.prefill_block = 24;
    if (kv_budget > 0) {
      options.kv_budget_bytes = kv_budget;
      options.spill_directory = testing::TempDir();
    }
    const auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, 300)));
    StreamOptions generate = generating(16, 0.8f, 5);
    generate.keep_logits = true;
    Outcome outcome = run(session, generate);
    expect_ok(outcome.status);
    const SessionStats now = stats(*session);
    return {std::move(outcome.tokens), std::move(outcome.logprobs), kept_logits(*session, 0, 315), now.kv_bytes_peak,
            now.kv_chunks_read};
  }
  static void expect_same(const Answer& expected, const Answer& got) {
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_TRUE(same_bits(got.logprobs, expected.logprobs));
    EXPECT_TRUE(same_bits(got.logits, expected.logits));
  }
};

TEST_P(Deferred, BitsAreThoseOfTheCpu) {
  const auto cpu = load_over({}), device = load_over(create_deferred_backend);
  ASSERT_EQ(device->llama->backend().name().substr(0, 9), "deferred/");
  const Answer expected = answer(cpu, 0);
  ASSERT_EQ(expected.tokens.size(), 16u);
  expect_same(expected, answer(device, 0));
  const Answer spilled = answer(device, expected.kv_bytes * 2 / 3);
  expect_same(expected, spilled);
  // Methods that forget most of the text may not need the file.
  const bool remembers = GetParam().starts_with("full") || GetParam().starts_with("dca") ||
                         GetParam().starts_with("longheads") || GetParam().starts_with("rerope");
  EXPECT_TRUE(spilled.n_from_file > 0 || !remembers);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, Deferred,
    testing::Values("full", "dca", "dca(chunk=40, cap=55, parts=intra_inter)", "longheads(chunk=16, chunks=4)",
                    "longheads(chunk=16, chunks=4, select=first_layer)",
                    "longheads(chunk=16, chunks=4, positions=dca, dca_chunk=60)",
                    "dca_topk(chunk=16, chunks=6, sticky=2, one_in=5, dca_chunk=64, reading=selected)",
                    "rerope(window=40)", "self_extend(group=4, window=40)", "lm_infinite(sinks=4, recent=60)",
                    "streaming_llm(sinks=3, recent=50)", "s2(group=32, kv_chunk=16)",
                    "scca_fixed(chunk=32, kv_chunk=16)", "scca_flow(chunks=4, kv_chunk=16)", "sda(dilation=3)",
                    "long_mixed(heads=sda2.rolled.shift1, chunk=20)", "beacon(ratio=2, kv_chunk=16)",
                    "beacon(window=48, stride=16, sequence=x2.x0.x4, kv_chunk=16)", "full + ntk(factor=4)"),
    [](const auto& info) {
      const std::string name = info.param.substr(0, info.param.find_first_of("( "));
      return name + "_" + std::to_string(info.index);
    });

}  // namespace
}  // namespace quire::test
