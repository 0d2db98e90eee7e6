#include "lib/support/content_hash.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// XXH3_128bits of nothing, from the specification of xxHash: the names stay the same in every version.
TEST(ContentHash, IsXxh3OfTheBytes) {
  EXPECT_EQ(ContentHash().hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(ContentHash().add({}).hex(), ContentHash().hex());
}

TEST(ContentHash, PiecesOfBytesAreOneContent) {
  const std::string text(1000, 'q');
  ContentHash pieces;
  for (size_t at = 0; at < text.size(); at += 7) pieces.add(bytes(std::string_view(text).substr(at, 7)));
  EXPECT_EQ(pieces.hex(), ContentHash().add(bytes(text)).hex());
  EXPECT_EQ(pieces.hex(), pieces.hex());  // asking changes nothing
  EXPECT_NE(pieces.hex(), ContentHash().add(bytes(text + "q")).hex());
}

TEST(ContentHash, FieldsAreKeptApart) {
  EXPECT_NE(ContentHash().add_text("ab").add_text("c").hex(), ContentHash().add_text("a").add_text("bc").hex());
  EXPECT_NE(ContentHash().add_text("").hex(), ContentHash().hex());
  EXPECT_NE(ContentHash().add_real(1).hex(), ContentHash().add_real(1.0000000000000002).hex());
}

}  // namespace
}  // namespace quire
