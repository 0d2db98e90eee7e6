// What is planned is what is then taken: of weights, and of a session with beacons.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/model/memory_plan.h"
#include "tests/source_path.h"
#include "tests/unit/model/temporary_folder.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

class BeaconPlan : public testing::Test {
 protected:
  MemoryRequest request(const std::string& strategy, int64_t n_tokens, int64_t block) const {
    MemoryRequest request;
    const std::string golden = source_path("tests/golden/");
    request.path = golden + "models/text_256";
    request.beacon_directory = golden + "beacon/plugin";
    request.strategy = strategy;
    request.n_tokens = n_tokens;
    request.prefill_block = block;
    return request;
  }
  Result<MemoryPlan> plan(const MemoryRequest& request) const { return plan_memory(model_->llama->backend(), request); }
  // A session that reads the text, and its statistics; the stream may fail.
  std::pair<Status, SessionStats> read(const MemoryRequest& request) const {
    SessionOptions options = with_strategy(request.strategy);
    options.prefill_block = request.prefill_block;
    options.kv_budget_bytes = request.kv_budget_bytes;
    if (request.spill) options.spill_directory = testing::TempDir();
    const auto session = make_session(model_, options);
    expect_ok(session->feed_tokens(random_tokens(*model_, request.n_tokens)));
    const Status status = run(session).status;
    return {status, stats(*session)};
  }

  std::shared_ptr<Model> model_ = load(kWithBeacons);
};

const std::vector<std::string> kStrategies = {
    "beacon(ratio=4, kv_chunk=16)", "beacon(window=48, stride=16, ratio=2, kv_chunk=16)",
    "beacon(sequence=x0.x4.x0.x8, kv_chunk=16)", "beacon(window=128, stride=128, ratio=8, kv_chunk=16)"};

TEST_F(BeaconPlan, CountsTheMostThatIsHeld) {
  for (const std::string& strategy : kStrategies) {
    for (const int64_t block : {5, 24, 256}) {
      for (const int64_t n : {1, 31, 32, 33, 70, 130, 257, 300}) {
        SCOPED_TRACE(strategy + ", " + std::to_string(n) + " tokens in blocks of " + std::to_string(block));
        const auto planned = plan(request(strategy, n, block));
        ASSERT_TRUE(planned.ok()) << planned.status().message();
        EXPECT_EQ(planned.value().kv_bytes, read(request(strategy, n, block)).second.kv_bytes_peak);
      }
    }
  }
}

TEST_F(BeaconPlan, CountsTheScratchOfAWindowAndItsBeacons) {
  for (const std::string& strategy : kStrategies) {
    model_ = load(kWithBeacons);  // sessions of a model share it
    const MemoryRequest whole = request(strategy, 300, 256);
    const SessionStats now = read(whole).second;
    const int64_t planned = plan(whole).value().scratch_bytes;
    EXPECT_GE(planned, now.scratch_bytes * 9 / 10) << strategy;
    EXPECT_LE(planned, now.scratch_bytes * 3 / 2) << strategy;
  }
}

// Budgets that the plan accepts do, with a file and without one.
TEST_F(BeaconPlan, ABudgetThatItAcceptsIsEnough) {
  for (const std::string& strategy : kStrategies) {
    for (const bool spill : {false, true}) {
      MemoryRequest part = request(strategy, 300, 24);
      const int64_t all = plan(part).value().kv_bytes;
      part.spill = spill;
      int refused = 0;
      for (int64_t twelfth = 1; twelfth <= 12; ++twelfth) {
        part.kv_budget_bytes = all * twelfth / 12;
        const auto planned = plan(part);
        if (!planned.ok()) {
          EXPECT_EQ(planned.status().code(), Code::kBudget);
          ++refused;
          continue;
        }
        const auto [status, stats] = read(part);
        EXPECT_TRUE(status.ok()) << strategy << ": " << status.message();
        EXPECT_LE(stats.kv_bytes_peak, planned.value().kv_bytes);
      }
      EXPECT_LT(refused, 12);
      EXPECT_GT(refused, 0);
    }
  }
}

// However long the text, a plan of its memory takes no more than a moment: what is counted is not listed.
TEST_F(BeaconPlan, OfAnyLengthIsMadeAtOnce) {
  for (const char* strategy : {"full", "dca", "longheads", "longheads(positions=dca)",
                               "dca_topk(reading=selected, represent=minmax)", "rerope", "beacon(ratio=2)"}) {
    MemoryRequest longest = request(strategy, int64_t{1} << 40, 256);
    longest.beacon_directory.clear();
    if (std::string_view(strategy).starts_with("beacon")) longest = request(strategy, int64_t{1} << 40, 256);
    const auto planned = plan(longest);
    ASSERT_TRUE(planned.ok()) << strategy << ": " << planned.status().message();
    EXPECT_GT(planned.value().kv_bytes, int64_t{1} << 30) << strategy;
  }
}

