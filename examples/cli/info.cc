// quire info: what a model is.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "document.h"
#include "engine.h"
#include "output.h"

namespace cli {
namespace {

// The name of the checkpoint's own, or why there is none.
std::string chat_template(const Engine& engine) {
  const Tokenizer tokenizer = engine.tokenizer();
  try {
    return get_text(
        [&](char* buf, size_t cap, size_t* needed, quire_error* err) {
          return quire_tokenizer_get_chat_template(tokenizer.get(), buf, cap, needed, err);
        },
        "reading the chat template");
  } catch (const QuireFailure& failure) {
    if (failure.status() == QUIRE_ERROR_NOT_FOUND) return "";
    if (failure.status() == QUIRE_ERROR_UNSUPPORTED) return "unknown";
    throw;
  }
}

Json facts(const Engine& engine) {
  const quire_model_info info = engine.info();
  return {{"architecture", engine.metadata("architecture")},
          {"n_parameters", info.n_parameters},
          {"device", engine.metadata("device")},
          {"device_reason", engine.metadata("device_reason")},
          {"weight_type", type_name(info.weight_type)},
          {"weight_bytes", info.weight_bytes},
          {"train_len", info.train_len},
          {"n_layers", info.n_layers},
          {"n_query_heads", info.n_query_heads},
          {"n_kv_heads", info.n_kv_heads},
          {"head_dim", info.head_dim},
          {"hidden_size", info.hidden_size},
          {"intermediate_size", info.intermediate_size},
          {"vocab_size", info.vocab_size},
          {"rope_theta", info.rope_theta},
          {"rope_type", engine.metadata("rope_type")},
          {"rope_scaling", engine.metadata("rope_scaling")},
          {"sliding_window", info.sliding_window},
          {"sliding_window_layers", std::stoi(engine.metadata("sliding_window_layers"))},
          {"sliding_window_tokens", std::stoll(engine.metadata("sliding_window_tokens"))},
          {"auto_strategy", engine.describe("auto")},
          {"tokenizer", engine.metadata("tokenizer")},
          {"chat_template", chat_template(engine)},
          {"bos_token_id", engine.metadata("bos_token_id")},
          {"eos_token_ids", engine.metadata("eos_token_ids")}};
}

void print_facts(const Json& facts) {
  for (const auto& [key, value] : facts.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (key == "weight_bytes") text += " (" + human_bytes(value.get<int64_t>()) + ")";
    if (text.empty()) text = "none";
    if (key == "sliding_window" && value == 0)
      text = facts["sliding_window_layers"] == 0 ? "none" : "not in all layers";
    if (key == "chat_template" && text == "unknown") {
      text += "; one that writes the same may be named with --chat-template, see `quire chat --templates`";
    }
    print("%-21s %s\n", key.c_str(), text.c_str());
  }
}

Json devices() {
  const Runtime runtime = create_runtime(0);
  Error error;
  int32_t n = 0;
  error.check(quire_runtime_get_device_count(runtime.get(), &n, error.get()), "counting devices");
  Json all = Json::array();
  for (int32_t i = 0; i < n; ++i) {
    quire_device_info info = {};
    info.struct_size = sizeof info;
    error.check(quire_runtime_get_device_info(runtime.get(), i, &info, error.get()), "asking for a device");
    all.push_back({{"name", info.name},
                   {"description", info.description},
                   {"memory_bytes", info.memory_bytes},
                   {"free_bytes", info.free_bytes},
                   {"usable", (info.flags & QUIRE_DEVICE_USABLE) != 0},
                   {"obstacle", info.obstacle}});
  }
  return all;
}

void print_devices(const Json& all) {
  for (const Json& device : all) {
    const auto free_bytes = device["free_bytes"].get<int64_t>();  // 0: not known
    print("%-8s %s, %s%s\n", device["name"].get<std::string>().c_str(),
          device["description"].get<std::string>().c_str(),
          free_bytes > 0 ? (human_bytes(free_bytes) + " free of ").c_str() : "",
          human_bytes(device["memory_bytes"].get<int64_t>()).c_str());
    if (!device["usable"].get<bool>()) print("         %s\n", device["obstacle"].get<std::string>().c_str());
  }
}

void print_files(const Json& found) {
  int64_t bytes = 0;
  for (const Json& tensor : found["tensors"]) {
    print("%-48s %-6s %-16s %s\n", tensor["name"].get<std::string>().c_str(), tensor["type"].get<std::string>().c_str(),
          tensor["shape"].dump().c_str(), human_bytes(tensor["bytes"].get<int64_t>()).c_str());
    bytes += tensor["bytes"].get<int64_t>();
  }
  print("%zu tensors, %s, %s\n", found["tensors"].size(), human_bytes(bytes).c_str(),
        found["format"].get<std::string>().c_str());
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  struct InfoArguments {
    ModelArguments model;
    bool devices = false;
    bool tensors = false;
    bool json = false;
  };
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* command =
      app.add_subcommand("info", "Show what a model is: sizes, trained length, tokenizer, what auto would choose");
  CLI::Option* model =
      command->add_option("model", arguments->model.path, "GGUF file, or model directory")->type_name("PATH");
  command->add_flag("--devices", arguments->devices, "what models can run on here, instead of a model")
      ->excludes(model);
  command->add_flag("--tensors", arguments->tensors, "the tensors of its files and their types; loads nothing")
      ->needs(model);
  add_quiet_option(*command);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(R"help(
Examples:
  quire info model
  quire info --tensors model.gguf
  quire info --devices)help");
  command->callback([arguments, &action] {
    action = [arguments] {
      if (arguments->model.path.empty() && !arguments->devices) {
        throw UsageError("info needs a model, or --devices");
      }
      const Json found = arguments->devices   ? devices()
                         : arguments->tensors ? describe_files(arguments->model.path)
                                              : facts(Engine(arguments->model));
      if (arguments->json) {
        print_json(found);
      } else if (arguments->tensors) {
        print_files(found);
      } else {
        arguments->devices ? print_devices(found) : print_facts(found);
      }
      return 0;
    };
  });
}

}  // namespace cli
