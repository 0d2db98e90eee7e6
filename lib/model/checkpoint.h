// A model on disk, of either format: what its configuration says, its tokenizer, its tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/format/gguf_files.h"
#include "lib/format/gguf_writer.h"
#include "lib/format/model_config.h"
#include "lib/format/tensor_files.h"
#include "lib/support/cancel.h"
#include "lib/support/status.h"
#include "lib/tokenizer/model_tokenizer.h"

namespace quire {

// One thread.
class Checkpoint {
 public:
  // `path`: a Hugging Face model directory, or a GGUF file (of several: the first). Reads the configuration, and a GGUF
  // file's headers. A head in the files that differs from the embedding is the model's (tie_word_embeddings false).
  // Errors: kNotFound, kIo, kBadFile, kUnsupported, kCancelled.
  static Result<Checkpoint> open(const std::string& path, const CancelToken* cancel = nullptr);
  // The same without a look at the head, for who loads no weights.
  static Result<Checkpoint> open_configuration(const std::string& path, const CancelToken* cancel = nullptr);

  const ModelConfig& config() const { return config_; }
  // With the chat template, or why there is none (ModelTokenizer::chat_template).
  Result<std::shared_ptr<const ModelTokenizer>> load_tokenizer() const;
  bool is_gguf() const { return gguf_.has_value(); }
  // Adds the metadata that a GGUF file of this model has, but for what depends on its tensors' types. Errors: those of
  // add_gguf_config and add_gguf_tokenizer.
  Status add_gguf_metadata(GgufWriter& writer) const;
  // As a GGUF file has them.
  Result<GgufRopeTensors> rope_tensors() const;
  // After this, nothing but config() may be called.
  Result<std::unique_ptr<TensorFiles>> open_tensors(TensorFiles::Access access, const CancelToken* cancel = nullptr);

 private:
  void untie_head(const CancelToken* cancel);

  std::string path_;
  ModelConfig config_;
  std::optional<GgufModel> gguf_;  // none: a directory
};

}  // namespace quire
