// Steps of few rows are launched as CUDA graphs when they come again: what is launched, that it is the same work, and
// what is done where no graph can be made. The emulated device counts; on a GPU the results alone are compared.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "lib/backend/cuda/cuda_step.h"
#include "lib/backend/cuda/step_graphs.h"
#include "tests/gpu/device_model.h"
#include "tests/gpu/emulation/block.h"
#include "tests/gpu/emulation/emulated_device.h"
#include "tests/source_path.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using cuda::DeviceApi;
using emulation::device_use;

// ---- a stream's steps

// A step that multiplies numbers by one factor after the other.
class Graphs : public testing::Test {
 protected:
  Graphs() {
    emulation::set_launch_options({.schedule = emulation::Schedule::kForward, .n_threads = 1});
    EXPECT_EQ(api_.create_stream(&stream_), 0);
    void* memory = nullptr;
    EXPECT_EQ(api_.allocate_host(kNumbers * sizeof(float), &memory), 0);
    numbers_ = static_cast<float*>(memory);
    graphs_.emplace(device_, stream_);
  }
  void SetUp() override {
    if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  }
  ~Graphs() override {
    emulation::set_device_faults({});
    EXPECT_EQ(api_.finish_stream(stream_), 0);
    graphs_.reset();
    EXPECT_EQ(device_use().n_graphs, 0);
    EXPECT_EQ(api_.destroy_stream(stream_), 0);
    EXPECT_EQ(api_.release_host(numbers_), 0);
  }

  // What comes of ones.
  float multiply(const std::vector<float>& factors) {
    for (int i = 0; i < kNumbers; ++i) numbers_[i] = 1;
    cuda::Commands commands;
    const cuda::DeviceRows rows{numbers_, kNumbers, ElementType::kF32};
    for (const float factor : factors) {
      commands.push_back(
          std::make_unique<cuda::CommandOf<&DeviceApi::scale_rows>>("scaling", rows, 1, kNumbers, factor));
    }
    const Status queued = graphs_->queue(std::move(commands));
    if (!queued.ok()) return -1;
    EXPECT_EQ(api_.finish_stream(stream_), 0);
    return numbers_[kNumbers - 1];
  }
  struct Count {
    int64_t launches, graph_launches;
    bool operator==(const Count&) const = default;
  };
  // What multiply() launched.
  Count counted(const std::vector<float>& factors) {
    const emulation::DeviceUse before = device_use();
    float product = 1;
    for (const float factor : factors) product *= factor;
    EXPECT_EQ(multiply(factors), product);
    const emulation::DeviceUse after = device_use();
    return {after.n_launches - before.n_launches, after.n_graph_launches - before.n_graph_launches};
  }

  static constexpr int kNumbers = 4;
  const DeviceApi& api_ = emulation::device_api();
  Allocator allocator_;
  const cuda::CudaDevice device_{api_, 0, allocator_};
  cuda::Stream stream_ = nullptr;
  float* numbers_ = nullptr;
  std::optional<cuda::StepGraphs> graphs_;
};

TEST_F(Graphs, AreMadeOfWhatComesAgain) {
  EXPECT_EQ(counted({2, 3}), (Count{2, 0}));
  EXPECT_EQ(counted({2, 3}), (Count{2, 1}));  // made: the kernels were not run then
  EXPECT_EQ(counted({2, 3}), (Count{0, 1}));
  EXPECT_EQ(counted({2, 5}), (Count{2, 0}));  // another argument
  EXPECT_EQ(counted({2}), (Count{1, 0}));     // and another number of calls
  EXPECT_EQ(counted({2, 3}), (Count{0, 1}));
  EXPECT_EQ(counted({2, 5}), (Count{2, 1}));
  EXPECT_EQ(device_use().n_graphs, 2);
}

TEST_F(Graphs, OfStepsLongPastBecomeOthers) {
  const auto step = [](size_t i) { return std::vector<float>{2, static_cast<float>(i)}; };
  for (size_t i = 0; i < cuda::StepGraphs::kMostSteps; ++i) {
    (void)counted(step(i));
    EXPECT_EQ(counted(step(i)), (Count{2, 1}));
  }
  EXPECT_EQ(counted(step(0)), (Count{0, 1}));
  (void)counted(step(100));  // in the place of 1, which was used longest ago
  EXPECT_EQ(counted(step(100)), (Count{2, 1}));
  EXPECT_EQ(device_use().n_graphs, static_cast<int64_t>(cuda::StepGraphs::kMostSteps));
  EXPECT_EQ(counted(step(0)), (Count{0, 1}));
  EXPECT_EQ(counted(step(1)), (Count{2, 0}));
}

