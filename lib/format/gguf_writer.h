// Makes the header of a GGUF file (version 3): metadata, and which tensors follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/types.h"

namespace quire {

// One thread. Keys and names must differ.
class GgufWriter {
 public:
  static constexpr int64_t kAlignment = 32;

  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, int32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, std::span<const std::string> values);
  void add(std::string_view key, std::span<const int32_t> values);
  void add(std::string_view key, std::span<const float> values);
  // A value as another file has it: GgufHeader::metadata_places.
  void add_stored(std::string_view key, std::span<const std::byte> type_and_value);

  // shape: rows first; the last dimension is whole blocks of the type. Tensors lie in the order in which they are
  // added.
  void add_tensor(std::string_view name, std::span<const int64_t> shape, ElementType type);

  // The file up to the first tensor's bytes, with the padding before them.
  std::string header() const;
  // Zeros that follow a tensor of so many bytes.
  static int64_t padding(int64_t bytes) { return round_up(bytes, kAlignment) - bytes; }
  int64_t data_bytes() const { return data_bytes_; }  // of all tensors and their padding

 private:
  void add_key(std::string_view key, uint32_t type);

  std::string metadata_, tensors_;
  uint64_t n_keys_ = 0, n_tensors_ = 0;
  int64_t data_bytes_ = 0;
};

}  // namespace quire