MemoryPlan plan_of(const Model& model, const std::string& name, int64_t n_tokens,
                   const std::string& strategy = "full(kv_chunk=16)") {
  MemoryRequest request;
  request.path = source_path("tests/golden/models/" + name);
  request.strategy = strategy;
  request.n_tokens = n_tokens;
  return take(plan_memory(model.llama->backend(), request));
}

TEST(ModelPlan, CountsTheWeightsOfEveryArchitecture) {
  for (const std::string name :
       {"gqa_biases_bf16", "qwen2_yarn", "qwen3", "smollm3_yarn", "phi3_window", "granite", "gemma3"}) {
    const auto model = load(name);
    EXPECT_EQ(plan_of(*model, name, 50).weight_bytes, model->llama->weights().bytes) << name;
  }
}

// What is held falls and rises where text is dropped or becomes narrow: the last block need not be the one with most.
TEST(ModelPlan, CountsTheBlockThatHoldsMost) {
  const auto model = load("text_256");
  for (const std::string strategy : {"s2(group=32)", "lm_infinite(sinks=7, recent=40)", "dca(parts=intra, chunk=50)",
                                     "streaming_llm(sinks=20, recent=90, kv_chunk=16)", "dca"}) {
    for (const int64_t block : {1, 7, 33, 256}) {
      for (const bool narrows : {false, true}) {
        SCOPED_TRACE(strategy + " in blocks of " + std::to_string(block) + (narrows ? ", old text in int8" : ""));
        MemoryRequest request;
        request.path = source_path("tests/golden/models/text_256");
        request.strategy = strategy;
        request.n_tokens = 566;
        request.prefill_block = block;
        if (narrows) request.old_text.after = 100;
        SessionOptions options = with_strategy(strategy);
        options.prefill_block = block;
        options.old_text = request.old_text;
        const auto session = make_session(model, options);
        expect_ok(session->feed_tokens(random_tokens(*model, request.n_tokens)));
        expect_ok(run(session).status);
        EXPECT_EQ(take(plan_memory(model->llama->backend(), request)).kv_bytes, stats(*session).kv_bytes_peak);
      }
    }
  }
}

// With a tier below the host's memory each record has its place there, also where none ever leaves memory.
TEST(ModelPlan, CountsThePlacesInLowerTiers) {
  const auto model = load("text_256");
  MemoryRequest request;
  request.path = source_path("tests/golden/models/text_256");
  request.strategy = "full(kv_chunk=16)";
  request.n_tokens = 250;
  const auto plan = [&] { return plan_memory(model->llama->backend(), request); };
  const auto read = [&] {
    SessionOptions options = with_strategy(request.strategy);
    if (request.spill) options.spill_directory = testing::TempDir();
    options.spill_budget_bytes = request.spill_budget_bytes;
    options.compressed_budget_bytes = request.compressed_budget_bytes;
    const auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, request.n_tokens)));
    const Status status = run(session).status;
    return std::pair(status, stats(*session));
  };
  const int64_t records = take(plan()).kv_bytes;

  request.spill = true;
  const MemoryPlan with_file = take(plan());
  const SessionStats in_file = read().second;
  EXPECT_EQ(with_file.kv_bytes, in_file.kv_bytes_peak);
  EXPECT_GE(with_file.spill_bytes, in_file.kv_file_bytes);
  EXPECT_LE(with_file.spill_bytes, in_file.kv_file_bytes + records);
  request.spill_budget_bytes = records;
  EXPECT_EQ(take(plan()).spill_bytes, records);
  expect_ok(read().first);
  request.spill_budget_bytes = records - 1;
  EXPECT_EQ(plan().status().code(), Code::kBudget);
  EXPECT_EQ(read().first.code(), Code::kBudget);

  request.spill = false;
  request.spill_budget_bytes = 0;
  request.compressed_budget_bytes = int64_t{1} << 30;
  const MemoryPlan compressed = take(plan());
  EXPECT_EQ(compressed.compressed_bytes, read().second.kv_compressed.bytes_peak);
  request.compressed_budget_bytes = compressed.compressed_bytes;
  expect_ok(plan().status());
  expect_ok(read().first);
  request.compressed_budget_bytes -= 1;
  EXPECT_EQ(plan().status().code(), Code::kBudget);
  EXPECT_EQ(read().first.code(), Code::kBudget);
}