TEST_F(Graphs, ThatCannotBeMadeAreDoneWithout) {
  for (const int64_t at : {1, 2}) {
    (void)counted({7});
    emulation::set_device_faults({.graph = at});
    EXPECT_EQ(counted({7}), (Count{at, 0}));  // the end fails when all was called, which is then called once more
    emulation::set_device_faults({});
    EXPECT_EQ(counted({7}), (Count{1, 1}));  // another attempt
    graphs_.emplace(device_, stream_);
  }
  (void)counted({7});
  emulation::set_device_faults({.launch = 1});  // a call that fails while the graph is made
  EXPECT_EQ(counted({7}), (Count{2, 0}));
  EXPECT_EQ(counted({7}), (Count{1, 1}));
}

TEST_F(Graphs, WhoseLaunchFindsNoMemoryAreDoneWithout) {
  (void)counted({7});
  for (int i = 0; i < cuda::StepGraphs::kMostFailures; ++i) {
    EXPECT_TRUE(graphs_->possible());
    emulation::set_device_faults({.graph_launch = 1});
    EXPECT_EQ(counted({7}), (Count{2, 0}));  // while it is made, and as it is
    EXPECT_EQ(device_use().n_graphs, 0);
  }
  EXPECT_FALSE(graphs_->possible());
  EXPECT_EQ(counted({7}), (Count{1, 0}));
}

TEST_F(Graphs, AreGivenUpAfterFailuresInSuccession) {
  const auto fail = [&](float factor, int times) {
    for (int i = 0; i < times; ++i) {
      emulation::set_device_faults({.graph = 1});
      EXPECT_EQ(counted({factor}), (Count{1, 0}));
      emulation::set_device_faults({});
    }
  };
  (void)counted({7});
  fail(7, cuda::StepGraphs::kMostFailures - 1);
  EXPECT_EQ(counted({7}), (Count{1, 1}));  // a success: counting begins anew
  (void)counted({5});
  fail(5, cuda::StepGraphs::kMostFailures - 1);
  EXPECT_TRUE(graphs_->possible());
  fail(5, 1);
  EXPECT_FALSE(graphs_->possible());
  EXPECT_EQ(counted({5}), (Count{1, 0}));
  EXPECT_EQ(counted({7}), (Count{0, 1}));  // what there is stays
}

TEST_F(Graphs, SayWhatFails) {
  const auto queue = [&](const char* what) {
    cuda::Commands commands;
    commands.push_back(std::make_unique<cuda::CommandOf<&DeviceApi::scale_rows>>(
        what, cuda::DeviceRows{numbers_, kNumbers, ElementType::kF32}, 1, kNumbers, 3.0f));
    return graphs_->queue(std::move(commands)).message();
  };
  emulation::set_device_faults({.launch = 1});
  EXPECT_THAT(queue("a call that is refused"), testing::HasSubstr("a call that is refused"));
  EXPECT_EQ(queue(""), "");
  EXPECT_EQ(queue(""), "");
  emulation::set_device_faults({.launch = 1});
  EXPECT_THAT(queue(""), testing::HasSubstr("launching a step"));
}

// What calls are given is where the lists of their step lie. A step of a token's must find the same ones again,
// whatever the steps of a long text before it have left in the pool, or its graph is of no use.
TEST_F(Graphs, HaveTheirListsWhereTheyWere) {
  std::atomic<int64_t> total = 0;
  cuda::ListPool pool(device_, total);
  std::vector<cuda::ListMemory> taken;
  for (const size_t bytes : {300000, 1, 100000, 1}) taken.push_back(take(pool.take(bytes)));
  const std::byte* const least = std::min(taken[1].device.data(), taken[3].device.data());
  for (cuda::ListMemory& lists : taken) pool.give_back(std::move(lists));
  for (int step = 0; step < 6; ++step) {
    cuda::ListMemory lists = take(pool.take(1000));
    EXPECT_EQ(lists.device.data(), least) << step;
    std::optional<cuda::ListMemory> other;  // of layers that do not rotate, in some steps
    if (step % 2 == 0) other = take(pool.take(1000));
    pool.give_back(std::move(lists));
    if (other) pool.give_back(std::move(*other));
  }
}

