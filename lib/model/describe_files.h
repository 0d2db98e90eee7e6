// What the files of a model hold, as JSON.
#pragma once

#include <string>

#include "lib/support/status.h"

namespace quire {

// The JSON object of quire_model_describe_files. path: as Checkpoint::open's. Errors: kNotFound, kIo, kBadFile,
// kUnsupported.
Result<std::string> describe_files(const std::string& path);

}  // namespace quire
