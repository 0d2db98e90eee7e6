// safetensors: named tensors in one file, or in several with an index. Untrusted input ends here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/cancel.h"
#include "lib/support/content_hash.h"
#include "lib/support/os_file.h"
#include "lib/support/status.h"
#include "lib/support/types.h"

namespace quire {

struct TensorInfo {
  std::string dtype;           // as the file says: "F32", "F16", "BF16", "I64", ...
  std::vector<int64_t> shape;  // product checked against the byte size
  int64_t begin = 0;           // bytes [begin, end) of the file, absolute
  int64_t end = 0;
  size_t file = 0;  // which of TensorFiles::files()
};

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

// Parses the header of one file: `header` is the JSON text, `data_begin` = 8 + its length, `file_size` the whole
// file's. Checks: UTF-8 JSON object of limited depth and size, at most 200,000 tensors, no duplicate names, known
// dtypes, shapes without overflow, offsets inside the file, byte size = shape * dtype, no overlaps, no holes. Errors:
// kBadFile naming tensor and byte.
Result<TensorMap> parse_safetensors_header(std::string_view header, int64_t data_begin, int64_t file_size);

// Which shard holds which tensors: shard file name -> tensor names.
using ShardMap = std::map<std::string, std::vector<std::string>>;

// Parses the text of a model.safetensors.index.json; `what` names it in messages. Checks: UTF-8 JSON object of limited
// depth and size, a weight_map of names to names of .safetensors files without a folder, at most 4096 files.
// Error: kBadFile.
Result<ShardMap> parse_shard_index(std::string_view text, const std::string& what);

// The element type of a tensor that must have this shape; `path` names the file in messages. Errors: kBadFile (another
// shape, both named); kUnsupported (a dtype other than F32, F16, BF16).
Result<ElementType> check_tensor(const std::string& path, std::string_view name, const TensorInfo& info,
                                 std::span<const int64_t> shape);

// The tensors of a model directory: model.safetensors, or model.safetensors.index.json and its shards. Any thread.
class TensorFiles {
 public:
  enum class Access { kMap, kRead };

  // Refuses by name directories that hold only pytorch_model*.bin or *.gguf. The headers of all files together may have
  // 100 MB. `cancel`, which may be null, is polled before each file. Errors: kNotFound, kIo, kBadFile, kUnsupported,
  // kCancelled.
  static Result<std::unique_ptr<TensorFiles>> open(const std::string& directory, Access access,
                                                   const CancelToken* cancel = nullptr);
  // The tensors of one .safetensors file. Errors: kNotFound, kIo, kBadFile.
  static Result<std::unique_ptr<TensorFiles>> open_file(const std::string& path, Access access);

  Access access() const { return access_; }
  std::vector<std::string> names() const;
  const TensorMap& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr if missing
  const std::vector<std::unique_ptr<ReadFile>>& files() const { return files_; }

  // A tensor that must exist with this shape and a floating-point type.
  struct View {
    ElementType type;
    std::vector<int64_t> shape;
    int64_t bytes;
    const void* mapped;  // its bytes if access is kMap and they are aligned for `type`, else nullptr
  };
  // Errors: kBadFile (no such tensor; another shape, both named); kUnsupported (a dtype other than F32, F16, BF16).
  Result<View> view(std::string_view name, std::span<const int64_t> shape) const;
  // Copies bytes [offset, offset + out.size()) of the tensor (both access modes).
  Status read(std::string_view name, int64_t offset, std::span<std::byte> out) const;
  // 128 bits over type, shape and bytes. `cancel`, which may be null, is polled before each piece. Errors: kBadFile,
  // kIo, kCancelled.
  Result<std::string> content_hash(std::string_view name, const CancelToken* cancel = nullptr) const;
  // The same for who reads the bytes anyway: to it they are added, and hex() is the content_hash. Error: kBadFile.
  Result<ContentHash> start_hash(std::string_view name) const;
  // kMap: tells the system that the tensor's pages were copied and will not be needed.
  void drop(std::string_view name) const;

 private:
  // All tensors of the file, or those in `wanted`.
  Status add_file(const std::string& path, const std::vector<std::string>* wanted);
  Access access_ = Access::kMap;
  std::vector<std::unique_ptr<ReadFile>> files_;
  std::vector<std::span<const std::byte>> maps_;
  TensorMap tensors_;
  int64_t header_bytes_ = 0;
};

}  // namespace quire
