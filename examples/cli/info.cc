// quire info: what a model is.
#include <cstdio>
#include <memory>

#include "document.h"
#include "engine.h"
#include "output.h"

namespace cli {
namespace {

Json facts(const Engine& engine) {
  const quire_model_info info = engine.info();
  return {{"architecture", engine.metadata("architecture")},
          {"n_parameters", info.n_parameters},
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
          {"auto_strategy", engine.describe("auto")},
          {"tokenizer", engine.metadata("tokenizer")},
          {"bos_token_id", engine.metadata("bos_token_id")},
          {"eos_token_ids", engine.metadata("eos_token_ids")}};
}

void print_facts(const Json& facts) {
  for (const auto& [key, value] : facts.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (key == "weight_bytes") text += " (" + human_bytes(value.get<int64_t>()) + ")";
    print("%-18s %s\n", key.c_str(), text.c_str());
  }
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  struct InfoArguments {
    ModelArguments model;
    bool json = false;
  };
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* command =
      app.add_subcommand("info", "Show what a model is: sizes, trained length, tokenizer, what auto would choose");
  command->add_option("model", arguments->model.directory, "model directory")->required()->type_name("DIR");
  add_quiet_option(*command);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &action] {
    action = [arguments] {
      const Json found = facts(Engine(arguments->model));
      arguments->json ? print_json(found) : print_facts(found);
      return 0;
    };
  });
}

}  // namespace cli