// Most bytes are held after the last block, which is shorter: more of its records are narrow. The first block has more
// full records, all of which must be in memory at once.
TEST(ModelPlan, CountsTheBlockThatNeedsMostAtOnce) {
  const auto model = load("text_256");
  MemoryRequest request;
  request.path = source_path("tests/golden/models/text_256");
  request.strategy = "dca(kv_chunk=16)";
  request.n_tokens = 374;
  request.prefill_block = 256;
  request.old_text.after = 0;
  request.spill = true;
  int64_t least = 1;  // the least budget that the plan accepts
  for (int64_t step = int64_t{1} << 24; step > 0; step /= 2) {
    request.kv_budget_bytes = least + step - 1;
    if (!plan_memory(model->llama->backend(), request).ok()) least += step;
  }
  SessionOptions options = with_strategy(request.strategy);
  options.prefill_block = request.prefill_block;
  options.old_text = request.old_text;
  options.spill_directory = testing::TempDir();
  options.kv_budget_bytes = least;
  const auto session = make_session(model, options);
  expect_ok(session->feed_tokens(random_tokens(*model, request.n_tokens)));
  expect_ok(run(session).status);
  EXPECT_LE(stats(*session).kv_bytes_peak, least);
}

// Of a model with small heads the narrow records are the larger ones: each head's values have a scale of their own.
TEST(ModelPlan, CountsTheStagingBufferOfTheLargerRecords) {
  const TemporaryFolder folder;
  MemoryRequest request;
  request.path = folder.file("small_heads");
  std::filesystem::copy(source_path("tests/golden/models/text_256"), request.path);
  auto config = nlohmann::json::parse(std::ifstream(request.path + "/config.json"));
  config.update(
      {{"num_attention_heads", 16}, {"num_key_value_heads", 8}, {"head_dim", 6}});  // tensors of the same shapes
  std::ofstream(request.path + "/config.json") << config.dump();
  ModelLoadOptions loading;
  loading.device = "cpu";
  const auto model = take(load_model(make_runtime({}), request.path, loading));
  request.strategy = "full(kv_chunk=16)";
  request.n_tokens = 100;
  request.old_text = {.type = ElementType::kInt4, .after = 0};
  request.spill = true;
  SessionOptions options = with_strategy(request.strategy);
  options.old_text = request.old_text;
  options.spill_directory = testing::TempDir();
  const auto session = make_session(model, options);
  expect_ok(session->feed_tokens(random_tokens(*model, request.n_tokens)));
  expect_ok(run(session).status);
  EXPECT_EQ(take(plan_memory(model->llama->backend(), request)).kv_bytes, stats(*session).kv_bytes_peak);
}

// Nearly all scratch memory of a small session is RoPE tables: two where layers are without RoPE.
TEST(ModelPlan, CountsTheTablesOfLayersWithoutRope) {
  const auto model = load("smollm3_yarn");
  const auto session = make_session(model, with_strategy("full(kv_chunk=16)"));
  expect_ok(session->feed_tokens(random_tokens(*model, 50)));
  expect_ok(run(session).status);
  const int64_t planned = plan_of(*model, "smollm3_yarn", 50).scratch_bytes, taken = stats(*session).scratch_bytes;
  EXPECT_GE(planned, taken * 9 / 10);
  EXPECT_LE(planned, taken * 11 / 10 + 20000);
}

// Of a long text most scratch memory is for the pieces of attention, of the keys that a strategy keeps: in blocks of
// any length, and in steps that several sessions share.
TEST(ModelPlan, CountsTheScratchOfTheKeysThatAreKept) {
  constexpr int64_t kTokens = 100000;
  const auto expect_planned = [](const std::string& name, const std::string& strategy) {
    SCOPED_TRACE(strategy);
    const auto model = load(name);  // sessions of a model share its scratch memory
    const auto session = make_session(model, with_strategy(strategy));
    expect_ok(session->fill_random(kTokens - 255, 1));
    for (const int64_t block : {7, 16, 40, 96}) {
      expect_ok(session->feed_tokens(random_tokens(*model, block)));
      expect_ok(run(session).status);
    }
    expect_ok(session->feed_tokens(random_tokens(*model, 96)));
    expect_ok(run(session, generating(2)).status);
    const int64_t alone = stats(*session).scratch_bytes;
    std::vector<std::shared_ptr<Session>> forks;
    for (int i = 0; i < 4; ++i) forks.push_back(take(session->fork()));
    std::vector<std::shared_ptr<GenerationStream>> streams;
    for (const auto& fork : forks) streams.push_back(take(GenerationStream::open(fork, generating(4))));
    for (const auto& stream : streams) expect_ok(read(*stream).status);
    const int64_t planned = plan_of(*model, name, kTokens, strategy).scratch_bytes;
    const int64_t taken = stats(*session).scratch_bytes;
    EXPECT_EQ(taken, alone);
    EXPECT_GE(planned, taken);
    EXPECT_LE(planned, 2 * taken);  // another block, or other company, may take more
  };
  expect_planned("short_128", "full(kv_chunk=16)");
  expect_planned("short_128", "streaming_llm(sinks=4, recent=40, kv_chunk=16)");
  expect_planned("short_128", "lm_infinite(kv_chunk=16)");
  expect_planned("mistral_window_64", "full(kv_chunk=16)");
  expect_planned("qwen2_window_layers", "streaming_llm(sinks=0, recent=10, kv_chunk=16)");
}

}  // namespace
}  // namespace quire::test
