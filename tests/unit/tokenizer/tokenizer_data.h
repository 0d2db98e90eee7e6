// The tokenizers of tests/data/tokenizers and what other programs make of them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/support/os_file.h"
#include "lib/tokenizer/tokenizer.h"
#include "tests/source_path.h"

namespace quire {

inline std::string tokenizer_file(const std::string& name) {
  return read_text_file(test::source_path("tests/data/tokenizers/" + name), 1 << 20).value();
}

inline const nlohmann::json& golden() {
  static const auto kGolden = nlohmann::json::parse(tokenizer_file("golden.json"));
  return kGolden;
}

inline std::unique_ptr<const Tokenizer> test_tokenizer(const std::string& name, const std::string& config = "",
                                                       const std::string& added = "", int32_t vocab_size = 1000) {
  auto tokenizer = make_sentencepiece_tokenizer(tokenizer_file(name + ".model"), config, added, vocab_size);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return std::move(*tokenizer);
}

}  // namespace quire
