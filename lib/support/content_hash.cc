#include "lib/support/content_hash.h"

#include <bit>
#include <cstdint>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace quire {

struct ContentHash::State {
  XXH3_state_t xxh;  // aligned to 64 bytes, as it asks for
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
ContentHash::~ContentHash() = default;
ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;

ContentHash& ContentHash::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
  return *this;
}

ContentHash& ContentHash::add_text(std::string_view text) {
  unsigned char length[8];  // the same on every machine
  for (size_t i = 0; i < sizeof length; ++i) length[i] = static_cast<unsigned char>(uint64_t{text.size()} >> (8 * i));
  add(std::as_bytes(std::span(length)));
  return add(std::as_bytes(std::span(text.data(), text.size())));
}

ContentHash& ContentHash::add_real(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  return add_text(std::to_string(bits));
}

std::array<std::byte, 16> content_checksum(std::span<const std::byte> bytes) {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits(bytes.data(), bytes.size()));
  return std::bit_cast<std::array<std::byte, 16>>(digest.digest);
}

std::string ContentHash::hex() const {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&state_->xxh));
  std::string text;
  for (const unsigned char byte : digest.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace quire
