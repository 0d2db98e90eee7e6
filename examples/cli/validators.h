// What values options take: each refuses others with a message that says what was expected, which is exit status 2.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>

namespace cli {

// A whole number. What lies beyond 64 bits is refused, and not taken for the nearest one.
CLI::Validator whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
// The same without a sign, for seeds.
CLI::Validator whole_number_of_64_bits();
// A finite number.
CLI::Validator number(double least, double most);
// The same, more than 0, also as a float.
CLI::Validator positive_number(double most);
// 1 to `most` bytes of text.
CLI::Validator text_of_at_most(size_t most);
// For Option::transform: a number of bytes, such as 500MB.
CLI::Validator byte_count();

}  // namespace cli
