// GGUF: metadata and named tensors in one file. Untrusted input ends here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

// Small tensors with divisors of RoPE's frequencies, one per pair of a head's dimensions that turn: for every text, and
// of longrope. Those that a model does not have are not there.
constexpr char kGgufRopeFreqs[] = "rope_freqs.weight";
constexpr char kGgufRopeFactorsLong[] = "rope_factors_long.weight";
constexpr char kGgufRopeFactorsShort[] = "rope_factors_short.weight";
using GgufRopeTensors = std::map<std::string, std::vector<float>, std::less<>>;

// A value of the metadata. Integers of every width, and truth values in arrays, are int64_t; floats are double, and so
// is a single integer beyond int64_t, as a hash may be: no key that is asked for as an integer is as large.
class GgufValue {
 public:
  using Integers = std::vector<int64_t>;
  using Numbers = std::vector<double>;
  using Strings = std::vector<std::string>;

  GgufValue() = default;
  template <typename T>
  explicit GgufValue(T value) : value_(std::move(value)) {}

  // Null: the value is of another kind.
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&value_); }
  const double* number() const { return std::get_if<double>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const Integers* integers() const { return std::get_if<Integers>(&value_); }
  const Numbers* numbers() const { return std::get_if<Numbers>(&value_); }
  const Strings* strings() const { return std::get_if<Strings>(&value_); }

 private:
  std::variant<bool, int64_t, double, std::string, Integers, Numbers, Strings> value_;
};

// How a tensor's consecutive elements are stored: in blocks of so many elements and bytes.
struct GgufType {
  uint32_t id;  // in files
  const char* name;
  int64_t block_elements;
  int64_t block_bytes;
};

// Null: unknown.
const GgufType* find_gguf_type(uint32_t id);
const GgufType& gguf_type(ElementType type);

struct GgufTensor {
  const GgufType* type = nullptr;
  std::vector<int64_t> shape;  // rows first, as in safetensors: the file has it the other way round
  int64_t begin = 0;           // bytes [begin, end) of the file, absolute
  int64_t end = 0;
  size_t file = 0;  // which of a model's files (gguf_files.h); 0 in the header of one
};

struct GgufHeader {
  uint32_t version = 0;
  int64_t alignment = 0;
  int64_t data_begin = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  // Where in the file the type and the value of each key lie: bytes [begin, end).
  std::map<std::string, std::pair<int64_t, int64_t>, std::less<>> metadata_places;
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

// Reads bytes [offset, offset + out.size()) of the file.
using ReadAt = std::function<Status(int64_t offset, std::span<std::byte> out)>;

// Reads metadata and the list of tensors from the beginning of a file of file_size bytes, in pieces. Checks: versions 2
// and 3, little-endian; keys and names of valid UTF-8 and limited length, none twice; limits on counts and on the bytes
// of it all; known types, whole blocks in each row, shapes without overflow; aligned offsets inside the file, no
// overlap. Errors: kBadFile (key or tensor, and byte), kUnsupported (another version or byte order), those of `read`.
Result<GgufHeader> read_gguf_header(const ReadAt& read, int64_t file_size);

}  // namespace quire
