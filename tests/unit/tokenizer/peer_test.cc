// The ids and places of random texts are those that Debian's SentencePiece library finds in the same model files. That
// library and ours, of the same names, are in one program here.
#include <sentencepiece_processor.h>

#include <random>

#include "tests/seed.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace quire {
namespace {

class PeerTest : public testing::TestWithParam<const char*> {};

// Words, spaces, characters of each length in UTF-8, some that no model knows, some that normalization changes.
std::string random_text(std::mt19937& random) {
  static constexpr const char* kParts[] = {"the ",   "and ",  " ", "  ", "a",  "e",    "quire", "ing ", "\n",     "\t",
                                           "<0x41>", "<unk>", "é", "ﬁ",  "Ａ", "日本", "😀",     "😀",    "\u0301", "7"};
  std::string text;
  for (auto n = std::uniform_int_distribution<int>(0, 60)(random); n > 0; --n) {
    text += kParts[std::uniform_int_distribution<size_t>(0, std::size(kParts) - 1)(random)];
  }
  return text;
}

TEST_P(PeerTest, SameIdsAndPlaces) {
  const auto ours = test_tokenizer(GetParam());
  sentencepiece::SentencePieceProcessor theirs;
  const std::string file = tokenizer_file(std::string(GetParam()) + ".model");
  ASSERT_TRUE(theirs.LoadFromSerializedProto(file).ok());
  SCOPED_TRACE(test::seed_trace());
  std::mt19937 random = test::seeded_random();
  EncodeOptions options;
  options.add_bos = false;
  for (int round = 0; round < 500; ++round) {
    const std::string text = random_text(random);
    std::vector<int64_t> starts;
    auto ids = ours->encode(text, options, &starts);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    const auto pieces = theirs.EncodeAsImmutableProto(text);
    ASSERT_EQ(ids->size(), pieces.pieces_size()) << text;
    for (size_t i = 0; i < ids->size(); ++i) {
      const auto piece = pieces.pieces(static_cast<int>(i));
      ASSERT_EQ((*ids)[i], static_cast<int32_t>(piece.id())) << text << ": token " << i;
      ASSERT_EQ(starts[i], static_cast<int64_t>(piece.begin())) << text << ": token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PeerTest,
                         testing::Values("bpe_bytes", "bpe_no_prefix", "unigram", "unigram_bytes_no_prefix"));

}  // namespace
}  // namespace quire