// ---- sessions

const DeviceApi& without_graphs() {
  static const DeviceApi api = [] {
    DeviceApi one = test_device();
    one.begin_graph = nullptr;
    return one;
  }();
  return api;
}

struct Case {
  std::string name, strategy, model = "short_128";
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.strategy; }

class GraphsOfSessions : public testing::TestWithParam<Case> {
 protected:
  ~GraphsOfSessions() override { emulation::set_device_faults({}); }

  static std::shared_ptr<Session> session_on(const std::shared_ptr<Model>& model, int64_t n_tokens) {
    SessionOptions options = with_strategy(GetParam().strategy);
    options.expected_tokens = 300;
    auto session = make_session(model, options);
    expect_ok(session->feed_tokens(random_tokens(*model, n_tokens)));
    return session;
  }
};

constexpr int64_t kTokens = 35;  // generated: over several chunks, which change the calls

struct Answer {
  Tokens tokens;
  Logits last;
};
Answer answer_of(const std::shared_ptr<Session>& session) {
  Outcome outcome = run(session, generating(kTokens, 0.8f));
  expect_ok(outcome.status);
  return {std::move(outcome.tokens), last_logits(*session)};
}

TEST_P(GraphsOfSessions, DoWhatTheCallsDo) {
  Answer expected;
  int64_t n_calls = 0;  // without graphs
  for (const bool with : {false, true}) {
    const auto device = on_device(GetParam().model, 0, with ? test_device() : without_graphs());
    const auto session = session_on(device, 60);
    expect_ok(run(session, generating(1)).status);  // reads the text
    const emulation::DeviceUse before = device_use();
    const Answer got = answer_of(session);
    const int64_t graphs = device_use().n_graph_launches - before.n_graph_launches;
    const int64_t calls = device_use().n_launches - before.n_launches;
    if (with) {
      EXPECT_EQ(got.tokens, expected.tokens);
      EXPECT_TRUE(same_bits(got.last, expected.last));
      if (!wants_gpu()) {
        EXPECT_GT(graphs, kTokens * 2 / 3);
        EXPECT_LT(calls, n_calls / 2);  // a graph has all calls of the layers, not some of them
      }
    } else {
      EXPECT_EQ(graphs, 0);
      expected = got;
      n_calls = calls;
    }
  }
}

// Another session reads between the tokens of one, in steps of its own on the same queue.
TEST_P(GraphsOfSessions, OutlastTheStepsOfOthers) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  const auto device = on_device(GetParam().model);
  const auto session = session_on(device, 66), other = session_on(device, 20);  // no chunk begins in these turns
  expect_ok(run(session, generating(4)).status);
  const int64_t before = device_use().n_graph_launches;
  constexpr int64_t kTurns = 4;
  for (int64_t i = 0; i < kTurns; ++i) {
    expect_ok(other->feed_tokens(random_tokens(*device, 20)));
    expect_ok(run(other).status);
    expect_ok(run(session, generating(1)).status);
  }
  EXPECT_EQ(device_use().n_graph_launches - before, kTurns);
}

// Texts that come in pieces of more rows than products of float weights read at once.
TEST(GraphsOfQuantisedWeights, HaveStepsOfSeveralRows) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  emulation::set_launch_options({.schedule = emulation::Schedule::kAhead, .n_threads = 2});
  RuntimeOptions options;
  options.n_threads = 1;
  options.wrap_backend = on_test_device();
  ModelLoadOptions loading;
  loading.device = "cpu";  // of which wrap_backend makes the test's
  loading.weight_type = static_cast<int32_t>(ElementType::kQ8_0);
  const auto device =
      take(load_model(make_runtime(std::move(options)), source_path("examples/embedded_model/model"), loading));
  const auto session = make_session(device, with_strategy("full(kv_chunk=128)"));
  constexpr int64_t kSteps = 8, kRows = cuda::kFewRows + 4;
  const int64_t before = device_use().n_graph_launches;
  for (int64_t i = 0; i < kSteps; ++i) {
    expect_ok(session->feed_tokens(random_tokens(*device, kRows)));
    expect_ok(run(session).status);
  }
  EXPECT_GE(device_use().n_graph_launches - before, kSteps - 3);
}

