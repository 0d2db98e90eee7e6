// The engine's half of a stream: blocks of tokens through the model, alone or with the blocks of other streams, and the
// tokens that are generated.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "lib/session/contain.h"
#include "lib/session/stream.h"
#include "lib/support/make_room.h"

namespace quire {
namespace {

// Rows of logits read at a time.
constexpr int64_t kLogitRows = 32;

}  // namespace

// What one step does for one stream. Nothing of it is seen outside before settle().
struct GenerationStream::Block {
  bool active = false;                // the stream takes part in the step: it has its session's turn
  std::vector<int32_t> tokens;        // on their way through the model
  int64_t first = 0;                  // position of the first one
  int64_t from_pending = 0;           // the last so many come from the pending ones; the others are settled
  bool generated = false;             // the model's own tokens
  std::vector<float> last;            // logits after the last token
  std::vector<float> logits, scores;  // kept on request
  std::vector<int64_t> selected;      // chunks by how often they were chosen

  int64_t n_prompt = 0;  // tokens read, but for generated ones
  std::chrono::nanoseconds prefill{0}, decode{0};
  std::optional<StreamEvent> progress, token, end;  // for the reader

  int64_t n() const { return static_cast<int64_t>(tokens.size()); }
};

bool GenerationStream::step() {
  GenerationStream* const alone[] = {this};
  std::array<bool, 1> finished{};
  step_all(alone, finished);
  return finished[0];
}

// After its first token a stream has exactly one token to process in each step: the one that was delivered.
const void* GenerationStream::group() {
  MutexLock lock(session_->mutex_);
  const bool decoding = n_generated_ > 0 && !finished_ && !apart_ && !cancel_.cancelled();
  return decoding ? session_->model_.get() : nullptr;
}

void GenerationStream::step_together(std::span<Job* const> jobs, std::span<bool> finished) {
  std::array<GenerationStream*, kMostTogether> streams{};
  for (size_t i = 0; i < jobs.size(); ++i) streams[i] = static_cast<GenerationStream*>(jobs[i]);
  step_all(std::span(streams).first(jobs.size()), finished);
}

// One step of each stream; all are of one model.
void GenerationStream::step_all(std::span<GenerationStream* const> streams, std::span<bool> finished) {
  std::array<Block, kMostTogether> blocks;
  std::array<Status, kMostTogether> failures;
  for (size_t i = 0; i < streams.size(); ++i) blocks[i].active = streams[i]->begin_step();
  Status together = contain([&] { return compute(streams, blocks, failures); });
  const bool undo = !together.ok();
  const bool retry = streams.size() > 1 && undo && together.code() != Code::kCancelled;
  // Alone, what failed was this stream's; in company it tries again alone and then knows.
  if (streams.size() == 1 && undo) failures[0] = std::move(together);
  for (size_t i = 0; i < streams.size(); ++i) {
    finished[i] = true;
    if (!blocks[i].active) continue;
    streams[i]->apart_ = retry;
    finished[i] = streams[i]->settle(blocks[i], std::move(failures[i]), undo);
  }
}

// False: the stream has ended already.
bool GenerationStream::begin_step() {
  MutexLock lock(session_->mutex_);
  if (finished_) return false;
  session_->turn_.take();  // it is free: while a stream is open, calls that need it are refused
  return true;
}

// The end of a step: the session and the reader get what it came to. If something failed, or the step is undone, the
// store goes back to the token boundary. True: the stream has ended, and the engine will not touch it again.
bool GenerationStream::settle(Block& block, Status failure, bool undo) {
  session_->turn_.assert_held();
  if (undo || !failure.ok()) session_->cut_store();
  MutexLock lock(session_->mutex_);
  session_->stats_.n_prefilled += block.n_prompt;
  session_->stats_.prefill_ns += block.prefill.count();
  session_->stats_.decode_ns += block.decode.count();
  session_->stats_.scratch_bytes =
      session_->model_->pass->scratch_bytes() + static_cast<int64_t>(session_->rope_->bytes);
  session_->publish();
  if (cancel_.cancelled()) {
    end(cancelled_event(), {});
  } else {
    if (block.progress) progress_ = std::move(block.progress);
    if (!failure.ok()) {
      end({}, std::move(failure));
    } else if (block.end) {
      end(std::move(*block.end), {});
    } else if (!undo) {
      token_ = std::move(block.token);
    }
  }
  session_->turn_.give_back();
  update_wait_event();
  session_->changed_.notify_all();
  return finished_;
}

StreamEvent GenerationStream::cancelled_event() {
  drop_events();
  const auto& pool = session_->model_->runtime->pool();
  SessionStats& stats = session_->stats_;
  stats.tasks_after_cancel = tasks_at_cancel_ < 0 ? 0 : pool.tasks_started() - tasks_at_cancel_;
  stats.cancel_latency_ns = std::chrono::nanoseconds(Clock::now() - cancelled_at_).count();
  StreamEvent event;
  event.finish = FinishReason::kCancelled;
  return event;
}

void GenerationStream::end(StreamEvent event, Status failure) {
  event.type = StreamEvent::Type::kEnd;
  event.n_tokens = session_->stats_.n_tokens;
  if (failure.ok()) {
    end_ = std::move(event);
  } else {
    failure_ = std::move(failure);
  }
  finished_ = true;
  if (session_->stream_released_) leave_session();
}

// The next block of each stream in one forward pass, then a sampled token where nothing is left to process. A Status
// for all of them, which means that no stream read anything, or one failure each.
Status GenerationStream::compute(std::span<GenerationStream* const> streams, std::span<Block> blocks,
                                 std::span<Status> failures) {
  const auto begin = Clock::now();
  std::vector<Sequence> sequences;
  std::vector<const CancelToken*> cancels;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (!blocks[i].active) continue;
    failures[i] = streams[i]->next_block(blocks[i]);
    if (!failures[i].ok() || blocks[i].n() == 0) continue;
    sequences.push_back(streams[i]->sequence(blocks[i]));
    cancels.push_back(&streams[i]->cancel_);
  }
  const CancelToken cancel{cancels};
  const Model& model = *streams[0]->session_->model_;
  std::optional<HiddenStates> states;
  if (!sequences.empty()) {
    QUIRE_ASSIGN(HiddenStates queued, model.pass->forward(sequences, &cancel));
    states.emplace(std::move(queued));
  }
  const auto vocab = static_cast<size_t>(model.llama->config().vocab_size);
  std::vector<float> rows;  // of several blocks, one token each
  if (sequences.size() > 1) {
    rows.resize(sequences.size() * vocab);
    QUIRE_TRY(model.pass->logits(*states, 0, static_cast<int64_t>(sequences.size()), &cancel, rows.data()));
  }
  size_t row = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (!blocks[i].active || !failures[i].ok()) continue;
    GenerationStream& stream = *streams[i];
    failures[i] = contain([&] {
      if (blocks[i].n() > 0) {
        const auto own = rows.empty() ? std::span<const float>() : std::span(rows).subspan(row++ * vocab, vocab);
        QUIRE_TRY(stream.read_logits(blocks[i], own, *states, cancel));
        stream.commit(blocks[i], begin);
      }
      return stream.generate(blocks[i]);
    });
  }
  return {};
}

