// Shared libraries that are opened at run time, and where this library's own file is.
#pragma once

#include <string>

#include "lib/support/status.h"

namespace quire {

// Opens a shared library by its path, or by its name where the system looks for libraries. It stays open until the
// process ends. Any thread. Errors: kNotFound with the system's text.
Result<void*> os_open_library(const std::string& path);
// The address of a symbol of that library; nullptr if it has none of this name.
void* os_library_symbol(void* library, const char* name);
// The folder of the file that this code was loaded from: of libquire.so, or of the program that it is linked into;
// empty if the system does not say.
std::string os_own_folder();

}  // namespace quire