// Products by cuBLASLt are no kernels of the plugin's, and a graph cannot have them.
TEST(GraphsBesideCuBlas, HaveNoneOfItsProducts) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  static const DeviceApi& with_graphs = emulation::device_api_with_blas();
  static const DeviceApi without = [] {
    DeviceApi one = emulation::device_api_with_blas();
    one.begin_graph = nullptr;
    return one;
  }();
  Logits expected;
  for (const DeviceApi* const api : {&without, &with_graphs}) {
    const auto device = on_device("gqa_biases_bf16", 0, *api);
    const auto session = make_session(device, with_strategy("full(kv_chunk=128)"));
    constexpr int64_t kRows = cuda::kFewRows + 4;  // so many that they are cuBLASLt's
    const int64_t before = device_use().n_blas_products;
    for (uint32_t step = 0; step < 5; ++step) {
      expect_ok(session->feed_tokens(random_tokens(*device, kRows, step + 1)));
      expect_ok(run(session).status);
    }
    EXPECT_GT(device_use().n_blas_products, before);
    if (api == &without) expected = last_logits(*session);
    EXPECT_TRUE(same_bits(expected, last_logits(*session)));
  }
}

using FailingGraphs = GraphsOfSessions;

// Whatever fails, at whichever place: the answer goes on where it was, with the tokens that it would have had.
TEST_P(FailingGraphs, LeaveTheSession) {
  if (wants_gpu()) GTEST_SKIP() << "of the emulation";
  using Faults = emulation::DeviceFaults;
  constexpr int64_t kGenerated = 10;
  const auto device = on_device(GetParam().model);
  const auto before = session_on(device, 60);
  expect_ok(run(before, generating(5)).status);
  const Tokens expected = run(take(before->fork()), generating(kGenerated)).tokens;
  for (int64_t Faults::*const which : {&Faults::launch, &Faults::kernel, &Faults::allocation, &Faults::graph}) {
    int n_failed = 0;
    for (const int64_t n : {1, 3, 40}) {
      const auto session = take(before->fork());
      Faults faults;
      faults.*which = n;
      emulation::set_device_faults(faults);
      const Outcome outcome = run(session, generating(kGenerated));
      emulation::set_device_faults({});
      n_failed += outcome.status.ok() ? 0 : 1;
      if (which == &Faults::launch && outcome.status.ok()) {  // it was refused while a graph was made
        const int64_t graphs = device_use().n_graph_launches;
        expect_ok(run(take(before->fork()), generating(kGenerated)).status);
        EXPECT_GT(device_use().n_graph_launches, graphs) << "at the next attempt";
        ++n_failed;
      }
      const auto left = kGenerated - static_cast<int64_t>(outcome.tokens.size());
      Tokens all = outcome.tokens;
      if (left > 0) {
        const Tokens rest = run(session, generating(left)).tokens;
        all.insert(all.end(), rest.begin(), rest.end());
      }
      EXPECT_EQ(all, expected) << n << ": " << outcome.status.message();
    }
    if (which == &Faults::graph) {
      EXPECT_EQ(n_failed, 0);
    } else if (which != &Faults::allocation) {
      EXPECT_EQ(n_failed, 3);
    }
  }
}

const Case kFull{"full", "full(kv_chunk=16)"}, kDca{"dca", "dca(chunk=40, cap=55)"},
    kLongHeads{"longheads", "longheads(chunk=16, chunks=4)"},
    kDcaTopk{"dca_topk", "dca_topk(chunk=16, chunks=4, one_in=5, dca_chunk=64)"};
std::string name_of(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Strategies, GraphsOfSessions, testing::Values(kFull, kDca, kLongHeads, kDcaTopk), name_of);
INSTANTIATE_TEST_SUITE_P(Strategies, FailingGraphs, testing::Values(kFull, kDcaTopk), name_of);

}  // namespace
}  // namespace quire::test
