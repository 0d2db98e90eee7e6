// Sessions with adapters: alone, in company, beside the weights and merged into them; warnings and fingerprints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "lib/format/safetensors.h"
#include "tests/source_path.h"
#include "tests/unit/model/adapter_directory.h"
#include "tests/unit/session/session_fixture.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const std::string kAdapters = source_path("tests/golden/adapters/");
constexpr const char* kModel = "text_256";

using Loaded = std::shared_ptr<const LoadedAdapter>;

Loaded adapter(const std::shared_ptr<Model>& model, const std::string& path) { return take(load_adapter(model, path)); }

std::shared_ptr<Model> load_merged(std::vector<AdapterSource> merge, const std::string& model = kModel) {
  RuntimeOptions runtime;
  runtime.n_threads = 2;
  ModelLoadOptions options;
  options.merge = std::move(merge);
  return take(load_model(make_runtime(runtime), source_path("tests/golden/models/" + model), options));
}

SessionOptions with_adapters(std::vector<SessionAdapter> adapters, const std::string& strategy = "full") {
  SessionOptions options = with_strategy(strategy);
  options.kv_type = ElementType::kF32;
  options.adapters = std::move(adapters);
  return options;
}

double worst_error(const Logits& expected, const Logits& found) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::fabs(double{expected[i]} - found[i]));
    largest = std::max(largest, std::fabs(double{expected[i]}));
  }
  return difference / largest;
}

// A rank-2 change of one projection of both layers of text_256.
void make_small(AdapterDirectory& files, const std::string& projection, int64_t in, int64_t out) {
  for (const char* layer : {"0", "1"}) {
    const std::string module = std::string("model.layers.") + layer + "." + projection;
    files.fill(module + ".lora_A.weight", {2, in});
    files.fill(module + ".lora_B.weight", {out, 2});
  }
  files.write();
}

TEST(Adapters, BesideTheWeightsAndMergedAreTheSame) {
  const auto model = load(kModel);
  const Tokens tokens = random_tokens(*model, 120);
  const Logits plain = all_logits(model, with_adapters({}), tokens);
  for (const double scale : {1.0, -0.5}) {
    for (const char* name : {"attention", "everything"}) {
      SCOPED_TRACE(std::string(name) + " times " + std::to_string(scale));
      const Logits beside = all_logits(model, with_adapters({{adapter(model, kAdapters + name), scale}}), tokens);
      const Logits merged = all_logits(load_merged({{kAdapters + name, scale}}), with_adapters({}), tokens);
      EXPECT_LT(worst_error(merged, beside), 1e-4);
      EXPECT_GT(worst_error(plain, beside), 0.1);
    }
  }
}

// PEFT's modules_to_save "norm" is the end of q_norm and k_norm too. Changes of queries and keys come before their
// norms.
TEST(Adapters, ChangeQueriesAndKeysAndTheirNorms) {
  AdapterDirectory files;
  files.config["target_modules"] = {"q_proj", "k_proj"};
  files.config["modules_to_save"] = {"q_norm", "k_norm"};
  for (const char* layer : {"0", "1"}) {
    const std::string attention = std::string("model.layers.") + layer + ".self_attn.";
    for (const auto& [name, out] : {std::pair("q_proj", 144), std::pair("k_proj", 48)}) {
      files.fill(attention + name + ".lora_A.weight", {2, 48});
      files.fill(attention + name + ".lora_B.weight", {out, 2});
    }
    for (const char* norm : {"q_norm", "k_norm"}) files.fill(attention + norm + ".modules_to_save.weight", {24});
  }
  files.write();
  const auto model = load("qwen3");
  const Tokens tokens = random_tokens(*model, 70);
  const Loaded loaded = adapter(model, files.path());
  const Logits plain = all_logits(model, with_adapters({}), tokens);
  const Logits beside = all_logits(model, with_adapters({{loaded, 1}}), tokens);
  EXPECT_LT(worst_error(all_logits(load_merged({{files.path(), 1}}, "qwen3"), with_adapters({}), tokens), beside),
            1e-4);
  EXPECT_GT(worst_error(plain, beside), 0.1);
  const Logits norms = all_logits(model, with_adapters({{loaded, 0}}), tokens);
  EXPECT_GT(worst_error(plain, norms), 0.01);
  EXPECT_GT(worst_error(beside, norms), 1e-3);
}

