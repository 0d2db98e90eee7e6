// From logits to the next token event, or to the end of the answer: sampling, stop sets, and the token's text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lib/session/sampler.h"
#include "lib/session/stream_event.h"
#include "lib/tokenizer/detokenizer.h"
#include "lib/tokenizer/model_tokenizer.h"

namespace quire {

// The logits that a token is chosen from.
struct TokenLogits {
  const RankedLogits* ranked = nullptr;  // what is known beforehand; may be null, or of width 0
  // All of them; called if that does not decide.
  std::function<Result<std::span<const float>>()> all;
};

// One thread at a time. Tokenizer and options must outlive it.
class TokenGenerator {
 public:
  // A place in the answer that generation can go back to.
  struct State {
    int64_t n_generated = 0;
    Detokenizer::State text{};
  };

  TokenGenerator(const ModelTokenizer& tokenizer, const StreamOptions& options);

  // The event of the token that follows `text`, or the end event if it ends the answer. Unless it succeeds with a
  // token, rewind() must come before the next call. Between calls without a rewind() the text grows at its end alone.
  Result<StreamEvent> next(const TokenLogits& logits, std::span<const int32_t> text, const AllowedTokens& allowed = {});
  // How many of the most probable tokens decide the next one as a rule, at most `most`; 0: it needs all logits.
  int64_t n_ranked(int64_t most) const;
  // The end of the answer, with what was held back of its text. If a stop string stands there, the text ends before it,
  // and it is the reason, save for an answer that was cancelled.
  StreamEvent end(FinishReason reason, int32_t token = -1);

  int64_t n_generated() const { return n_generated_; }
  State state() const { return {n_generated_, detokenizer_.state()}; }
  void rewind(const State& state);
  // Of text that next() has not returned yet.
  void add_stops(const StopSet& more);

 private:
  void ban(std::span<const int32_t> ids);
  void end_at_stop_string(StreamEvent& event) const;
  std::span<const int32_t> banned() const;

  const ModelTokenizer& tokenizer_;
  const StreamOptions& options_;
  std::vector<int32_t> stop_ids_;
  std::vector<int32_t> endings_;  // tokens that end a text, if some must be generated first
  Sampler sampler_;
  Detokenizer detokenizer_;
  int64_t n_generated_ = 0;
};

}  // namespace quire
