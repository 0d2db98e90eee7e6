// Models of tests/golden, loaded on a CPU backend of their own, and their logits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/model/forward_pass.h"
#include "lib/model/model_loader.h"
#include "lib/model/strategy_context.h"
#include "tests/source_path.h"

namespace quire::test {

inline const std::string kModels = source_path("tests/golden/models/");

inline std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

class Loaded {
 public:
  explicit Loaded(const std::string& directory, ModelLoader::Options options = {}) {
    ModelLoader loader(*backend_, directory, std::move(options));
    auto loaded = loader.load();
    status_ = loaded.status();
    packed_file_ = loader.packed_file();
    if (status_.ok()) model_ = std::move(*loaded);
  }

  const Status& status() const { return status_; }
  const Result<std::string>& packed_file() const { return packed_file_; }
  LlamaModel& model() const { return *model_; }
  int64_t bytes() const { return allocator_.bytes(); }

  // Logits of a fixed prompt, all positions; with an adapter beside the weights, if one is given.
  std::vector<float> logits(const std::string& adapter_directory = {}) {
    std::unique_ptr<Adapter> adapter;
    AdapterList adapters;
    if (!adapter_directory.empty()) {
      AdapterLoader loader(*backend_, adapter_directory, model_->config(), model_->weights(), {});
      auto loaded = loader.load();
      EXPECT_TRUE(loaded.ok()) << loaded.status().message();
      if (!loaded.ok()) return {};
      adapter = std::move(*loaded);
      adapters = *AdapterList::make({{adapter.get(), 1}});
    }
    auto strategy = make_strategy("full", strategy_context(model_->config(), {1000}));
    auto ropes = model_->create_ropes(**strategy);
    auto kv = ChunkStore::create(*backend_, model_->kv_geometry(**strategy, ElementType::kF32),
                                 model_->config().n_layers, {});
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < 40; ++t) tokens.push_back(3 + t * 7 % (model_->config().vocab_size - 3));
    EXPECT_TRUE((*kv)->reserve(0, 40).ok());
    Sequence sequence;
    sequence.tokens = tokens;
    sequence.strategy = strategy->get();
    sequence.ropes = &*ropes;
    sequence.kv = kv->get();
    if (adapter) sequence.adapters = &adapters;
    ForwardPass pass(*model_);
    auto states = pass.forward({&sequence, 1}, nullptr);
    EXPECT_TRUE(states.ok());
    std::vector<float> out(tokens.size() * static_cast<size_t>(model_->config().vocab_size));
    EXPECT_TRUE(pass.logits(*states, 0, 40, nullptr, out.data()).ok());
    return out;
  }

 private:
  Allocator allocator_;
  ThreadPool pool_{2};
  std::unique_ptr<Backend> backend_ = cpu::create_cpu_backend(allocator_, pool_);
  Status status_;
  Result<std::string> packed_file_ = Status();
  std::unique_ptr<LlamaModel> model_;
};

inline double largest(const std::vector<float>& x) {
  double most = 0;
  for (const float v : x) most = std::max(most, std::fabs(static_cast<double>(v)));
  return most;
}

inline double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace quire::test
