// A library of another version, for the tests of bindings, which answers nothing else. Preloaded, it hides the
// real one's version.
#include <stdint.h>

int32_t quire_get_version(void) { return 200; }
