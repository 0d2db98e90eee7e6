// quire ls: which saved sessions there are, in files and in stores.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "output.h"
#include "snapshot.h"
#include "store.h"

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
  Json stores = Json::array();
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
    if (is_store(path)) {
      listing.stores.push_back(describe_store(open_existing_store(path).get()));
      continue;
    }
    for (const std::string& file : candidates(path)) add(file, false, listing);
  }
  return listing;
}

using Row = std::vector<std::string>;

// Of keys and values, and those of old text where they have another.
std::string types_of(const Json& origin) {
  const auto type = origin["kv_type"].get<std::string>();
  if (!origin.contains("kv_old_type")) return type;
  return type + ", " + origin["kv_old_type"].get<std::string>() + " after " + origin["old_after"].dump();
}

Row row_of(const Json& snapshot) {
  const Json& origin = snapshot["origin"];
  return {snapshot["path"].get<std::string>(),
          snapshot["n_tokens"].dump(),
          snapshot["n_pending"].dump(),
          snapshot["n_approximate"].dump(),
          human_bytes(snapshot["bytes"].get<int64_t>()),
          types_of(origin),
          origin["model"].get<std::string>().substr(0, 8),
          origin["strategy"].get<std::string>()};
}

// Columns [first, last] hold numbers.
void print_table(const std::vector<Row>& rows, size_t first, size_t last) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      const bool number = first <= i && i <= last;
      line += (i > 0 ? "  " : "") + (number ? padding + row[i] : row[i] + (i + 1 == row.size() ? "" : padding));
    }
    print_text(line + "\n");
  }
}

void print_snapshots(const Json& snapshots) {
  std::vector<Row> rows = {{"file", "tokens", "pending", "approximate", "size", "kv", "model", "strategy"}};
  for (const Json& snapshot : snapshots) rows.push_back(row_of(snapshot));
  print_table(rows, 1, 4);
}

std::string local_time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  char text[32] = "";
  if (const std::tm* local = std::localtime(&time)) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M", local);
  return text;
}

void print_store(const Json& store) {
  std::vector<Row> rows = {{"entry", "tokens", "size", "last use", "kv", "model", "strategy", "title"}};
  for (const Json& entry : store["entries"]) {
    Row row = {entry["name"].get<std::string>(), "?", human_bytes(entry["bytes"].get<int64_t>()),
               local_time(entry["last_use"].get<int64_t>())};
    if (entry.contains("damage")) {
      row.insert(row.end(), {"?", "?", "?", "damaged: " + printable(entry["damage"].get<std::string>())});
    } else {
      const Json& origin = entry["origin"];
      row[1] = entry["n_tokens"].dump();
      row.insert(row.end(), {types_of(origin), origin["model"].get<std::string>().substr(0, 8),
                             origin["strategy"].get<std::string>(), printable(entry["title"].get<std::string>())});
    }
    rows.push_back(std::move(row));
  }
  const size_t n = store["entries"].size();
  print_text(printable(store["path"].get<std::string>()) + ": " + std::to_string(n) +
             (n == 1 ? " entry, " : " entries, ") + human_bytes(store["bytes"].get<int64_t>()) + "\n");
  print_table(rows, 1, 2);
  flush_output();
  for (const Json& name : store["unknown"]) {
    std::fprintf(stderr, "quire: not the store's: %s\n", printable(name.get<std::string>()).c_str());
  }
}

int ls(const LsArguments& arguments) {
  const Listing listing = list(arguments.paths);
  if (arguments.json) {
    print_json({{"snapshots", listing.snapshots}, {"skipped", listing.skipped}, {"stores", listing.stores}});
    return listing.failed ? 1 : 0;
  }
  if (!listing.snapshots.empty() || listing.stores.empty()) print_snapshots(listing.snapshots);
  for (const Json& store : listing.stores) print_store(store);
  flush_output();
  for (const Json& file : listing.skipped) {
    std::fprintf(stderr, "quire: skipped %s\n", file["reason"].get<std::string>().c_str());
  }
  return listing.failed ? 1 : 0;
}

}  // namespace

void add_ls(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<LsArguments>();
  CLI::App* command = app.add_subcommand("ls", "List files and stores of `quire index`; needs no model");
  command->add_option("paths", arguments->paths, "files, stores, or directories, whose *.quire are listed (default: .)")
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
