#include "advice.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace cli {
namespace {

// How many characters must be put in, left out or replaced.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t k = 0; k < b.size(); ++k) {
      const size_t replaced = diagonal + (a[i] == b[k] ? 0 : 1);
      diagonal = row[k + 1];
      row[k + 1] = std::min({replaced, row[k] + 1, diagonal + 1});
    }
  }
  return row[b.size()];
}

// "; did you mean X?" if one of the words is like what was given, or begins with it.
std::string suggestion(const std::string& given, const std::vector<std::string>& words) {
  std::string best;
  size_t least = 3;
  for (const std::string& word : words) {
    const bool begins = given.size() > 4 && word.starts_with(given);
    const size_t distance = begins ? 0 : edit_distance(given, word);
    if (distance < least && distance < given.size() / 2) best = word, least = distance;
  }
  return best.empty() ? "" : "; did you mean " + best + "?";
}

const CLI::App* asked_command(const CLI::App& app) {
  const CLI::App* asked = &app;
  while (!asked->get_subcommands().empty()) asked = asked->get_subcommands().front();
  return asked;
}

bool is_given(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

// CLI11 lists all words that it has no use for, the last one first, and says of one where a command is required only
// that one is.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* asked = asked_command(app);
  const std::vector<std::string> rest = asked->remaining();
  if (rest.empty()) return error.what();
  const std::string& name = asked->get_name();
  const auto option = std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word[0] == '-'; });
  if (option != rest.end()) {
    const std::string given = option->substr(0, option->find('='));
    return given + " is no option of " + name + suggestion(given, options_of(*asked));
  }
  if (asked->get_require_subcommand_min() > 0) {
    return "\"" + rest.front() + "\" is no command of " + name + suggestion(rest.front(), commands_of(*asked));
  }
  const bool takes_file = asked->get_option_no_throw("--file") != nullptr;
  return name + " does not expect \"" + rest.front() + "\"" +
         (takes_file ? "; did you mean -f " + rest.front() + "?" : "");
}

const char* advice_for(const CLI::App& app, const QuireFailure& failure) {
  if (dynamic_cast<const StoreFailure*>(&failure) != nullptr) return "";
  const CLI::App& asked = *asked_command(app);
  switch (failure.status()) {
    case QUIRE_ERROR_OVERFLOW:
      if (is_given(asked, "--document")) {
        return "Try quire index with -s auto and another file: what reads a saved document keeps its strategy.\n";
      }
      if (is_given(asked, "--expected-tokens")) return "Try -s auto, without --expected-tokens or with more.\n";
      return "Try -s auto, which chooses a strategy that reaches so far.\n";
    case QUIRE_ERROR_BUDGET:
      if (is_given(asked, "--kv-budget") && is_given(asked, "--spill-dir")) return "Try a larger --kv-budget.\n";
      return "Try --kv-budget BYTES with --spill-dir DIR: a file there takes what that much memory has no room for.\n";
    default:
      return "";
  }
}

}  // namespace cli
