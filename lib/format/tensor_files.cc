#include "lib/format/tensor_files.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace quire {
namespace {

constexpr struct {
  std::string_view name;
  ElementType type;
} kDtypes[] = {{"F32", ElementType::kF32},   {"F16", ElementType::kF16},       {"BF16", ElementType::kBF16},
               {"Q8_0", ElementType::kQ8_0}, {"Q4_0", ElementType::kQ4_0},     {"Q4_1", ElementType::kQ4_1},
               {"Q5_0", ElementType::kQ5_0}, {"Q5_1", ElementType::kQ5_1},     {"Q4_K", ElementType::kQ4_K},
               {"Q5_K", ElementType::kQ5_K}, {"Q6_K", ElementType::kQ6_K},     {"Q2_K", ElementType::kQ2_K},
               {"Q3_K", ElementType::kQ3_K}, {"IQ4_NL", ElementType::kIQ4_NL}, {"IQ4_XS", ElementType::kIQ4_XS}};

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace

Result<ElementType> check_tensor(const std::string& path, std::string_view name, const TensorInfo& info,
                                 std::span<const int64_t> shape) {
  if (!std::equal(info.shape.begin(), info.shape.end(), shape.begin(), shape.end())) {
    return Status(Code::kBadFile,
                  path + ": tensor " + std::string(name) + " has shape " + shape_text(info.shape) +
                      "; the configuration asks for " + shape_text(shape),
                  info.begin);
  }
  std::string known;
  for (const auto& [dtype, type] : kDtypes) {
    if (info.dtype == dtype) return type;
    known += (known.empty() ? "" : &dtype == &std::rbegin(kDtypes)->name ? " or " : ", ") + std::string(dtype);
  }
  return Status(Code::kUnsupported,
                path + ": tensor " + std::string(name) + " has dtype " + info.dtype + "; expected " + known,
                info.begin);
}

Status TensorFiles::add(std::unique_ptr<ReadFile> file, TensorMap tensors) {
  for (auto& [name, info] : tensors) info.file = files_.size();
  tensors_.merge(tensors);
  if (!tensors.empty()) {
    return Status(Code::kBadFile, file->path() + ": tensor " + tensors.begin()->first + " is in another file too");
  }
  std::span<const std::byte> map;
  if (access_ == Access::kMap) {
    QUIRE_ASSIGN(map, file->map());
  }
  files_.push_back(std::move(file));
  maps_.push_back(map);
  return {};
}

std::vector<std::string> TensorFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, info] : tensors_) names.push_back(name);
  return names;
}

const TensorInfo* TensorFiles::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

Status TensorFiles::missing(std::string_view name) const {
  std::string where = files_.empty() ? "no file" : files_[0]->path();
  if (files_.size() > 1) where += " and the files that belong to it";
  return Status(Code::kBadFile, where + ": missing tensor " + std::string(name));
}

Result<TensorFiles::View> TensorFiles::view(std::string_view name, std::span<const int64_t> shape) const {
  const TensorInfo* info = find(name);
  if (!info) return missing(name);
  QUIRE_ASSIGN(const ElementType type, check_tensor(files_[info->file]->path(), name, *info, shape));
  View view{type, info->shape, info->end - info->begin, info->interleaved_rows, nullptr};
  // safetensors promises no alignment; a misaligned tensor is left to read(), which copies it. Quantised blocks are
  // read byte by byte.
  const bool aligned = is_quantized(type) || info->begin % static_cast<int64_t>(element_bytes(type)) == 0;
  if (access_ == Access::kMap && aligned) view.mapped = maps_[info->file].data() + info->begin;
  return view;
}

Status TensorFiles::read(std::string_view name, int64_t offset, std::span<std::byte> out) const {
  const TensorInfo* info = find(name);
  if (!info) return missing(name);
  const int64_t bytes = info->end - info->begin;
  if (offset < 0 || offset > bytes || out.size() > static_cast<size_t>(bytes - offset)) {
    return Status(Code::kInvalidArgument, "bytes [" + std::to_string(offset) + ", +" + std::to_string(out.size()) +
                                              ") of tensor " + std::string(name) + ", which has " +
                                              std::to_string(bytes));
  }
  if (access_ == Access::kRead) return files_[info->file]->read_at(info->begin + offset, out);
  if (!out.empty()) std::memcpy(out.data(), maps_[info->file].data() + info->begin + offset, out.size());
  return {};
}

Result<ContentHash> TensorFiles::start_hash(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (!info) return missing(name);
  ContentHash hash;
  hash.add_text(info->dtype).add_text(shape_text(info->shape));
  return hash;
}

Result<std::string> TensorFiles::content_hash(std::string_view name, const CancelToken* cancel) const {
  constexpr int64_t kPiece = 1 << 20;
  QUIRE_ASSIGN(ContentHash hash, start_hash(name));
  const TensorInfo* info = find(name);
  const int64_t bytes = info->end - info->begin;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(bytes, kPiece)));
  for (int64_t at = 0; at < bytes; at += kPiece) {
    QUIRE_TRY(check_cancelled(cancel));
    const auto part = std::span(piece).first(static_cast<size_t>(std::min(kPiece, bytes - at)));
    QUIRE_TRY(read(name, at, part));
    hash.add(part);
  }
  return hash.hex();
}

void TensorFiles::drop(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (access_ != Access::kMap || !info) return;
  files_[info->file]->drop_mapped(info->begin, info->end - info->begin);
}

}  // namespace quire
