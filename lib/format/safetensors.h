// safetensors: named tensors in one file, or in several with an index. Untrusted input ends here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/format/tensor_files.h"
#include "lib/support/cancel.h"
#include "lib/support/status.h"

namespace quire {

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

// The name of a text model's part that is a part of a larger model, without `prefix`, which stands in front of it
// ("language_model.model.norm"), or, as transformers writes them since version 4.52, behind "model."
// ("model.language_model.norm"). Other names are as they are.
std::string without_model_prefix(std::string_view name, std::string_view prefix);

// The tensors of a model directory: model.safetensors, or model.safetensors.index.json and its shards. Refuses by name
// directories that hold only pytorch_model*.bin. The headers of all files together may have 100 MB. `cancel`, which may
// be null, is polled before each file. Names are given without `prefix`, as without_model_prefix. Errors: kNotFound,
// kIo, kBadFile, kUnsupported, kCancelled.
Result<std::unique_ptr<TensorFiles>> open_safetensors(const std::string& directory, TensorFiles::Access access,
                                                      const CancelToken* cancel = nullptr,
                                                      std::string_view prefix = {});
// The tensors of one .safetensors file. Errors: kNotFound, kIo, kBadFile.
Result<std::unique_ptr<TensorFiles>> open_safetensors_file(const std::string& path, TensorFiles::Access access);

}  // namespace quire