TEST(Adapters, SeveralAddUp) {
  AdapterDirectory up, down;
  make_small(up, "mlp.up_proj", 64, 80);
  make_small(down, "mlp.down_proj", 80, 64);
  const auto model = load(kModel);
  const Tokens tokens = random_tokens(*model, 70);
  const std::vector<SessionAdapter> three{{adapter(model, kAdapters + "attention"), 1},
                                          {adapter(model, up.path()), 2.0},
                                          {adapter(model, down.path()), -1.5}};
  const Logits beside = all_logits(model, with_adapters(three), tokens);
  const auto merged = load_merged({{kAdapters + "attention", 1}, {up.path(), 2.0}, {down.path(), -1.5}});
  EXPECT_LT(worst_error(all_logits(merged, with_adapters({}), tokens), beside), 1e-4);
  for (size_t left_out = 0; left_out < three.size(); ++left_out) {
    auto two = three;
    two.erase(two.begin() + static_cast<std::ptrdiff_t>(left_out));
    EXPECT_GT(worst_error(all_logits(model, with_adapters(two), tokens), beside), 1e-3) << left_out;
  }
}

TEST(Adapters, BlocksAndThreadsChangeNoBit) {
  Logits first;
  for (const int threads : {1, 3}) {
    const auto model = load(kModel, threads);
    const Tokens tokens = random_tokens(*model, 90);
    SessionOptions options = with_adapters({{adapter(model, kAdapters + "everything"), 0.75}}, "dca(chunk=48)");
    for (const int64_t block : {256, 1, 7}) {
      options.prefill_block = block;
      const Logits logits = all_logits(model, options, tokens);
      if (first.empty()) first = logits;
      EXPECT_TRUE(same_bits(first, logits)) << threads << " threads, blocks of " << block;
    }
  }
}

// What each session gives in company is what it gives alone, to the bit: with no adapter, with other ones, with the
// same.
TEST(Adapters, CompanyChangesNoBit) {
  AdapterDirectory up;
  make_small(up, "mlp.up_proj", 64, 80);
  const auto model = load(kModel);
  const Loaded attention = adapter(model, kAdapters + "attention"), all = adapter(model, kAdapters + "everything");
  const Loaded small = adapter(model, up.path());
  const std::vector<SessionOptions> kinds{with_adapters({}),
                                          with_adapters({{attention, 1}}),
                                          with_adapters({{all, 0.5}}, "dca(chunk=48)"),
                                          with_adapters({}, "dca(chunk=48)"),
                                          with_adapters({{attention, 1}, {small, -2}}),
                                          with_adapters({{small, 1}})};
  const auto fed = [&](size_t kind) {
    auto session = make_session(model, kinds[kind]);
    expect_ok(session->feed_tokens(random_tokens(*model, 40 + 9 * static_cast<int64_t>(kind), 7)));
    return session;
  };
  std::vector<Outcome> alone;
  std::set<Tokens> different;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    alone.push_back(run(fed(kind), generating(40)));
    different.insert(alone.back().tokens);
  }
  EXPECT_GE(different.size(), kinds.size() - 1);
  for (int round = 0; round < 3; ++round) {
    std::vector<Outcome> together(kinds.size());
    std::vector<std::thread> readers;
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      readers.emplace_back([&, kind] { together[kind] = run(fed(kind), generating(40)); });
    }
    for (auto& reader : readers) reader.join();
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      EXPECT_EQ(together[kind].tokens, alone[kind].tokens) << kind;
      EXPECT_EQ(together[kind].logprobs, alone[kind].logprobs) << kind;
    }
  }
}

TEST(Adapters, ACopyOfTheModelsOwnEmbeddingIsNotKept) {
  const auto model = load(kModel);
  // "everything" has a low-rank change of the embedding, beside which PEFT saves the base's.
  const Loaded all = adapter(model, kAdapters + "everything");
  EXPECT_EQ(all->adapter->embedding, nullptr);
  EXPECT_NE(all->adapter->embedding_a, nullptr);
  // For a model with another embedding it is what the adapter was made with.
  const auto merged = load_merged({{kAdapters + "attention", 1}});
  EXPECT_NE(adapter(merged, kAdapters + "everything")->adapter->embedding, nullptr);
}

