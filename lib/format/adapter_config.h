// adapter_config.json of a PEFT LoRA adapter, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/support/status.h"

namespace quire {

struct AdapterConfig {
  int64_t rank = 8;
  double alpha = 8;
  bool use_rslora = false;
  // Modules of the decoder by the end of their names, such as "q_proj" or "self_attn.q_proj". Empty: the file gives a
  // regular expression or "all-linear", and what there is in the tensor file was meant.
  std::vector<std::string> target_modules;
  std::vector<std::string> modules_to_save;
  std::vector<int64_t> layers_to_transform;  // empty: all
  std::string base_model;                    // what it was trained on, as it says
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  // Of one module by its whole name, such as "model.layers.0.self_attn.q_proj". rank: r or rank_pattern's; scale:
  // alpha / rank, with rsLoRA (Kalajdzievski 2023, arXiv:2312.03732) alpha / sqrt(rank), alpha by alpha_pattern.
  // Error: kUnsupported where two patterns with different values match.
  Result<int64_t> rank_of(std::string_view module) const;
  Result<double> scale_of(std::string_view module) const;
  // Whether target_modules names the module; true where they are no list.
  bool targets(std::string_view module) const;
  // Whether modules_to_save names it: by the end of its name, wherever that begins ("norm" is "input_layernorm" too).
  bool saves(std::string_view module) const;
};

// Parses and checks the text of an adapter_config.json. `what` names it in messages. Accepted is peft_type LORA with
// whatever trains or initialises the same computation; what computes another (DoRA, biases, ...) is refused by name,
// and so is an unknown key that is set to anything. Errors: kBadFile, kUnsupported; messages name the key.
Result<AdapterConfig> parse_adapter_config(const std::string& json, const std::string& what);

}  // namespace quire
