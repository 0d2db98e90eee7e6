// Beacon weights: in a plug-in or in the model's own directory, all or some, missing or of another shape; and planned.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/backend/cpu/cpu_backend.h"
#include "lib/model/memory_plan.h"
#include "lib/model/model_loader.h"
#include "tests/unit/model/beacon_directory.h"

namespace quire {
namespace {

using test::BeaconDirectory;
using testing::HasSubstr;

class BeaconWeightsTest : public testing::Test {
 protected:
  // Loads the golden model, or another, with a plug-in, or none.
  Status load(const std::string& plugin, const std::string& model = BeaconDirectory::model(),
              ModelLoader::Options options = {}) {
    model_.reset();
    options.beacon_directory = plugin;
    QUIRE_ASSIGN(model_, ModelLoader(*backend_, model, std::move(options)).load());
    return {};
  }
  Status load_changed() {
    plugin_.write();
    return load(plugin_.path());
  }
  void expect_refused(Code code, const std::string& part) {
    const Status status = load_changed();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(part));
    EXPECT_EQ(allocator_.bytes(), 0);
    const Status planned = plan(plugin_.path()).status();
    EXPECT_EQ(planned.code(), code) << planned.message();
    EXPECT_THAT(planned.message(), HasSubstr(part));
  }
  Result<MemoryPlan> plan(const std::string& plugin, const std::string& model = BeaconDirectory::model()) {
    MemoryRequest request;
    request.path = model;
    request.beacon_directory = plugin;
    request.strategy = "full";
    request.n_tokens = 10;
    return plan_memory(*backend_, request);
  }

  Allocator allocator_;
  ThreadPool pool_{2};
  std::unique_ptr<Backend> backend_ = cpu::create_cpu_backend(allocator_, pool_);
  std::unique_ptr<LlamaModel> model_;
  BeaconDirectory plugin_;
};

constexpr const char* kUp = "model.layers.1.mlp.beacon_up_proj.weight";
constexpr const char* kKey = "model.layers.1.self_attn.beacon_k_proj.weight";
constexpr const char* kEmbedding = "model.beacon_embed_tokens.weight";

TEST_F(BeaconWeightsTest, AModelHasNoneOfItsOwn) {
  ASSERT_TRUE(load("").ok());
  EXPECT_EQ(model_->weights().beacon, nullptr);
  EXPECT_EQ(model_->config().beacon.window, 0);
}

TEST_F(BeaconWeightsTest, ComeFromAPlugIn) {
  ASSERT_TRUE(load("").ok());
  const int64_t parameters = model_->weights().n_parameters;
  const std::string identity = model_->identity();
  ASSERT_TRUE(load(BeaconDirectory::plugin()).ok());
  ASSERT_NE(model_->weights().beacon, nullptr);
  EXPECT_EQ(model_->weights().beacon->layers.size(), 2u);
  EXPECT_EQ(model_->config().beacon.window, 32);
  // q and o of 64 x 96, k and v of 64 x 48, up and down of 64 x 80, and the embedding
  EXPECT_EQ(model_->weights().n_parameters - parameters, 2 * 64 * (2 * 96 + 2 * 48 + 2 * 80) + 64);
  EXPECT_NE(model_->identity(), identity);
}

// Which matrices a layer has of its own, and that the planner counts what the allocator does.
TEST_F(BeaconWeightsTest, SomeProjectionsMayBeShared) {
  struct Case {
    std::vector<std::string> parameters;
    bool qkv, o, mlp;
  };
  for (const auto& [parameters, qkv, o, mlp] : std::vector<Case>{{{"q", "k", "v", "o", "mlp"}, true, true, true},
                                                                 {{"q"}, true, false, false},
                                                                 {{"k", "v"}, true, false, false},
                                                                 {{"o"}, false, true, false},
                                                                 {{"mlp"}, false, false, true},
                                                                 {{}, false, false, false}}) {
    SCOPED_TRACE(testing::PrintToString(parameters));
    plugin_.config["beacon_param"] = parameters;
    int64_t last = 0, total = 0;
    ModelLoader::Options options;
    options.control.progress = [&](int64_t done, int64_t all) {
      EXPECT_GE(done, last);
      EXPECT_LE(done, all);
      last = done;
      total = all;
    };
    plugin_.write();
    const Status status = load(plugin_.path(), BeaconDirectory::model(), options);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(last, total);
    for (const BeaconLayerWeights& layer : model_->weights().beacon->layers) {
      EXPECT_EQ(layer.qkv != nullptr, qkv);
      EXPECT_EQ(layer.o != nullptr, o);
      EXPECT_EQ(layer.gate_up != nullptr, mlp);
      EXPECT_EQ(layer.down != nullptr, mlp);
    }
    auto planned = plan(plugin_.path());
    ASSERT_TRUE(planned.ok()) << planned.status().message();
    EXPECT_EQ(planned->weight_bytes, allocator_.bytes());
  }
}

TEST_F(BeaconWeightsTest, BiasesAreTheirOwnWhereTheModelHasBiases) {
  BeaconDirectory whole;
  whole.read(BeaconDirectory::model());
  whole.config["attention_bias"] = whole.config["mlp_bias"] = true;
  const std::pair<std::string, size_t> modules[] = {{"self_attn.q", 96}, {"self_attn.k", 48}, {"self_attn.v", 48},
                                                    {"self_attn.o", 64}, {"mlp.gate", 80},    {"mlp.up", 80},
                                                    {"mlp.down", 64}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const auto& [module, n] : modules) {
      const size_t dot = module.find('.') + 1;
      whole.put(layer + module + "_proj.bias", n, 1);
      whole.put(layer + module.substr(0, dot) + "beacon_" + module.substr(dot) + "_proj.bias", n, 2);
    }
  }
  whole.write();
  for (const char* name : {"tokenizer.model", "tokenizer_config.json"}) {
    std::filesystem::copy(BeaconDirectory::model() + "/" + name, whole.file(name));
  }
  const Status status = load("", whole.path());
  ASSERT_TRUE(status.ok()) << status.message();
  const auto first = [](const Buffer& bias) { return *static_cast<const float*>(bias.host()); };
  for (const BeaconLayerWeights& layer : model_->weights().beacon->layers) {
    for (const Buffer* bias : {layer.qkv_bias.get(), layer.o_bias.get(), layer.down_bias.get()}) {
      ASSERT_NE(bias, nullptr);
      EXPECT_EQ(first(*bias), 2);
    }
    ASSERT_NE(layer.gate_up_bias, nullptr);
    const auto* gate_up = static_cast<const float*>(layer.gate_up_bias->host());
    EXPECT_EQ(gate_up[0], 1);  // beacons have no gate of their own
    EXPECT_EQ(gate_up[80], 2);
  }
  const auto planned = plan("", whole.path());
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned.value().weight_bytes, allocator_.bytes());
  whole.drop("model.layers.1.self_attn.beacon_v_proj.bias");
  whole.write();
  EXPECT_THAT(load("", whole.path()).message(), HasSubstr("model.layers.1.self_attn.beacon_v_proj.bias"));
}

