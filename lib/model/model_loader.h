// Loads a checkpoint (checkpoint.h) into a model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/model/adapter_merge.h"
#include "lib/model/llama_model.h"
#include "lib/model/piece_loader.h"
#include "lib/tokenizer/model_tokenizer.h"

namespace quire {

// Not to be used again after load().
class ModelLoader {
 public:
  struct Options {
    bool map = false;  // map the weight files, which must not shrink while the model lives, rather than read them
    int32_t weight_type = 0;                           // ElementType to convert projections to; 0: as stored
    ElementType activation_type = ElementType::kInt8;  // the coarsest that rows may be rounded to (matrix_parts)
    std::vector<AdapterSource> merge;
    // Where packed weights are kept (packed_weights.h); empty: nowhere.
    std::string packed_directory;
    std::string beacon_directory;  // of a beacon plug-in; empty: the checkpoint's own beacons, if it has any
    LoadControl control;
  };

  ModelLoader(Backend& backend, std::string path, Options options);
  ~ModelLoader();
  // Reads files on this thread and hands what it read to the engine (LoadControl) piece by piece. Errors: kNotFound,
  // kIo, kBadFile, kUnsupported, kOutOfMemory, kCancelled, kClosed.
  Result<std::unique_ptr<LlamaModel>> load();
  // After load(): the file in packed_directory that the model's matrices are mapped from, or why they are not.
  const Result<std::string>& packed_file() const;
  // Of the model that was loaded.
  std::shared_ptr<const ModelTokenizer> tokenizer() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
