// model.safetensors.index.json: which shard holds which tensors.
#include <set>

#include "lib/format/safetensors.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  const auto shards = parse_shard_index({reinterpret_cast<const char*>(data), size}, "index.json");
  if (!shards.ok()) {
    FUZZ_REQUIRE(shards.status().code() == Code::kBadFile && !shards.status().message().empty());
    FUZZ_REQUIRE(shards.status().offset() <= static_cast<int64_t>(size));
    return 0;
  }
  FUZZ_REQUIRE(shards.value().size() <= 4096);
  std::set<std::string> seen;
  for (const auto& [file, tensors] : shards.value()) {
    FUZZ_REQUIRE(file.ends_with(".safetensors") && !tensors.empty());
    for (const char separator : {'/', '\\', '\0'}) FUZZ_REQUIRE(file.find(separator) == std::string::npos);
    for (const std::string& tensor : tensors) FUZZ_REQUIRE(seen.insert(tensor).second);
  }
  return 0;
}
