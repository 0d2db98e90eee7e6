// quire rm: remove documents from a store.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "output.h"
#include "store.h"
#include "validators.h"

namespace cli {
namespace {

constexpr size_t kLeastDigits = 4;  // of a name that is not given in full

struct RmArguments {
  std::string directory;
  std::vector<std::string> names;
  bool all = false;
  double older_than_days = 0;
  bool json = false;
};

// The entry whose name begins so.
std::string find_name(const Json& entries, const std::string& begin) {
  std::string found;
  for (const Json& entry : entries) {
    const auto name = entry["name"].get<std::string>();
    if (begin.size() < kLeastDigits || !name.starts_with(begin)) continue;
    if (!found.empty()) throw std::runtime_error("more than one entry's name begins with " + begin);
    found = name;
  }
  return found.empty() ? begin : found;
}

std::vector<std::string> chosen_names(const RmArguments& arguments, const Json& entries) {
  std::vector<std::string> names;
  for (const std::string& name : arguments.names) names.push_back(find_name(entries, name));
  if (!names.empty()) return names;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double now_seconds = std::chrono::duration<double>(now).count();
  for (const Json& entry : entries) {
    const double days = (now_seconds - entry["last_use"].get<double>()) / 86400;
    if (arguments.all || days > arguments.older_than_days) names.push_back(entry["name"].get<std::string>());
  }
  return names;
}

int rm(const RmArguments& arguments) {
  const int n_ways = !arguments.names.empty() + arguments.all + (arguments.older_than_days > 0);
  if (n_ways != 1) throw UsageError("rm needs exactly one of: names of entries, --all, --older-than");
  const Store store = open_existing_store(arguments.directory);
  Json removed = Json::array(), failed = Json::array();
  for (const std::string& name : chosen_names(arguments, describe_store(store.get())["entries"])) {
    Error error;
    const quire_status done = quire_store_remove(store.get(), name.data(), name.size(), error.get());
    // Of entries that nobody named, another process may have removed one meanwhile.
    if (done == QUIRE_ERROR_NOT_FOUND && arguments.names.empty()) continue;
    if (done < 0) {
      const char* const status = quire_get_status_name(done);
      failed.push_back({{"name", name}, {"status", status}, {"reason", error.get()->message}});
      if (!arguments.json) std::fprintf(stderr, "quire: %s [%s]\n", error.get()->message, status);
      continue;
    }
    removed.push_back(name);
    if (!arguments.json) print_text("removed " + name + "\n");
  }
  if (arguments.json) print_json({{"removed", removed}, {"failed", failed}});
  return failed.empty() ? 0 : 1;
}

}  // namespace

void add_rm(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<RmArguments>();
  CLI::App* command = app.add_subcommand("rm", "Remove documents from a store; needs no model");
  command->add_option("directory", arguments->directory, "the store")->required()->type_name("DIR");
  command->add_option("names", arguments->names, "entries, as `quire ls DIR` names them; the first digits do")
      ->type_name("NAME");
  command->add_flag("--all", arguments->all, "all entries");
  command->add_option("--older-than", arguments->older_than_days, "entries that were not used for so many days")
      ->check(positive_number(1e6))
      ->type_name("DAYS");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(R"help(
A process that reads an entry goes on. What is not the store's stays in the directory.

Example:
  quire rm library 56b967f3)help");
  command->callback([arguments, &action] { action = [arguments] { return rm(*arguments); }; });
}

}  // namespace cli