// Fills an empty block with what comes next, if there is anything, and makes room for it.
Status GenerationStream::next_block(Block& block) {
  session_->turn_.assert_held();
  const int64_t uncomputed = session_->n_uncomputed();
  if (uncomputed == 0 || cancel_.cancelled()) return {};
  const int64_t first = session_->n_computed_;
  const int64_t room = limit_ - first;
  if (expired() || room <= 0) {
    block.end = end_event(expired() ? FinishReason::kDeadline : FinishReason::kReach);
    return {};
  }
  block.first = first;
  block.generated = session_->is_generated(first);
  int64_t n = std::min({uncomputed, room, session_->options_.prefill_block});
  n = std::min(n, session_->strategy_->window_end(first) - first);
  if (session_->strategy_->plans_generated_apart()) {
    for (int64_t same = 1; same < n; ++same) {
      if (session_->is_generated(first + same) != block.generated) n = same;
    }
  }
  const int64_t from_settled = std::min(n, session_->n_settled() - first);
  block.from_pending = n - from_settled;
  QUIRE_TRY(session_->kv_->reserve(first, n));
  const int64_t entries = session_->strategy_->condensed_entries(first);
  const int64_t added = session_->strategy_->condensed_entries(first + n) - entries;
  if (added > 0) QUIRE_TRY(session_->kv_->reserve_condensed(entries, added));
  make_room(session_->tokens_, static_cast<size_t>(block.from_pending));
  const auto settled = session_->tokens_.begin() + first;
  block.tokens.assign(settled, settled + from_settled);
  const auto pending = session_->pending_.begin();
  block.tokens.insert(block.tokens.end(), pending, pending + block.from_pending);
  return {};
}

