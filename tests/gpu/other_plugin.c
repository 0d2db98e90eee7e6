/* A plugin of another version of Quire. */
#include <stddef.h>
#include <stdint.h>

__attribute__((visibility("default"))) const void* quire_cuda_entry(uint32_t version);

const void* quire_cuda_entry(uint32_t version) {
  (void)version;
  return NULL;
}
