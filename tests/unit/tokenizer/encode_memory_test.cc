// How much memory encoding takes: counts what operator new gives out, in this program only.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "lib/tokenizer/special_splitter.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "tests/source_path.h"
#include "tests/unit/tokenizer/tokenizer_data.h"

namespace {

std::atomic<size_t> in_use{0}, most_in_use{0};
constexpr size_t kHeader = alignof(std::max_align_t);  // holds the size of the block behind it

}  // namespace

void* operator new(size_t n_bytes) {
  auto* block = static_cast<char*>(std::malloc(n_bytes + kHeader));
  if (!block) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(block) = n_bytes;
  const size_t now = in_use += n_bytes;
  if (now > most_in_use) most_in_use = now;
  return block + kHeader;
}
void* operator new(size_t n_bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(n_bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  if (!memory) return;
  char* block = static_cast<char*>(memory) - kHeader;
  in_use -= *reinterpret_cast<size_t*>(block);
  std::free(block);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace quire {
namespace {

struct Peak {
  size_t n_bytes;
  size_t n_ids;
};

Peak encode(const Tokenizer& tokenizer, const std::string& text, const EncodeOptions& options, bool with_starts) {
  const size_t before = in_use;
  most_in_use = before;
  std::vector<int64_t> starts;
  const auto ids = tokenizer.encode(text, options, with_starts ? &starts : nullptr);
  return {most_in_use - before, ids.value().size()};
}

// A text of 5 MB takes what its ids take (twelve bytes each while their vector grows, three times that for the places
// where they begin), and one part's work.
TEST(EncodeMemory, TheIdsAndOnePartOfTheText) {
  const std::string words =
      read_text_file(test::source_path("examples/embedded_model/heldout.txt"), 1 << 20).value().substr(0, 250'000);
  std::string text;
  for (int i = 0; i < 20; ++i) text += words;
  const auto tokenizer = test_tokenizer("bpe_bytes", "", R"({"<|x|>": 900})");
  const Peak plain = encode(*tokenizer, text, {}, false);
  EXPECT_LT(plain.n_bytes, 12 * plain.n_ids + (4 << 20));
  const Peak labelled = encode(*tokenizer, text, {.parse_special = true}, true);
  EXPECT_LT(labelled.n_bytes, 36 * labelled.n_ids + (4 << 20));
}

// The same for BPE of tokenizer.json, whatever the normalizer: byte-level, and in parts of a text of characters, of
// which the normalized form is in memory.
TEST(EncodeMemory, BpeOfTokenizerJson) {
  const std::string words =
      read_text_file(test::source_path("examples/embedded_model/heldout.txt"), 1 << 20).value().substr(0, 250'000);
  std::string text;
  for (int i = 0; i < 2; ++i) text += words;
  const auto bytes = make_json_tokenizer(tokenizer_file("byte_level.json"), "", 600);
  const Peak plain = encode(*bytes.value(), text, {}, false);
  EXPECT_LT(plain.n_bytes, 12 * plain.n_ids + (1 << 20));
  const Peak labelled = encode(*bytes.value(), text, {.parse_special = true}, true);
  EXPECT_LT(labelled.n_bytes, 36 * labelled.n_ids + (1 << 20));
  const auto characters = make_json_tokenizer(tokenizer_file("characters.json"), "", 600);
  const Peak parts = encode(*characters.value(), text, {}, false);
  EXPECT_LT(parts.n_bytes, 12 * parts.n_ids + 6 * text.size() + (2 << 20));
  EXPECT_GT(encode(*characters.value(), text, {.part_bytes = text.size()}, false).n_bytes, 2 * parts.n_bytes);
}

// A piece of one kind of character takes its symbols and candidates.
TEST(EncodeMemory, ALongWord) {
  const auto tokenizer = make_json_tokenizer(tokenizer_file("byte_level.json"), "", 600);
  const std::string text(1 << 20, 'e');
  EXPECT_LT(encode(*tokenizer.value(), text, {}, false).n_bytes, 60 * text.size());
}

// The most that added tokens can make of the automaton that finds them: no two share a state.
TEST(EncodeMemory, TheAutomatonOfTheMostTokens) {
  std::vector<std::string> texts(SpecialSplitter::kMaxBytes / 4096, std::string(4096, 'x'));
  std::vector<SpecialSplitter::Token> tokens;
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].replace(4092, 4, std::to_string(1000 + i));
    tokens.push_back({texts[i], static_cast<int32_t>(i)});
  }
  const size_t before = in_use;
  most_in_use = before;
  const auto splitter = SpecialSplitter::make(tokens);
  ASSERT_TRUE(splitter.ok());
  EXPECT_LT(in_use - before, 14 * SpecialSplitter::kMaxBytes);
  EXPECT_LT(most_in_use - before, 20 * SpecialSplitter::kMaxBytes);
}

}  // namespace
}  // namespace quire
