// tokenizer.json, and texts for what loads. Input: a byte that chooses. 0: the rest is the file. 1, 2: changes of a
// good file, a line each, then an empty line and the text. A change: characters that choose a member, from the
// outermost on, a blank, and a JSON value for it, or nothing to remove it.
#include <nlohmann/json.hpp>

#include "lib/support/os_file.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "tests/fuzz/check_tokenizer.h"
#include "tests/source_path.h"

namespace {

using nlohmann::json;
using namespace quire;

constexpr int32_t kVocabSize = 600;

json file(const char* name) {
  const std::string path = quire::test::source_path("tests/data/tokenizers/" + std::string(name));
  return json::parse(read_text_file(path, 1 << 20).value());
}

const json& good_file(uint8_t choice) {
  static const json kFiles[] = {file("byte_level.json"), file("characters.json")};
  return kFiles[choice % 2];
}

std::string take_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  std::string line(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

void change(json& whole, const std::string& line) {
  const size_t blank = std::min(line.find(' '), line.size());
  json* at = &whole;
  json* parent = nullptr;
  size_t index = 0;
  for (size_t i = 0; i < blank && at->is_structured() && !at->empty(); ++i) {
    parent = at;
    index = static_cast<uint8_t>(line[i]) % at->size();
    at = &*std::next(at->begin(), static_cast<std::ptrdiff_t>(index));
  }
  if (!parent) return;
  const json value = json::parse(line.begin() + static_cast<std::ptrdiff_t>(std::min(blank + 1, line.size())),
                                 line.end(), nullptr, false);
  if (!value.is_discarded()) {
    *at = value;
  } else if (blank == line.size()) {
    parent->erase(std::next(parent->begin(), static_cast<std::ptrdiff_t>(index)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string text(rest);
  if (data[0] % 3 != 0) {
    json changed = good_file(data[0] % 3);
    for (int i = 0; i < 20 && !rest.empty(); ++i) {
      const std::string line = take_line(rest);
      if (line.empty()) break;
      change(changed, line);
    }
    text = changed.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  const auto tokenizer = make_json_tokenizer(text, "", kVocabSize);
  if (!tokenizer.ok()) {
    const Code code = tokenizer.status().code();
    FUZZ_REQUIRE((code == Code::kBadFile || code == Code::kUnsupported) && !tokenizer.status().message().empty());
    return 0;
  }
  FUZZ_REQUIRE(tokenizer.value()->size() <= kVocabSize);
  check_tokenizer(*tokenizer.value(), rest.substr(0, 2000));
  check_tokenizer(*tokenizer.value(), "it's  the pages<|tool|>\n\n 12345 <|end|>e\xCC\x81\xE6\x97\xA5\xF0\x9F\x98\x80");
  return 0;
}
