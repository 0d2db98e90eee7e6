// quire quantize: a model as a GGUF file of quantised weights.
#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "cancel_on_interrupt.h"
#include "document.h"
#include "output.h"

namespace cli {
namespace {

struct QuantizeArguments {
  std::string model, out;
  std::string recipe = "q4_k_m";
  int32_t n_threads = 0;
};

// The names of the recipes, which the library lists in one text.
std::vector<std::string> recipes() {
  std::vector<std::string> names;
  std::istringstream list(quire_get_quantizations());
  for (std::string name; std::getline(list >> std::ws, name, ',');) names.push_back(name);
  return names;
}

// Whether the output would take the place of the model, or of one of the files that have its weights.
bool is_of_model(const QuantizeArguments& arguments) {
  std::error_code ignored;
  if (!std::filesystem::exists(arguments.out, ignored)) return false;
  if (std::filesystem::equivalent(arguments.model, arguments.out, ignored)) return true;
  const Json found = describe_files(arguments.model);
  for (const Json& file : found["files"]) {
    if (std::filesystem::equivalent(file.get<std::string>(), arguments.out, ignored)) return true;
  }
  return false;
}

// Whether the output would take the place of a file of another kind: a path that was not meant.
bool is_no_gguf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> magic{};
  file.read(magic.data(), magic.size());
  return file.gcount() > 0 && std::string_view(magic.data(), magic.size()) != "GGUF";
}

int quantize(const QuantizeArguments& arguments) {
  if (is_of_model(arguments)) {
    throw UsageError(arguments.out + " is the model itself; what quantising takes away could not be brought back");
  }
  if (is_no_gguf(arguments.out)) throw UsageError(arguments.out + " is there and no GGUF file; it is not overwritten");
  const CancelOnInterrupt cancel;
  Progress progress("quantising", "MiB");
  auto options = initialised(quire_quantize_options_init);
  options.n_threads = arguments.n_threads;
  options.recipe = arguments.recipe.data();
  options.recipe_len = arguments.recipe.size();
  options.cancel = cancel.get();
  options.progress = show_mebibytes;
  options.progress_user_data = &progress;
  Error error;
  const quire_status status = quire_model_quantize(arguments.model.data(), arguments.model.size(), arguments.out.data(),
                                                   arguments.out.size(), &options, error.get());
  progress.clear();
  if (status == QUIRE_ERROR_CANCELLED) throw Interrupted();
  error.check(status, "quantising " + arguments.model);
  print_text(arguments.out + ": " + human_bytes(static_cast<int64_t>(std::filesystem::file_size(arguments.out))) +
             "\n");
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<QuantizeArguments>();
  CLI::App* command = app.add_subcommand("quantize", "Write a model as a GGUF file with weights of few bits");
  command->add_option("model", arguments->model, "GGUF file, or model directory")->required()->type_name("PATH");
  command->add_option("out", arguments->out, "GGUF file to write")->required()->type_name("FILE");
  command
      ->add_option("-t,--type", arguments->recipe,
                   std::string("one of ") + quire_get_quantizations() + " (default: q4_k_m)")
      ->check(CLI::IsMember(recipes()))
      ->type_name("NAME");
  command->add_option("--threads", arguments->n_threads, "threads (default: one for each usable core)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  add_quiet_option(*command);
  command->footer(R"help(
Below q6_k, types are mixtures: some tensors have more bits. The model itself is not overwritten, nor a file that
is no GGUF file.

Example:
  quire quantize -t q4_k_m model model-q4_k_m.gguf)help");
  command->callback([arguments, &action] { action = [arguments] { return quantize(*arguments); }; });
}

}  // namespace cli
