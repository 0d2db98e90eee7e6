// The tensors of a GGUF model, in one file or split over several, under the names of a Hugging Face checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/gguf.h"
#include "lib/format/model_config.h"
#include "lib/format/tensor_files.h"
#include "lib/support/cancel.h"
#include "lib/support/os_file.h"
#include "lib/support/status.h"

namespace quire {

// A GGUF model whose headers are read.
struct GgufModel {
  GgufHeader header;  // of the first file, the only one with metadata of the model; tensors of all files
  std::vector<std::unique_ptr<ReadFile>> files;
};

// `path` names the only file, or the first of several (NAME-00001-of-0000N.gguf), which are beside it. `cancel`, which
// may be null, is polled before each file. Errors: kNotFound, kIo, kBadFile (also: files that do not belong together),
// kUnsupported, kCancelled.
Result<GgufModel> open_gguf(const std::string& path, const CancelToken* cancel = nullptr);

// The values of a tensor of few elements, by the file's own name; empty if there is no such tensor. Errors: kIo,
// kUnsupported (its type), kBadFile (too many elements).
Result<std::vector<float>> read_gguf_values(const GgufModel& model, std::string_view name);

// What a Hugging Face checkpoint calls a tensor of GGUF; tensors that it does not have keep their name. The names of
// some depend on ModelConfig::fused_projections and sandwich_norms.
std::string hugging_face_name(std::string_view gguf_name, bool fused_projections = false, bool sandwich_norms = false);
std::string gguf_name(std::string_view hugging_face_name, bool sandwich_norms = false);

// True if files of this architecture have the rows of Q and K interleaved (TensorInfo::interleaved_rows): their
// converters store them for a rotation of neighbouring elements.
bool gguf_interleaves_heads(std::string_view architecture);
// True of the tensors that are, by their Hugging Face names.
bool is_rotated_projection(std::string_view hugging_face_name);

// The tensors by their Hugging Face names. config: of the model.
Result<std::unique_ptr<TensorFiles>> gguf_tensor_files(GgufModel model, const ModelConfig& config,
                                                       TensorFiles::Access access);

}  // namespace quire
