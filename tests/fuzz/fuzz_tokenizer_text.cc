// Text, token ids, stop strings and the tokenizer's JSON files, with a good SentencePiece model.
// Input: one byte that chooses, then lines of which the first two are stop strings or the two files.
#include <algorithm>

#include "lib/support/os_file.h"
#include "lib/support/utf8.h"
#include "lib/tokenizer/detokenizer.h"
#include "tests/fuzz/require.h"
#include "tests/source_path.h"

namespace {

using namespace quire;

constexpr int32_t kVocabSize = 500;

const std::string& model_bytes() {
  static const std::string kBytes =
      read_text_file(quire::test::source_path("tests/data/tokenizers/bpe_bytes.model"), 1 << 20).value();
  return kBytes;
}

const Tokenizer& good_tokenizer() {
  static const auto kTokenizer =
      std::move(make_sentencepiece_tokenizer(model_bytes(), "", R"({"<x>": 480, "<x><x>": 481})", kVocabSize).value());
  return *kTokenizer;
}

std::string take_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  std::string line(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

// Byte fallback and identity normalization: nothing of a text is lost.
void round_trip(std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids = good_tokenizer().encode(text, {.parse_special = special});
    FUZZ_REQUIRE(ids.ok() == (utf8_first_invalid(text) == text.size()));
    if (!ids.ok()) return;
    if (special) continue;
    // U+2581 is the one character that the model cannot tell from a space.
    std::string expected(text);
    for (size_t at; (at = expected.find("\xE2\x96\x81")) != std::string::npos;) expected.replace(at, 3, " ");
    FUZZ_REQUIRE(decode(good_tokenizer(), ids.value(), ControlText::kNone).value() == expected);
  }
}

void stream(std::string_view rest) {
  std::vector<std::string> stops;
  for (int i = 0; i < 2; ++i) {
    if (std::string line = take_line(rest); !line.empty()) stops.push_back(std::move(line));
  }
  Detokenizer detokenizer(good_tokenizer(), stops, true);
  std::vector<int32_t> ids;
  std::string given;
  for (const char byte : rest) {
    // Byte ids and frequent pieces: enough to make every kind of text.
    ids.push_back(static_cast<uint8_t>(byte) + (ids.size() % 2 == 0 ? 3 : 230));
    const auto part = detokenizer.add(ids.back());
    FUZZ_REQUIRE(part.ok() && utf8_first_invalid(part.value()) == part.value().size());
    given += part.value();
    if (detokenizer.stopped() >= 0) break;
  }
  given += detokenizer.finish();
  const std::string whole = decode(good_tokenizer(), ids, ControlText::kNone).value();
  FUZZ_REQUIRE(whole.starts_with(given));
  FUZZ_REQUIRE(detokenizer.stopped() >= 0 || whole == given);
}

void files(std::string_view rest) {
  const std::string config = take_line(rest);
  const std::string added = take_line(rest);
  const auto tokenizer = make_sentencepiece_tokenizer(model_bytes(), config, added, kVocabSize);
  if (!tokenizer.ok()) {
    FUZZ_REQUIRE(tokenizer.status().code() == Code::kBadFile);
    return;
  }
  const auto ids = tokenizer.value()->encode(rest, {.parse_special = true});
  if (!ids.ok()) return;
  for (const int32_t id : ids.value()) FUZZ_REQUIRE(id >= 0 && id < kVocabSize);
  FUZZ_REQUIRE(decode(*tokenizer.value(), ids.value(), ControlText::kPiece).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) round_trip(rest);
  if (data[0] % 3 == 1) stream(rest);
  if (data[0] % 3 == 2) files(rest);
  return 0;
}
