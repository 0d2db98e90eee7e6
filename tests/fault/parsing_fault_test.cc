// operator new fails at each of its calls in turn, while everything that comes from a model's or an adapter's text
// files is read: std::bad_alloc comes back each time, nothing leaks, and nothing ends the process on the way out.
//
// QUIRE_FAULT_RUNS (default: as many as a test says, or each) says at how many calls, evenly spread, it fails; 0: at
// each.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <string>

#include "lib/format/adapter_config.h"
#include "lib/format/beacon_settings.h"
#include "lib/format/gguf.h"
#include "lib/format/model_config.h"
#include "lib/format/safetensors.h"
#include "lib/support/os_file.h"
#include "lib/tokenizer/tokenizer.h"
#include "lib/tokenizer/tokenizer_json.h"
#include "tests/fault/failing_new.h"
#include "tests/source_path.h"

namespace quire {
namespace {

using test::FailingNew;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Case {
  const char* name;
  std::function<bool()> read;  // whether the text was good
};

enum class End { kGood, kBad, kNoMemory };

// One run, in which calls first..last fail.
End run(const Case& c, int64_t first, int64_t last) {
  const int64_t live_before = test::n_new_blocks();
  End end = End::kNoMemory;
  try {
    const FailingNew failing(first, last);
    end = c.read() ? End::kGood : End::kBad;
  } catch (const std::bad_alloc&) {
  }
  EXPECT_EQ(test::n_new_blocks(), live_before) << c.name << ": allocation " << first << " leaks";
  return end;
}

// Fails at about `most` calls, alone and with all later ones.
void fail_everywhere(const Case& c, End expected, int64_t most = kNever) {
  SCOPED_TRACE(c.name);
  ASSERT_EQ(run(c, kNever, kNever), expected);  // what is made once is made now
  ASSERT_EQ(run(c, kNever, kNever), expected);
  const int64_t total = test::n_new_calls(), step = test::step_between_failures(total, most);
  int64_t n_failed = 0;
  for (int64_t n = 1; n <= total; n += step) {
    for (const int64_t last : {n, kNever}) {
      const End end = run(c, n, last);
      n_failed += end == End::kNoMemory;
      EXPECT_TRUE(end == End::kNoMemory || end == expected) << "allocation " << n << " of " << total;
    }
  }
  EXPECT_GT(n_failed, 0);
}

std::string file(const std::string& name) {
  return read_text_file(test::source_path("tests/" + name), 1 << 20).value();
}

constexpr char kAdapter[] = R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6.5, "target_modules": ["q_proj", "o_proj"],
  "modules_to_save": ["lm_head"], "rank_pattern": {"layers.0.self_attn.q_proj": 8}, "layers_to_transform": [0, 1],
  "alpha_pattern": {"a_module_whose_name_is_longer_than_a_short_string": 3}, "inference_mode": true})";

TEST(ParsingFault, Configurations) {
  const std::string config = file("golden/models/gqa_longrope/config.json");
  fail_everywhere({"config.json", [&] { return parse_model_config(config).ok(); }}, End::kGood);
  const std::string adapter = kAdapter;
  fail_everywhere({"adapter_config.json", [&] { return parse_adapter_config(adapter, "adapter_config.json").ok(); }},
                  End::kGood);
}

TEST(ParsingFault, DamagedConfigurations) {
  for (const char* text : {R"({"a_long_key_that_is_not_inline": [[1, {"b": "a long text, also not inline"}], 2)",
                           R"({"peft_type": "LORA", "r": "a text where a number should be, which is quoted"})",
                           R"({"a": [1, 2], "a": 3})", R"({"a": "\ud800"})"}) {
    const std::string copy = text;
    fail_everywhere({text, [&] { return parse_adapter_config(copy, "adapter_config.json").ok(); }}, End::kBad);
  }
}

TEST(ParsingFault, HeadersAndIndexes) {
  const std::string header = R"({"__metadata__":{"format":"pt"},"model.layers.0.self_attn.q_proj.weight":)"
                             R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  fail_everywhere({"header", [&] { return parse_safetensors_header(header, 100, 124).ok(); }}, End::kGood);
  const std::string index = R"({"weight_map":{"a_tensor_with_a_long_name.weight":"model-00001-of-00002.safetensors"}})";
  fail_everywhere({"index", [&] { return parse_shard_index(index, "index.json").ok(); }}, End::kGood);
}

// SentencePiece inside: its tries and tables too.
class TokenizerFault : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerFault, LoadAndEncode) {
  const std::string model = file(std::string("data/tokenizers/") + GetParam() + ".model");
  const std::string config = R"({"bos_token": "<s>", "added_tokens_decoder": {"900": {"content": "<|im_start|>"}}})";
  const std::string text = "A map, and a road that no map had: <|im_start|> ü 日本 \xF0\x9F\x98\x80.";
  EncodeOptions options;
  options.parse_special = true;
  const auto read = [&] {
    auto tokenizer = make_sentencepiece_tokenizer(model, config, "", 1000);
    std::vector<int64_t> starts;
    return tokenizer.ok() && (*tokenizer)->encode(text, options, &starts).ok();
  };
  fail_everywhere({GetParam(), read}, End::kGood, 1500);  // most of the calls copy one piece after the other
}

// PCRE2 inside: what it compiles and the memory in which it matches.
TEST(ParsingFault, TokenizerJson) {
  EncodeOptions options;
  options.parse_special = true;
  for (const char* name : {"byte_level", "characters"}) {
    const std::string text = file(std::string("data/tokenizers/") + name + ".json");
    const auto read = [&] {
      auto tokenizer = make_json_tokenizer(text, R"({"eos_token": "<|tool|>"})", 600);
      std::vector<int64_t> starts;
      return tokenizer.ok() && (*tokenizer)->encode("A map, <|tool|> \xE6\x97\xA5 e\xCC\x81.", options, &starts).ok();
    };
    fail_everywhere({name, read}, End::kGood, 150);
  }
}

TEST(ParsingFault, TokenizerOfAGgufFile) {
  GgufHeader header;
  const auto set = [&](const char* key, auto value) {
    header.metadata[std::string("tokenizer.ggml.") + key] = GgufValue(std::move(value));
  };
  set("model", std::string("gpt2"));
  set("pre", std::string("qwen2"));
  set("tokens", GgufValue::Strings{"a", "b", "ab", "a_long_control_token_of_this_vocabulary"});
  set("token_type", GgufValue::Integers{1, 1, 1, 3});
  set("merges", GgufValue::Strings{"a b"});
  const auto read = [&] {
    auto tokenizer = make_gguf_tokenizer(header, 4);
    return tokenizer.ok() && (*tokenizer)->encode("ab ba", {}).ok();
  };
  fail_everywhere({"GGUF", read}, End::kGood);
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerFault, testing::Values("bpe_bytes", "unigram"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quire