// lm_head of a tied model is the embedding.
TEST(Adapters, ACopyOfATiedHeadIsNotKept) {
  const std::string name = "gqa_llama3_tied";
  const auto model = load(name);
  const ModelConfig& config = model->llama->config();
  const auto files = take(open_safetensors(source_path("tests/golden/models/" + name), TensorFiles::Access::kRead));
  const std::vector<int64_t> shape = {config.vocab_size, config.hidden_size};
  const auto view = take(files->view("model.embed_tokens.weight", shape));
  ASSERT_EQ(view.type, ElementType::kF32);
  std::vector<float> embedding(static_cast<size_t>(shape[0] * shape[1]));
  expect_ok(files->read("model.embed_tokens.weight", 0, std::as_writable_bytes(std::span(embedding))));
  AdapterDirectory directory;
  directory.config["target_modules"] = {"lm_head"};
  directory.fill("lm_head.lora_A.weight", {2, shape[1]});
  directory.fill("lm_head.lora_B.weight", {shape[0], 2});
  directory.put("lm_head.base_layer.weight", shape, embedding);
  directory.write();
  EXPECT_EQ(adapter(model, directory.path())->adapter->lm_head, nullptr);
  embedding.back() += 1;
  directory.put("lm_head.base_layer.weight", shape, embedding);
  directory.write();
  EXPECT_NE(adapter(model, directory.path())->adapter->lm_head, nullptr);
}

TEST(Adapters, RefusesWhatMakesNoSense) {
  const auto model = load(kModel), other = load(kModel);
  const Loaded attention = adapter(model, kAdapters + "attention");
  const auto refused = [&](const std::vector<SessionAdapter>& adapters) {
    const SessionOptions options = with_adapters(adapters);
    const Status status = Session::create(model, options).status();
    EXPECT_EQ(Session::check(*model, options).message(), status.message());
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refused({{attention, 1}, {adapter(other, kAdapters + "everything"), 1}}),
              HasSubstr("adapters[1] was loaded for another model"));
  EXPECT_THAT(refused({{attention, 1}, {attention, 0.5}}), HasSubstr("both replace model.embed_tokens.weight"));
  const Loaded everything = adapter(model, kAdapters + "everything");
  EXPECT_THAT(refused({{everything, 1}, {everything, 1}}), HasSubstr("adapters[0] and adapters[1] both replace"));
  const auto wrong = load_adapter(load("short_128"), kAdapters + "attention");
  EXPECT_EQ(wrong.status().code(), Code::kBadFile);
  EXPECT_THAT(wrong.status().message(), HasSubstr("adapter_model.safetensors"));
}

TEST(Adapters, ClosingTheRuntimeEndsTheirLoading) {
  const auto model = load(kModel);
  AdapterLoadOptions options;
  int reports = 0;
  options.progress = [&](int64_t, int64_t) {
    if (++reports == 1) model->runtime->close();
  };
  const Status status = load_adapter(model, kAdapters + "everything", options).status();
  EXPECT_EQ(status.code(), Code::kClosed);
  EXPECT_EQ(status.message(), "the runtime was closed during loading");
  EXPECT_EQ(load_adapter(model, kAdapters + "everything").status().message(), "the runtime is closed");
  EXPECT_EQ(Session::check(*model, {}).message(), "the runtime was closed");
}

// The text of the warnings of one stream.
std::vector<std::string> warnings(const std::shared_ptr<Session>& session) {
  const auto stream = take(GenerationStream::open(session, {}));
  std::vector<std::string> texts;
  for (;;) {
    const StreamEvent* event = nullptr;
    if (take(stream->next(-1, &event)) != NextResult::kEvent) return texts;
    if (event->type == StreamEvent::Type::kWarning) texts.push_back(event->message.text);
  }
}

TEST(Adapters, ChangedQueriesOrKeysAskForABase) {
  AdapterDirectory up;
  make_small(up, "mlp.up_proj", 64, 80);
  const auto model = load(kModel);
  const Loaded attention = adapter(model, kAdapters + "attention"), small = adapter(model, up.path());
  const auto session = make_session(model, with_adapters({{small, 1}, {attention, 1}}));
  expect_ok(session->feed_tokens(random_tokens(*model, 300)));
  const auto first = warnings(session);
  ASSERT_EQ(first.size(), 2u);  // the other: 300 tokens are more than the model can serve
  EXPECT_THAT(first[0], HasSubstr("base(theta=...)"));
  EXPECT_THAT(first[0], HasSubstr("theta=10000 "));
  EXPECT_THAT(first[1], HasSubstr("256"));
  EXPECT_EQ(warnings(session).size(), 1u);  // said once
  EXPECT_TRUE(warnings(make_session(model, with_adapters({{attention, 1}}, "full + base(theta=2e8)"))).empty());
  EXPECT_TRUE(warnings(make_session(model, with_adapters({{attention, 1}}, "auto + base(theta=1e4)"))).empty());
  EXPECT_TRUE(warnings(make_session(model, with_adapters({{attention, 1}}, "full + pi(factor=2)"))).empty());
  EXPECT_EQ(warnings(make_session(model, with_adapters({{attention, 1}}, "full + none"))).size(), 1u);
  EXPECT_TRUE(warnings(make_session(model, with_adapters({{small, 1}}))).empty());
  EXPECT_TRUE(warnings(make_session(model, with_adapters({}))).empty());
  const auto merged = load_merged({{kAdapters + "attention", 1}});
  EXPECT_EQ(warnings(make_session(merged, with_adapters({}))).size(), 1u);
  EXPECT_TRUE(warnings(make_session(merged, with_adapters({}, "full + base(theta=2e8)"))).empty());
}