Sequence GenerationStream::sequence(Block& block) const {
  session_->turn_.assert_held();
  Sequence sequence;
  sequence.tokens = block.tokens;
  sequence.first_position = block.first;
  sequence.generated = block.generated;
  sequence.strategy = session_->strategy_.get();
  sequence.positions = &session_->positions_;
  sequence.rope = session_->rope_.get();
  sequence.kv = session_->kv_.get();
  sequence.adapters = session_->adapters_.empty() ? nullptr : &session_->adapters_;
  if (session_->strategy_->selects_chunks() && block.first + block.n() > session_->selected_from_) {
    sequence.selected = &block.selected;
    sequence.count_from = session_->selected_from_;
  }
  return sequence;
}

// Fills `last` with the logits after the block's last token and, as wanted, all rows and the scores of its tokens.
// `row`: the block's only row, if it was read already.
Status GenerationStream::read_logits(Block& block, std::span<const float> row, const HiddenStates& states,
                                     const CancelToken& cancel) const {
  session_->turn_.assert_held();
  const auto vocab = static_cast<size_t>(session_->model_->llama->config().vocab_size);
  const auto check = [&](std::span<const float> rows) {
    if (std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); })) return Status();
    return Status(Code::kNumeric,
                  "the model's logits are not finite in the block from position " + std::to_string(block.first),
                  block.first);
  };
  if (options_.score) {
    const bool known = !session_->last_logits_.empty();
    block.scores.push_back(known ? log_probability(session_->last_logits_, block.tokens[0])
                                 : std::numeric_limits<float>::quiet_NaN());
  }
  const int64_t n = block.n();
  const bool every = options_.score || options_.keep_logits;
  std::vector<float> rows;
  for (int64_t first = every ? 0 : n - 1; first < n; first += kLogitRows) {
    const int64_t count = std::min(kLogitRows, n - first);
    if (row.empty()) {
      rows.resize(static_cast<size_t>(count) * vocab);
      QUIRE_TRY(session_->model_->pass->logits(states, first, count, &cancel, rows.data()));
    } else {
      rows.assign(row.begin(), row.end());
    }
    QUIRE_TRY(check(rows));
    if (options_.keep_logits) block.logits.insert(block.logits.end(), rows.begin(), rows.end());
    for (int64_t r = 0; options_.score && r < count && first + r + 1 < n; ++r) {
      block.scores.push_back(log_probability({&rows[static_cast<size_t>(r) * vocab], vocab},
                                             block.tokens[static_cast<size_t>(first + r + 1)]));
    }
  }
  block.last.assign(rows.end() - static_cast<int64_t>(vocab), rows.end());
  return {};
}

