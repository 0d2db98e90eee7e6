// The header of a safetensors file. Input: the size of the data in 8 bytes, then the header's text.
#include <cstring>

#include "lib/format/safetensors.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  int64_t data_size = 0;
  if (size < sizeof data_size) return 0;
  std::memcpy(&data_size, data, sizeof data_size);
  const std::string_view header(reinterpret_cast<const char*>(data) + 8, size - 8);
  const auto data_begin = static_cast<int64_t>(size);
  if (data_size < 0 || data_size > INT64_MAX - data_begin) return 0;
  const auto tensors = parse_safetensors_header(header, data_begin, data_begin + data_size);
  if (!tensors.ok()) {
    FUZZ_REQUIRE(tensors.status().code() == Code::kBadFile && !tensors.status().message().empty());
    return 0;
  }
  int64_t covered = 0;
  for (const auto& [name, info] : tensors.value()) {
    FUZZ_REQUIRE(info.begin >= data_begin && info.begin <= info.end && info.end <= data_begin + data_size);
    covered += info.end - info.begin;
  }
  FUZZ_REQUIRE(covered == data_size);
  return 0;
}
