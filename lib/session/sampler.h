// From logits to a token: an ordered chain of samplers, then a draw.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/backend/ranked_logits.h"
#include "lib/session/token_counts.h"

namespace quire {

// One link of the chain. Filters drop candidates and keep at least one; the others change logits.
struct SamplerStep {
  enum class Kind : int32_t {  // the numbers of QUIRE_SAMPLER_*
    kTemperature = 1,          // logits / value
    kTopK = 2,                 // filter: the n most probable, at least one
    kTopP = 3,                 // filter: the smallest set of the most probable with probability >= value
    kMinP = 4,                 // filter: at least value times as probable as the most probable
    kTypical = 5,    // filter: the smallest set of the most typical with probability >= value (Meister et al. 2022)
    kPenalties = 6,  // of tokens among the last n (0: all): repetition (Keskar et al. 2019), frequency, presence
    kDry = 7,        // of tokens that would continue a repetition of the last tokens ("Don't Repeat Yourself")
  };
  Kind kind = Kind::kTemperature;
  int64_t n = 0;
  int64_t allowed_length = 2;  // kDry: repetitions shorter than this cost nothing; 1 or more
  double value = 1;            // kPenalties: repetition, by which positive logits are divided; kDry: the multiplier
  double frequency = 0;        // kPenalties: subtracted for each occurrence
  double presence = 0;         // kPenalties: subtracted if there is any
  double base = 1.75;          // kDry: the penalty is value * base ^ (length - allowed_length)
};

struct SamplingOptions {
  std::vector<SamplerStep> steps;
  bool greedy = true;  // no draw: the most probable of what the steps leave, the lowest id where they are equal
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // added before the steps; -infinity bans a token
  std::vector<bool> dry_breakers;                      // by token: repetitions do not reach across these
  int32_t n_top = 0;                                   // most probable tokens to report
};

struct TokenLogprob {
  int32_t token;
  float logprob;
};

struct Sample {
  int32_t token;
  float logprob;                  // log softmax of the unmodified logits
  std::vector<TokenLogprob> top;  // of the same, the most probable first, then by id
};

// Natural logarithm of the probability of `token` under softmax(logits), of which some may be -infinity.
float log_probability(std::span<const float> logits, int32_t token);

// What the steps work on.
struct Candidates {
  struct Item {
    int32_t token;
    double logit;
  };
  std::vector<Item> items;
  // The item with the highest logit; of equal ones that with the lowest token.
  const Item& best() const;
  // softmax of the logits, in the order of the items. Never NaN: infinite logits share everything.
  std::vector<double> probabilities() const;
};

// Of equal logits that of the lower id comes first.
inline bool more_probable(const Candidates::Item& a, const Candidates::Item& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Applies one step. `history`: the tokens before, oldest first. `counts`: those of a step of kPenalties, which follow
// the history.
void apply(const SamplerStep& step, std::span<const int32_t> history, const std::vector<bool>& dry_breakers,
           TokenCounts& counts, Candidates& candidates);
inline void apply(const SamplerStep& step, std::span<const int32_t> history, const std::vector<bool>& dry_breakers,
                  Candidates& candidates) {
  TokenCounts counts;
  apply(step, history, dry_breakers, counts, candidates);
}

// kPenalties, of the tokens that were counted.
void penalise_seen(const SamplerStep& step, const TokenCounts& seen, Candidates& candidates);

// The last n tokens of the history; 0: all.
std::span<const int32_t> last_tokens(std::span<const int32_t> history, int64_t n);

// The uniform number of a draw is a function of (seed, index) alone, so that generation can be resumed anywhere. Logits
// must be finite. If bias and bans leave no token, the model's most probable one is taken; if the steps make all tokens
// impossible that those leave, the most probable of these.
//
// A history begins with that of the sample before, so that its tokens are counted once; forget_history() says that the
// next one may be any.
class Sampler {
 public:
  explicit Sampler(SamplingOptions options) : options_(std::move(options)), counts_(options_.steps.size()) {}
  void forget_history() noexcept;
  // banned: tokens that may not be chosen now. allowed: if not empty, a bit for each token that may be, whatever else
  // is left of them; at least one.
  Sample sample(std::span<const float> logits, int64_t index, std::span<const int32_t> history = {},
                std::span<const int32_t> banned = {}, std::span<const uint32_t> allowed = {});
  // The same sample from the most probable tokens of a finite row, where these decide it; its log probabilities are
  // those of the row's sum.
  std::optional<Sample> sample(const RankedLogits& row, int64_t index, std::span<const int32_t> history = {},
                               std::span<const int32_t> banned = {}, std::span<const uint32_t> allowed = {});
  // How many of the most probable tokens of a row of `width` logits decide most samples, at most `most`; 0: it needs
  // all logits. restricted: some tokens may be banned, or not allowed.
  int64_t n_ranked(int64_t width, int64_t most, bool restricted) const;

 private:
  bool is_plain() const { return options_.greedy && options_.steps.empty() && options_.logit_bias.empty(); }
  int32_t choose(std::span<const float> logits, int64_t index, std::span<const int32_t> history,
                 std::span<const int32_t> banned, std::span<const uint32_t> allowed);
  std::optional<int32_t> choose(const RankedLogits& row, int64_t index, std::span<const int32_t> history,
                                std::span<const int32_t> banned, std::span<const uint32_t> allowed);
  int32_t draw(int64_t index) const;

  SamplingOptions options_;
  Candidates candidates_;
  std::vector<TokenCounts> counts_;  // by step
};

// A uniform number in [0, 1) from a counter.
double counter_uniform(uint64_t seed, uint64_t index);

}  // namespace quire
