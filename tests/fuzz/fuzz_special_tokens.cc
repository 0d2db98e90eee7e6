// Added tokens, and texts in which they are written out.
// Input: a line for each token, its first byte the flags (1: special, 2: lstrip, 4: rstrip, 8: in added_tokens.json),
// the byte 1 in it a line feed; an empty line; the text.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/support/os_file.h"
#include "lib/support/utf8.h"
#include "lib/tokenizer/detokenizer.h"
#include "lib/tokenizer/sentencepiece_model.h"
#include "tests/fuzz/require.h"
#include "tests/source_path.h"
#include "tests/unit/tokenizer/naive_split.h"

namespace {

using namespace quire;

constexpr int32_t kFirstAdded = 480, kMostTokens = 100, kVocabSize = kFirstAdded + kMostTokens;

const std::string& model_bytes() {
  static const std::string kBytes =
      read_text_file(quire::test::source_path("tests/data/tokenizers/bpe_bytes.model"), 1 << 20).value();
  return kBytes;
}

const SentencePieceModel& model() {
  static const SentencePieceModel kModel = parse_sentencepiece_model(model_bytes()).value();
  return kModel;
}

struct Added {
  std::string text;
  int32_t id;
  uint8_t flags;
};

std::vector<Added> take_tokens(std::string_view& rest) {
  std::vector<Added> tokens;
  while (tokens.size() < kMostTokens && !rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.size() < 2) break;
    std::string text = utf8_sanitize(line.substr(1));
    std::replace(text.begin(), text.end(), '\1', '\n');
    const auto id = static_cast<int32_t>(kFirstAdded + tokens.size());
    if (text.size() <= 4096) tokens.push_back({std::move(text), id, static_cast<uint8_t>(line[0])});
  }
  return tokens;
}

Result<std::unique_ptr<const Tokenizer>> make_tokenizer(const std::vector<Added>& tokens) {
  nlohmann::json decoder = nlohmann::json::object(), older = nlohmann::json::object();
  for (const auto& [text, id, flags] : tokens) {
    if (flags & 8) {
      older[text] = id;  // the last of several with one text
    } else {
      decoder[std::to_string(id)] = {
          {"content", text}, {"special", (flags & 1) != 0}, {"lstrip", (flags & 2) != 0}, {"rstrip", (flags & 4) != 0}};
    }
  }
  const nlohmann::json config = {{"added_tokens_decoder", decoder}};
  return make_sentencepiece_tokenizer(model_bytes(), config.dump(), older.dump(), kVocabSize);
}

// The tokens in the order in which the tokenizer knows them: by id, then the model's own.
std::vector<SpecialSplitter::Token> known_tokens(const std::vector<Added>& tokens) {
  std::vector<SpecialSplitter::Token> known;
  for (const Added& token : tokens) {
    const bool older = (token.flags & 8) != 0;
    const bool overwritten = older && std::any_of(tokens.begin(), tokens.end(), [&](const Added& other) {
                               return (other.flags & 8) && other.id > token.id && other.text == token.text;
                             });
    if (overwritten) continue;
    known.push_back({token.text, token.id, !older && (token.flags & 2), !older && (token.flags & 4)});
  }
  for (size_t id = 0; id < model().pieces.size(); ++id) {
    if (model().pieces[id].type == PieceType::kControl) {
      known.push_back({model().pieces[id].text, static_cast<int32_t>(id)});
    }
  }
  return known;
}

// What is between the parts is white space.
void check_cover(std::string_view text, const SplitParts& parts) {
  const char* at = text.data();
  const auto skip_to = [&](const char* end) {
    FUZZ_REQUIRE(at <= end);
    std::string_view between(at, static_cast<size_t>(end - at));
    while (space_at_begin(between) > 0) between.remove_prefix(space_at_begin(between));
    FUZZ_REQUIRE(between.empty());
  };
  for (const auto& [part, id] : parts) {
    FUZZ_REQUIRE(!part.empty());
    skip_to(part.data());
    at = part.data() + part.size();
  }
  skip_to(text.data() + text.size());
}

void check_split(std::string_view text, const std::vector<SpecialSplitter::Token>& known) {
  auto splitter = SpecialSplitter::make(known);
  FUZZ_REQUIRE(splitter.ok());
  int64_t n_steps = 0;
  const SplitParts parts = split(*splitter, text, &n_steps);
  FUZZ_REQUIRE(parts == naive_split(known, text));
  FUZZ_REQUIRE(n_steps <= 3 * static_cast<int64_t>(text.size()));
  check_cover(text, parts);
}

void check_encode(const Tokenizer& tokenizer, std::string_view text, const std::vector<SpecialSplitter::Token>& known) {
  EncodeOptions options{.parse_special = true};
  std::vector<int64_t> starts;
  const auto ids = tokenizer.encode(text, options, &starts);
  FUZZ_REQUIRE(ids.ok() == (utf8_first_invalid(text) == text.size()));
  if (!ids.ok()) return;
  std::vector<int32_t> expected;
  if (tokenizer.adds_bos()) expected.push_back(tokenizer.bos());
  bool first = true;
  for (const auto& [part, id] : naive_split(known, text)) {
    if (id >= 0) {
      expected.push_back(id);
    } else {
      const auto own = tokenizer.encode(part, {.first_segment = first, .add_bos = false}).value();
      expected.insert(expected.end(), own.begin(), own.end());
    }
    first = false;
  }
  FUZZ_REQUIRE(ids.value() == expected);
  FUZZ_REQUIRE(starts.size() == expected.size() && std::is_sorted(starts.begin(), starts.end()));
  FUZZ_REQUIRE(starts.empty() || starts.back() <= static_cast<int64_t>(text.size()));
  options.part_bytes = 1;
  FUZZ_REQUIRE(tokenizer.encode(text, options).value() == expected);

  Detokenizer detokenizer(tokenizer, {}, true);
  std::string given;
  for (const int32_t id : expected) {
    FUZZ_REQUIRE(id >= 0 && id < kVocabSize);
    given += detokenizer.add(id).value();
  }
  FUZZ_REQUIRE(given + detokenizer.finish() == decode(tokenizer, expected, ControlText::kNone).value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::vector<Added> tokens = take_tokens(rest);
  const auto known = known_tokens(tokens);
  check_split(rest, known);
  const auto tokenizer = make_tokenizer(tokens);
  FUZZ_REQUIRE(tokenizer.ok());
  check_encode(*tokenizer.value(), rest, known);
  return 0;
}
