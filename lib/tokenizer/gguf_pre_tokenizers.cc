#include "lib/tokenizer/gguf_pre_tokenizers.h"

#include <algorithm>

#include "lib/tokenizer/bpe_definition.h"

namespace quire {
namespace {

// English contractions in both cases. (?i:...) would take U+017F for an s as well.
#define QUIRE_CONTRACTIONS R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))"
// What follows words and numbers in the expressions since GPT-4's.
#define QUIRE_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define QUIRE_OTHERS R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)" QUIRE_SPACES
#define QUIRE_OTHERS_AND_SLASHES R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*)" QUIRE_SPACES
// Words whose capital letters are at their beginning.
#define QUIRE_CASED_1 R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
#define QUIRE_CASED_2 R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
#define QUIRE_ASCII_PUNCTUATION R"([!-/:-@\[-`{-~])"

std::vector<GgufPreTokenizer> all() {
  return {
      {.names = {"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
                 "modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling"},
       .expressions = {kGpt2Expression}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       .expressions = {R"(\p{N})", kGpt2Expression}},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
                 "jina-v5-nano"},
       .expressions = {QUIRE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" QUIRE_OTHERS},
       .ignore_merges = true,
       .adds_bos = true},
      {.names = {"dbrx", "smaug-bpe", "chatglm-bpe"},
       .expressions = {QUIRE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" QUIRE_OTHERS}},
      {.names = {"glm4", "glm5"},
       .expressions = {QUIRE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" QUIRE_OTHERS},
       .ignore_merges = true},
      {.names = {"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "megrez",
                 "grok-2"},
       .expressions = {QUIRE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" QUIRE_OTHERS}},
      {.names = {"seed-coder"},
       .expressions = {QUIRE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+)" QUIRE_SPACES}},
      {.names = {"qwen35"},
       .expressions = {QUIRE_CONTRACTIONS
                       R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" QUIRE_SPACES}},
      {.names = {"tekken"},
       .expressions = {QUIRE_CASED_1 "|" QUIRE_CASED_2 R"(|\p{N})" QUIRE_OTHERS_AND_SLASHES},
       .ignore_merges = true,
       .adds_bos = true},
      {.names = {"gpt-4o", "llama4", "kanana2", "talkie"},
       .expressions = {QUIRE_CASED_1 "(?:" QUIRE_CONTRACTIONS ")?|" QUIRE_CASED_2 "(?:" QUIRE_CONTRACTIONS
                                     R"()?|\p{N}{1,3})" QUIRE_OTHERS_AND_SLASHES}},
      {.names = {"falcon"}, .expressions = {R"([\p{P}$+<=>^~|`]+)", kGpt2Expression, "[0-9][0-9][0-9]"}},
      {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       .expressions = {R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                       QUIRE_ASCII_PUNCTUATION
                       R"([A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" QUIRE_SPACES}},
      {.names = {"deepseek-coder"},
       .expressions = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)",
                       R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)", R"(\p{N})"}},
  };
}

}  // namespace

GgufPreTokenizer find_gguf_pre_tokenizer(std::string_view name) {
  for (GgufPreTokenizer& family : all()) {
    if (std::find(family.names.begin(), family.names.end(), name) != family.names.end()) return std::move(family);
  }
  return {};
}

}  // namespace quire
