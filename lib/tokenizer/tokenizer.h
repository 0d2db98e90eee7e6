// Text <-> token ids. Immutable after creation: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/support/cancel.h"
#include "lib/support/status.h"

namespace quire {

struct GgufHeader;

struct EncodeOptions {
  bool first_segment = true;  // beginning-of-sequence token and dummy prefix, where the tokenizer has them
  bool add_bos = true;        // false: no beginning-of-sequence token even then
  // Control tokens written in the text become their ids. (Added tokens that are no control tokens do so in any case,
  // but for SentencePiece models.)
  bool parse_special = false;
  // A longer text is encoded in parts of about so many bytes, where its tokenizer has places that allow it. Changes no
  // id; tests make it small.
  size_t part_bytes = 16 << 10;
  const CancelToken* cancel = nullptr;  // polled now and then, also inside a long word; may be null
};

inline Status encoding_cancelled() { return Status(Code::kCancelled, "encoding was cancelled"); }
// kCancelled, if an encoding with these options is to stop.
inline Status check_cancelled(const EncodeOptions& options) {
  return options.cancel && options.cancel->cancelled() ? encoding_cancelled() : Status();
}

// What a control token becomes in text.
enum class ControlText { kNone, kPiece };

// Whether a control or added token that is found in a text takes the white space beside it with it.
struct TokenStrips {
  bool left = false, right = false;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of a text; starts, if asked for: the byte of the text at which each token begins (tokens that stand for nothing
  // in it: where the next one begins). Errors: kInvalidText with the byte offset of the first byte that is not whole,
  // valid UTF-8; kCancelled.
  virtual Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options,
                                              std::vector<int64_t>* starts = nullptr) const = 0;

  // Appends the bytes that `id` stands for, as it continues a text: spaces for SentencePiece's U+2581, one byte for a
  // byte-fallback id, what `control` says for control tokens. Errors: kInvalidToken.
  virtual Status append_bytes(int32_t id, ControlText control, std::string& bytes) const = 0;

  // True if decoding drops one leading space of a text that begins with this tokenizer's dummy prefix.
  virtual bool has_dummy_prefix() const = 0;
  virtual int32_t size() const = 0;  // ids the tokenizer knows
  virtual int32_t bos() const = 0;   // -1: none
  virtual bool adds_bos() const = 0;
  virtual bool is_control(int32_t id) const = 0;
  // The id of the control, added or user-defined token of that text; -1: there is none.
  virtual int32_t find_control(std::string_view text) const = 0;
  virtual TokenStrips strips(int32_t id) const = 0;
  virtual std::vector<int32_t> eos() const = 0;  // the tokenizer's own; the model's config may name more
  // "sentencepiece-bpe", "sentencepiece-unigram"; "byte-level-bpe"; "bpe": of characters, from tokenizer.json
  virtual std::string kind() const = 0;
};

// As vocab_size: the tokenizer's own number of ids.
constexpr int32_t kAnyVocabSize = INT32_MAX;
// Most ids that files other than SentencePiece's may speak of.
constexpr int32_t kMaxTokens = 1 << 21;

// Loads DIR/tokenizer.model (SentencePiece) with DIR/tokenizer_config.json and DIR/added_tokens.json if there; without
// it DIR/tokenizer.json (BPE) with DIR/tokenizer_config.json. vocab_size is the model's: all tokens must fit in it.
// Errors: kNotFound, kBadFile, kUnsupported (another kind of tokenizer), naming the file.
Result<std::unique_ptr<const Tokenizer>> load_tokenizer(const std::string& directory, int32_t vocab_size);

// Same for one file alone: a GGUF file, known by its contents; a tokenizer.json, by its name *.json; or a
// tokenizer.model.
Result<std::unique_ptr<const Tokenizer>> load_tokenizer_file(const std::string& path, int32_t vocab_size);

// Same from memory: the serialized SentencePiece model and the two JSON texts (may be empty).
Result<std::unique_ptr<const Tokenizer>> make_sentencepiece_tokenizer(std::string_view model,
                                                                      std::string_view tokenizer_config,
                                                                      std::string_view added_tokens,
                                                                      int32_t vocab_size);

// The tokenizer in the metadata of a GGUF file: byte-level BPE ("gpt2"), or SentencePiece BPE ("llama"). Texts are not
// normalized: these files do not say how. Errors: kBadFile, kUnsupported, naming the key.
Result<std::unique_ptr<const Tokenizer>> make_gguf_tokenizer(const GgufHeader& header, int32_t vocab_size);

// All ids to text, as a first segment; invalid UTF-8 becomes U+FFFD. Bytes on both sides of an id that has none
// (a control token may) never join to a character.
Result<std::string> decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, ControlText control);

}  // namespace quire