TEST_F(BeaconWeightsTest, TensorsOfSharedProjectionsNeedNotBeThere) {
  plugin_.config["beacon_param"] = {"q", "k", "v", "o"};
  for (const char* layer : {"0", "1"}) {
    plugin_.drop(std::string("model.layers.") + layer + ".mlp.beacon_up_proj.weight");
    plugin_.drop(std::string("model.layers.") + layer + ".mlp.beacon_down_proj.weight");
  }
  EXPECT_TRUE(load_changed().ok());
}

TEST_F(BeaconWeightsTest, MayBeTheModelsOwn) {
  ASSERT_TRUE(load(BeaconDirectory::plugin()).ok());
  const int64_t parameters = model_->weights().n_parameters, bytes = allocator_.bytes();
  BeaconDirectory whole;
  whole.read(BeaconDirectory::model());
  whole.write();
  for (const char* name : {"tokenizer.model", "tokenizer_config.json"}) {
    std::filesystem::copy(BeaconDirectory::model() + "/" + name, whole.file(name));
  }
  const Status status = load("", whole.path());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(model_->config().beacon.window, 32);
  EXPECT_EQ(model_->weights().n_parameters, parameters);
  EXPECT_EQ(allocator_.bytes(), bytes);
  EXPECT_EQ(plan("", whole.path())->weight_bytes, bytes);
  // A plug-in takes their place.
  plugin_.config["beacon_window"] = 64;
  plugin_.config["beacon_stride"] = {16};
  plugin_.write();
  ASSERT_TRUE(load(plugin_.path(), whole.path()).ok());
  EXPECT_EQ(model_->config().beacon.window, 64);
  EXPECT_EQ(model_->weights().n_parameters, parameters);
}

TEST_F(BeaconWeightsTest, AMissingTensorIsNamed) {
  for (const char* name : {kUp, kKey}) {
    BeaconDirectory changed;
    changed.drop(name);
    changed.write();
    const Status status = load(changed.path());
    EXPECT_EQ(status.code(), Code::kBadFile);
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
  plugin_.drop(kEmbedding);
  expect_refused(Code::kBadFile, kEmbedding);
}

TEST_F(BeaconWeightsTest, AnotherShapeIsNamed) {
  plugin_.reshape(kKey, {64, 48});
  expect_refused(Code::kBadFile, "[64, 48]");
  expect_refused(Code::kBadFile, kKey);
  plugin_.reshape(kKey, {48, 64});
  EXPECT_TRUE(load_changed().ok());
  model_.reset();
  plugin_.reshape(kEmbedding, {64});
  expect_refused(Code::kBadFile, kEmbedding);
}

TEST_F(BeaconWeightsTest, AFolderWithoutBeaconsIsNoPlugIn) {
  const Status model = load(BeaconDirectory::model());
  EXPECT_EQ(model.code(), Code::kBadFile);
  EXPECT_THAT(model.message(), HasSubstr("no beacon_* keys"));
  EXPECT_EQ(load(plugin_.file("nothing")).code(), Code::kNotFound);
  EXPECT_EQ(plan(plugin_.file("nothing")).status().code(), Code::kNotFound);
  EXPECT_EQ(load(plugin_.path()).code(), Code::kNotFound);  // an empty folder
}

TEST_F(BeaconWeightsTest, AWindowFitsTheModelsPositions) {
  plugin_.config["beacon_window"] = 256;
  EXPECT_TRUE(load_changed().ok());
  model_.reset();
  plugin_.config["beacon_window"] = 257;
  expect_refused(Code::kBadFile, "beacon_window is 257; the model has 256 positions");
}

TEST_F(BeaconWeightsTest, TheLaterVariantIsRefused) {
  plugin_.config["beacon_stride"] = 32;
  expect_refused(Code::kUnsupported, "beacon_stride");
}

}  // namespace
}  // namespace quire
