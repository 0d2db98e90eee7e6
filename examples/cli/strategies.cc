// quire strategies: what strategy expressions may be made of.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "document.h"
#include "output.h"
#include "quire_handles.h"
#include "validators.h"

namespace cli {
namespace {

struct StrategiesArguments {
  int64_t train_len = 4096;
  int32_t n_heads = 0;
  bool json = false;
};

Json list(const StrategiesArguments& arguments) {
  auto options = initialised(quire_strategy_options_init);
  options.train_len = arguments.train_len;
  options.n_heads = arguments.n_heads;
  return Json::parse(
      get_text([&](char* buf, size_t cap, size_t* needed,
                   quire_error* err) { return quire_strategy_get_list(&options, buf, cap, needed, err); },
               "listing strategies"));
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// "16 to 1365", "code|paper"
std::string values_of(const Json& argument) {
  if (argument.contains("min")) return text_of(argument["min"]) + " to " + text_of(argument["max"]);
  std::string words;
  if (argument.contains("choices")) {
    for (const Json& choice : argument["choices"]) words += (words.empty() ? "" : "|") + text_of(choice);
  }
  return words;
}

void print_term(const Json& term) {
  print("%s: %s\n", text_of(term["name"]).c_str(), text_of(term["description"]).c_str());
  if (term.contains("obstacle")) print("    not here: %s\n", text_of(term["obstacle"]).c_str());
  for (const Json& argument : term["arguments"]) {
    std::string line = text_of(argument["name"]) + "=";
    if (argument.contains("default")) line += text_of(argument["default"]);
    const std::string values = values_of(argument);
    if (!values.empty()) line += "  [" + values + "]";
    if (argument.contains("with")) line += "  with " + text_of(argument["with"]);
    print("    %-40s %s\n", line.c_str(), text_of(argument["description"]).c_str());
  }
}

}  // namespace

void add_strategies(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<StrategiesArguments>();
  CLI::App* command =
      app.add_subcommand("strategies", "List strategies and their arguments, with defaults and ranges; needs no model");
  command->add_option("--train-len", arguments->train_len, "tokens the model was trained for (default: 4096)")
      ->check(whole_number(1, int64_t{1} << 40))
      ->type_name("L");
  command->add_option("--heads", arguments->n_heads, "query heads of the model (default: 32)")
      ->check(whole_number(1, 65536))
      ->type_name("N");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments, &action] {
    action = [arguments] {
      const Json found = list(*arguments);
      if (arguments->json) {
        print_json(found);
      } else {
        for (const Json& term : found["terms"]) print_term(term);
      }
      return 0;
    };
  });
}

}  // namespace cli
