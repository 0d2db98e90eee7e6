#include "tests/source_path.h"

namespace quire::test {

std::string source_path(const std::string& name) { return QUIRE_SOURCE_DIR "/" + name; }

}  // namespace quire::test
