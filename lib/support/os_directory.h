// Directories, and what is known of files without opening them.
#pragma once

#include <cstdint>
#include <string>

#include "lib/support/status.h"

namespace quire {

// Makes the directory, for its owner alone (mode 0700), if there is none. Its parent must be there. Errors: kNotFound,
// kIo (with errno), also where something else has that name.
Status make_directory(const std::string& path);
// Makes an empty file, for its owner alone (mode 0600), if nothing has that name. Errors: kNotFound, kIo.
Status make_file(const std::string& path);

// The path of the same file without symbolic links, from the root on; where it cannot be had, the path as it is.
std::string canonical_path(const std::string& path);
// The path from the root on, which names the same file when the process has gone to another directory; where the
// process's own cannot be had, the path as it is.
std::string absolute_path(const std::string& path);

// Of what has the path itself: a symbolic link is no file.
struct FileFacts {
  bool exists = false;
  bool is_file = false;  // a regular one
  int64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970, by the system's clock
  int64_t changed_ns = 0;   // of its bytes or anything else here; nobody can set this one back
  uint64_t number = 0;      // another file that takes its place has another one
  bool operator==(const FileFacts&) const = default;
};
FileFacts file_facts(const std::string& path);
// Errors: kIo.
Status set_modified(const std::string& path, int64_t modified_ns);
// No error where there is none. Errors: kIo.
Status remove_file(const std::string& path);
// Since 1970, by the system's clock, which may be set back.
int64_t wall_clock_ns();
// Lets other threads and processes work for a moment.
void wait_milliseconds(int64_t n);

}  // namespace quire
