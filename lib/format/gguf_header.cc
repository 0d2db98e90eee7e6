// The header of a GGUF file, and everything it could get wrong.
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lib/format/gguf.h"
#include "lib/support/utf8.h"

namespace quire {
namespace {

constexpr int64_t kMaxHeaderBytes = 256 << 20;
constexpr int64_t kMaxKeys = 65'536;
constexpr int64_t kMaxTensors = 200'000;
constexpr int64_t kMaxArray = 4 << 20;  // a vocabulary has less than a tenth of that
constexpr int64_t kMaxName = 65'535;
constexpr uint32_t kMaxRank = 4;
constexpr int64_t kMaxAlignment = 1 << 20;
constexpr int64_t kDefaultAlignment = 32;

constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

// The numbers of value types in files.
enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

class Parser {
 public:
  Parser(const ReadAt& read, int64_t file_size) : read_(read), file_size_(file_size) {}

  Result<GgufHeader> parse() {
    GgufHeader header;
    QUIRE_TRY(read_preamble(header));
    for (int64_t i = 0; i < n_keys_; ++i) {
      const int64_t at = at_;
      QUIRE_ASSIGN(std::string key, read_string("a metadata key", kMaxName));
      where_ = "metadata " + key;
      const int64_t value_at = at_;
      QUIRE_ASSIGN(const auto type, read_number<uint32_t>());
      QUIRE_ASSIGN(GgufValue value, read_value(type));
      if (!header.metadata.emplace(key, std::move(value)).second) return bad("it is there twice", at);
      header.metadata_places.emplace(key, std::pair(value_at, at_));
    }
    where_ = "the list of tensors";
    header.alignment = kDefaultAlignment;
    if (const auto found = header.metadata.find("general.alignment"); found != header.metadata.end()) {
      const int64_t* given = found->second.integer();
      if (!given || *given < 1 || *given > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(*given))) {
        return bad("general.alignment is no power of two of at most " + std::to_string(kMaxAlignment));
      }
      header.alignment = *given;
    }
    for (int64_t i = 0; i < n_tensors_; ++i) QUIRE_TRY(read_tensor(header));
    header.data_begin = (at_ + header.alignment - 1) / header.alignment * header.alignment;
    QUIRE_TRY(place_tensors(header));
    return header;
  }

 private:
  Status bad(const std::string& message, int64_t offset) const {
    return Status(Code::kBadFile, where_ + ", byte " + std::to_string(offset) + ": " + message, offset);
  }
  Status bad(const std::string& message) const { return bad(message, at_); }

  // ---- bytes

  // The next n bytes, until the next call. n is at most the buffer.
  Result<const std::byte*> take(size_t n) {
    const auto end = at_ + static_cast<int64_t>(n);
    if (end > file_size_) return bad("the file ends at byte " + std::to_string(file_size_));
    if (end > kMaxHeaderBytes) return bad("more than " + std::to_string(kMaxHeaderBytes) + " bytes before the tensors");
    if (at_ < buffer_at_ || end > buffer_at_ + static_cast<int64_t>(buffer_.size())) {
      buffer_.resize(static_cast<size_t>(std::min<int64_t>(kBuffer, file_size_ - at_)));
      buffer_at_ = at_;
      QUIRE_TRY(read_(at_, buffer_));
    }
    const std::byte* bytes = buffer_.data() + (at_ - buffer_at_);
    at_ = end;
    return bytes;
  }

  template <typename T>
  Result<T> read_number() {
    QUIRE_ASSIGN(const std::byte* bytes, take(sizeof(T)));
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }

  // A count of things of which each takes at least `bytes` of the file.
  Result<int64_t> read_count(const std::string& what, int64_t most, int64_t bytes) {
    const int64_t at = at_;
    QUIRE_ASSIGN(const auto count, read_number<uint64_t>());
    const int64_t room = (std::min(file_size_, kMaxHeaderBytes) - at_) / bytes;
    if (count > static_cast<uint64_t>(std::min(most, room))) {
      return bad(std::to_string(count) + " " + what + "; at most " + std::to_string(std::min(most, room)) +
                     " are possible here",
                 at);
    }
    return static_cast<int64_t>(count);
  }

  Result<std::string> read_string(const std::string& what, int64_t most) {
    const int64_t at = at_;
    QUIRE_ASSIGN(int64_t left, read_count("bytes of " + what, most, 1));
    std::string text;
    while (left > 0) {
      const auto n = static_cast<size_t>(std::min(left, kBuffer));
      QUIRE_ASSIGN(const std::byte* bytes, take(n));
      text.append(reinterpret_cast<const char*>(bytes), n);
      left -= static_cast<int64_t>(n);
    }
    if (most == kMaxName && utf8_first_invalid(text) != text.size()) return bad(what + " is not UTF-8", at);
    return text;
  }

