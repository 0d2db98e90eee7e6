#include "lib/format/gguf_writer.h"

#include "lib/format/gguf.h"

namespace quire {
namespace {

// The numbers of value types in files.
constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9;

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& bytes, std::string_view text) {
  put<uint64_t>(bytes, text.size());
  bytes += text;
}

template <typename T>
void put_array(std::string& bytes, uint32_t type, std::span<const T> values) {
  put(bytes, type);
  put<uint64_t>(bytes, values.size());
  for (const T& value : values) put(bytes, value);
}

}  // namespace

void GgufWriter::add_key(std::string_view key, uint32_t type) {
  put_text(metadata_, key);
  put(metadata_, type);
  ++n_keys_;
}

void GgufWriter::add(std::string_view key, uint32_t value) {
  add_key(key, kUint32);
  put(metadata_, value);
}

void GgufWriter::add(std::string_view key, int32_t value) {
  add_key(key, kInt32);
  put(metadata_, value);
}

void GgufWriter::add(std::string_view key, float value) {
  add_key(key, kFloat32);
  put(metadata_, value);
}

void GgufWriter::add(std::string_view key, bool value) {
  add_key(key, kBool);
  put<uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::add(std::string_view key, std::string_view value) {
  add_key(key, kString);
  put_text(metadata_, value);
}

void GgufWriter::add(std::string_view key, std::span<const std::string> values) {
  add_key(key, kArray);
  put(metadata_, kString);
  put<uint64_t>(metadata_, values.size());
  for (const std::string& value : values) put_text(metadata_, value);
}

void GgufWriter::add(std::string_view key, std::span<const int32_t> values) {
  add_key(key, kArray);
  put_array(metadata_, kInt32, values);
}

void GgufWriter::add(std::string_view key, std::span<const float> values) {
  add_key(key, kArray);
  put_array(metadata_, kFloat32, values);
}

void GgufWriter::add_stored(std::string_view key, std::span<const std::byte> type_and_value) {
  put_text(metadata_, key);
  metadata_.append(reinterpret_cast<const char*>(type_and_value.data()), type_and_value.size());
  ++n_keys_;
}

void GgufWriter::add_tensor(std::string_view name, std::span<const int64_t> shape, ElementType type) {
  put_text(tensors_, name);
  put(tensors_, static_cast<uint32_t>(shape.size()));
  int64_t elements = 1;
  for (size_t i = shape.size(); i-- > 0;) {  // files have the row's length first
    put<uint64_t>(tensors_, static_cast<uint64_t>(shape[i]));
    elements *= shape[i];
  }
  put(tensors_, gguf_type(type).id);
  put<uint64_t>(tensors_, static_cast<uint64_t>(data_bytes_));
  data_bytes_ += round_up(static_cast<int64_t>(row_bytes(type, elements)), kAlignment);
  ++n_tensors_;
}

std::string GgufWriter::header() const {
  std::string bytes = "GGUF";
  put<uint32_t>(bytes, 3);
  put(bytes, n_tensors_);
  put(bytes, n_keys_);
  bytes += metadata_ + tensors_;
  bytes.resize(static_cast<size_t>(round_up(static_cast<int64_t>(bytes.size()), kAlignment)), '\0');
  return bytes;
}

}  // namespace quire
