// Keys in blocks of kKeyBlock: one key is a column, so storing it scatters and loading it gathers.
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {
namespace {

constexpr int64_t kPart = 128;  // elements converted at a time

// Element 0 of key `index`; its neighbours in d are kKeyBlock elements apart.
int64_t key_offset(int64_t index, int64_t d) { return index / kKeyBlock * d * kKeyBlock + index % kKeyBlock; }

template <class Element>
void scatter(const Element* part, int64_t count, char* to) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)), part + i, sizeof(Element));
  }
}

template <class Element>
void gather(const char* from, int64_t count, Element* part) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(part + i, from + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
  }
}

template <class Element>
void store_as(const float* key, int64_t d, ElementType type, char* to) {
  Element part[kPart];
  for (int64_t i = 0; i < d; i += kPart) {
    const int64_t count = d - i < kPart ? d - i : kPart;
    convert(ElementType::kF32, key + i, type, part, count);
    scatter(part, count, to + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)));
  }
}

template <class Element>
void load_from(ElementType type, const char* from, int64_t d, float* key) {
  Element part[kPart];
  for (int64_t i = 0; i < d; i += kPart) {
    const int64_t count = d - i < kPart ? d - i : kPart;
    gather(from + i * kKeyBlock * static_cast<int64_t>(sizeof(Element)), count, part);
    convert(type, part, ElementType::kF32, key + i, count);
  }
}

}  // namespace

void store_key(const float* key, int64_t d, ElementType type, void* keys, int64_t index) {
  char* to = static_cast<char*>(keys) + key_offset(index, d) * static_cast<int64_t>(element_bytes(type));
  if (type == ElementType::kF32) return store_as<uint32_t>(key, d, type, to);
  store_as<uint16_t>(key, d, type, to);
}

void load_key(ElementType type, const void* keys, int64_t index, int64_t d, float* key) {
  const char* from = static_cast<const char*>(keys) + key_offset(index, d) * static_cast<int64_t>(element_bytes(type));
  if (type == ElementType::kF32) return load_from<uint32_t>(type, from, d, key);
  load_from<uint16_t>(type, from, d, key);
}

}  // namespace quire::cpu
