// The JSON header of a safetensors file, and everything it could get wrong.
#include <algorithm>
#include <utility>

#include "lib/format/json.h"
#include "lib/format/safetensors.h"

namespace quire {
namespace {

constexpr size_t kMaxRank = 16;
constexpr size_t kMaxTensors = 200'000;
constexpr int64_t kMaxValues = 4'000'000;  // of so many tensors, each of some 20 values at most

constexpr std::pair<const char*, int64_t> kDtypeBytes[] = {
    {"F32", 4},  {"F16", 2},     {"BF16", 2},    {"F64", 8},     {"I64", 8}, {"I32", 4},
    {"I16", 2},  {"I8", 1},      {"U64", 8},     {"U32", 4},     {"U16", 2}, {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8},
};

Status bad(const std::string& name, const std::string& message, int64_t offset = -1) {
  return Status(Code::kBadFile, "tensor " + name + ": " + message, offset);
}

Result<int64_t> parse_dtype(const std::string& name, const Json& entry, TensorInfo& info) {
  const Json* dtype = entry.find("dtype");
  if (!dtype || !dtype->string()) return bad(name, "no dtype");
  info.dtype = *dtype->string();
  for (const auto& [known, bytes] : kDtypeBytes) {
    if (info.dtype == known) return bytes;
  }
  return bad(name, "unknown dtype " + json_excerpt(*dtype));
}

// The tensor's size in bytes, from its shape.
Result<int64_t> parse_shape(const std::string& name, const Json& entry, int64_t element_bytes, TensorInfo& info) {
  const Json* shape = entry.find("shape");
  if (!shape || !shape->array() || shape->array()->size() > kMaxRank) {
    return bad(name, "expected a shape of at most " + std::to_string(kMaxRank) + " dimensions");
  }
  int64_t bytes = element_bytes;
  for (const Json& dimension : *shape->array()) {
    const auto count = dimension.integer(0);
    if (!count) return bad(name, "dimension " + json_excerpt(dimension) + " of its shape");
    info.shape.push_back(*count);
    if (__builtin_mul_overflow(bytes, info.shape.back(), &bytes)) {
      return bad(name, "shape " + json_excerpt(*shape) + " overflows");
    }
  }
  return bytes;
}

Status parse_offsets(const std::string& name, const Json& entry, int64_t bytes, int64_t data_begin, int64_t file_size,
                     TensorInfo& info) {
  const Json* offsets = entry.find("data_offsets");
  const Json::Array* places = offsets ? offsets->array() : nullptr;
  const bool two = places && places->size() == 2;
  const auto first = two ? (*places)[0].integer(0) : std::nullopt;
  const auto second = two ? (*places)[1].integer(0) : std::nullopt;
  if (!first || !second) return bad(name, "expected data_offsets [begin, end]");
  const int64_t begin = *first, end = *second;
  const int64_t data_size = file_size - data_begin;
  if (begin > end || end > data_size) {
    return bad(name,
               "data_offsets " + json_excerpt(*offsets) + " lie outside the file's " + std::to_string(data_size) +
                   " bytes of data",
               data_begin + std::min(begin, data_size));
  }
  if (end - begin != bytes) {
    return bad(
        name,
        "data_offsets span " + std::to_string(end - begin) + " bytes, but its shape needs " + std::to_string(bytes),
        data_begin + begin);
  }
  info.begin = data_begin + begin;
  info.end = data_begin + end;
  return {};
}

Result<TensorInfo> parse_tensor(const std::string& name, const Json& entry, int64_t data_begin, int64_t file_size) {
  if (!entry.object()) return bad(name, "expected an object");
  if (entry.object()->size() > 3) return bad(name, "expected only dtype, shape and data_offsets");
  TensorInfo info;
  QUIRE_ASSIGN(const int64_t element_bytes, parse_dtype(name, entry, info));
  QUIRE_ASSIGN(const int64_t bytes, parse_shape(name, entry, element_bytes, info));
  QUIRE_TRY(parse_offsets(name, entry, bytes, data_begin, file_size, info));
  return info;
}

Status check_metadata(const Json& metadata) {
  if (!metadata.object()) return Status(Code::kBadFile, "__metadata__ must be an object");
  for (const auto& [key, value] : *metadata.object()) {
    if (!value.string()) return Status(Code::kBadFile, "__metadata__: " + key + " must be a string");
  }
  return {};
}

// The data must be covered exactly once: bytes that belong to two tensors, or to none, hide something.
Status check_cover(const TensorMap& tensors, int64_t data_begin, int64_t file_size) {
  std::vector<std::pair<std::string_view, const TensorInfo*>> by_offset;
  for (const auto& [name, info] : tensors) by_offset.emplace_back(name, &info);
  std::sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t covered = data_begin;
  for (const auto& [name, info] : by_offset) {
    if (info->begin < covered) return bad(std::string(name), "overlaps another tensor", info->begin);
    if (info->begin > covered) {
      return bad(std::string(name), "a hole of " + std::to_string(info->begin - covered) + " bytes before it", covered);
    }
    covered = info->end;
  }
  if (covered != file_size) {
    return Status(Code::kBadFile, std::to_string(file_size - covered) + " bytes after the last tensor", covered);
  }
  return {};
}

}  // namespace

Result<TensorMap> parse_safetensors_header(std::string_view header, int64_t data_begin, int64_t file_size) {
  if (data_begin < 0 || data_begin > file_size) {
    return Status(Code::kBadFile, "the header reaches beyond the file's " + std::to_string(file_size) + " bytes", 0);
  }
  QUIRE_ASSIGN(const Json document, parse_json_object(header, "safetensors header", JsonLimits{4, kMaxValues}));
  const Json::Object& entries = *document.object();
  if (entries.size() > kMaxTensors) {
    return Status(Code::kBadFile, "the header names " + std::to_string(entries.size()) + " tensors; at most " +
                                      std::to_string(kMaxTensors) + " are expected");
  }
  TensorMap tensors;
  for (const auto& [name, entry] : entries) {
    if (name == "__metadata__") {
      QUIRE_TRY(check_metadata(entry));
      continue;
    }
    QUIRE_ASSIGN(TensorInfo info, parse_tensor(name, entry, data_begin, file_size));
    tensors.emplace(name, std::move(info));
  }
  QUIRE_TRY(check_cover(tensors, data_begin, file_size));
  return tensors;
}

}  // namespace quire
