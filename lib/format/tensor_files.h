// The tensors of a checkpoint: where each lies in which file, and its bytes. Who reads a format's headers makes the map
// (safetensors.h, gguf_files.h).
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
  std::string dtype;           // as the file says: "F32", "F16", "BF16", "I64", "Q4_K", ...
  std::vector<int64_t> shape;  // product checked against the byte size
  int64_t begin = 0;           // bytes [begin, end) of the file, absolute
  int64_t end = 0;
  size_t file = 0;  // which of TensorFiles::files()
  // Not 0: in each run of so many rows, those of the first and of the second half alternate (GGUF's order of Q and K of
  // architecture llama). Names, shapes and orders elsewhere are those of a Hugging Face checkpoint.
  int64_t interleaved_rows = 0;
};

using TensorMap = std::map<std::string, TensorInfo, std::less<>>;

// The element type of a tensor that must have this shape; `path` names the file in messages. Errors: kBadFile (another
// shape, both named); kUnsupported (a dtype that no ElementType stands for).
Result<ElementType> check_tensor(const std::string& path, std::string_view name, const TensorInfo& info,
                                 std::span<const int64_t> shape);

// Immutable once it is made: any thread.
class TensorFiles {
 public:
  enum class Access { kMap, kRead };

  explicit TensorFiles(Access access) : access_(access) {}

  // Adds a file and its tensors, whose `file` is set here. Errors: kIo (mapping), kBadFile (a name is there already).
  Status add(std::unique_ptr<ReadFile> file, TensorMap tensors);

  Access access() const { return access_; }
  std::vector<std::string> names() const;
  const TensorMap& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr if missing
  const std::vector<std::unique_ptr<ReadFile>>& files() const { return files_; }

  // A tensor that must exist with this shape and a type that weights may have.
  struct View {
    ElementType type;
    std::vector<int64_t> shape;
    int64_t bytes;
    int64_t interleaved_rows;  // as TensorInfo
    const void* mapped;        // its bytes if access is kMap and they are aligned for `type`, else nullptr
  };
  // Errors: kBadFile (no such tensor; another shape, both named); kUnsupported (a dtype that no ElementType stands
  // for).
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
  Status missing(std::string_view name) const;

  const Access access_;
  std::vector<std::unique_ptr<ReadFile>> files_;
  std::vector<std::span<const std::byte>> maps_;
  TensorMap tensors_;
};

}  // namespace quire
