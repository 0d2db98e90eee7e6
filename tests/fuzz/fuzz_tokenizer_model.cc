// The bytes of a tokenizer.model. Whatever loads must encode and decode. (The SentencePiece library itself carries no
// instrumentation: an access beyond a buffer inside it is seen only if it crashes.)
#include "lib/support/utf8.h"
#include "lib/tokenizer/tokenizer.h"
#include "tests/fuzz/require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  constexpr int32_t kVocabSize = 2000;
  const auto tokenizer = make_sentencepiece_tokenizer({reinterpret_cast<const char*>(data), size}, "", "", kVocabSize);
  if (!tokenizer.ok()) {
    FUZZ_REQUIRE(tokenizer.status().code() == Code::kBadFile || tokenizer.status().code() == Code::kUnsupported);
    return 0;
  }
  for (const std::string_view text : {std::string_view("the book\n ab  1\0z", 17),
                                      std::string_view("\xEF\xBC\xA6 ce\xCC\x81 \xE2\x96\x81\xC2\xAD<s>")}) {
    for (const bool flag : {false, true}) {
      const auto ids = tokenizer.value()->encode(text, {.first_segment = flag, .parse_special = flag});
      FUZZ_REQUIRE(ids.ok());
      for (const int32_t id : ids.value()) {
        FUZZ_REQUIRE(id >= 0 && id < tokenizer.value()->size());
        FUZZ_REQUIRE(flag || !tokenizer.value()->is_control(id));
      }
      const auto decoded = decode(*tokenizer.value(), ids.value(), flag ? ControlText::kPiece : ControlText::kNone);
      FUZZ_REQUIRE(decoded.ok() && utf8_first_invalid(decoded.value()) == decoded.value().size());
    }
  }
  return 0;
}
