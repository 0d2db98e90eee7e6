// One answer of a session: the stream's options from the command line, and its text as it comes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"

namespace cli {

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<std::pair<int32_t, float>>> top_logprobs;  // of each token, if asked for
  int32_t finish_reason = QUIRE_FINISH_NONE;
};

// Throws UsageError for what is no number.
std::vector<quire_logit_bias> logit_bias(const SamplingArguments& arguments);
// Throws UsageError for a token that the model does not have.
void check_tokens(const std::vector<quire_logit_bias>& biases, const quire_tokenizer* tokenizer);

struct GenerationOptions {
  const SamplingArguments& sampling;
  const std::vector<quire_logit_bias>& biases;
  int64_t max_tokens = 0;
  bool print = true;     // the text, on stdout, as it comes
  bool cite = false;     // keep what the answer looks at
  int64_t cite_end = 0;  // before this token; 0: what is not recent
};

// Processes what was fed and generates; warnings and progress go to stderr. Ctrl-C cancels.
Answer generate(quire_session* session, const GenerationOptions& options);

}  // namespace cli
