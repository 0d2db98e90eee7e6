// quire ls: which saved sessions there are.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "arguments.h"
#include "output.h"
#include "snapshot.h"

namespace cli {
namespace {

namespace fs = std::filesystem;

struct LsArguments {
  std::vector<std::string> paths = {"."};
  bool json = false;
};

struct Listing {
  Json snapshots = Json::array();
  Json skipped = Json::array();
  bool failed = false;  // a file that was named
};

// The files of a directory that are snapshots by their names.
std::vector<std::string> candidates(const std::string& directory) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == kSnapshotSuffix) found.push_back(entry->path().lexically_normal().string());
  }
  if (error) throw std::runtime_error("cannot list " + directory + ": " + error.message());
  std::sort(found.begin(), found.end());
  return found;
}

void add(const std::string& path, bool named, Listing& listing) {
  try {
    Json entry = {{"path", path}};
    entry.update(describe_snapshot(path));
    listing.snapshots.push_back(std::move(entry));
  } catch (const QuireFailure& failure) {
    listing.skipped.push_back({{"path", path}, {"reason", failure.what()}});
    listing.failed = listing.failed || named;
  }
}

Listing list(const std::vector<std::string>& paths) {
  Listing listing;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      add(path, true, listing);
      continue;
    }
    for (const std::string& file : candidates(path)) add(file, false, listing);
  }
  return listing;
}

using Row = std::array<std::string, 7>;

Row row_of(const Json& snapshot) {
  const Json& origin = snapshot["origin"];
  return {snapshot["path"].get<std::string>(),  snapshot["n_tokens"].dump(),
          snapshot["n_pending"].dump(),         human_bytes(snapshot["bytes"].get<int64_t>()),
          origin["kv_type"].get<std::string>(), origin["model"].get<std::string>().substr(0, 8),
          origin["strategy"].get<std::string>()};
}

void print_table(const Json& snapshots) {
  std::vector<Row> rows = {{"file", "tokens", "pending", "size", "kv", "model", "strategy"}};
  for (const Json& snapshot : snapshots) rows.push_back(row_of(snapshot));
  std::array<size_t, 7> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line = row[0] + std::string(widths[0] - row[0].size(), ' ');
    for (size_t i = 1; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool number = i <= 3, last = i + 1 == row.size();
      line += "  " + (number ? padding + row[i] : row[i] + (last ? "" : padding));
    }
    print_text(line + "\n");
  }
}

int ls(const LsArguments& arguments) {
  const Listing listing = list(arguments.paths);
  if (arguments.json) {
    print_json({{"snapshots", listing.snapshots}, {"skipped", listing.skipped}});
    return listing.failed ? 1 : 0;
  }
  print_table(listing.snapshots);
  flush_output();
  for (const Json& file : listing.skipped) {
    std::fprintf(stderr, "quire: skipped %s\n", file["reason"].get<std::string>().c_str());
  }
  return listing.failed ? 1 : 0;
}

}  // namespace

void add_ls(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<LsArguments>();
  CLI::App* command = app.add_subcommand("ls", "List files of `quire index`; needs no model");
  command->add_option("paths", arguments->paths, "files, or directories, whose *.quire are listed (default: .)")
      ->type_name("PATH");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(R"help(
Pending tokens are those that are still to be read. A model is named by the first digits of its identity.
What cannot be read is skipped, with the reason; exit status 1 if it was named.

Example:
  quire ls library)help");
  command->callback([arguments, &action] { action = [arguments] { return ls(*arguments); }; });
}

}  // namespace cli
