// What loaders hand to the engine: how much at once, for how long it must stay, and what a failure leaves.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/model/adapter.h"
#include "lib/model/model_loader.h"
#include "tests/source_path.h"
#include "tests/unit/model/watched_backend.h"

namespace quire {
namespace {

const std::string kGolden = test::source_path("tests/golden/");

// Works at the last moment that is allowed: when the next work comes, or nothing more.
class LateEngine final : public LoadEngine {
 public:
  explicit LateEngine(test::WatchedBackend& backend) : backend_(backend) {}

  Status start(std::function<Status()> work) override {
    QUIRE_TRY(finish());
    if (++n_started_ == fail_at) return Status(Code::kClosed, "the engine stopped");
    work_ = std::move(work);
    return {};
  }
  Status finish() override {
    if (!work_) return {};
    const int64_t before = backend_.n_packed;
    const auto work = std::exchange(work_, nullptr);
    Status status = work();
    most_operations = std::max(most_operations, backend_.n_packed - before);
    return status;
  }

  int64_t n_started() const { return n_started_; }
  int64_t fail_at = 0;          // the n-th work is refused
  int64_t most_operations = 0;  // of one work

 private:
  test::WatchedBackend& backend_;
  int64_t n_started_ = 0;
  std::function<Status()> work_;
};

class LoadEngineTest : public testing::TestWithParam<bool> {
 protected:
  // In pieces of so many bytes, mapped or read.
  ModelLoader::Options options(int64_t piece_bytes) {
    ModelLoader::Options options;
    options.map = GetParam();
    options.control.engine = &engine_;
    options.control.piece_bytes = piece_bytes;
    return options;
  }
  // Every row of every matrix, times small numbers; and what names the tensors.
  std::string print(const LlamaModel& model) {
    std::string bytes = model.identity();
    for (const LayerWeights& layer : model.weights().layers) {
      for (const auto* matrix : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) append_product(**matrix, bytes);
    }
    append_product(*model.weights().lm_head, bytes);
    std::vector<int32_t> tokens(static_cast<size_t>(model.config().vocab_size));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    auto queue = backend_.create_queue();
    const int64_t hidden = model.config().hidden_size;
    auto rows = backend_.allocate(tokens.size() * static_cast<size_t>(hidden) * 4, MemoryKind::kDevice);
    auto ids = backend_.allocate(tokens.size() * sizeof(int32_t), MemoryKind::kDevice);
    EXPECT_TRUE(cpu_->upload(**queue, tokens.data(), **ids, 0, tokens.size() * sizeof(int32_t)).ok());
    const auto n = static_cast<int64_t>(tokens.size());
    EXPECT_TRUE(backend_.embed({**queue}, *model.weights().embedding, **ids, 0, n, 1, {rows->get(), 0, hidden}).ok());
    return bytes.append(static_cast<const char*>((*rows)->host()), (*rows)->size());
  }
  void append_product(const Matrix& matrix, std::string& bytes) {
    auto queue = backend_.create_queue();
    auto x = backend_.allocate(static_cast<size_t>(matrix.k) * 4, MemoryKind::kDevice);
    auto y = backend_.allocate(static_cast<size_t>(matrix.n) * 4, MemoryKind::kDevice);
    for (int64_t i = 0; i < matrix.k; ++i) static_cast<float*>((*x)->host())[i] = 1 + static_cast<float>(i % 13);
    EXPECT_TRUE(
        backend_.matmul({**queue}, {x->get(), 0, matrix.k}, 1, matrix, nullptr, Write::kSet, {y->get(), 0, matrix.n})
            .ok());
    bytes.append(static_cast<const char*>((*y)->host()), (*y)->size());
  }

