// Small models with a BPE vocabulary, in the ways in which they come.
#pragma once

#include <string>

#include "tests/fault/model_copy.h"

namespace quire::test {

// In a temporary folder while this lives.
class BpeModels {
 public:
  BpeModels();

  std::string directory() const { return copy_.path(); }  // of Hugging Face, with tokenizer.json
  std::string gguf() const { return copy_.path() + "/model.gguf"; }
  std::string gguf_parts() const { return copy_.path() + "/part-00001-of-00002.gguf"; }

 private:
  const ModelCopy copy_{"short_128"};
};

}  // namespace quire::test
