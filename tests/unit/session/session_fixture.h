// Models with few threads or many, sessions on them, and streams read to their end.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lib/session/session.h"
#include "lib/session/stream.h"
#include "tests/source_path.h"
#include "tests/unit/backend/deferred_backend.h"

namespace quire::test {

using Tokens = std::vector<int32_t>;
using Logits = std::vector<float>;

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// A golden model on a runtime of its own. WITH_BEACONS: text_256 and its beacon plug-in, of windows of 32 tokens.
constexpr const char* kWithBeacons = "WITH_BEACONS";

inline bool is_deferred() { return std::getenv("QUIRE_TEST_DEFERRED") != nullptr; }

// With QUIRE_TEST_DEFERRED in the environment everything runs over a device whose memory the host cannot touch and
// which works late.
inline std::shared_ptr<Runtime> make_runtime(RuntimeOptions options) {
  if (is_deferred() && !options.wrap_backend) options.wrap_backend = create_deferred_backend;
  return std::make_shared<Runtime>(std::move(options));
}

inline std::shared_ptr<Model> load(const std::string& name, RuntimeOptions options) {
  auto runtime = make_runtime(std::move(options));
  const std::string golden = source_path("tests/golden/");
  ModelLoadOptions loading;
  loading.device = "cpu";  // or what wrap_backend makes of it, not a GPU that the machine may have
  if (name != kWithBeacons) return take(load_model(runtime, golden + "models/" + name, loading));
  loading.beacon_directory = golden + "beacon/plugin";
  return take(load_model(runtime, golden + "models/text_256", loading));
}

inline std::shared_ptr<Model> load(const std::string& name, int n_threads = 2) {
  RuntimeOptions options;
  options.n_threads = n_threads;
  return load(name, std::move(options));
}

// The model that tests of a strategy run on.
// QUIRE_TEST_MODEL in the environment: another model than short_128.
inline std::string model_for(const std::string& strategy) {
  if (strategy.starts_with("beacon")) return kWithBeacons;
  const char* const name = std::getenv("QUIRE_TEST_MODEL");
  return name ? name : "short_128";
}

// QUIRE_TEST_OLD_AFTER in the environment: old text is read in a narrower type, from so many tokens on;
// QUIRE_TEST_OLD_TYPE: which (default: int8).
inline OldText tested_old_text() {
  const char* const after = std::getenv("QUIRE_TEST_OLD_AFTER");
  const char* const type = std::getenv("QUIRE_TEST_OLD_TYPE");
  const bool is_int4 = type && std::string(type) == "int4";
  return {.type = is_int4 ? ElementType::kInt4 : ElementType::kInt8, .after = after ? std::atoll(after) : kNoLimit};
}

// QUIRE_TEST_KEEP_BEHIND_WINDOWS in the environment: layers with a window keep what lies behind it.
inline SessionOptions with_strategy(const std::string& strategy) {
  SessionOptions options;
  options.keep_behind_windows = std::getenv("QUIRE_TEST_KEEP_BEHIND_WINDOWS") != nullptr;
  options.old_text = tested_old_text();
  options.strategy = strategy;
  options.overflow = OverflowPolicy::kExtrapolate;
  return options;
}

inline std::shared_ptr<Session> make_session(const std::shared_ptr<Model>& model, const SessionOptions& options) {
  return take(Session::create(model, options));
}

inline int32_t vocab_size(const Model& model) { return model.llama->config().vocab_size; }

// What a session keeps of logits in the memory of a device that ranks them, which no budget counts: two rows.
inline int64_t logits_row_bytes(const Model& model) {
  const int64_t vocab = vocab_size(model);
  return model.llama->backend().most_ranked(vocab) > 0 ? 2 * vocab * int64_t{sizeof(float)} : 0;
}

// Ordinary tokens (no control ids), the same for one seed.
inline Tokens random_tokens(const Model& model, int64_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> id(3, vocab_size(model) - 1);
  Tokens tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(id(random));
  return tokens;
}

struct Outcome {
  Status status;
  std::vector<StreamEvent> prefill;
  std::string notice;
  Tokens tokens;
  std::vector<float> logprobs;
  std::string text;  // held back text included
  StreamEvent end;
};

// Takes events until the end, or until `max_tokens` tokens came.
inline Outcome read(GenerationStream& stream, size_t max_tokens = SIZE_MAX) {
  Outcome outcome;
  while (outcome.tokens.size() < max_tokens) {
    const StreamEvent* event = nullptr;
    const auto next = stream.next(-1, &event);
    if (!next.ok()) {
      outcome.status = next.status();
      return outcome;
    }
    if (next.value() != NextResult::kEvent) break;
    if (event->type == StreamEvent::Type::kNotice) outcome.notice += event->message.text;
    outcome.text += event->text;
    if (event->type == StreamEvent::Type::kPrefill) outcome.prefill.push_back(*event);
    if (event->type == StreamEvent::Type::kToken) {
      outcome.tokens.push_back(event->token);
      outcome.logprobs.push_back(event->logprob);
    }
    if (event->type == StreamEvent::Type::kEnd) outcome.end = *event;
  }
  return outcome;
}

inline Outcome run(const std::shared_ptr<Session>& session, StreamOptions options = {}) {
  const auto stream = take(GenerationStream::open(session, std::move(options)));
  return read(*stream);
}

inline StreamOptions generating(int64_t max_tokens, float temperature = 0, uint64_t seed = 1) {
  StreamOptions options;
  options.max_tokens = max_tokens;
  if (temperature > 0) {
    SamplerStep step;
    step.value = temperature;
    options.sampling.steps = {step};
    options.sampling.greedy = false;
  }
  options.sampling.seed = seed;
  options.ignore_eos = true;
  return options;
}

struct Position {
  int64_t tokens = 0, pending = 0;
  bool operator==(const Position&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Position& p) {
  return out << p.tokens << " tokens, " << p.pending << " pending";
}
inline Position position(const Session& session) {
  Position p;
  expect_ok(session.count_tokens(&p.tokens, &p.pending));
  return p;
}

inline SessionStats stats(const Session& session) {
  SessionStats s;
  expect_ok(session.stats(&s));
  return s;
}

// The store's counts are what a look at each record finds. Prefetched records may still be arriving for a moment.
inline void expect_counted(Session& session) {
  const auto work = take(session.begin_work());
  const ChunkStore& kv = work.contents().kv();
  const auto counts = [](const ChunkStoreStats& s) {
    return std::array{s.n_records, s.n_resident, s.n_in_snapshot, s.full_bytes, s.narrow_bytes};
  };
  for (int i = 0; i < 1000 && counts(kv.stats()) != counts(kv.counted()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(counts(kv.stats()), counts(kv.counted()));
}

// What the sessions of the model's device hold of its memory, and others that were let go no more: the engine may keep
// one for a moment after its stream has ended.
inline void expect_held(const Model& model, int64_t bytes) {
  const auto held = [&] { return model.residency->budget()->used(); };
  for (int i = 0; i < 1000 && held() != bytes; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(held(), bytes);
}

inline Logits kept_logits(const Session& session, int64_t first, int64_t n) {
  Logits out(static_cast<size_t>(n) * static_cast<size_t>(vocab_size(session.model())));
  expect_ok(session.logits(first, n, out.data()));
  return out;
}

inline Logits last_logits(const Session& session) { return kept_logits(session, -1, 1); }

// Logits of all positions; the tokens come in parts of `step` (0: at once), each fed and processed by its own stream.
inline Logits all_logits(const std::shared_ptr<Model>& model, const SessionOptions& options, const Tokens& tokens,
                         size_t step = 0) {
  const auto session = make_session(model, options);
  Logits logits;
  if (step == 0) step = tokens.size();
  for (size_t first = 0; first < tokens.size(); first += step) {
    const size_t n = std::min(step, tokens.size() - first);
    expect_ok(session->feed_tokens(std::span(tokens).subspan(first, n)));
    StreamOptions keep;
    keep.keep_logits = true;
    expect_ok(run(session, keep).status);
    const auto part = kept_logits(*session, static_cast<int64_t>(first), static_cast<int64_t>(n));
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::span<const float> row_of(const Logits& logits, const Model& model, int64_t row) {
  const auto vocab = static_cast<size_t>(vocab_size(model));
  return std::span(logits).subspan(static_cast<size_t>(row) * vocab, vocab);
}

}  // namespace quire::test
