// A 128-bit hash of content: names what was read, so that equal names mean equal bytes. Not against forgery.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace quire {

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(ContentHash&&) noexcept;
  ContentHash& operator=(ContentHash&&) noexcept;

  // How the bytes are split into calls changes nothing.
  ContentHash& add(std::span<const std::byte> bytes);
  // A field of its own: its length is hashed too.
  ContentHash& add_text(std::string_view text);
  ContentHash& add_real(double value);  // its bits

  // 32 hexadecimal digits of all that was added so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same hash of one piece of bytes, as its 16 bytes.
std::array<std::byte, 16> content_checksum(std::span<const std::byte> bytes);

}  // namespace quire