  Allocator allocator_;
  ThreadPool pool_{2};
  std::unique_ptr<Backend> cpu_ = cpu::create_cpu_backend(allocator_, pool_);
  test::WatchedBackend backend_{*cpu_};
  LateEngine engine_{backend_};
};

TEST_P(LoadEngineTest, AWorkIsOnePieceAndPiecesChangeNoBit) {
  for (const auto& entry : std::filesystem::directory_iterator(kGolden + "models")) {
    SCOPED_TRACE(entry.path().filename());
    auto whole = ModelLoader(backend_, entry.path(), {}).load();
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    const std::string expected = print(**whole);
    const ModelConfig& config = (*whole)->config();
    const int64_t head =  // f32 rows that are put in order
        config.rotary_dim < config.head_dim ? int64_t{4} * config.head_dim * config.hidden_size : 0;
    for (const int64_t piece_bytes : {1, 700, 5000}) {
      backend_.most_packed = backend_.widest_row = backend_.n_packed = 0;
      auto model = ModelLoader(backend_, entry.path(), options(piece_bytes)).load();
      ASSERT_TRUE(model.ok()) << model.status().message();
      EXPECT_LE(backend_.most_packed, std::max(piece_bytes, head));
      EXPECT_EQ(engine_.most_operations, 1);
      EXPECT_EQ(print(**model), expected) << piece_bytes;
    }
  }
}

TEST_P(LoadEngineTest, AdaptersTooMergedAndBeside) {
  const std::string directory = kGolden + "models/text_256";
  for (const char* name : {"adapters/attention", "adapters/everything"}) {
    ModelLoader::Options merging;
    merging.merge = {{kGolden + name, 0.5}};
    const std::string expected = print(**ModelLoader(backend_, directory, merging).load());
    ModelLoader::Options in_pieces = options(700);
    in_pieces.merge = merging.merge;
    backend_.most_packed = 0;
    auto model = ModelLoader(backend_, directory, in_pieces).load();
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_LE(backend_.most_packed, 700);
    EXPECT_EQ(print(**model), expected);

    const auto load = [&](const LoadControl& control) {
      auto adapter = AdapterLoader(backend_, kGolden + name, (*model)->config(), (*model)->weights(), control).load();
      EXPECT_TRUE(adapter.ok()) << adapter.status().message();
      std::string bytes = (*adapter)->identity;
      for (const AdapterLayer& layer : (*adapter)->layers) {
        for (const LowRank& change : layer.projections) {
          if (change.b) append_product(*change.a, bytes), append_product(*change.b, bytes);
        }
      }
      return bytes;
    };
    const std::string beside = load({});
    backend_.most_packed = 0;
    EXPECT_EQ(load(options(700).control), beside);
    EXPECT_LE(backend_.most_packed, 700);
  }
  EXPECT_EQ(engine_.most_operations, 1);
}

TEST_P(LoadEngineTest, AnEngineThatStopsLeavesNothing) {
  for (int64_t at = 1;; ++at) {
    LateEngine engine(backend_);
    engine.fail_at = at;
    ModelLoader::Options stopping = options(5000);
    stopping.control.engine = &engine;
    const auto model = ModelLoader(backend_, kGolden + "models/gqa_biases_bf16", stopping).load();
    if (model.ok()) {
      EXPECT_GT(at, 20);
      return;
    }
    ASSERT_EQ(model.status().code(), Code::kClosed) << model.status().message();
    EXPECT_EQ(engine.n_started(), at);
    EXPECT_EQ(allocator_.bytes(), 0);
  }
}

// Beside what stays, memory holds two pieces at most.
TEST_P(LoadEngineTest, HoldsTwoPiecesBesideTheWeights) {
  struct Peak {
    int64_t now = 0, most = 0;
  } peak;
  Allocator watched(
      [](void* user, size_t size, size_t alignment) {
        auto* p = static_cast<Peak*>(user);
        p->most = std::max(p->most, p->now += static_cast<int64_t>(size));
        return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
      },
      [](void* user, void* memory, size_t size, size_t) {
        static_cast<Peak*>(user)->now -= static_cast<int64_t>(size);
        std::free(memory);
      },
      &peak);
  const auto backend = cpu::create_cpu_backend(watched, pool_);
  ModelLoader::Options plain;
  plain.control.piece_bytes = 1000;
  plain.map = GetParam();
  auto model = ModelLoader(*backend, kGolden + "models/mha_default", plain).load();
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_LE(peak.most, peak.now + 2 * 1000);
}

INSTANTIATE_TEST_SUITE_P(Access, LoadEngineTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Map" : "Read"; });

}  // namespace
}  // namespace quire
