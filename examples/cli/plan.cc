// quire plan: the relative positions a strategy gives, without any model.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "arguments.h"
#include "document.h"
#include "quire_handles.h"

namespace cli {
namespace {

struct PlanArguments {
  std::string strategy = "full";
  int64_t train_len = 0;
  int64_t n_tokens = 0;
  int32_t n_heads = 0;
  int32_t head = 0;
  bool json = false;
};

// Beyond this the matrix (n * n doubles) helps nobody.
constexpr int64_t kMaxTokens = 4096;

std::string describe(const PlanArguments& arguments) {
  const std::string& expression = arguments.strategy;
  return get_text(
      [&](char* buf, size_t cap, size_t* needed, quire_error* err) {
        return quire_strategy_describe(expression.data(), expression.size(), arguments.train_len, arguments.n_heads,
                                       buf, cap, needed, err);
      },
      "strategy \"" + expression + "\"");
}

std::vector<double> positions(const PlanArguments& arguments) {
  const int64_t n = arguments.n_tokens;
  std::vector<double> matrix(static_cast<size_t>(n * n));
  Error error;
  error.check(quire_strategy_positions(arguments.strategy.data(), arguments.strategy.size(), arguments.train_len,
                                       arguments.n_heads, arguments.head, 0, n, n, matrix.data(), error.get()),
              "strategy \"" + arguments.strategy + "\"");
  return matrix;
}

bool is_integer(double value) { return value == std::floor(value); }

// null where the key is not visible; distances are integers except for leaky maps.
Json to_json(double distance) {
  if (std::isnan(distance)) return nullptr;
  if (is_integer(distance)) return static_cast<int64_t>(distance);
  return distance;
}

std::string to_cell(double distance) {
  if (std::isnan(distance)) return ".";
  char text[32];
  std::snprintf(text, sizeof text, is_integer(distance) ? "%.0f" : "%.2f", distance);
  return text;
}

void print_matrix(const std::vector<double>& matrix, int64_t n) {
  size_t width = 1;
  for (const double distance : matrix) width = std::max(width, to_cell(distance).size());
  std::string line;
  for (int64_t query = 0; query < n; ++query) {
    line.clear();
    for (int64_t key = 0; key < n; ++key) {
      const std::string cell = to_cell(matrix[static_cast<size_t>(query * n + key)]);
      if (key > 0) line += ' ';
      line.append(width - cell.size(), ' ').append(cell);
    }
    std::puts(line.c_str());
  }
}

int plan(const PlanArguments& arguments) {
  const std::string canonical = describe(arguments);
  const std::vector<double> matrix = positions(arguments);
  const int64_t n = arguments.n_tokens;
  if (!arguments.json) {
    std::printf("%s\n\n", canonical.c_str());
    print_matrix(matrix, n);
    return 0;
  }
  Json rows = Json::array();
  for (int64_t query = 0; query < n; ++query) {
    Json row = Json::array();
    for (int64_t key = 0; key < n; ++key) row.push_back(to_json(matrix[static_cast<size_t>(query * n + key)]));
    rows.push_back(std::move(row));
  }
  print_json({{"strategy", canonical},
              {"train_len", arguments.train_len},
              {"n_tokens", n},
              {"head", arguments.head},
              {"relative_position", std::move(rows)}});
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
      ->check(CLI::PositiveNumber)
      ->type_name("L");
  command->add_option("--tokens", arguments->n_tokens, "size of the matrix: one row a query, one column a key")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMaxTokens))
      ->type_name("N");
  command->add_option("--heads", arguments->n_heads, "query heads of the model (default: 32)")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_option("--head", arguments->head, "query head (default: 0)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("H");
  command->add_flag("--json", arguments->json, "print one JSON object; null where a key is not visible");
  command->footer(R"help(
Example, the second matrix of the Dual Chunk Attention paper:
  quire plan -s "dca(chunk=4, cap=7)" --train-len 8 --tokens 12)help");
  command->callback([arguments, &action] { action = [arguments] { return plan(*arguments); }; });
}

}  // namespace cli
