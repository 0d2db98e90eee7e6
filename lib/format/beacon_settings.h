// What a config.json says of Activation Beacon (version 1, as published with arXiv:2401.03462).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/format/json.h"
#include "lib/support/status.h"

namespace quire {

struct BeaconSettings {
  enum class Attention { kStepExpansion, kSegmentation, kFullCoverage };
  enum class Mix { kAdapt, kSequence };

  int64_t window = 0;  // 0: no beacons
  int64_t stride = 0;
  Attention attention = Attention::kStepExpansion;
  std::vector<int64_t> ratios;
  Mix mix = Mix::kAdapt;
  int64_t reserve = 1024;  // of kAdapt
  // Which projections of beacon tokens are their own.
  bool q = false, k = false, v = false, o = false, mlp = false;
};

// Reads the beacon_* keys; none: no beacons. Ways to mix ratios that only training has count as kAdapt. Errors:
// kBadFile, and kUnsupported for the later variant, retrieval, and keys that are not known.
Result<BeaconSettings> read_beacon_settings(const Json& config, const JsonReader& reader);

// Of DIR/config.json, which need not describe a model otherwise: a plug-in. Error also: kBadFile where there are none.
Result<BeaconSettings> load_beacon_settings(const std::string& directory);

}  // namespace quire
