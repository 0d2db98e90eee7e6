#include "tests/golden/golden_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace quire::golden {

GoldenFile::GoldenFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  uint64_t header_size = 0;
  if (bytes_.size() < sizeof header_size) throw std::runtime_error("cannot read " + path);
  std::memcpy(&header_size, bytes_.data(), sizeof header_size);
  if (header_size > bytes_.size() - sizeof header_size) throw std::runtime_error(path + ": header beyond the end");
  auto tensors = parse_safetensors_header(std::string_view(bytes_).substr(8, header_size),
                                          static_cast<int64_t>(8 + header_size), static_cast<int64_t>(bytes_.size()));
  if (!tensors.ok()) throw std::runtime_error(path + ": " + tensors.status().message());
  tensors_ = *tensors;
}

template <typename T>
std::vector<T> GoldenFile::values(const std::string& tensor, const char* dtype) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) throw std::runtime_error("no golden tensor " + tensor);
  const TensorInfo& info = found->second;
  if (info.dtype != dtype) throw std::runtime_error(tensor + " is " + info.dtype + ", expected " + dtype);
  std::vector<T> out(static_cast<size_t>(info.end - info.begin) / sizeof(T));
  std::memcpy(out.data(), bytes_.data() + info.begin, out.size() * sizeof(T));
  return out;
}

std::vector<std::string> GoldenFile::cases() const {
  constexpr std::string_view kSuffix = ".logits";
  std::vector<std::string> names;
  for (const auto& [name, info] : tensors_) {
    if (name.ends_with(kSuffix)) names.push_back(name.substr(0, name.size() - kSuffix.size()));
  }
  return names;
}

std::vector<int32_t> GoldenFile::ids(const std::string& tensor) const { return values<int32_t>(tensor, "I32"); }

Expected GoldenFile::expected(const std::string& name) const {
  Expected out{0, values<float>(name + ".logits", "F32"), values<float>(name + ".max_abs", "F32")};
  const auto& shape = tensors_.find(name + ".logits")->second.shape;
  if (shape.size() != 2 || shape[0] != static_cast<int64_t>(out.max_abs.size())) {
    throw std::runtime_error(name + ": logits and max_abs differ in length");
  }
  out.n_columns = shape[1];
  return out;
}

double row_error(const Expected& expected, int64_t position, std::span<const float> row) {
  const auto vocab_size = static_cast<int64_t>(row.size());
  double worst = 0;
  for (int64_t c = 0; c < expected.n_columns; ++c) {
    const int64_t column = (7 * position + c * (vocab_size / expected.n_columns)) % vocab_size;
    const double wanted = expected.logits[static_cast<size_t>(position * expected.n_columns + c)];
    const double error = std::abs(row[static_cast<size_t>(column)] - wanted);
    // std::max would let a NaN through
    worst = error <= worst ? worst : std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return worst / expected.max_abs[static_cast<size_t>(position)];
}

std::vector<std::pair<std::string, std::string>> read_cases(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::pair<std::string, std::string>> cases;
  std::string name;
  std::string expression;
  while (std::getline(file, name, '\t') && std::getline(file, expression)) cases.emplace_back(name, expression);
  return cases;
}

}  // namespace quire::golden
