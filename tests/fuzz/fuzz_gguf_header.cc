// The header of a GGUF file, and what it says of a model. Input: the size of the data in 8 bytes, then the file's
// beginning; zeros follow.
#include <algorithm>
#include <cstring>
#include <vector>

#include "lib/format/gguf_config.h"
#include "lib/format/json.h"
#include "tests/fuzz/require.h"

namespace {

void check_config(const quire::GgufHeader& header) {
  using namespace quire;
  GgufRopeTensors factors;
  for (const char* name : {kGgufRopeFreqs, kGgufRopeFactorsLong, kGgufRopeFactorsShort}) {
    const auto at = header.tensors.find(name);
    if (at == header.tensors.end() || at->second.shape.empty()) continue;
    factors[name].assign(static_cast<size_t>(std::min<int64_t>(at->second.shape[0], 5000)), 2.5f);
  }
  const auto config = gguf_model_config(header, factors);
  if (!config.ok()) {
    const Code code = config.status().code();
    FUZZ_REQUIRE((code == Code::kBadFile || code == Code::kUnsupported) && !config.status().message().empty());
    return;
  }
  const ModelConfig& c = config.value();
  FUZZ_REQUIRE(c.n_layers > 0 && c.head_dim > 0 && c.head_dim % 2 == 0 && c.n_query_heads % c.n_kv_heads == 0);
  FUZZ_REQUIRE(c.rotary_dim > 0 && c.rotary_dim % 2 == 0 && c.rotary_dim <= c.head_dim);
  FUZZ_REQUIRE(c.nope_layers.empty() || static_cast<int>(c.nope_layers.size()) == c.n_layers);
  FUZZ_REQUIRE(c.freq_factors.empty() || static_cast<int>(c.freq_factors.size()) == c.rotary_dim / 2);
  // Those of the list, and those of other keys and of known texts.
  FUZZ_REQUIRE(c.eos_token_ids.size() <= ModelLimits::kTokenIds + 64 && c.bos_token_ids.size() <= 1);
  for (const int32_t id : c.eos_token_ids) FUZZ_REQUIRE(id >= 0 && id < c.vocab_size);
  FUZZ_REQUIRE(parse_json_object(c.json, "json").ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  int64_t data_size = 0;
  if (size < sizeof data_size) return 0;
  std::memcpy(&data_size, data, sizeof data_size);
  data += sizeof data_size;
  const auto given = static_cast<int64_t>(size - sizeof data_size);
  if (data_size < 0 || data_size > INT64_MAX - given) return 0;
  const int64_t file_size = given + data_size;
  int64_t most_read = 0;
  const ReadAt read = [&](int64_t offset, std::span<std::byte> out) {
    const auto n = static_cast<int64_t>(out.size());
    FUZZ_REQUIRE(offset >= 0 && n <= file_size - offset);
    most_read = std::max(most_read, offset + n);
    std::fill(out.begin(), out.end(), std::byte{0});
    if (offset < given) std::memcpy(out.data(), data + offset, static_cast<size_t>(std::min(n, given - offset)));
    return Status();
  };
  auto header = read_gguf_header(read, file_size);
  if (!header.ok()) {
    const Code code = header.status().code();
    FUZZ_REQUIRE((code == Code::kBadFile || code == Code::kUnsupported) && !header.status().message().empty());
    return 0;
  }
  FUZZ_REQUIRE(most_read <= file_size);
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const auto& [name, tensor] : header->tensors) {
    FUZZ_REQUIRE(tensor.begin >= header->data_begin && tensor.begin <= tensor.end && tensor.end <= file_size);
    FUZZ_REQUIRE((tensor.begin - header->data_begin) % header->alignment == 0);
    int64_t elements = 1;
    for (const int64_t n : tensor.shape) elements *= n;
    FUZZ_REQUIRE(tensor.end - tensor.begin == elements / tensor.type->block_elements * tensor.type->block_bytes);
    if (tensor.begin < tensor.end) places.emplace_back(tensor.begin, tensor.end);
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) FUZZ_REQUIRE(places[i].first >= places[i - 1].second);
  check_config(*header);
  return 0;
}