  // ---- parts of the header

  Status read_preamble(GgufHeader& header) {
    QUIRE_ASSIGN(const std::byte* magic, take(4));
    if (std::memcmp(magic, "GGUF", 4) != 0) return bad("no GGUF file: it does not begin with \"GGUF\"", 0);
    QUIRE_ASSIGN(header.version, read_number<uint32_t>());
    if (header.version != 2 && header.version != 3) {
      const bool swapped = header.version >= 1 << 24 && header.version << 8 == 0;
      return Status(Code::kUnsupported,
                    swapped ? std::string("a GGUF file of big-endian numbers; expected little-endian")
                            : "GGUF version " + std::to_string(header.version) + "; expected 2 or 3",
                    4);
    }
    QUIRE_ASSIGN(n_tensors_, read_count("tensors", kMaxTensors, 8 + 4 + 4 + 8));
    QUIRE_ASSIGN(n_keys_, read_count("metadata keys", kMaxKeys, 8 + 4 + 1));
    return {};
  }

  template <typename T>
  Result<int64_t> read_integer() {
    const int64_t at = at_;
    QUIRE_ASSIGN(const T value, read_number<T>());
    if constexpr (std::is_same_v<T, uint64_t>) {
      if (value > INT64_MAX) return bad(std::to_string(value) + " is beyond 64 bits with a sign", at);
    }
    return static_cast<int64_t>(value);
  }
  Result<int64_t> read_integer(uint32_t type) {
    switch (type) {
      case kUint8:
      case kBool:
        return read_integer<uint8_t>();
      case kInt8:
        return read_integer<int8_t>();
      case kUint16:
        return read_integer<uint16_t>();
      case kInt16:
        return read_integer<int16_t>();
      case kUint32:
        return read_integer<uint32_t>();
      case kInt32:
        return read_integer<int32_t>();
      case kUint64:
        return read_integer<uint64_t>();
      default:
        return read_integer<int64_t>();
    }
  }
  Result<double> read_float(uint32_t type) {
    if (type == kFloat64) return read_number<double>();
    QUIRE_ASSIGN(const float value, read_number<float>());
    return static_cast<double>(value);
  }
  // Bytes of a value, at least; 0: no type of single values.
  static int64_t least_bytes(uint32_t type) {
    constexpr int64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    return type < std::size(kBytes) ? kBytes[type] : 0;
  }

  Result<GgufValue> read_value(uint32_t type) {
    if (type == kArray) return read_array();
    if (least_bytes(type) == 0) return bad("value type " + std::to_string(type) + " is unknown", at_ - 4);
    if (type == kString) {
      QUIRE_ASSIGN(std::string text, read_string("text", kMaxHeaderBytes));
      return GgufValue(std::move(text));
    }
    if (type == kFloat32 || type == kFloat64) {
      QUIRE_ASSIGN(const double number, read_float(type));
      return GgufValue(number);
    }
    if (type == kUint64) {
      QUIRE_ASSIGN(const auto natural, read_number<uint64_t>());
      if (natural > INT64_MAX) return GgufValue(static_cast<double>(natural));
      return GgufValue(static_cast<int64_t>(natural));
    }
    QUIRE_ASSIGN(const int64_t integer, read_integer(type));
    if (type != kBool) return GgufValue(integer);
    if (integer > 1) return bad("a truth value of " + std::to_string(integer), at_ - 1);
    return GgufValue(integer == 1);
  }

  Result<GgufValue> read_array() {
    QUIRE_ASSIGN(const auto type, read_number<uint32_t>());
    const int64_t bytes = least_bytes(type);
    if (bytes == 0) return bad("elements of type " + std::to_string(type) + "; expected numbers or strings", at_ - 4);
    QUIRE_ASSIGN(const int64_t n, read_count("elements", kMaxArray, bytes));
    if (type == kString) {
      GgufValue::Strings strings;
      strings.reserve(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        QUIRE_ASSIGN(std::string text, read_string("element " + std::to_string(i), kMaxHeaderBytes));
        strings.push_back(std::move(text));
      }
      return GgufValue(std::move(strings));
    }
    if (type == kFloat32 || type == kFloat64) {
      GgufValue::Numbers numbers(static_cast<size_t>(n));
      for (double& number : numbers) QUIRE_TRY(assign(number, read_float(type)));
      return GgufValue(std::move(numbers));
    }
    GgufValue::Integers integers(static_cast<size_t>(n));
    for (int64_t& integer : integers) QUIRE_TRY(assign(integer, read_integer(type)));
    return GgufValue(std::move(integers));
  }
  template <typename T>
  static Status assign(T& to, Result<T> from) {
    if (from.ok()) to = *from;
    return from.status();
  }

