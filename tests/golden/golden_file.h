// Reads golden logits (README.md describes the files) and compares a row of logits with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/format/safetensors.h"
#include "tests/source_path.h"

namespace quire::golden {

inline const std::string kFolder = test::source_path("tests/golden/");

// What is known of the logits at each position of one prompt.
struct Expected {
  int64_t n_columns = 0;       // logits kept of each row
  std::vector<float> logits;   // [position][n_columns]
  std::vector<float> max_abs;  // of the whole row
};

// One *.safetensors file of golden data, wholly in memory. Throws std::runtime_error if it is not as expected.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path);

  // Prefixes of the tensors NAME.logits.
  std::vector<std::string> cases() const;
  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  std::vector<int32_t> ids(const std::string& tensor) const;
  Expected expected(const std::string& name) const;

 private:
  template <typename T>
  std::vector<T> values(const std::string& tensor, const char* dtype) const;

  std::string bytes_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

// The largest error of a row among the columns that are kept, over the row's largest logit.
double row_error(const Expected& expected, int64_t position, std::span<const float> row);

// The name and expression of each case, from the lines "name<TAB>expression" of a text file.
std::vector<std::pair<std::string, std::string>> read_cases(const std::string& path);

}  // namespace quire::golden
