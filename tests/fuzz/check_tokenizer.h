// What every tokenizer must do with every text.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/utf8.h"
#include "lib/tokenizer/detokenizer.h"
#include "lib/tokenizer/tokenizer.h"
#include "tests/fuzz/require.h"

namespace quire {

inline void check_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    std::vector<int64_t> starts;
    EncodeOptions options{.add_bos = false, .parse_special = special};
    const auto encoded = tokenizer.encode(text, options, &starts);
    if (!encoded.ok()) {
      const Code code = encoded.status().code();
      FUZZ_REQUIRE(code == (utf8_first_invalid(text) == text.size() ? Code::kUnsupported : Code::kInvalidText));
      return;
    }
    const std::vector<int32_t>& ids = encoded.value();
    FUZZ_REQUIRE(starts.size() == ids.size() && std::is_sorted(starts.begin(), starts.end()));
    FUZZ_REQUIRE(starts.empty() || (starts.front() >= 0 && starts.back() <= static_cast<int64_t>(text.size())));
    for (const int32_t id : ids) {
      FUZZ_REQUIRE(id >= 0 && id < tokenizer.size());
      FUZZ_REQUIRE(special || !tokenizer.is_control(id));
    }
    options.part_bytes = 1;
    FUZZ_REQUIRE(tokenizer.encode(text, options).value() == ids);
    const std::string whole = decode(tokenizer, ids, ControlText::kNone).value();
    FUZZ_REQUIRE(utf8_first_invalid(whole) == whole.size());
    Detokenizer detokenizer(tokenizer, {}, true);
    std::string given;
    for (const int32_t id : ids) {
      const std::string part = detokenizer.add(id).value();
      FUZZ_REQUIRE(utf8_first_invalid(part) == part.size());
      given += part;
    }
    FUZZ_REQUIRE(given + detokenizer.finish() == whole);
  }
}

}  // namespace quire