TEST(Adapters, TheWarningIsLogged) {
  std::vector<std::string> lines;
  RuntimeOptions options;
  options.n_threads = 1;
  options.log = Log(
      [](void* user, int32_t level, const char* message, size_t length) {
        if (level == static_cast<int32_t>(LogLevel::kWarning)) {
          static_cast<std::vector<std::string>*>(user)->emplace_back(message, length);
        }
      },
      &lines, LogLevel::kWarning);
  const auto model = load(kModel, std::move(options));
  make_session(model, with_adapters({}));
  EXPECT_TRUE(lines.empty());
  make_session(model, with_adapters({{adapter(model, kAdapters + "attention"), 1}}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("base(theta=...)"));
}

TEST(Adapters, TheFingerprintNamesWhatKeysDependOn) {
  const auto model = load(kModel);
  const Loaded attention = adapter(model, kAdapters + "attention"), all = adapter(model, kAdapters + "everything");
  AdapterDirectory up;
  make_small(up, "mlp.up_proj", 64, 80);
  const Loaded small = adapter(model, up.path());
  std::set<std::string> all_prints;
  const auto print = [&](const std::shared_ptr<Model>& of, SessionOptions options) {
    return make_session(of, options)->fingerprint();
  };
  const auto expect_new = [&](const std::string& fingerprint) {
    EXPECT_EQ(fingerprint.size(), 32u);
    EXPECT_TRUE(all_prints.insert(fingerprint).second);
  };
  const std::string plain = print(model, with_adapters({}));
  expect_new(plain);
  expect_new(print(model, with_adapters({}, "dca")));
  SessionOptions half = with_adapters({});
  half.kv_type = ElementType::kF16;
  expect_new(print(model, half));
  expect_new(print(model, with_adapters({{attention, 1}})));
  expect_new(print(model, with_adapters({{attention, 0.5}})));
  expect_new(print(model, with_adapters({{all, 1}})));
  expect_new(print(model, with_adapters({{attention, 1}, {small, 1}})));
  expect_new(print(model, with_adapters({{small, 1}, {attention, 1}})));
  expect_new(print(load("short_128"), with_adapters({})));
  expect_new(print(load_merged({{kAdapters + "attention", 1}}), with_adapters({})));
  expect_new(print(load_merged({{kAdapters + "attention", 2}}), with_adapters({})));
  // Another process, another way to the same.
  EXPECT_EQ(print(load(kModel, 1), with_adapters({}, "full(train_len=256)")), plain);
  const auto again = load(kModel);
  EXPECT_EQ(print(again, with_adapters({{adapter(again, kAdapters + "attention"), 1}})),
            print(model, with_adapters({{attention, 1}})));
}

TEST(Adapters, TheFingerprintSeesEveryWeight) {
  namespace fs = std::filesystem;
  const AdapterDirectory copy;
  fs::copy(source_path("tests/golden/models/") + kModel, copy.path(),
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const auto print = [&](bool map) {
    RuntimeOptions runtime;
    runtime.n_threads = 1;
    ModelLoadOptions options;
    options.map = map;
    const auto model = take(load_model(make_runtime(runtime), copy.path(), options));
    return make_session(model, with_adapters({}))->fingerprint();
  };
  const std::string before = print(true);
  EXPECT_EQ(print(false), before);
  EXPECT_EQ(make_session(load(kModel), with_adapters({}))->fingerprint(), before);
  const std::string file = copy.file("model.safetensors");
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
  weights.seekg(middle);
  const char byte = static_cast<char>(weights.get() ^ 1);
  weights.seekp(middle);
  weights.put(byte);
  weights.close();
  EXPECT_NE(print(true), before);
}

}  // namespace
}  // namespace quire::test
