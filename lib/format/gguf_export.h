// A model's configuration as the metadata of a GGUF file.
#pragma once

#include <string>
#include <vector>

#include "lib/format/gguf_writer.h"
#include "lib/format/model_config.h"
#include "lib/support/status.h"

namespace quire {

// What GGUF calls the architecture; empty if it has no name for it.
std::string gguf_architecture(const ModelConfig& config);

// The tensor in which GGUF files keep divisors of RoPE's frequencies, [head_dim / 2].
constexpr char kGgufRopeFactors[] = "rope_freqs.weight";

// Adds the keys of the configuration. Error: kUnsupported: an architecture, or a RoPE scaling, that has no keys.
Status add_gguf_config(const ModelConfig& config, GgufWriter& writer);

// What kGgufRopeFactors holds for the configuration; empty: it has no such tensor.
std::vector<float> gguf_rope_factors(const ModelConfig& config);

}  // namespace quire
