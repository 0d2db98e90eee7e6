// Small models with a BPE vocabulary, in the ways in which they come.
#pragma once

#include <cstdint>
#include <string>

#include "quire/quire.h"
#include "tests/fault/model_copy.h"

namespace quire::test {

// How weights come into memory.
struct LoadWay {
  int32_t load = QUIRE_LOAD_DEFAULT;
  int32_t weight_type = QUIRE_TYPE_DEFAULT;
};
constexpr LoadWay kLoadWays[] = {{QUIRE_LOAD_READ, QUIRE_TYPE_DEFAULT},
                                 {QUIRE_LOAD_MMAP, QUIRE_TYPE_DEFAULT},
                                 {QUIRE_LOAD_READ, QUIRE_TYPE_Q8_0},
                                 {QUIRE_LOAD_MMAP, QUIRE_TYPE_Q8_0}};

// In a temporary folder while this lives. Each can be loaded in all these ways.
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
