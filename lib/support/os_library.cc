#include "lib/support/os_library.h"

#include <dlfcn.h>

namespace quire {
namespace {

const char own_address = 0;

}  // namespace

Result<void*> os_open_library(const std::string& path) {
  if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return library;
  const char* const why = dlerror();  // begins with the path
  return Status(Code::kNotFound, why ? why : path + ": cannot be opened");
}

void* os_library_symbol(void* library, const char* name) { return dlsym(library, name); }

std::string os_own_folder() {
  Dl_info info{};
  if (dladdr(&own_address, &info) == 0 || !info.dli_fname) return {};
  const std::string file = info.dli_fname;
  const size_t end = file.rfind('/');
  return end == std::string::npos ? std::string() : file.substr(0, end);
}

}  // namespace quire