// The block was computed: the session takes it, as a whole. What can fail comes first.
void GenerationStream::commit(Block& block, Clock::time_point begin) {
  session_->turn_.assert_held();
  const int64_t n = block.n();
  const auto kept = session_->strategy_->retained(block.first + n);
  make_room(session_->kept_logits_, block.logits.size());
  make_room(session_->kept_scores_, block.scores.size());
  auto& selected = session_->selected_;
  if (block.selected.size() > selected.size()) selected.resize(block.selected.size());

  session_->kept_logits_.insert(session_->kept_logits_.end(), block.logits.begin(), block.logits.end());
  session_->kept_scores_.insert(session_->kept_scores_.end(), block.scores.begin(), block.scores.end());
  const auto read_end = session_->pending_.begin() + block.from_pending;
  session_->tokens_.insert(session_->tokens_.end(), session_->pending_.begin(), read_end);
  session_->pending_.erase(session_->pending_.begin(), read_end);
  session_->n_computed_ += n;
  session_->last_logits_ = std::move(block.last);
  for (size_t c = 0; c < block.selected.size(); ++c) selected[c] += block.selected[c];
  int64_t end = 0;
  for (const KeyRange& range : kept) {
    session_->kv_->evict(end, range.begin);
    end = range.end;
  }
  const int64_t reread = std::clamp<int64_t>(session_->reread_end_ - block.first, 0, n - block.from_pending);
  block.n_prompt = block.from_pending + reread;
  (block.n_prompt > 0 ? block.prefill : block.decode) = Clock::now() - begin;
  if (block.n_prompt == 0) return;
  prompt_done_ += block.n_prompt;
  StreamEvent event;
  event.type = StreamEvent::Type::kPrefill;
  event.n_tokens = session_->n_settled();
  event.total = prompt_total_;
  event.done = prompt_done_;
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  event.n_per_second = seconds > 0 ? static_cast<double>(prompt_done_) / seconds : 0;
  block.progress = std::move(event);
}

bool GenerationStream::ready() {
  MutexLock lock(session_->mutex_);
  return finished_ || cancel_.cancelled() || !token_;
}

bool GenerationStream::expired() const {
  return options_.deadline_ms > 0 && Clock::now() - started_ >= std::chrono::milliseconds(options_.deadline_ms);
}

// Where nothing is left to process: samples the next token, or finds the reason why there is none.
Status GenerationStream::generate(Block& block) {
  session_->turn_.assert_held();
  const auto finish = [&](FinishReason reason, int32_t token = -1) {
    block.end = end_event(reason, token);
    return Status();
  };
  if (block.end || cancel_.cancelled() || session_->n_uncomputed() > 0) return {};
  if (n_generated_ >= options_.max_tokens) return finish(FinishReason::kMaxTokens);
  if (session_->n_settled() >= limit_) return finish(FinishReason::kReach);
  if (expired()) return finish(FinishReason::kDeadline);
  const auto banned =
      n_generated_ < options_.min_tokens ? std::span<const int32_t>(endings_) : std::span<const int32_t>();
  Sample sample = sampler_.sample(session_->last_logits_, session_->n_settled(), session_->tokens_, banned);
  if (!options_.ignore_eos && session_->model_->llama->is_eos(sample.token)) {
    return finish(FinishReason::kEos, sample.token);
  }
  if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), sample.token) != options_.stop_ids.end()) {
    return finish(FinishReason::kStopId, sample.token);
  }
  session_->reserve_generated();  // delivering the token cannot fail
  StreamEvent event;
  event.type = StreamEvent::Type::kToken;
  event.token = sample.token;
  event.logprob = sample.logprob;
  event.top = std::move(sample.top);
  QUIRE_ASSIGN(event.text, detokenizer_.add(sample.token));
  if (detokenizer_.stopped() >= 0) {
    StreamEvent last;
    last.finish = FinishReason::kStopString;
    last.text = std::move(event.text);
    last.stop_index = detokenizer_.stopped();
    block.end = std::move(last);
    return {};
  }
  ++n_generated_;
  block.token = std::move(event);
  return {};
}

// The end of the text, with what was held back of it.
StreamEvent GenerationStream::end_event(FinishReason reason, int32_t token) {
  StreamEvent event;
  event.finish = reason;
  event.token = token;
  event.text = detokenizer_.finish();
  return event;
}

}  // namespace quire
