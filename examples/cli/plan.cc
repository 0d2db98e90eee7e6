// quire plan: the relative positions a strategy gives, without any model.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "document.h"
#include "output.h"
#include "position_map.h"
#include "quire_handles.h"
#include "validators.h"

namespace cli {
namespace {

struct PlanArguments {
  std::string strategy = "full";
  int64_t train_len = 0;
  int64_t n_tokens = 0;
  int64_t expected_tokens = 0;
  int32_t n_heads = 0;
  int32_t head = 0;
  bool json = false;
  std::string svg;
};

// Beyond this the matrix (n * n doubles) helps nobody.
constexpr int64_t kMaxTokens = 4096;
constexpr int64_t kMaxDrawnTokens = 256;

// Distances of rows to tokens and to condensed entries.
struct Rows {
  int64_t n_rows = 0;
  std::vector<double> tokens;     // [n_rows][n_tokens]
  std::vector<double> condensed;  // [n_rows][n_entries]
};

quire_strategy_options options_of(const PlanArguments& arguments) {
  auto options = initialised(quire_strategy_options_init);
  options.strategy = arguments.strategy.data();
  options.strategy_len = arguments.strategy.size();
  options.train_len = arguments.train_len;
  options.expected_tokens = arguments.expected_tokens;
  options.n_heads = arguments.n_heads;
  return options;
}

std::string describe(const PlanArguments& arguments) {
  const quire_strategy_options options = options_of(arguments);
  return get_text([&](char* buf, size_t cap, size_t* needed,
                      quire_error* err) { return quire_strategy_describe(&options, buf, cap, needed, err); },
                  "strategy \"" + arguments.strategy + "\"");
}

std::vector<double> positions(const PlanArguments& arguments, quire_position_view view) {
  const quire_strategy_options options = options_of(arguments);
  view.head = arguments.head;
  std::vector<double> matrix(static_cast<size_t>(view.n_queries * view.n_keys));
  Error error;
  error.check_options(quire_strategy_get_positions(&options, &view, matrix.data(), matrix.size(), nullptr, error.get()),
                      "strategy \"" + arguments.strategy + "\"");
  return matrix;
}

// Condensed entries that the tokens make, at most one each: those that the token behind them sees.
int64_t count_entries(const PlanArguments& arguments) {
  auto view = initialised(quire_position_view_init);
  view.key_kind = QUIRE_KV_CONDENSED;
  view.first_query = view.n_keys = arguments.n_tokens;
  view.n_queries = 1;
  const std::vector<double> row = positions(arguments, view);
  const auto last = std::find_if(row.rbegin(), row.rend(), [](double distance) { return !std::isnan(distance); });
  return row.rend() - last;
}

Rows rows_of(const PlanArguments& arguments, int32_t kind, int64_t n_rows, int64_t n_entries) {
  Rows rows;
  rows.n_rows = n_rows;
  if (n_rows == 0) return rows;
  auto view = initialised(quire_position_view_init);
  view.query_kind = kind;
  view.n_queries = n_rows;
  view.n_keys = arguments.n_tokens;
  rows.tokens = positions(arguments, view);
  view.key_kind = QUIRE_KV_CONDENSED;
  view.n_keys = n_entries;
  if (n_entries > 0) rows.condensed = positions(arguments, view);
  return rows;
}

bool is_integer(double value) { return value == std::floor(value); }

// null where the key is not visible; distances are integers except for leaky maps.
Json to_json(double distance) {
  if (std::isnan(distance)) return nullptr;
  if (is_integer(distance)) return static_cast<int64_t>(distance);
  return distance;
}

size_t widest(const std::vector<double>& matrix) {
  size_t width = 1;
  for (const double distance : matrix) width = std::max(width, distance_text(distance).size());
  return width;
}

void append_row(const std::vector<double>& matrix, int64_t row, int64_t n_keys, size_t width, std::string& line) {
  for (int64_t key = 0; key < n_keys; ++key) {
    const std::string cell = distance_text(matrix[static_cast<size_t>(row * n_keys + key)]);
    if (key > 0) line += ' ';
    line.append(width - cell.size(), ' ').append(cell);
  }
}

void print_rows(const Rows& rows, int64_t n_tokens, int64_t n_entries, size_t width) {
  std::string line;
  for (int64_t row = 0; row < rows.n_rows; ++row) {
    line.clear();
    append_row(rows.condensed, row, n_entries, width, line);
    if (n_entries > 0) line += " | ";
    append_row(rows.tokens, row, n_tokens, width, line);
    print("%s\n", line.c_str());
  }
}

Json row_to_json(const std::vector<double>& matrix, int64_t row, int64_t n_keys) {
  Json json = Json::array();
  for (int64_t key = 0; key < n_keys; ++key) json.push_back(to_json(matrix[static_cast<size_t>(row * n_keys + key)]));
  return json;
}

Json rows_to_json(const std::vector<double>& matrix, int64_t n_rows, int64_t n_keys) {
  Json json = Json::array();
  for (int64_t row = 0; row < n_rows; ++row) json.push_back(row_to_json(matrix, row, n_keys));
  return json;
}

void print_matrices(const std::string& canonical, const Rows& tokens, const Rows& entries) {
  const int64_t n = tokens.n_rows, n_entries = entries.n_rows;
  const size_t width =
      std::max({widest(tokens.tokens), widest(tokens.condensed), widest(entries.tokens), widest(entries.condensed)});
  print("%s\n\n", canonical.c_str());
  print_rows(tokens, n, n_entries, width);
  if (n_entries == 0) return;
  print_text("\ncondensed entries, when they were made:\n");
  print_rows(entries, n, n_entries, width);
}

// The matrices of print_matrices, in the same order.
PositionMap picture(const PlanArguments& arguments, const Rows& tokens, const Rows& entries) {
  const int64_t n = tokens.n_rows, n_entries = entries.n_rows;
  PositionMap map;
  map.title = arguments.strategy;
  map.subtitle = "distances of keys (across) from queries (down), head " + std::to_string(arguments.head) +
                 "; trained for " + std::to_string(arguments.train_len);
  map.train_len = arguments.train_len;
  map.panels.emplace_back();
  if (n_entries > 0) map.panels[0].push_back({"entries", n, n_entries, tokens.condensed});
  map.panels[0].push_back({"tokens", n, n, tokens.tokens});
  if (n_entries > 0) {
    map.panels.push_back({{"", n_entries, n_entries, entries.condensed},
                          {"each entry, when it was made", n_entries, n, entries.tokens}});
  }
  return map;
}

int plan(const PlanArguments& arguments) {
  if (!arguments.svg.empty() && arguments.n_tokens > kMaxDrawnTokens) {
    throw UsageError("--svg draws at most " + std::to_string(kMaxDrawnTokens) + " tokens");
  }
  const std::string canonical = describe(arguments);
  const int64_t n = arguments.n_tokens, n_entries = count_entries(arguments);
  const Rows tokens = rows_of(arguments, QUIRE_KV_TEXT, n, n_entries);
  const Rows entries = rows_of(arguments, QUIRE_KV_CONDENSED, n_entries, n_entries);
  if (!arguments.svg.empty()) write_document(arguments.svg, to_svg(picture(arguments, tokens, entries)));
  if (!arguments.json) {
    print_matrices(canonical, tokens, entries);
    return 0;
  }
  Json json = {{"strategy", canonical},
               {"train_len", arguments.train_len},
               {"n_tokens", n},
               {"head", arguments.head},
               {"relative_position", rows_to_json(tokens.tokens, n, n)}};
  if (n_entries > 0) {
    json["condensed_position"] = rows_to_json(tokens.condensed, n, n_entries);
    Json& condensed = json["condensed"] = Json::array();
    for (int64_t entry = 0; entry < n_entries; ++entry) {
      condensed.push_back({{"entry", entry},
                           {"relative_position", row_to_json(entries.tokens, entry, n)},
                           {"condensed_position", row_to_json(entries.condensed, entry, n_entries)}});
    }
  }
  print_json(json);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command =
      app.add_subcommand("plan", "Print which keys each query sees, and at which relative positions; needs no model");
  command->add_option("-s,--strategy", arguments->strategy, "strategy expression (default: full)")->type_name("EXPR");
  command->add_option("--train-len", arguments->train_len, "tokens the model was trained for")
      ->required()
      ->check(whole_number(1, int64_t{1} << 40))
      ->type_name("L");
  command->add_option("--tokens", arguments->n_tokens, "size of the matrix: one row a query, one column a key")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMaxTokens))
      ->type_name("N");
  command
      ->add_option("--expected-tokens", arguments->expected_tokens,
                   "length of the text, for auto, beacon, dynamic_ntk and longrope (default: unknown)")
      ->check(whole_number(1))
      ->type_name("N");
  command->add_option("--heads", arguments->n_heads, "query heads of the model (default: 32)")
      ->check(whole_number(1, 65536))
      ->type_name("N");
  command->add_option("--head", arguments->head, "query head (default: 0)")
      ->check(whole_number(0, 65535))
      ->type_name("H");
  command->add_flag("--json", arguments->json, "print one JSON object; null where a key is not visible");
  command->add_option("--svg", arguments->svg, "draw the matrix, of at most 256 tokens, as well")->type_name("FILE");
  command->footer(R"help(
A strategy that condenses (beacon) has the distances to its entries before those to tokens, and further rows for what each
entry saw when it was made.

Examples (the first is the second matrix of the Dual Chunk Attention paper):
  quire plan -s "dca(chunk=4, cap=7)" --train-len 8 --tokens 12
  quire plan -s "dca(chunk=4, cap=7)" --train-len 8 --tokens 24 --svg dca.svg
  quire plan -s "beacon(ratio=2, window=4, stride=4)" --train-len 16 --tokens 12
  quire plan -s "longheads + dynamic_ntk(factor=2)" --train-len 256 --expected-tokens 4096 --tokens 32)help");
  command->callback([arguments, &action] { action = [arguments] { return plan(*arguments); }; });
}

}  // namespace cli
