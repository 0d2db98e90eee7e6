// Models, adapters, tokenizers, templates, devices, and what can be known before anything is loaded.
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/cpp/with_model.h"

namespace quire_cpp {
namespace {

using nlohmann::json;
using quire::Status;
using testing::HasSubstr;

class Models : public WithModel {};

TEST_F(Models, InfoAndMetadata) {
  const quire::ModelInfo info = model.info().value();
  EXPECT_EQ(info.n_layers, 2);
  EXPECT_EQ(info.vocab_size, 320);
  EXPECT_EQ(static_cast<quire::Type>(info.weight_type), quire::Type::kF32);
  EXPECT_EQ(model.metadata("architecture").value(), "LlamaForCausalLM");
  EXPECT_EQ(status(model.metadata("colour")), Status::kNotFound);
}

TEST_F(Models, Devices) {
  const auto devices = runtime.devices().value();
  ASSERT_FALSE(devices.empty());
  EXPECT_STREQ(devices[0].name, "cpu");
  EXPECT_EQ(static_cast<quire::DeviceKind>(devices[0].kind), quire::DeviceKind::kCpu);
  EXPECT_TRUE(devices[0].flags & QUIRE_DEVICE_USABLE);
  quire::ModelOptions options;
  options.device = "cpu";
  EXPECT_EQ(quire::Model::load(runtime, kModel, options).value().metadata("device_reason").value(), "asked for");
  options.device = "gpu";
  EXPECT_EQ(status(quire::Model::load(runtime, kModel, options)), Status::kInvalidArgument);
}

TEST_F(Models, Quantize) {
  const quire::test::TemporaryFolder folder;
  EXPECT_THAT(std::string(quire::quantizations()), HasSubstr("q4_k_m"));
  quire::QuantizeOptions options;
  options.recipe = "q8_0";
  options.n_threads = 1;
  std::pair<int64_t, int64_t> last;
  options.progress = [&](int64_t done, int64_t total) { last = {done, total}; };
  quire::quantize_model(kModel, folder.file("model.gguf"), options).value();
  EXPECT_EQ(last.first, last.second);
  EXPECT_GT(last.second, 0);
  const json files = json::parse(quire::describe_model_files(folder.file("model.gguf")).value());
  EXPECT_EQ(files["format"], "gguf");
  quire::ModelOptions exact;
  exact.activation_type = quire::Type::kF32;
  const auto quantized = quire::Model::load(runtime, folder.file("model.gguf"), exact).value();
  EXPECT_EQ(static_cast<quire::Type>(quantized.info().value().weight_type), quire::Type::kQ8_0);
  quire::ModelOptions packed;
  packed.packed_directory = folder.file("packed");
  quire::Model::load(runtime, folder.file("model.gguf"), packed).value();
  EXPECT_FALSE(std::filesystem::is_empty(folder.file("packed")));
  options.recipe = "q1";
  EXPECT_EQ(status(quire::quantize_model(kModel, folder.file("model.gguf"), options)), Status::kInvalidArgument);
}

TEST_F(Models, Adapters) {
  const auto answer = [](const quire::Model& used, std::vector<quire::SessionAdapter> adapters) {
    quire::SessionOptions options;
    options.strategy = "full + base(theta=10000)";
    options.adapters = std::move(adapters);
    auto session = quire::Session::create(used, options).value();
    session.feed_text("Rain fell on the harbour all night.").value();
    return std::pair(generate(session, go(24)), session.fingerprint().value());
  };
  const auto adapter = quire::Adapter::load(model, kAdapters + "/attention").value();
  const quire::AdapterInfo info = adapter.info().value();
  EXPECT_EQ(info.rank, 4);
  EXPECT_TRUE(info.flags & QUIRE_ADAPTER_CHANGES_QUERIES_OR_KEYS);
  EXPECT_EQ(adapter.metadata("base_model").value(), "text_256");
  const auto plain = answer(model, {}), beside = answer(model, {{adapter}}), twice = answer(model, {{adapter, 2}});
  quire::ModelOptions options;
  options.merge = {{kAdapters + "/attention", 2}};
  EXPECT_EQ(answer(quire::Model::load(runtime, kModel, options).value(), {}).first, twice.first);
  EXPECT_NE(plain.first, beside.first);
  EXPECT_NE(beside.first, twice.first);
  EXPECT_NE(beside.second, twice.second);
  EXPECT_EQ(status(quire::Adapter::load(model, "/no/such/adapter")), Status::kNotFound);
}

TEST_F(Models, Tokenizer) {
  const auto tokenizer = quire::Tokenizer::of(model).value();
  const std::string text = "Rain fell on the harbour: \xe9\x9b\xa8";
  const auto ids = tokenizer.encode(text).value();
  EXPECT_EQ(ids[0], tokenizer.bos());
  EXPECT_EQ(tokenizer.decode(ids).value(), text);
  EXPECT_EQ(tokenizer.decode({1}, true).value(), "<s>");
  quire::TextOptions options;
  options.add_bos = false;
  EXPECT_EQ(tokenizer.encode(text, options).value(), std::vector<int32_t>(ids.begin() + 1, ids.end()));
  EXPECT_NE(tokenizer.encode(text, {}, true).value()[0], ids[1]);
  std::string bytes;
  for (int32_t id : ids) bytes += tokenizer.token_bytes(id).value();
  EXPECT_THAT(bytes, testing::EndsWith(text));
  EXPECT_TRUE(tokenizer.is_eos(2));
  EXPECT_FALSE(tokenizer.is_eos(3));
  EXPECT_EQ(tokenizer.vocab_size(), 320);
  EXPECT_EQ(quire::Tokenizer().bos(), std::nullopt);
  EXPECT_EQ(quire::Tokenizer::load(runtime, kModel + "/tokenizer.model").value().encode(text).value(), ids);
}

TEST_F(Models, Chat) {
  EXPECT_THAT(quire::list_chat_templates().value(), HasSubstr("llama2"));
  const auto tokenizer = quire::Tokenizer::of(model).value();
  EXPECT_EQ(status(tokenizer.chat_template()), Status::kNotFound);
  quire::ChatOptions options;
  options.template_name = "llama2";
  const std::vector<quire::Message> messages = {{"system", "Be brief."}, {"user", "one</s>"}};
  EXPECT_EQ(tokenizer.render_chat(messages, options).value(),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\none</s> [/INST]");
  const auto ids = tokenizer.encode_chat(messages, options).value();
  quire::Session chat = session();
  chat.feed_messages(messages, options).value();
  EXPECT_EQ(chat.token_counts().value().n_pending, static_cast<int64_t>(ids.size()));
  options.template_name = "llama3.1";
  options.date = "2025-03-09";
  EXPECT_THAT(tokenizer.render_chat(messages, options).value(), HasSubstr("Today Date: 09 Mar 2025"));
  options = {};
  options.template_name = "qwen3";
  options.thinking = false;
  EXPECT_THAT(tokenizer.render_chat(messages, options).value(), testing::EndsWith("</think>\n\n"));
  options.answer = false;
  EXPECT_THAT(tokenizer.render_chat(messages, options).value(), testing::EndsWith("<|im_end|>\n"));
}

TEST_F(Models, BeforeLoading) {
  quire::SessionOptions options;
  options.expected_tokens = 5000;
  options.strategy = "dca";
  quire::check_session(runtime, kModel, options).value();
  quire::check_session(model, options).value();
  options.strategy = "full";
  EXPECT_EQ(status(quire::check_session(runtime, kModel, options)), Status::kOverflow);
  EXPECT_EQ(status(quire::check_session(model, options)), Status::kOverflow);
  options.strategy = "auto";
  EXPECT_THAT(quire::describe_strategy(model, options).value(), HasSubstr("dca"));
  EXPECT_EQ(quire::describe_strategy(runtime, kModel, options).value(),
            quire::describe_strategy(model, options).value());
  const quire::MemoryPlan plan = quire::plan_memory(runtime, kModel, 1000, options).value();
  EXPECT_GT(plan.kv_host_bytes, 0);
  EXPECT_EQ(plan.kv_file_bytes, 0);
  EXPECT_GT(quire::estimate_rates(model, 1000, options).value().prefill_ns, 0);
}

TEST_F(Models, StrategiesAsData) {
  quire::StrategyOptions options;
  options.train_len = 256;
  EXPECT_EQ(json::parse(quire::list_strategies(options).value())["train_len"], 256);
  options.strategy = "dca(chunk=6, cap=9)";
  options.train_len = 10;
  quire::PositionView view;
  view.n_queries = view.n_keys = 12;
  const auto matrix = quire::strategy_positions(options, view).value();
  ASSERT_EQ(matrix.size(), 144u);
  EXPECT_EQ(std::vector<double>(matrix.end() - 12, matrix.end()),
            (std::vector<double>{9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0}));
  EXPECT_TRUE(std::isnan(matrix[1]));
}

}  // namespace
}  // namespace quire_cpp
