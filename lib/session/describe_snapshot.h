// What a snapshot says of itself, without a model.
#pragma once

#include <memory>
#include <string>

#include "lib/session/snapshot_index.h"
#include "lib/support/byte_stream.h"
#include "lib/support/status.h"

namespace quire {

// A JSON object: see quire_snapshot_describe. Errors of the source; kBadFile.
Result<std::string> describe_snapshot(std::shared_ptr<const ByteSource> source);
Result<std::string> describe_snapshot(const std::string& path);
// Whether every byte of the file is as it was written (SnapshotCheck). Errors of the source; kBadFile, kCancelled.
Status verify_snapshot(std::shared_ptr<const ByteSource> source, const SaveControl& control);
Status verify_snapshot(const std::string& path, const SaveControl& control);

}  // namespace quire
