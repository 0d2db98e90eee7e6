// Files of the source tree that tests read.
#pragma once

#include <string>

namespace quire::test {

// NAME, relative to the root of the source tree, as an absolute path. Only source_path.cc is compiled with the root in
// it: other objects are the same in every checkout, and a compiler's cache knows them.
std::string source_path(const std::string& name);

}  // namespace quire::test
