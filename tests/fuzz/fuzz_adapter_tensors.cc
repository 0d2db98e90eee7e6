// The tensors of a LoRA adapter against a small model. Input: one byte that chooses the model, the line of
// adapter_config.json, and the header of adapter_model.safetensors.
#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "lib/format/safetensors.h"
#include "lib/model/adapter_changes.h"
#include "tests/fuzz/require.h"

namespace {

using namespace quire;

const ModelConfig& model(bool tied) {
  const auto make = [](bool tie) {
    return std::move(parse_model_config(std::string(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8,
        "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
        "vocab_size": 12, "tie_word_embeddings": )") +
                                        (tie ? "true}" : "false}"))
                         .value());
  };
  static const ModelConfig kTied = make(true), kUntied = make(false);
  return tied ? kTied : kUntied;
}

// The data of all tensors: as much as they claim, so that most headers cover it.
int64_t data_bytes(std::string_view header) {
  int64_t most = 0;
  for (size_t at = 0; (at = header.find("data_offsets", at)) != std::string_view::npos; ++at) {
    const size_t comma = header.find(',', at);
    if (comma == std::string_view::npos) break;
    most = std::max<int64_t>(most, std::atoll(std::string(header.substr(comma + 1, 12)).c_str()));
  }
  return most;
}

void check(const AdapterChanges& changes, const TensorMap& tensors) {
  FUZZ_REQUIRE(!changes.low_rank().empty() || !changes.replacements().empty());
  std::set<std::string> used;
  for (const auto& [weight, change] : changes.low_rank()) {
    FUZZ_REQUIRE(change.rank > 0 && change.in > 0 && change.out > 0 && change.scale >= 0);
    FUZZ_REQUIRE((tensors.at(change.a).shape == std::vector{change.rank, change.in}));
    FUZZ_REQUIRE((tensors.at(change.b).shape == std::vector{change.out, change.rank}));
    FUZZ_REQUIRE(used.insert(change.a).second && used.insert(change.b).second);
    FUZZ_REQUIRE(changes.low_rank(weight) == &change);
  }
  for (const auto& [weight, tensor] : changes.replacements()) {
    FUZZ_REQUIRE(tensors.contains(tensor) && used.insert(tensor).second);
    FUZZ_REQUIRE(*changes.replacement(weight) == tensor);
  }
  // Nothing is left aside but copies of the base's weights beside saved ones.
  for (const auto& [name, info] : tensors) FUZZ_REQUIRE(used.contains(name) || name.ends_with(".base_layer.weight"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t line = rest.find('\n');
  if (line == std::string_view::npos) return 0;
  const auto config = parse_adapter_config(std::string(rest.substr(0, line)), "adapter_config.json");
  if (!config.ok()) return 0;
  const std::string_view header = rest.substr(line + 1);
  const auto begin = static_cast<int64_t>(header.size()) + 8;
  const auto tensors = parse_safetensors_header(header, begin, begin + data_bytes(header));
  if (!tensors.ok()) return 0;
  const auto changes =
      AdapterChanges::resolve(config.value(), tensors.value(), model(data[0] % 2 == 1), "adapter_model.safetensors");
  if (changes.ok()) {
    check(changes.value(), tensors.value());
  } else {
    FUZZ_REQUIRE(changes.status().code() == Code::kBadFile || changes.status().code() == Code::kUnsupported);
    FUZZ_REQUIRE(!changes.status().message().empty());
  }
  return 0;
}
