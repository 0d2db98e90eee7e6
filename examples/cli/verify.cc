// quire verify: whether files of saved sessions are whole.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "arguments.h"
#include "output.h"
#include "snapshot.h"
#include "store.h"

namespace cli {
namespace {

struct VerifyArguments {
  std::vector<std::string> paths;
  bool json = false;
};

// How reading each file went, which is said at once where no JSON is asked for.
class Findings {
 public:
  explicit Findings(bool json) : json_(json) {}

  // `verified` reads the file, or throws QuireFailure; what it returns describes the file, for people and for programs.
  // Nothing: there is no such file any more.
  void check(const std::string& path, const std::function<std::optional<std::pair<std::string, Json>>()>& verified) {
    try {
      auto found = verified();
      if (!found) return;
      auto& [summary, file] = *found;
      file.update({{"path", path}, {"whole", true}});
      add(std::move(file), path + ": whole, " + summary);
    } catch (const QuireFailure& failure) {
      whole_ = false;
      const char* const status = quire_get_status_name(failure.status());
      add({{"path", path}, {"whole", false}, {"status", status}, {"reason", failure.what()}},
          std::string(failure.what()) + " [" + status + "]");
    }
  }

  // The exit status.
  int finish() const {
    if (json_) print_json({{"files", files_}, {"whole", whole_}});
    return whole_ ? 0 : 1;
  }

 private:
  void add(Json file, const std::string& line) {
    files_.push_back(std::move(file));
    if (json_) return;
    print_text(line + "\n");
    flush_output();
  }

  const bool json_;
  bool whole_ = true;
  Json files_ = Json::array();
};

void verify_store(const std::string& path, Findings& findings) {
  const Store store = open_existing_store(path);
  const Json description = describe_store(store.get());
  for (const Json& entry : description["entries"]) {
    const auto name = entry["name"].get<std::string>();
    findings.check(path + "/" + name, [&]() -> std::optional<std::pair<std::string, Json>> {
      try {
        verify_entry(store.get(), name);
      } catch (const QuireFailure& failure) {
        if (failure.status() == QUIRE_ERROR_NOT_FOUND) return std::nullopt;  // another process removed it meanwhile
        throw;
      }
      Json file = {{"bytes", entry["bytes"]}};
      std::string summary = human_bytes(entry["bytes"].get<int64_t>());
      if (entry.contains("n_tokens")) {
        file["n_tokens"] = entry["n_tokens"];
        summary = entry["n_tokens"].dump() + " tokens, " + summary;
      }
      return std::pair(summary, file);
    });
  }
}

int verify(const VerifyArguments& arguments) {
  Findings findings(arguments.json);
  for (const std::string& path : arguments.paths) {
    if (is_store(path)) {
      verify_store(path, findings);
      continue;
    }
    findings.check(path, [&] {
      const Json description = describe_snapshot(path);
      verify_snapshot(path);
      return std::pair(snapshot_summary(description),
                       Json{{"bytes", description["bytes"]}, {"n_tokens", description["n_tokens"]}});
    });
  }
  return findings.finish();
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand(
      "verify", "Read files and stores of `quire index` and compare their checksums; needs no model");
  command->add_option("files", arguments->paths, "files, or stores, to read; exit status 1 if one is damaged")
      ->required()
      ->type_name("FILE");
  command->add_flag("--json", arguments->json, "print one JSON object");
  add_quiet_option(*command);
  command->footer("\nExample:\n  quire verify *.quire library");
  command->callback([arguments, &action] { action = [arguments] { return verify(*arguments); }; });
}

}  // namespace cli
