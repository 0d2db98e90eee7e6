// The text of a strategy expression, taken apart: terms with named arguments, and where each of them stands.
//
//   expression = term { "+" term }
//   term       = name [ "(" [ argument { "," argument } ] ")" ]
//   argument   = name "=" ( number | word )
//   name       = ( letter | "_" ) { letter | digit | "_" }
//   word       = name that may also hold "."
//   number     = [ "-" ] digits [ "." digits ] [ "e" [ sign ] digits ]
//
// Letters are ASCII; blanks, tabs and line ends may stand between any two of these. Which names exist is not known
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/status.h"

namespace quire {

constexpr size_t kMaxExpressionBytes = 4096;

// Views point into the parsed text; positions are byte offsets in it, from 0.
struct Argument {
  std::string_view name;
  int64_t at = 0;
  std::string_view value;  // as written
  int64_t value_at = 0;
  std::optional<double> number;    // empty for a word
  std::optional<int64_t> integer;  // of a number written without point and exponent that fits
};

struct Term {
  std::string_view name;
  int64_t at = 0;
  std::vector<Argument> arguments;
};

// At least one term. Errors: kBadStrategy with the byte offset of what is wrong.
Result<std::vector<Term>> parse_expression(std::string_view text);

// kBadStrategy (or `code`) with "byte N: message".
Status expression_error(int64_t at, const std::string& message, Code code = Code::kBadStrategy);

// A name or value for a message: in quotes, cut if it is very long.
std::string in_quotes(std::string_view text);

}  // namespace quire
