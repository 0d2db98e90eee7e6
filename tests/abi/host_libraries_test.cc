// A host with libraries of its own that libquire.so has parts of: SentencePiece (and the protobuf inside the
// host's). Both work
// on the same model file in one process, at once, and neither sees the other.
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <thread>

#include "tests/abi/harness.h"

namespace quire::test {
namespace {

constexpr char kText[] = "Every chapter began with a map \xF0\x9F\x97\xBA; the second one was the same.";

TEST(HostLibraries, SentencePieceOfTheHostAndOfTheLibrary) {
  const std::string directory = model_directory("text_256");
  sentencepiece::SentencePieceProcessor of_host;
  ASSERT_TRUE(of_host.Load(directory + "/tokenizer.model").ok());
  std::vector<int> expected;
  ASSERT_TRUE(of_host.Encode(kText, &expected).ok());

  const auto runtime = make_runtime(1);
  const auto model = load_model(runtime.get(), "text_256");
  quire_tokenizer* got = nullptr;
  ASSERT_EQ(quire_model_get_tokenizer(model.get(), &got, nullptr), QUIRE_OK);
  const Owned<quire_tokenizer> tokenizer(got);
  constexpr int kRounds = 200;
  std::thread host([&] {
    for (int i = 0; i < kRounds; ++i) {
      std::vector<int> ids;
      EXPECT_TRUE(of_host.Encode(kText, &ids).ok());
      EXPECT_EQ(ids, expected);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    std::vector<int32_t> ids(expected.size());
    size_t n = 0;
    EXPECT_EQ(quire_tokenizer_encode(tokenizer.get(), kText, sizeof kText - 1, QUIRE_TEXT_NO_BOS, ids.data(),
                                     ids.size(), &n, nullptr),
              QUIRE_OK);
    EXPECT_EQ(n, expected.size());
    EXPECT_EQ(std::vector<int>(ids.begin(), ids.end()), expected);
  }
  host.join();
}

}  // namespace
}  // namespace quire::test
