// Whole models on the emulated device, or on a GPU, beside the CPU backend: every strategy, through sessions.
//
// How near they must be. The device rounds activations, queries and keys to bf16 (8 bits) where the CPU has f32, at
// some ten places a layer; each is an independent relative error of up to 2^-9, and the residual stream, to which
// layers add, stays f32. So logits differ by a few times 2^-9 of their usual size: 2^-5 of the root mean square of a
// row's logits would be many such errors in one direction. A wrong distance, mask or head is an error of the logits'
// own size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>

#include "lib/model/forward_pass.h"
#include "lib/model/strategy_context.h"
#include "tests/gpu/device_model.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/source_path.h"
#include "tests/unit/kv/spill_directory.h"
#include "tests/unit/model/temporary_folder.h"

namespace quire::test {
namespace {

constexpr double kNear = 1.0 / 64;
// With old text in int4, whose codes are a 15th of a group's range apart: where the CPU's number lies near the middle
// between two codes, the device's may be rounded to the other one, which is a whole step away.
constexpr double kNearInt4 = 4 * kNear;

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

void expect_near(const Logits& expected, const Logits& got, const Model& model, double near = kNear) {
  const Distance d = distance(expected, got, model);
  EXPECT_LE(d.all, near);
  EXPECT_LE(d.worst, 3 * near);
}

// Where chunks are chosen by scores that are nearly equal, the device may choose others, and rows that see other keys
// are others. Of those there are few.
void expect_mostly_near(const Logits& expected, const Logits& got, const Model& model, double near) {
  const auto vocab = static_cast<size_t>(vocab_size(model));
  ASSERT_EQ(expected.size(), got.size());
  size_t n_far = 0;
  for (size_t row = 0; row + vocab <= expected.size(); row += vocab) {
    const auto of = [&](const Logits& all) {
      return Logits(all.begin() + static_cast<int64_t>(row), all.begin() + static_cast<int64_t>(row + vocab));
    };
    const double d = distance(of(expected), of(got), model).all;
    n_far += d <= 3 * near ? 0 : 1;
    EXPECT_LE(d, 0.5) << row / vocab;
  }
  EXPECT_LE(n_far, expected.size() / vocab / 8);
}

struct StrategyCase {
  std::string name;
  std::string strategy;
  std::string model = "short_128";
  bool chooses = false;    // chunks, layer by layer
  bool everywhere = true;  // in the tests of snapshots and of files too
  OldText old{};
};
void PrintTo(const StrategyCase& c, std::ostream* out) { *out << c.strategy << " on " << c.model; }

constexpr OldText kOldInt8{.type = ElementType::kInt8, .after = 0};
constexpr OldText kOldInt4{.type = ElementType::kInt4, .after = 40};

double near_with(const OldText& old) { return old.narrows() && old.type == ElementType::kInt4 ? kNearInt4 : kNear; }

SessionOptions options_for(const std::string& strategy) {
  SessionOptions options = with_strategy(strategy);
  options.prefill_block = 61;
  options.expected_tokens = 300;
  return options;
}

SessionOptions options_for(const StrategyCase& c) {
  SessionOptions options = options_for(c.strategy);
  options.old_text = c.old;
  return options;
}

class OnDevice : public testing::TestWithParam<StrategyCase> {
 protected:
  void expect_alike(const Logits& expected, const Logits& got, const Model& model) const {
    (GetParam().chooses ? expect_mostly_near : expect_near)(expected, got, model, near_with(GetParam().old));
  }
};

// Of tokens that are fed to a session that has read `first`: in odd blocks, and the last ones each alone.
Logits read_on(Session& session, const std::shared_ptr<Session>& shared, std::span<const int32_t> tokens,
               size_t n_single) {
  Logits all;
  const auto feed = [&](std::span<const int32_t> part) {
    const int64_t first = position(session).tokens;
    expect_ok(session.feed_tokens(part));
    StreamOptions keep;
    keep.keep_logits = true;
    expect_ok(run(shared, keep).status);
    const Logits logits = kept_logits(session, first, static_cast<int64_t>(part.size()));
    all.insert(all.end(), logits.begin(), logits.end());
  };
  feed(tokens.first(tokens.size() - n_single));
  for (size_t i = tokens.size() - n_single; i < tokens.size(); ++i) feed(tokens.subspan(i, 1));
  return all;
}
Logits read_on(const std::shared_ptr<Session>& session, std::span<const int32_t> tokens, size_t n_single = 0) {
  return read_on(*session, session, tokens, n_single);
}

TEST_P(OnDevice, LogitsAreNearThoseOfTheCpu) {
  const auto cpu = load(GetParam().model, 1), device = on_device(GetParam().model);
  ASSERT_THAT(device->llama->backend().name(), testing::StartsWith("cuda:0/"));
  const SessionOptions options = options_for(GetParam());
  const Tokens tokens = random_tokens(*cpu, 171);
  const auto session = make_session(device, options), of_cpu = make_session(cpu, options);
  expect_alike(read_on(of_cpu, tokens, 4), read_on(session, tokens, 4), *cpu);
  EXPECT_EQ(stats(*session).kv_narrow_bytes > 0, stats(*of_cpu).kv_narrow_bytes > 0);
}

// The device, of few processors, which counts attention of wide tiles.
std::atomic<int> n_wide = 0;
const cuda::DeviceApi& small_device() {
  static const cuda::DeviceApi api = [] {
    cuda::DeviceApi of = test_device();
    of.describe = [](int device, cuda::DeviceFacts* out) {
      const int error = test_device().describe(device, out);
      out->n_processors = 1;
      return error;
    };
    of.attention = [](cuda::Stream stream, const cuda::Attention& args) {
      n_wide += args.wide ? 1 : 0;
      return test_device().attention(stream, args);
    };
    return of;
  }();
  return api;
}

TEST_P(OnDevice, AttendsInWideTiles) {
  cuda::DeviceFacts facts;
  ASSERT_EQ(test_device().describe(0, &facts), 0);
  if (!facts.warpgroups) GTEST_SKIP() << "the device has no wgmma";
  if (GetParam().chooses) GTEST_SKIP() << "what is selected is in other tiles";
  if (GetParam().model == "gemma3_large_heads") GTEST_SKIP() << "heads of more than 128 are in other tiles";
  const auto cpu = load(GetParam().model, 1), device = on_device(GetParam().model, 0, small_device());
  const SessionOptions options = options_for(GetParam());
  const Tokens tokens = random_tokens(*cpu, 171);
  const auto session = make_session(device, options), of_cpu = make_session(cpu, options);
  n_wide = 0;
  expect_alike(read_on(of_cpu, tokens, 2), read_on(session, tokens, 2), *cpu);
  EXPECT_GT(n_wide, 0);
}

// What either has computed the other one goes on with: records and representations in their neutral form.
TEST_P(OnDevice, SnapshotsGoOnWithTheOther) {
  if (!GetParam().everywhere) GTEST_SKIP() << "as another one";
  const auto cpu = load(GetParam().model, 1), device = on_device(GetParam().model);
  const Tokens tokens = random_tokens(*cpu, 107);
  const std::span<const int32_t> text(tokens);
  const TemporaryFolder folder;
  const auto path = folder.path() + "/session.quire";
  const SessionOptions options = options_for(GetParam());
  const auto whole = make_session(cpu, options);
  (void)read_on(whole, text.first(83));
  const Logits expected = read_on(whole, text.subspan(83), 2);
  for (const auto& [from, to] : {std::pair{cpu, device}, {device, cpu}}) {
    const auto saved = make_session(from, options);
    (void)read_on(saved, text.first(83));
    expect_ok(saved->save(path, {}));
    const auto loaded = take(Session::load(to, path, {}));
    ASSERT_EQ(position(*loaded), (Position{83, 0}));
    expect_alike(expected, read_on(loaded, text.subspan(83), 2), *cpu);
  }
}

// Records that leave memory and come back, where it has room for a part of them: attention goes by windows of chunks.
TEST_P(OnDevice, SpillsToAFile) {
  if (!GetParam().everywhere) GTEST_SKIP() << "as another one";
  const auto device = on_device(GetParam().model);
  SessionOptions options = options_for(GetParam());
  if (options.strategy == "full") options.strategy = "full(kv_chunk=16)";
  options.prefill_block = 24;
  const Tokens tokens = random_tokens(*device, 130);
  const auto in_memory = make_session(device, options);
  const Logits expected = read_on(in_memory, tokens, 2);
  const SpillDirectory spill;
  options.spill_directory = spill.path();
  options.device_budget_bytes = stats(*in_memory).kv_bytes_peak * 4 / 5;
  options.kv_budget_bytes = 1;  // of the host: everything that leaves goes on to the file
  const auto spilled = make_session(device, options);
  expect_alike(expected, read_on(spilled, tokens, 2), *device);
  const SessionStats now = stats(*spilled);
  EXPECT_LE(now.kv_bytes_peak, options.device_budget_bytes);
  EXPECT_GT(now.kv_file_bytes_written, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, OnDevice,
    testing::Values(
        StrategyCase{"full", "full"}, StrategyCase{"gqa", "full", "gqa_longrope", false, false},
        StrategyCase{"biases", "full", "gqa_biases_bf16", false, false}, StrategyCase{"heads24", "full", "mha_dynamic"},
        StrategyCase{"window", "full", "mistral_window_64", false, false},
        StrategyCase{"window_layers", "dca", "qwen2_window_layers", false, false},
        StrategyCase{"window_layers_longheads", "longheads(chunk=16, chunks=4)", "qwen2_window_layers", true, false},
        StrategyCase{"qk_norm", "full", "qwen3", false, false}, StrategyCase{"nope", "full", "smollm3_yarn"},
        StrategyCase{"multipliers", "full", "granite"}, StrategyCase{"gemma3", "dca", "gemma3", false, false},
        StrategyCase{"large_heads", "full", "gemma3_large_heads"},
        StrategyCase{"large_heads_longheads", "longheads(chunk=16, chunks=4)", "gemma3_large_heads", true, false},
        StrategyCase{"large_heads_int8", "full(kv_chunk=16)", "gemma3_large_heads", false, false, kOldInt8},
        StrategyCase{"part_of_heads", "full", "phi3_longrope"},
        StrategyCase{"part_of_heads_longheads", "longheads(chunk=16, chunks=4)", "phi3_longrope", true, false},
        StrategyCase{"f16", "full", "mha_yarn_f16", false, false}, StrategyCase{"dca", "dca"},
        StrategyCase{"dca_small", "dca(chunk=40, cap=55)", "short_128", false, false},
        StrategyCase{"rerope", "rerope(window=40)"}, StrategyCase{"self_extend", "self_extend(group=4, window=40)"},
        StrategyCase{"lm_infinite", "lm_infinite(sinks=4, recent=60)", "short_128", false, false},
        StrategyCase{"streaming_llm", "streaming_llm(sinks=3, recent=50)"},
        StrategyCase{"s2", "s2(group=32, kv_chunk=16)", "text_256"},
        StrategyCase{"scca_fixed", "scca_fixed(chunk=32, kv_chunk=16)", "text_256"},
        StrategyCase{"scca_flow", "scca_flow(chunks=4, kv_chunk=16)", "text_256", false, false},
        StrategyCase{"sda", "sda(dilation=3)", "short_128", false, false},
        StrategyCase{"beacon", "beacon(ratio=2, kv_chunk=16)", kWithBeacons},
        StrategyCase{"ntk", "full + ntk(factor=4)", "short_128", false, false},
        StrategyCase{"longheads", "longheads(chunk=16, chunks=4)", "short_128", true},
        StrategyCase{"longheads_dca", "longheads(chunk=16, chunks=4, positions=dca, dca_chunk=60)", "short_128", true},
        StrategyCase{"first_layer", "longheads(chunk=16, chunks=4, select=first_layer)", "short_128", false, false},
        // A GPU has chosen another one of two nearly equal chunks; the emulation chooses as the CPU.
        StrategyCase{"dca_topk", "dca_topk(chunk=16, chunks=4, one_in=5, dca_chunk=64, reading=selected)", "short_128",
                     wants_gpu()},
        StrategyCase{"int8", "full(kv_chunk=16)", "short_128", false, true, kOldInt8},
        StrategyCase{"int8_rerope", "rerope(window=40, kv_chunk=16)", "short_128", false, false, kOldInt8},
        StrategyCase{"int8_beacon", "beacon(ratio=2, kv_chunk=16)", kWithBeacons, false, false, kOldInt8},
        StrategyCase{"int4_gqa", "full(kv_chunk=16)", "gqa_longrope", false, false, kOldInt4},
        StrategyCase{"int4_dca", "dca(kv_chunk=16)", "short_128", false, true, kOldInt4},
        StrategyCase{"int4_longheads", "longheads(chunk=16, chunks=4)", "short_128", true, true, kOldInt4}),
    [](const auto& info) { return info.param.name; });

class DeviceSessions : public testing::Test {};

// What only the emulation can show: it counts calls, and fails when it is told to.
class EmulatedDeviceSessions : public testing::Test {
 protected:
  void SetUp() override {
    if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  }
};

// Several sequences in one step: each has the logits that the CPU gives its tokens.
TEST_F(DeviceSessions, ShareTheirSteps) {
  const auto cpu = load("short_128", 1), device = on_device("short_128");
  const char* const strategies[] = {"full", "dca(chunk=40, cap=55)", "streaming_llm(sinks=3, recent=50)"};
  std::vector<std::shared_ptr<Session>> sessions;
  std::vector<std::shared_ptr<GenerationStream>> streams;
  constexpr int64_t kNew = 12;
  for (uint32_t s = 0; s < 3; ++s) {
    sessions.push_back(make_session(device, options_for(strategies[s])));
    expect_ok(sessions.back()->feed_tokens(random_tokens(*device, 40 + 33 * s, s)));
  }
  for (const auto& session : sessions) {
    StreamOptions generate = generating(kNew);
    generate.keep_logits = true;
    streams.push_back(take(GenerationStream::open(session, generate)));
  }
  for (uint32_t s = 0; s < 3; ++s) {
    SCOPED_TRACE(strategies[s]);
    const Outcome outcome = read(*streams[s]);
    expect_ok(outcome.status);
    ASSERT_EQ(outcome.tokens.size(), static_cast<size_t>(kNew));
    Tokens text = random_tokens(*device, 40 + 33 * s, s);
    text.insert(text.end(), outcome.tokens.begin(), outcome.tokens.end() - 1);
    const Logits expected = read_on(make_session(cpu, options_for(strategies[s])), text);
    expect_near(expected, kept_logits(*sessions[s], 0, static_cast<int64_t>(text.size())), *cpu);
  }
}

// The same steps give the same bits, in whichever order threads run.
TEST_F(DeviceSessions, StepsGiveTheSameBits) {
  const auto device = on_device("short_128");
  const Tokens tokens = random_tokens(*device, 90);
  Logits first;
  for (const emulation::Schedule schedule : {emulation::Schedule::kAhead, emulation::Schedule::kReverse}) {
    emulation::set_launch_options({.schedule = schedule, .n_threads = 2});
    const Logits logits = read_on(make_session(device, options_for("longheads(chunk=16, chunks=4)")), tokens, 2);
    if (first.empty()) first = logits;
    EXPECT_TRUE(same_bits(first, logits));
  }
}

// A step of a dense strategy waits for the device once, however many layers there are, and allocates nothing when it is
// as long as the one before.
TEST_F(EmulatedDeviceSessions, StepsWaitOnce) {
  const auto device = on_device("smollm3_yarn");  // four layers
  for (const char* strategy : {"full", "longheads(chunk=16, chunks=4)"}) {
    SCOPED_TRACE(strategy);
    const auto session = make_session(device, options_for(strategy));
    expect_ok(session->feed_tokens(random_tokens(*device, 97)));  // the answer is in the same chunk
    const auto stream = take(GenerationStream::open(session, generating(14)));
    (void)read(*stream, 6);
    const emulation::DeviceUse before = emulation::device_use();
    (void)read(*stream);
    const emulation::DeviceUse after = emulation::device_use();
    EXPECT_LE(after.n_waits - before.n_waits, 9);
    EXPECT_EQ(after.n_allocations, before.n_allocations);
  }
}

// Two runtimes, each with a device of its own, whose sessions are made and fed by one thread and compute at the same
// time. The emulation refuses launches to streams that are not of the device that a thread has chosen, and ends the
// program where they are used for anything else.
TEST_F(EmulatedDeviceSessions, TwoDevicesServeOneProcess) {
  std::shared_ptr<Model> models[2];
  std::shared_ptr<Session> sessions[2];
  std::shared_ptr<GenerationStream> streams[2];
  for (int i = 0; i < 2; ++i) models[i] = on_device("short_128", i);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(models[i]->llama->backend().name(), testing::StartsWith("cuda:" + std::to_string(i)));
    sessions[i] = make_session(models[i], options_for("dca_topk(chunk=16, chunks=4, dca_chunk=64)"));
    expect_ok(sessions[i]->feed_tokens(random_tokens(*models[i], 90)));
  }
  for (int i = 0; i < 2; ++i) streams[i] = take(GenerationStream::open(sessions[i], generating(10)));
  Tokens tokens[2];
  while (tokens[0].size() < 10) {
    for (int i = 0; i < 2; ++i) {
      const Tokens more = read(*streams[i], 1).tokens;
      tokens[i].insert(tokens[i].end(), more.begin(), more.end());
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  for (int i = 0; i < 2; ++i) expect_ok(read(*streams[i]).status);
  EXPECT_TRUE(same_bits(last_logits(*sessions[0]), last_logits(*sessions[1])));
}

// "everything" changes embeddings, norms and the head too, and makes of an error of 2^-8 one of several times that.
TEST_F(DeviceSessions, AdaptersActAsOnTheCpu) {
  const auto cpu = load("text_256", 1), device = on_device("text_256");
  const Tokens tokens = random_tokens(*cpu, 90);
  for (const auto& [name, scale] : {std::pair{"attention", 1.0}, {"everything", 0.1}}) {
    Logits logits[2];
    for (const auto& model : {cpu, device}) {
      const std::string path = source_path("tests/golden/adapters/") + name;
      SessionOptions options = options_for("full");
      options.adapters = {{take(load_adapter(model, path)), scale}};
      logits[model == cpu ? 0 : 1] = read_on(make_session(model, options), tokens, 3);
    }
    const Logits plain = read_on(make_session(cpu, options_for("full")), tokens, 3);
    EXPECT_GT(distance(plain, logits[0], *cpu).all, 4 * kNear);
    expect_near(logits[0], logits[1], *cpu);
  }
}

// Where there is a cuBLASLt it multiplies blocks of a text: weights, heads and adapters, with rows that begin wherever
// a block of the text does.
TEST_F(EmulatedDeviceSessions, MultiplyByCublas) {
  for (const auto& [name, adapter] :
       {std::pair{"short_128", ""}, {"gqa_biases_bf16", ""}, {"text_256", "attention"}, {"qwen3", ""}}) {
    SCOPED_TRACE(name);
    const auto cpu = load(name, 1), device = on_device(name, 0, emulation::device_api_with_blas());
    const Tokens tokens = random_tokens(*cpu, 171);
    Logits logits[2];
    const int64_t before = emulation::device_use().n_blas_products;
    for (const auto& model : {cpu, device}) {
      SessionOptions options = options_for("full");
      options.prefill_block = 91;  // more than the plugin's own product multiplies at once
      if (*adapter != 0) {
        const std::string path = source_path("tests/golden/adapters/") + adapter;
        options.adapters = {{take(load_adapter(model, path)), 1.0}};
      }
      logits[model == cpu ? 0 : 1] = read_on(make_session(model, options), tokens, 3);
    }
    expect_near(logits[0], logits[1], *cpu);
    EXPECT_GE(emulation::device_use().n_blas_products, before + 16);
  }
}

// Where an answer looks: passages with their shares.
TEST_F(DeviceSessions, CitesAsTheCpuDoes) {
  for (const StrategyCase& c :
       {StrategyCase{"full", "full"}, StrategyCase{"beacon", "beacon(ratio=4, kv_chunk=16)", kWithBeacons}}) {
    SCOPED_TRACE(c.strategy);
    std::vector<Passage> passages[2];
    const auto cpu = load(c.model, 1), device = on_device(c.model);
    for (const auto& model : {cpu, device}) {
      const auto session = make_session(model, options_for(c.strategy));
      expect_ok(session->feed_tokens(random_tokens(*model, 120)));
      StreamOptions cite = generating(1);  // of the prompt's last token
      cite.cite = true;
      cite.cite_end = 100;
      expect_ok(run(session, cite).status);
      std::vector<int64_t> ids;
      expect_ok(session->passages(-1, 0, 1000, &passages[model == cpu ? 0 : 1], &ids));
    }
    ASSERT_FALSE(passages[0].empty());
    ASSERT_EQ(passages[0].size(), passages[1].size());
    for (size_t p = 0; p < passages[0].size(); ++p) EXPECT_NEAR(passages[0][p].share, passages[1][p].share, 0.02);
  }
}

// Chunks of an edited text come to their new places: keys are turned on the device.
TEST_F(DeviceSessions, MovesChunksOfEditedTexts) {
  const auto cpu = load("short_128", 1), device = on_device("short_128");
  for (const OldText& old_text : {OldText(), kOldInt8, kOldInt4}) {
    SCOPED_TRACE(old_text.narrows() ? element_name(old_text.type) : "none");
    Logits logits[2];
    for (const auto& model : {cpu, device}) {
      const Tokens old = random_tokens(*model, 150);
      Tokens now = random_tokens(*model, 37, 5);
      now.insert(now.end(), old.begin(), old.end());
      SessionOptions options = options_for("full(kv_chunk=16)");
      options.old_text = old_text;
      const auto session = make_session(model, options);
      expect_ok(session->feed_tokens(old));
      expect_ok(run(session).status);
      EditOptions edit;
      edit.reuse = EditReuse::kApproximate;
      EditResult result;
      expect_ok(session->edit_tokens(now, edit, &result));
      EXPECT_GT(result.n_moved, 64);
      expect_ok(run(session).status);
      logits[model == cpu ? 0 : 1] = last_logits(*session);
    }
    expect_near(logits[0], logits[1], *cpu, near_with(old_text));
  }
}

// ---- what it refuses, and what goes wrong

Status session_error(const std::shared_ptr<Model>& model, const SessionOptions& options) {
  EXPECT_EQ(Session::check(*model, options).code(), Session::create(model, options).status().code());
  return Session::create(model, options).status();
}

TEST_F(DeviceSessions, RefuseByNameWhatTheDeviceCannot) {
  const auto device = on_device("short_128");
  SessionOptions wide = options_for("full");
  wide.kv_type = ElementType::kF32;
  EXPECT_EQ(session_error(device, wide).code(), Code::kUnsupported);
  EXPECT_THAT(session_error(device, wide).message(), testing::HasSubstr("f32"));

  const Backend& backend = device->llama->backend();
  BackendNeeds needs{{.n_kv_heads = 2, .head_dim = 64, .chunk = 256}, 4, {.chunk = 256, .count = 8}, {}};
  expect_ok(backend.can_serve(needs));
  needs.geometry.chunk = needs.selection.chunk = 32768;
  EXPECT_THAT(backend.can_serve(needs).message(), testing::HasSubstr("32768"));
  needs.selection.representation = ChunkSelection::Representation::kMean;
  expect_ok(backend.can_serve(needs));
  needs.geometry.head_dim = 256;
  expect_ok(backend.can_serve(needs));
  needs.geometry.head_dim = 258;
  EXPECT_THAT(backend.can_serve(needs).message(), testing::HasSubstr("258"));
}

// Whatever fails in a step, at whichever place: the stream ends with a status, the session stands where it stood, and
// goes on when nothing fails any more.
TEST_F(EmulatedDeviceSessions, FailedStepsLeaveTheSession) {
  using Faults = emulation::DeviceFaults;
  const auto device = on_device("short_128");
  const Tokens tokens = random_tokens(*device, 60), more = random_tokens(*device, 9, 2);
  const Tokens whole = random_tokens(*device, 60);
  const auto expected = [&] {
    const auto session = make_session(device, options_for("dca(chunk=40, cap=55)"));
    (void)read_on(session, tokens);
    return read_on(session, more);
  }();
  struct Failure {
    int64_t Faults::*which;
    Code code;
  };
  for (const Failure& f : {Failure{&Faults::allocation, Code::kOutOfMemory},
                           {&Faults::launch, Code::kDevice},
                           {&Faults::kernel, Code::kDevice}}) {
    int n_failed = 0;
    for (int64_t n = 1; n < 40; n += n < 8 ? 1 : 9) {
      // Others would have chunks that can leave or be shared: where memory is allocated must not depend on when the
      // engine lets the last session go.
      expect_held(*device, 0);
      const auto session = make_session(device, options_for("dca(chunk=40, cap=55)"));
      (void)read_on(session, tokens);
      const Position before = position(*session);
      expect_ok(session->feed_tokens(more));
      if (f.code == Code::kOutOfMemory) {  // a queue that failed is made anew, with memory of its own
        emulation::set_device_faults({.kernel = 1});
        EXPECT_FALSE(run(session).status.ok());
      }
      Faults faults;
      faults.*f.which = n;
      emulation::set_device_faults(faults);
      StreamOptions keep;
      keep.keep_logits = true;
      const Status status = run(session, keep).status;
      emulation::set_device_faults({});
      if (status.ok()) continue;  // there were not so many calls
      ++n_failed;
      EXPECT_EQ(status.code(), f.code) << status.message();
      EXPECT_EQ(position(*session).tokens, before.tokens);
      expect_ok(run(session, keep).status);
      expect_near(expected, kept_logits(*session, before.tokens, static_cast<int64_t>(more.size())), *device);
    }
    SCOPED_TRACE(n_failed);
    EXPECT_GT(n_failed, f.which == &Faults::launch || f.which == &Faults::kernel ? 4 : 0);
  }
}

// What the records of all sequences of a step wait for is one event.
TEST_F(EmulatedDeviceSessions, AStepOfManySequencesRecordsNoMoreEvents) {
  const auto device = on_device("short_128");
  const LlamaModel& model = *device->llama;
  const auto strategy = take(make_strategy("full", strategy_context(model.config(), {})));
  const Ropes ropes = take(model.create_ropes(*strategy));
  const Tokens tokens = random_tokens(*device, 20);
  const auto n_recorded = [&](size_t n_sequences) {
    ForwardPass pass(model);
    std::vector<std::unique_ptr<ChunkStore>> stores;
    std::vector<Sequence> sequences(n_sequences);
    for (Sequence& s : sequences) {
      stores.push_back(take(ChunkStore::create(model.backend(), model.kv_geometry(*strategy, ElementType::kF16),
                                               model.config().n_layers, {})));
      expect_ok(stores.back()->reserve(0, 20));
      s.tokens = tokens;
      s.strategy = strategy.get();
      s.ropes = &ropes;
      s.kv = stores.back().get();
    }
    const int64_t before = emulation::device_use().n_recorded;
    HiddenStates states = take(pass.forward(sequences, nullptr));
    const int64_t n = emulation::device_use().n_recorded - before;
    expect_ok(pass.finish(states));
    return n;
  };
  EXPECT_EQ(n_recorded(1), 1);
  EXPECT_EQ(n_recorded(4), 1);
}

// As where a system allows little memory to be pinned: copies are slower, and the numbers are the same.
TEST_F(EmulatedDeviceSessions, NoMemoryNeedBePinned) {
  const auto read = [](const std::shared_ptr<Model>& device) {
    return read_on(make_session(device, options_for("longheads(chunk=16, chunks=4)")), random_tokens(*device, 130), 4);
  };
  const Logits expected = read(on_device("short_128"));
  emulation::set_device_faults({.pins_nothing = true});
  const Logits got = read(on_device("short_128"));
  emulation::set_device_faults({});
  EXPECT_EQ(got, expected);
}

// A context of CUDA in which a kernel failed never works again. Every call then says so, nothing waits or ends the
// process, and everything can be closed; what needs no device goes on.
TEST_F(EmulatedDeviceSessions, ADeviceThatFailsForGoodFailsEveryCall) {
  // Budgets with which some records are in the host's memory.
  const std::pair<const char*, int64_t> budgets[] = {{"full(kv_chunk=16)", 40000},
                                                     {"longheads(chunk=16, chunks=4)", 140000}};
  for (const auto& [strategy, budget] : budgets) {
    SCOPED_TRACE(strategy);
    const auto cpu = load("short_128", 1);
    auto device = on_device("short_128");
    SessionOptions options = options_for(strategy);
    options.device_budget_bytes = budget;
    auto session = make_session(device, options), other = make_session(device, options_for(strategy));
    const Tokens tokens = random_tokens(*device, 150);
    (void)read_on(session, tokens);
    (void)read_on(other, tokens);
    EXPECT_GT(stats(*session).kv_host.n_records, 0);
    const Position before = position(*session);
    emulation::set_device_faults({.kernel = 60, .for_good = true});
    const Status failure = run(session, generating(40)).status;
    EXPECT_EQ(failure.code(), Code::kDevice);
    EXPECT_NE(failure.message().find("unspecified launch failure"), std::string::npos) << failure.message();
    EXPECT_GE(position(*session).tokens, before.tokens);
    for (const auto& one : {session, other}) {
      EXPECT_EQ(run(one, generating(2)).status.code(), Code::kDevice);
      auto fork = one->fork();
      if (fork.ok()) {
        EXPECT_FALSE(run(*fork, generating(1)).status.ok());
      }
    }
    EXPECT_EQ(Session::create(device, options_for(strategy)).status().code(), Code::kDevice);
    expect_ok(run(make_session(cpu, options_for("full")), generating(0)).status);
    session.reset();
    other.reset();
    device.reset();
    // The engine may let the last session go a moment later.
    const auto held = [] { return emulation::device_use().n_streams - emulation::device_use().n_pools; };
    for (int i = 0; i < 1000 && held() != 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    emulation::set_device_faults({});
  }
  // No model of this test or of one before it is left.
  EXPECT_EQ(emulation::device_use().bytes, 0);
  EXPECT_EQ(emulation::device_use().n_streams, emulation::device_use().n_pools);
  EXPECT_EQ(emulation::device_use().n_events, 0);
  EXPECT_EQ(emulation::device_use().n_graphs, 0);
  EXPECT_EQ(emulation::device_use().n_graphs_in_the_making, 0);
}

TEST_F(DeviceSessions, CancelledStreamsEnd) {
  const auto device = on_device("short_128");
  const auto session = make_session(device, options_for("full"));
  expect_ok(session->feed_tokens(random_tokens(*device, 60)));
  const auto stream = take(GenerationStream::open(session, generating(1000)));
  (void)read(*stream, 3);
  expect_ok(stream->cancel());
  (void)read(*stream);
  expect_ok(run(session, generating(2)).status);
}

// Memory that cannot be had while a model is loaded: an error, and all that was allocated is given back.
TEST_F(EmulatedDeviceSessions, WhereTheModelDoesNotFitAutoTakesTheCpu) {
  static const cuda::Plugin plugin{.api = &emulation::device_api(), .n_devices = 1, .obstacle = {}, .path = {}};
  const std::string path = source_path("tests/golden/models/short_128");
  const auto load_on = [&](const char* device, int64_t fault) {
    RuntimeOptions options;
    options.n_threads = 1;
    options.find_cuda = [&]() -> const cuda::Plugin& { return plugin; };
    ModelLoadOptions load;
    load.device = device;
    emulation::set_device_faults({.allocation = fault});
    auto model = load_model(make_runtime(std::move(options)), path, load);
    emulation::set_device_faults({});
    return model;
  };
  EXPECT_EQ(take(load_on("auto", 0))->device, "cuda:0");
  EXPECT_EQ(load_on("cuda", 9).status().code(), Code::kOutOfMemory);
  const auto model = take(load_on("auto", 9));
  EXPECT_EQ(model->device, "cpu");
  EXPECT_THAT(model->device_reason, testing::StartsWith("chosen because the model does not fit cuda:0: "));
}

TEST_F(EmulatedDeviceSessions, SayWhyCublasIsNotUsed) {
  static cuda::DeviceApi lacking = emulation::device_api();
  lacking.open_blas = [](char* why, size_t size) {
    std::snprintf(why, size, "libcublasLt.so.13: no such file");
    return false;
  };
  for (const bool lacks : {true, false}) {
    const cuda::DeviceApi& api = lacks ? lacking : emulation::device_api_with_blas();
    const cuda::Plugin plugin{.api = &api, .n_devices = 1, .obstacle = {}, .path = {}};
    std::string warnings;
    RuntimeOptions options;
    options.n_threads = 1;
    options.find_cuda = [&]() -> const cuda::Plugin& { return plugin; };
    options.log = Log([](void* all, int32_t, const char* line,
                         size_t length) { static_cast<std::string*>(all)->append(line, length); },
                      &warnings, LogLevel::kWarning);
    const std::string path = source_path("tests/golden/models/short_128");
    const auto model = take(load_model(make_runtime(std::move(options)), path, {}));
    const std::string why =
        "it reads long texts more slowly than with cuBLASLt, which cannot be used: libcublasLt.so.13: no such file";
    EXPECT_EQ(model->device_reason, "chosen because it is the first usable device" + (lacks ? "; " + why : ""));
    EXPECT_EQ(warnings, lacks ? "cuda:0: " + why : "");
  }
}

// The engine may hold a model for a moment after its last handle is gone.
emulation::DeviceUse wait_until_released() {
  const auto held = [] {
    const emulation::DeviceUse use = emulation::device_use();
    return use.bytes > 0 || use.host_bytes > 0 || use.n_streams > use.n_pools || use.n_events > 0;
  };
  for (int i = 0; i < 1000 && held(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return emulation::device_use();
}

TEST_F(EmulatedDeviceSessions, FailedLoadsGiveEverythingBack) {
  (void)on_device("short_128");
  const emulation::DeviceUse before = wait_until_released();
  EXPECT_EQ(before.bytes, 0);
  int n_failed = 0;
  for (int64_t n = 1; n < 100; n += 5) {
    emulation::set_device_faults({.allocation = n});
    RuntimeOptions options;
    options.n_threads = 1;
    options.wrap_backend = on_test_device();
    ModelLoadOptions loading;
    loading.device = "cpu";
    const auto model =
        load_model(make_runtime(std::move(options)), source_path("tests/golden/models/short_128"), loading);
    emulation::set_device_faults({});
    if (model.ok()) continue;
    ++n_failed;
    EXPECT_EQ(model.status().code(), Code::kOutOfMemory) << model.status().message();
  }
  EXPECT_GT(n_failed, 2);
  const emulation::DeviceUse after = wait_until_released();
  EXPECT_EQ(after.bytes, 0);
  EXPECT_EQ(after.host_bytes, before.host_bytes);
  EXPECT_EQ(after.n_streams, before.n_streams);
  EXPECT_EQ(after.n_events, before.n_events);
}

}  // namespace
}  // namespace quire::test
