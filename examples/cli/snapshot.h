// Snapshots: sessions in files.
#pragma once

#include <optional>
#include <string>

#include "document.h"
#include "quire_handles.h"

namespace cli {

// Names of files that `quire ls` looks for in a directory end so.
inline constexpr const char* kSnapshotSuffix = ".quire";

// What quire_snapshot_describe says. Throws QuireFailure; its message begins with the path.
Json describe_snapshot(const std::string& path);
// The same; nothing where there is no such file.
std::optional<Json> find_snapshot(const std::string& path);

// Reads all of the file and shows progress; Ctrl-C throws Interrupted. Throws QuireFailure as describe_snapshot does.
void verify_snapshot(const std::string& path);

// Throws std::runtime_error where there is more than a document that was fed: tokens that were generated, or positions
// of their own.
void check_is_document(const std::string& path);

// Shows progress. Ctrl-C does not stop it: hours of reading may depend on it, and a later one kills the process.
void save_session(quire_session* session, const std::string& path);

// "431 tokens, 1.2 MiB"; or "431 tokens, 20 more to be read, 1.2 MiB".
std::string snapshot_summary(const Json& description);

}  // namespace cli