  // Its place is an offset from data_begin still.
  Status read_tensor(GgufHeader& header) {
    where_ = "the list of tensors";
    const int64_t at = at_;
    QUIRE_ASSIGN(const std::string name, read_string("a tensor's name", kMaxName));
    where_ = "tensor " + name;
    QUIRE_ASSIGN(const auto rank, read_number<uint32_t>());
    if (rank > kMaxRank) return bad(std::to_string(rank) + " dimensions; at most " + std::to_string(kMaxRank), at_ - 4);
    GgufTensor tensor;
    int64_t elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      QUIRE_ASSIGN(const auto n, read_number<uint64_t>());
      // As if no dimension were 0, so that the product of any of them is small enough.
      if (n > INT64_MAX || __builtin_mul_overflow(elements, std::max(static_cast<int64_t>(n), int64_t{1}), &elements)) {
        return bad("its shape overflows", at_ - 8);
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(n));
    }
    if (std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0) elements = 0;
    QUIRE_ASSIGN(const auto type, read_number<uint32_t>());
    tensor.type = find_gguf_type(type);
    if (!tensor.type) return bad("tensor type " + std::to_string(type) + " is unknown", at_ - 4);
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (row % tensor.type->block_elements != 0) {
      return bad("rows of " + std::to_string(row) + " elements; " + tensor.type->name + " has blocks of " +
                 std::to_string(tensor.type->block_elements));
    }
    int64_t bytes = 0;
    QUIRE_ASSIGN(const auto offset, read_number<uint64_t>());
    if (offset > INT64_MAX || offset % static_cast<uint64_t>(header.alignment) != 0) {
      return bad("offset " + std::to_string(offset) + " is no multiple of " + std::to_string(header.alignment),
                 at_ - 8);
    }
    tensor.begin = static_cast<int64_t>(offset);
    if (__builtin_mul_overflow(elements / tensor.type->block_elements, tensor.type->block_bytes, &bytes) ||
        __builtin_add_overflow(tensor.begin, bytes, &tensor.end)) {
      return bad("its size overflows");
    }
    if (!header.tensors.emplace(name, std::move(tensor)).second) return bad("it is there twice", at);
    return {};
  }

  Status place_tensors(GgufHeader& header) {
    std::vector<std::pair<std::string_view, GgufTensor*>> order;
    for (auto& [name, tensor] : header.tensors) order.emplace_back(name, &tensor);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
    });
    int64_t free_from = header.data_begin;
    for (auto& [name, tensor] : order) {
      where_ = "tensor " + std::string(name);
      if (tensor->end > file_size_ - header.data_begin) {
        return bad("it ends " + std::to_string(tensor->end) + " bytes behind byte " +
                       std::to_string(header.data_begin) + "; the file has " + std::to_string(file_size_) + " bytes",
                   header.data_begin);
      }
      tensor->begin += header.data_begin;
      tensor->end += header.data_begin;
      if (tensor->begin < free_from && tensor->begin < tensor->end) {
        return bad("it overlaps the tensor before it", tensor->begin);
      }
      free_from = std::max(free_from, tensor->end);
    }
    return {};
  }

  static constexpr int64_t kBuffer = 64 << 10;

  const ReadAt& read_;
  const int64_t file_size_;
  int64_t at_ = 0;
  std::vector<std::byte> buffer_;  // bytes from buffer_at_ on
  int64_t buffer_at_ = 0;
  std::string where_ = "the beginning";  // what is being read, for messages
  int64_t n_tensors_ = 0, n_keys_ = 0;
};

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in the file");

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const GgufType& type) { return type.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

const GgufType& gguf_type(ElementType type) {
  uint32_t id = 0;
  switch (type) {
    case ElementType::kF32:
    case ElementType::kInt8:  // no tensor has these
    case ElementType::kInt4:
      break;
    case ElementType::kF16:
      id = 1;
      break;
    case ElementType::kBF16:
      id = 30;
      break;
    case ElementType::kQ8_0:
      id = 8;
      break;
    case ElementType::kQ4_0:
      id = 2;
      break;
    case ElementType::kQ4_1:
      id = 3;
      break;
    case ElementType::kQ5_0:
      id = 6;
      break;
    case ElementType::kQ5_1:
      id = 7;
      break;
    case ElementType::kQ4_K:
      id = 12;
      break;
    case ElementType::kQ5_K:
      id = 13;
      break;
    case ElementType::kQ6_K:
      id = 14;
      break;
    case ElementType::kQ2_K:
      id = 10;
      break;
    case ElementType::kQ3_K:
      id = 11;
      break;
    case ElementType::kIQ4_NL:
      id = 20;
      break;
    case ElementType::kIQ4_XS:
      id = 23;
      break;
  }
  return *find_gguf_type(id);
}

Result<GgufHeader> read_gguf_header(const ReadAt& read, int64_t file_size) { return Parser(read, file_size).parse(); }

}  // namespace quire
