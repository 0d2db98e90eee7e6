#include "lib/session/token_generator.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace quire {

TokenGenerator::TokenGenerator(const ModelTokenizer& tokenizer, const StreamOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      stop_ids_(options.stop.ids),
      sampler_(options.sampling),
      detokenizer_(tokenizer.tokenizer(), options.stop.strings, false) {
  if (options.min_tokens == 0) return;
  ban(options.stop.ids);
  if (!options.ignore_eos) ban(tokenizer.eos());
}

void TokenGenerator::ban(std::span<const int32_t> ids) {
  for (const int32_t token : ids) {  // any number may be a stop id
    if (token >= 0 && token < tokenizer_.vocab_size()) endings_.push_back(token);
  }
}

void TokenGenerator::add_stops(const StopSet& more) {
  stop_ids_.insert(stop_ids_.end(), more.ids.begin(), more.ids.end());
  ban(more.ids);
  detokenizer_.add_stop_strings(more.strings);
}

std::span<const int32_t> TokenGenerator::banned() const {
  return n_generated_ < options_.min_tokens ? std::span<const int32_t>(endings_) : std::span<const int32_t>();
}

int64_t TokenGenerator::n_ranked(int64_t most) const {
  if (most == 0) return 0;
  if (options_.max_tokens == 0) return 1;  // there is none to choose
  return sampler_.n_ranked(tokenizer_.vocab_size(), most, options_.constrain || !banned().empty());
}

Result<StreamEvent> TokenGenerator::next(const TokenLogits& logits, std::span<const int32_t> text,
                                         const AllowedTokens& allowed) {
  const auto index = static_cast<int64_t>(text.size());
  std::optional<Sample> decided;
  if (logits.ranked) decided = sampler_.sample(*logits.ranked, index, text, banned(), allowed);
  if (!decided) {
    QUIRE_ASSIGN(const auto all, logits.all());
    decided = sampler_.sample(all, index, text, banned(), allowed);
  }
  Sample& sample = *decided;
  if (!options_.ignore_eos && tokenizer_.is_eos(sample.token)) return end(FinishReason::kEos, sample.token);
  if (std::find(stop_ids_.begin(), stop_ids_.end(), sample.token) != stop_ids_.end()) {
    return end(FinishReason::kStopId, sample.token);
  }
  StreamEvent event;
  QUIRE_ASSIGN(event.text, detokenizer_.add(sample.token));
  if (detokenizer_.stopped() >= 0) {
    end_at_stop_string(event);
    return event;
  }
  event.type = StreamEvent::Type::kToken;
  event.token = sample.token;
  event.n_tokens = static_cast<int64_t>(text.size()) + 1;
  event.logprob = sample.logprob;
  event.top = std::move(sample.top);
  ++n_generated_;
  return event;
}

StreamEvent TokenGenerator::end(FinishReason reason, int32_t token) {
  StreamEvent event;
  event.finish = reason;
  event.token = token;
  event.text = detokenizer_.finish();
  if (detokenizer_.stopped() >= 0 && reason != FinishReason::kCancelled) end_at_stop_string(event);
  return event;
}

void TokenGenerator::end_at_stop_string(StreamEvent& event) const {
  event.finish = FinishReason::kStopString;
  event.token = -1;
  event.stop_index = detokenizer_.stopped();
}

void TokenGenerator::rewind(const State& state) {
  sampler_.forget_history();
  n_generated_ = state.n_generated;
  detokenizer_.restore(state.text);
}

}  // namespace quire
