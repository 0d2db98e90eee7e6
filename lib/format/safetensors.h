// safetensors: named tensors in one file, or in several with an index. Untrusted input ends here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/os_file.h"
#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

struct TensorInfo {
  std::string dtype;           // as the file says: "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;  // product checked against the byte size
  int64_t begin = 0;           // bytes [begin, end) of the file, absolute
  int64_t end = 0;
};

// Parses the header of one file: `header` is the JSON text, `data_begin` = 8 + its length, `file_size` the whole
// file's. Checks: UTF-8 JSON object of limited depth and size, no duplicate names, known dtypes, shapes without
// overflow, offsets inside the file, byte size = shape * dtype, no overlaps, no holes. Errors: kBadModel naming tensor
// and byte.
Result<std::map<std::string, TensorInfo, std::less<>>> parse_safetensors_header(std::string_view header,
                                                                                int64_t data_begin, int64_t file_size);

// The tensors of a model directory: model.safetensors, or model.safetensors.index.json and its shards. Any thread.
class TensorFiles {
 public:
  enum class Access { kMap, kRead };

  // Refuses by name directories that hold only pytorch_model*.bin or *.gguf. Errors: kNotFound, kIo, kBadModel,
  // kUnsupported.
  static Result<std::unique_ptr<TensorFiles>> open(const std::string& directory, Access access);
  // The tensors of one .safetensors file. Errors: kNotFound, kIo, kBadModel.
  static Result<std::unique_ptr<TensorFiles>> open_file(const std::string& path, Access access);

  Access access() const { return access_; }
  std::vector<std::string> names() const;
  const TensorInfo* find(std::string_view name) const;  // nullptr if missing

  // A tensor that must exist with this shape and a floating-point type.
  struct View {
    ElementType type;
    std::vector<int64_t> shape;
    int64_t bytes;
    const void* mapped;  // its bytes if access is kMap and they are aligned for `type`, else nullptr
  };
  // Errors: kBadModel (no such tensor; another shape, both named); kUnsupported (a dtype other than F32, F16, BF16).
  Result<View> view(std::string_view name, std::span<const int64_t> shape) const;
  // Copies bytes [offset, offset + out.size()) of the tensor (both access modes).
  Status read(std::string_view name, int64_t offset, std::span<std::byte> out) const;
  // 128 bits over type, shape and bytes. Errors: kBadModel, kIo.
  Result<std::string> content_hash(std::string_view name) const;
  // kMap: tells the system that the tensor's pages were copied and will not be needed.
  void drop(std::string_view name) const;

 private:
  // All tensors of the file, or those in `wanted`.
  Status add_file(const std::string& path, const std::vector<std::string>* wanted);

  struct Entry {
    size_t file;
    TensorInfo info;
  };
  Access access_ = Access::kMap;
  std::vector<std::unique_ptr<ReadFile>> files_;
  std::vector<std::span<const std::byte>> maps_;
  std::map<std::string, Entry, std::less<>> tensors_;
};

}  // namespace quire
