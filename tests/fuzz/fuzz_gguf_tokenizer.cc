// The tokenizer in a GGUF file's metadata, and texts for what loads. Input: a byte that chooses a good vocabulary;
// lines that change it; an empty line; the text. A line: a character that chooses the key, one that chooses the place
// in an array, one that chooses what to do (remove the key, remove an element, another value), and the value.
#include <cstdlib>

#include "lib/format/gguf.h"
#include "lib/support/os_file.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "tests/fuzz/check_tokenizer.h"
#include "tests/source_path.h"

namespace {

using namespace quire;

constexpr int32_t kVocabSize = 600;

GgufValue text(const char* value) { return GgufValue(std::string(value)); }

GgufHeader byte_level() {
  GgufHeader header;
  GgufValue::Strings tokens;
  for (int c = '!'; c <= '~'; ++c) tokens.emplace_back(1, static_cast<char>(c));
  for (const char* more : {"\xC4\xA0", "\xC4\x8A", "\xC3\xA9", "th", "the", "\xC4\xA0the", "<|end|>", "<|tool|>"}) {
    tokens.emplace_back(more);
  }
  GgufValue::Integers types(tokens.size(), 1);
  types[tokens.size() - 2] = 3;
  types[tokens.size() - 1] = 4;
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  auto& m = header.metadata;
  m["tokenizer.ggml.model"] = text("gpt2");
  m["tokenizer.ggml.pre"] = text("llama-bpe");
  m["tokenizer.ggml.tokens"] = GgufValue(tokens);
  m["tokenizer.ggml.token_type"] = GgufValue(types);
  m["tokenizer.ggml.merges"] = GgufValue(GgufValue::Strings{"t h", "th e", "\xC4\xA0 the"});
  m["tokenizer.ggml.bos_token_id"] = GgufValue(last - 1);
  m["tokenizer.ggml.eos_token_id"] = GgufValue(last - 1);
  m["tokenizer.ggml.add_bos_token"] = GgufValue(true);
  return header;
}

GgufHeader sentencepiece() {
  const auto model = parse_sentencepiece_model(
      read_text_file(quire::test::source_path("tests/data/tokenizers/bpe_bytes.model"), 1 << 20).value());
  GgufValue::Strings tokens;
  GgufValue::Numbers scores;
  GgufValue::Integers types;
  for (const auto& piece : model.value().pieces) {
    tokens.push_back(piece.text);
    scores.push_back(piece.score);
    types.push_back(static_cast<int64_t>(piece.type));
  }
  GgufHeader header;
  auto& m = header.metadata;
  m["tokenizer.ggml.model"] = text("llama");
  m["tokenizer.ggml.tokens"] = GgufValue(tokens);
  m["tokenizer.ggml.scores"] = GgufValue(scores);
  m["tokenizer.ggml.token_type"] = GgufValue(types);
  m["tokenizer.ggml.bos_token_id"] = GgufValue(int64_t{1});
  m["tokenizer.ggml.eos_token_id"] = GgufValue(int64_t{2});
  m["tokenizer.ggml.unknown_token_id"] = GgufValue(int64_t{0});
  m["tokenizer.ggml.add_space_prefix"] = GgufValue(true);
  return header;
}

std::string take_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  std::string line(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

// A copy of the array with another element at the place, or without it.
template <typename Array>
GgufValue changed(const Array& old, size_t place, bool remove, const typename Array::value_type& value) {
  Array copy = old;
  if (copy.empty()) return GgufValue(copy);
  const auto at = copy.begin() + static_cast<std::ptrdiff_t>(place % copy.size());
  if (remove) {
    copy.erase(at);
  } else {
    *at = value;
  }
  return GgufValue(copy);
}

void change(GgufHeader& header, const std::string& line) {
  if (line.size() < 3 || header.metadata.empty()) return;
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(line[i])); };
  const auto at = std::next(header.metadata.begin(), static_cast<std::ptrdiff_t>(byte(0) % header.metadata.size()));
  GgufValue& old = at->second;
  const std::string value = line.substr(3);
  const int64_t number = std::strtoll(value.c_str(), nullptr, 10);
  const double real = std::strtod(value.c_str(), nullptr);
  const bool remove = byte(2) % 4 == 1;
  if (byte(2) % 4 == 0) {
    header.metadata.erase(at);
  } else if (old.strings()) {
    old = changed(*old.strings(), byte(1), remove, value);
  } else if (old.integers()) {
    old = changed(*old.integers(), byte(1), remove, number);
  } else if (old.numbers()) {
    old = changed(*old.numbers(), byte(1), remove, real);
  } else if (byte(2) % 4 == 1) {
    old = GgufValue(number);
  } else if (byte(2) % 4 == 2) {
    old = GgufValue(value);
  } else {
    old = GgufValue(number != 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const GgufHeader kGood[] = {byte_level(), sentencepiece()};
  GgufHeader header = kGood[data[0] % 2];
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (int i = 0; i < 20 && !rest.empty(); ++i) {
    const std::string line = take_line(rest);
    if (line.empty()) break;
    change(header, line);
  }
  const auto tokenizer = make_gguf_tokenizer(header, kVocabSize);
  if (!tokenizer.ok()) {
    const Code code = tokenizer.status().code();
    FUZZ_REQUIRE((code == Code::kBadFile || code == Code::kUnsupported) && !tokenizer.status().message().empty());
    return 0;
  }
  FUZZ_REQUIRE(tokenizer.value()->size() <= kVocabSize);
  check_tokenizer(*tokenizer.value(), rest.substr(0, 2000));
  check_tokenizer(*tokenizer.value(), " the other<|tool|>\n 12 <|end|>\xC3\xA9");
  return 0;
}
