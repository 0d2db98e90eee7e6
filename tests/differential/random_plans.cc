#include "tests/differential/random_plans.h"

#include <sstream>

namespace quire::test {
namespace {

constexpr const char* kStrategies[] = {
    "full",
    "full(kv_chunk=16)",
    "full(kv_chunk=48) + yarn(factor=4)",
    "dca",
    "dca(chunk=48, kv_chunk=16)",
    "longheads(chunk=16, chunks=4)",
    "longheads(chunk=16, chunks=5, select=group)",
    "dca_topk(chunk=16, chunks=4, one_in=6, reading=selected)",
    "lm_infinite(sinks=3, recent=50, kv_chunk=16)",
    "streaming_llm(sinks=4, recent=60)",
    "streaming_llm(sinks=20, recent=33, kv_chunk=16)",
    "rerope(window=40, kv_chunk=16)",
    "rerope(window=32, leaky=4)",
    "self_extend(window=24, group=4, kv_chunk=16)",
    "full(kv_chunk=16)",
};
// For one with beacon weights and four heads.
constexpr const char* kBeaconStrategies[] = {"beacon(ratio=4, kv_chunk=16)",        "beacon(ratio=2)",
                                             "beacon(sequence=x2.x4, kv_chunk=16)", "s2(group=32, kv_chunk=16)",
                                             "scca_flow(chunk=32, chunks=2)",       "sda(dilation=2, kv_chunk=16)"};
// For a model with a sliding window.
constexpr const char* kWindowStrategies[] = {"full",
                                             "full(kv_chunk=16)",
                                             "full(ignore_window=1, kv_chunk=32)",
                                             "streaming_llm(sinks=4, recent=30, kv_chunk=16)",
                                             "lm_infinite(sinks=3, recent=30, kv_chunk=16)",
                                             "dca(ignore_window=1, chunk=48, kv_chunk=16)"};

constexpr quire_sampler kSamplers[] = {
    {QUIRE_SAMPLER_PENALTIES, 0, 0, 1.3f, 0.2f, 0.1f}, {QUIRE_SAMPLER_PENALTIES, 20, 0, 1.1f, 0, 0.3f},
    {QUIRE_SAMPLER_DRY, 0, 2, 0.8f, 1.75f, 0},         {QUIRE_SAMPLER_TOP_K, 12, 0, 0, 0, 0},
    {QUIRE_SAMPLER_TYPICAL, 0, 0, 0.9f, 0, 0},         {QUIRE_SAMPLER_TOP_P, 0, 0, 0.8f, 0, 0},
    {QUIRE_SAMPLER_MIN_P, 0, 0, 0.02f, 0, 0},          {QUIRE_SAMPLER_TEMPERATURE, 0, 0, 1.4f, 0, 0}};

constexpr const char* kWords[] = {"the", "road",  "map",      " ", "of",       "a",
                                  "\n",  "every", "chapter,", "é", "left out", "."};

}  // namespace

quire_session_options SessionPlan::options() const {
  quire_session_options options;
  quire_session_options_init(&options, sizeof options);
  options.strategy = strategy.data();
  options.strategy_len = strategy.size();
  options.overflow = QUIRE_OVERFLOW_EXTRAPOLATE;
  options.prefill_block = prefill_block;
  options.kv_type = kv_type;
  options.kv_host_budget_bytes = budget_bytes;
  if (!spill_directory.empty()) {
    options.kv_file_directory = spill_directory.data();
    options.kv_file_directory_len = spill_directory.size();
  }
  return options;
}

std::string SessionPlan::text() const {
  std::ostringstream out;
  out << strategy << " block=" << prefill_block << " kv_type=" << kv_type << " budget=" << budget_bytes
      << (spill_directory.empty() ? "" : " with a spill file");
  return out.str();
}

quire_stream_options StreamPlan::options() const {
  quire_stream_options options;
  quire_stream_options_init(&options, sizeof options);
  options.flags = flags;
  options.max_tokens = max_tokens;
  options.min_tokens = min_tokens;
  options.temperature = temperature;
  options.top_k = top_k;
  options.top_p = top_p;
  options.min_p = min_p;
  options.n_top_logprobs = n_top_logprobs;
  options.seed = seed;
  options.stop_ids = stop_ids.empty() ? nullptr : stop_ids.data();
  options.n_stop_ids = stop_ids.size();
  if (!samplers.empty()) {
    options.samplers = samplers.data();
    options.n_samplers = samplers.size();
    options.sampler_stride = sizeof(quire_sampler);
  }
  return options;
}

std::string StreamPlan::text() const {
  std::ostringstream out;
  out << "flags=" << flags << " max=" << max_tokens << " min=" << min_tokens << " temperature=" << temperature
      << " top_k=" << top_k << " top_p=" << top_p << " min_p=" << min_p << " seed=" << seed << " stop_ids=";
  for (const int32_t id : stop_ids) out << id << ' ';
  out << "samplers=";
  for (const auto& s : samplers) {
    out << s.kind << '(' << s.n << ',' << s.m << ',' << s.a << ',' << s.b << ',' << s.c << ") ";
  }
  return out.str();
}

SessionPlan random_session(Dice& dice, ModelKind kind, const std::string& spill_directory) {
  SessionPlan plan;
  plan.strategy = kind == ModelKind::kWindow                     ? dice.one_of(kWindowStrategies)
                  : kind == ModelKind::kBeacon && dice.one_in(4) ? dice.one_of(kBeaconStrategies)
                                                                 : dice.one_of(kStrategies);
  constexpr int32_t kBlocks[] = {1, 2, 7, 16, 24, 33, 64, 100, 0};
  plan.prefill_block = dice.one_of(kBlocks);
  constexpr int32_t kTypes[] = {QUIRE_TYPE_DEFAULT, QUIRE_TYPE_F16, QUIRE_TYPE_F32, QUIRE_TYPE_BF16};
  plan.kv_type = dice.one_of(kTypes);
  if (dice.one_in(2)) {
    // A few records, in some of them too few for a step; longheads keeps representations beside them.
    constexpr int64_t kBudgets[] = {30000, 50000, 80000, 150000};
    plan.budget_bytes = dice.one_of(kBudgets) + (plan.strategy.starts_with("longheads") ? 110000 : 0);
    if (!dice.one_in(5)) plan.spill_directory = spill_directory;
  }
  return plan;
}

StreamPlan random_stream(Dice& dice, int32_t vocab_size) {
  StreamPlan plan;
  if (!dice.one_in(3)) plan.flags |= QUIRE_STREAM_IGNORE_EOS;
  if (dice.one_in(3)) plan.flags |= QUIRE_STREAM_SCORE;
  if (dice.one_in(3)) plan.flags |= QUIRE_STREAM_KEEP_LOGITS;
  plan.max_tokens = dice.one_in(4) ? 0 : dice.between(1, 25);
  if (dice.one_in(4)) plan.min_tokens = dice.between(1, 10);
  for (size_t n = dice.one_in(3) ? dice.below(6) : 0; n > 0; --n) {
    plan.stop_ids.push_back(static_cast<int32_t>(dice.below(static_cast<size_t>(vocab_size))));
  }
  if (dice.one_in(5)) plan.n_top_logprobs = static_cast<int32_t>(dice.below(8));
  plan.seed = dice.below(1000);
  switch (dice.below(4)) {
    case 0:
      for (size_t n = 1 + dice.below(4); n > 0; --n) plan.samplers.push_back(dice.one_of(kSamplers));
      break;
    case 1:
      plan.temperature = static_cast<float>(dice.between(3, 15)) / 10;
      if (dice.one_in(2)) plan.top_k = static_cast<int32_t>(dice.between(1, 40));
      if (dice.one_in(2)) plan.top_p = static_cast<float>(dice.between(5, 10)) / 10;
      if (dice.one_in(3)) plan.min_p = 0.01f;
      break;
    default:
      break;  // greedy
  }
  return plan;
}

std::string random_text(Dice& dice) {
  std::string text;
  for (size_t n = dice.below(20); n > 0; --n) text += dice.one_of(kWords);
  return text;
}

}  // namespace quire::test
