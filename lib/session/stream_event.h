// What a stream is asked for, and what it tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/session/sampler.h"
#include "lib/session/session_message.h"

namespace quire {

// What ends an answer beside its length and end-of-text tokens.
struct StopSet {
  std::vector<int32_t> ids;
  std::vector<std::string> strings;
};

// So that the logits of a draft and of the token before it are read together.
constexpr int64_t kMostDrafted = 31;

// Of the vocabulary, a bit for each token that may come next; none: any may.
using AllowedTokens = std::vector<uint32_t>;

struct StreamOptions {
  int64_t max_tokens = 0;
  SamplingOptions sampling;
  std::vector<std::string> dry_breakers;  // of kDry steps: tokens that contain one of these
  int64_t min_tokens = 0;                 // so many are generated before the text may end
  int64_t deadline_ms = 0;                // from opening; 0: none
  StopSet stop;
  // A step that generates tokens begins when fewer than so many wait for the reader.
  int64_t max_undelivered = 1;
  // Prompt lookup: so many tokens at most are drafted for a step, where so many of the last ones stood before.
  int64_t draft_tokens = 0;  // at most kMostDrafted
  int64_t draft_match = 2;
  bool score = false;
  bool keep_logits = false;
  bool keep_hidden = false;
  bool ignore_eos = false;
  bool cite = false;       // keeps where the answer's tokens looked
  int64_t cite_end = 0;    // at tokens before this one; 0: at those that are not recent
  bool constrain = false;  // each token waits for what allow() says of it
};

enum class FinishReason : int32_t {  // the numbers of QUIRE_FINISH_*
  kNone = 0,
  kMaxTokens = 1,
  kEos = 2,
  kStopId = 3,
  kStopString = 4,
  kReach = 5,
  kCancelled = 6,
  kDeadline = 7,
};

enum class ReuseMiss : int32_t {  // the numbers of QUIRE_REUSE_*
  kNone = 0,
  kUnknown = 1,
  kOff = 2,
  kStrategy = 3,
  kStream = 4,
  kPositions = 5,
  kMemory = 6,
  kApproximate = 7,
};

struct StreamEvent {
  // The numbers of QUIRE_EVENT_*.
  enum class Type : int32_t { kPrefill = 1, kToken = 2, kWarning = 3, kEnd = 4, kNotice = 5 };
  Type type = Type::kEnd;
  int32_t token = -1;
  int64_t n_tokens = 0;
  std::string text;  // of the answer
  int64_t total = 0, reused = 0, moved = 0, done = 0;
  double n_per_second = 0;
  ReuseMiss reuse_miss = ReuseMiss::kNone;  // kPrefill
  float logprob = 0;
  std::vector<TokenLogprob> top;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_index = -1;
  SessionMessage message;  // kWarning, kNotice
};

}  // namespace quire
