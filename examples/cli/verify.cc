// quire verify: whether files of saved sessions are whole.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "output.h"
#include "snapshot.h"
#include "store.h"

namespace cli {
namespace {

// Says how it went; false: something is wrong.
bool check(const std::string& path, const std::function<std::string()>& verified) {
  try {
    print_text(path + ": whole, " + verified() + "\n");
  } catch (const QuireFailure& failure) {
    print_text(std::string(failure.what()) + " [" + quire_get_status_name(failure.status()) + "]\n");
    flush_output();
    return false;
  }
  flush_output();
  return true;
}

bool verify_store(const std::string& path) {
  const Store store = open_existing_store(path);
  bool whole = true;
  const Json description = describe_store(store.get());
  for (const Json& entry : description["entries"]) {
    const auto name = entry["name"].get<std::string>();
    const bool done = check(path + "/" + name, [&] {
      verify_entry(store.get(), name);
      return (entry.contains("n_tokens") ? entry["n_tokens"].dump() + " tokens, " : "") +
             human_bytes(entry["bytes"].get<int64_t>());
    });
    whole = whole && done;
  }
  return whole;
}

int verify(const std::vector<std::string>& paths) {
  bool whole = true;
  for (const std::string& path : paths) {
    const bool done = is_store(path) ? verify_store(path) : check(path, [&] {
      std::string summary = snapshot_summary(describe_snapshot(path));
      verify_snapshot(path);
      return summary;
    });
    whole = whole && done;
  }
  return whole ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "verify", "Read files and stores of `quire index` and compare their checksums; needs no model");
  command->add_option("files", *paths, "files, or stores, to read; exit status 1 if one is damaged")
      ->required()
      ->type_name("FILE");
  add_quiet_option(*command);
  command->footer("\nExample:\n  quire verify *.quire library");
  command->callback([paths, &action] { action = [paths] { return verify(*paths); }; });
}

}  // namespace cli
