// A model's configuration as the metadata of a GGUF file.
#pragma once

#include <string>

#include "lib/format/gguf.h"
#include "lib/format/gguf_writer.h"
#include "lib/format/model_config.h"
#include "lib/support/status.h"

namespace quire {

// What GGUF calls the architecture; empty if it has no name for it.
std::string gguf_architecture(const ModelConfig& config);

// Adds the keys of the configuration. Error: kUnsupported: an architecture, or a RoPE scaling, that has no keys.
Status add_gguf_config(const ModelConfig& config, GgufWriter& writer);

GgufRopeTensors gguf_rope_tensors(const ModelConfig& config);

}  // namespace quire
