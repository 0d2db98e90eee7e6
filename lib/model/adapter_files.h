// The files of a PEFT LoRA directory, resolved against the model they are for: which tensors change which weight.
//
// Hu et al. 2021, "LoRA", arXiv:2106.09685, eq. 3: W' = W + scale * B A, with A [rank][in] and B [out][rank].
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/format/adapter_config.h"
#include "lib/format/model_config.h"
#include "lib/format/tensor_files.h"
#include "lib/model/adapter_changes.h"

namespace quire {

// Immutable; any thread.
class AdapterFiles {
 public:
  // Reads DIR/adapter_config.json and the header of DIR/adapter_model.safetensors and checks them against `model`.
  // Errors: kNotFound, kIo, kBadFile (damaged; shapes, ranks or pairs that do not fit: the tensor, found and
  // expected), kUnsupported (another method or architecture, .bin files).
  static Result<std::shared_ptr<const AdapterFiles>> open(const std::string& directory, const ModelConfig& model,
                                                          TensorFiles::Access access);

  const AdapterConfig& config() const { return config_; }
  const TensorFiles& tensors() const { return *tensors_; }
  std::shared_ptr<const TensorFiles> shared_tensors() const { return tensors_; }
  const AdapterChanges& changes() const { return changes_; }

  // Values of a tensor of any accepted type, widened.
  Result<std::vector<float>> read(const std::string& tensor, std::span<const int64_t> shape,
                                  const CancelToken* cancel = nullptr) const;
  // 32 hexadecimal digits that name what the two files hold: 128 bits over their bytes. `cancel`, which may be null, is
  // polled before each piece; `progress`, which may be empty, is called with its bytes after each. Errors: kIo,
  // kCancelled.
  Result<std::string> identity(const CancelToken* cancel = nullptr,
                               const std::function<void(int64_t bytes)>& progress = {}) const;
  int64_t tensor_file_bytes() const { return tensors_->files()[0]->size(); }

 private:
  std::string config_text_;
  AdapterConfig config_;
  std::shared_ptr<const TensorFiles> tensors_;
  AdapterChanges changes_;
};

}  // namespace quire
