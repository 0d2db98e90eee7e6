#include "lib/tokenizer/bpe_definition.h"

#include <array>

#include "lib/support/utf8.h"
#include "lib/tokenizer/unicode.h"

namespace quire {
namespace {

// GPT-2's alphabet: a byte that is a printable character of Latin-1 stands for itself. The others, in ascending order,
// are the characters from U+0100 on.
constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr uint32_t kOthers = 0x100, kOtherCount = 68;

constexpr std::array<uint8_t, kOtherCount> other_bytes() {
  std::array<uint8_t, kOtherCount> bytes{};
  size_t n = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) bytes[n++] = static_cast<uint8_t>(byte);
  }
  return bytes;
}
constexpr auto kOtherBytes = other_bytes();

}  // namespace

const char kGpt2Expression[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool bytes_of_alphabet(std::string_view text, std::string& bytes) {
  if (utf8_first_invalid(text) != text.size()) return false;
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const uint32_t code_point = take_code_point(text, at);
    if (code_point < 0x100 && stands_for_itself(code_point)) {
      bytes += static_cast<char>(code_point);
    } else if (code_point >= kOthers && code_point < kOthers + kOtherCount) {
      bytes += static_cast<char>(kOtherBytes[code_point - kOthers]);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace quire
