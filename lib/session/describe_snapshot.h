// What a snapshot says of itself, without a model.
#pragma once

#include <string>

#include "lib/session/snapshot_index.h"
#include "lib/support/status.h"

namespace quire {

// A JSON object: see quire_snapshot_describe. kNotFound, kIo, kBadFile.
Result<std::string> describe_snapshot(const std::string& path);
// Reads every block, and compares its checksum. kNotFound, kIo, kBadFile, kCancelled.
Status verify_snapshot(const std::string& path, const SaveControl& control);

}  // namespace quire
