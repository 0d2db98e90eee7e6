#include "lib/format/gguf_token_ids.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/format/gguf_metadata.h"

namespace quire {
namespace {

// Texts of tokens that end what is generated, whether or not a key names them.
constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                      "<|im_end|>",
                                      "<|end|>",
                                      "<|return|>",
                                      "<|call|>",
                                      "<|flush|>",
                                      "<|calls|>",
                                      "<end_of_turn>",
                                      "<|endoftext|>",
                                      "<|eom_id|>",
                                      "<EOT>",
                                      "_<EOT>",
                                      "[EOT]",
                                      "[EOS]",
                                      "<|end_of_text|>",
                                      "<end_of_utterance>",
                                      "<eos>",
                                      "<turn|>",
                                      "<|tool_response>",
                                      "<\xEF\xBD\x9C"
                                      "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                      "[e~["};
// Ends a text too, unless the file says that it is no control token (Qwen's and Gemma's vocabularies have it as HTML).
constexpr std::string_view kSentencePieceEnd[] = {"</s>"};
// So do one token each of padding, of the next repository and of the next file, where code is filled in: that of a key,
// or else the first of these texts that there is.
constexpr std::string_view kPads[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr std::string_view kRepositories[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"};
constexpr std::string_view kFiles[] = {"<|file_sep|>"};

class TokenIds {
 public:
  TokenIds(const GgufHeader& header, ModelConfig& config) : metadata_(header), config_(config) {}

  Status read();

 private:
  Status add_token_id(const char* name, std::vector<int32_t>& ids) const;
  Status add_listed_ends();
  void add_end(int32_t id);

  const GgufMetadata metadata_;
  ModelConfig& config_;
};

Status TokenIds::add_token_id(const char* name, std::vector<int32_t>& ids) const {
  const std::string whole = std::string("tokenizer.ggml.") + name + "_token_id";
  if (!metadata_.find(whole)) return {};
  auto id = metadata_.integer(whole, 0, config_.vocab_size - 1);
  if (!id.ok()) {
    return metadata_.bad(whole, "the id of one of " + std::to_string(config_.vocab_size) + " tokens");
  }
  ids.push_back(static_cast<int32_t>(*id));
  return {};
}

void TokenIds::add_end(int32_t id) {
  std::vector<int32_t>& ids = config_.eos_token_ids;
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

Status TokenIds::add_listed_ends() {
  const GgufValue* value = metadata_.find(kGgufEosTokenIds);
  if (!value) return {};
  const GgufValue::Integers* ids = value->integers();
  const auto is_token = [&](int64_t id) { return id >= 0 && id < config_.vocab_size; };
  if (!ids || ids->size() > ModelLimits::kTokenIds || !std::all_of(ids->begin(), ids->end(), is_token)) {
    return metadata_.bad(kGgufEosTokenIds, "at most " + std::to_string(ModelLimits::kTokenIds) + " ids of " +
                                               std::to_string(config_.vocab_size) + " tokens");
  }
  for (const int64_t id : *ids) add_end(static_cast<int32_t>(id));
  return {};
}

Status TokenIds::read() {
  QUIRE_TRY(add_token_id("bos", config_.bos_token_ids));
  std::vector<int32_t> named;
  for (const char* name : {"eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {
    QUIRE_TRY(add_token_id(name, named));
  }
  for (const int32_t id : named) add_end(id);
  QUIRE_TRY(add_listed_ends());
  QUIRE_ASSIGN(const std::string model, metadata_.string("tokenizer.ggml.model", ""));
  if (model == "llama" && config_.vocab_size > 2) {  // SentencePiece: what it has where no key names another
    if (config_.bos_token_ids.empty()) config_.bos_token_ids = {1};
    if (!metadata_.find("tokenizer.ggml.eos_token_id")) add_end(2);
  }
  const GgufValue* tokens = metadata_.find("tokenizer.ggml.tokens");
  if (!tokens) return {};
  const GgufValue::Strings& texts = *tokens->strings();
  // Of each wanted text the first token that is it, or -1.
  const auto find_first = [&](std::span<const std::string_view> wanted) {
    std::vector<int32_t> first(wanted.size(), -1);
    for (size_t id = 0; id < texts.size(); ++id) {
      const std::string& text = texts[id];
      if (text.empty() || (text[0] != '<' && text[0] != '[' && text[0] != '_')) continue;
      const auto* const at = std::find(wanted.data(), wanted.data() + wanted.size(), text);
      const auto place = static_cast<size_t>(at - wanted.data());
      if (place < wanted.size() && first[place] < 0) first[place] = static_cast<int32_t>(id);
    }
    return first;
  };
  for (const int32_t id : find_first(kEnds)) {
    if (id >= 0) add_end(id);
  }
  const GgufValue* types = metadata_.find("tokenizer.ggml.token_type");
  const GgufValue::Integers* type_of = types ? types->integers() : nullptr;
  if (const auto id = find_first(kSentencePieceEnd).front(); id >= 0) {
    constexpr int64_t kControl = 3;
    const auto at = static_cast<size_t>(id);
    if (!type_of || at >= type_of->size() || (*type_of)[at] == kControl) add_end(id);
  }
  const std::pair<const char*, std::span<const std::string_view>> groups[] = {
      {"fim_pad", kPads}, {"fim_rep", kRepositories}, {"fim_sep", kFiles}};
  for (const auto& [name, alternatives] : groups) {
    if (metadata_.find(std::string("tokenizer.ggml.") + name + "_token_id")) continue;
    const std::vector<int32_t> found = find_first(alternatives);
    const auto at = std::find_if(found.begin(), found.end(), [](int32_t id) { return id >= 0; });
    if (at != found.end()) add_end(*at);
  }
  return {};
}

}  // namespace

Status read_gguf_token_ids(const GgufHeader& header, ModelConfig& config) { return TokenIds(header, config).read(); }

}  // namespace quire
