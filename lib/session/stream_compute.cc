// The computing part of a stream: blocks of tokens through the model, alone or with the blocks of other streams.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "lib/session/contain.h"
#include "lib/session/stream.h"
#include "lib/support/make_room.h"

namespace quire {
namespace {

// Rows of logits read at a time.
constexpr int64_t kLogitRows = 32;

int64_t nanoseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
}

}  // namespace

// Tokens on their way through the model, and what comes back.
struct GenerationStream::Block {
  std::vector<int32_t> tokens;
  int64_t first = 0;                  // position of the first one
  int64_t from_pending = 0;           // the last so many come from the pending ones; the others are settled
  bool generated = false;             // the model's own tokens
  std::vector<float> last;            // logits after the last token
  std::vector<float> logits, scores;  // kept on request
  std::vector<int64_t> selected;      // chunks by how often they were chosen

  int64_t n() const { return static_cast<int64_t>(tokens.size()); }
};

bool GenerationStream::step() {
  GenerationStream* const alone[] = {this};
  std::array<bool, 1> finished{};
  step_all(alone, finished);
  return finished[0];
}

const void* GenerationStream::group() {
  std::lock_guard lock(session_->mutex_);
  const bool decoding =
      n_generated_ > 0 && session_->n_uncomputed() <= 1 && !finished_ && !apart_ && !cancel_.cancelled();
  return decoding ? session_->model_.get() : nullptr;
}

void GenerationStream::step_together(std::span<Job* const> jobs, std::span<bool> finished) {
  std::array<GenerationStream*, kMostTogether> streams{};
  for (size_t i = 0; i < jobs.size(); ++i) streams[i] = static_cast<GenerationStream*>(jobs[i]);
  step_all(std::span(streams).first(jobs.size()), finished);
}

// One step of each stream; all are of one model.
void GenerationStream::step_all(std::span<GenerationStream* const> streams, std::span<bool> finished) {
  for (size_t i = 0; i < streams.size(); ++i) {
    std::lock_guard lock(streams[i]->session_->mutex_);
    finished[i] = streams[i]->finished_;
    streams[i]->in_step_ = !finished[i];
  }
  std::array<Status, kMostTogether> failures;
  Status together = contain([&] { return compute(streams, finished, failures); });
  const bool undo = !together.ok();
  const bool retry = streams.size() > 1 && undo && together.code() != Code::kCancelled;
  // Alone, what failed was this stream's; in company it tries again alone and then knows.
  if (streams.size() == 1 && undo) failures[0] = std::move(together);
  for (size_t i = 0; i < streams.size(); ++i) {
    if (finished[i]) continue;
    streams[i]->apart_ = retry;
    finished[i] = streams[i]->settle(std::move(failures[i]), undo);
  }
}

// After a step: whatever failed, the store goes back to the token boundary. True: the stream has ended.
bool GenerationStream::settle(Status failure, bool undo) {
  if (undo || !failure.ok()) session_->cut_store();
  std::lock_guard lock(session_->mutex_);
  in_step_ = false;
  if (cancel_.cancelled() && !finished_) {
    finish(FinishReason::kCancelled);
  } else if (!failure.ok() && !finished_) {
    end({}, std::move(failure));
  }
  return finished_;
}

// The next block of each stream in one forward pass, then a sampled token where nothing is left to process. A Status
// for all of them, or one failure each.
Status GenerationStream::compute(std::span<GenerationStream* const> streams, std::span<bool> finished,
                                 std::span<Status> failures) {
  const auto begin = Clock::now();
  std::array<Block, kMostTogether> blocks;
  std::vector<Sequence> sequences;
  std::vector<const CancelToken*> cancels;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (finished[i]) continue;
    failures[i] = streams[i]->next_block(blocks[i]);
    if (!failures[i].ok() || blocks[i].n() == 0) continue;
    sequences.push_back(streams[i]->sequence(blocks[i]));
    cancels.push_back(&streams[i]->cancel_);
  }
  const CancelToken cancel{cancels};
  LlamaModel& llama = *streams[0]->session_->model_->llama;
  if (!sequences.empty()) QUIRE_TRY(llama.forward(sequences, &cancel));
  const auto vocab = static_cast<size_t>(llama.config().vocab_size);
  std::vector<float> rows;  // of several blocks, one token each
  if (sequences.size() > 1) {
    rows.resize(sequences.size() * vocab);
    QUIRE_TRY(llama.logits(0, static_cast<int64_t>(sequences.size()), &cancel, rows.data()));
  }
  size_t row = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (finished[i] || !failures[i].ok()) continue;
    GenerationStream& stream = *streams[i];
    failures[i] = contain([&] {
      if (blocks[i].n() > 0) {
        const auto own = rows.empty() ? std::span<const float>() : std::span(rows).subspan(row++ * vocab, vocab);
        QUIRE_TRY(stream.read_logits(blocks[i], own, cancel));
        QUIRE_TRY(stream.commit(blocks[i], begin));
        if (stream.n_uncomputed() > 0) return Status();
      }
      return stream.generate();
    });
  }
  return {};
}

int64_t GenerationStream::n_uncomputed() const {
  std::lock_guard lock(session_->mutex_);
  return session_->n_uncomputed();
}

// Fills an empty block with what comes next, if there is anything, and makes room for it.
Status GenerationStream::next_block(Block& block) {
  Session& s = *session_;
  {
    std::lock_guard lock(s.mutex_);
    const int64_t settled = s.n_settled() - s.n_computed_;
    const int64_t uncomputed = s.n_uncomputed();
    if (uncomputed == 0 || cancel_.cancelled()) return {};
    if (expired()) {
      finish(FinishReason::kDeadline);
      return {};
    }
    const int64_t room = limit_ - s.n_computed_;
    if (room <= 0) {
      finish(FinishReason::kReach);
      return {};
    }
    block.first = s.n_computed_;
    block.generated = s.is_generated(block.first);
    int64_t n = std::min({uncomputed, room, s.options_.prefill_block});
    n = std::min(n, s.strategy_->window_end(block.first) - block.first);
    if (s.strategy_->plans_generated_apart()) {
      for (int64_t same = 1; same < n; ++same) {
        if (s.is_generated(block.first + same) != block.generated) n = same;
      }
    }
    const int64_t from_settled = std::min(n, settled);
    block.from_pending = n - from_settled;
    block.tokens.assign(s.tokens_.begin() + block.first, s.tokens_.begin() + block.first + from_settled);
    block.tokens.insert(block.tokens.end(), s.pending_.begin(), s.pending_.begin() + block.from_pending);
    make_room(s.tokens_, static_cast<size_t>(block.from_pending));
  }
  QUIRE_TRY(s.kv_->reserve(block.first, block.n()));
  const int64_t entries = s.strategy_->memory_entries(block.first);
  const int64_t added = s.strategy_->memory_entries(block.first + block.n()) - entries;
  return added > 0 ? s.kv_->reserve_memory(entries, added) : Status();
}

Sequence GenerationStream::sequence(Block& block) const {
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
Status GenerationStream::read_logits(Block& block, std::span<const float> row, const CancelToken& cancel) const {
  LlamaModel& llama = *session_->model_->llama;
  const auto vocab = static_cast<size_t>(llama.config().vocab_size);
  const auto check = [&](std::span<const float> rows) {
    if (std::all_of(rows.begin(), rows.end(), [](float x) { return std::isfinite(x); })) return Status();
    return Status(Code::kNumeric,
                  "the model's logits are not finite in the block from position " + std::to_string(block.first),
                  block.first);
  };
  if (options_.score) {
    const auto& before = session_->last_logits_;
    block.scores.push_back(before.empty() ? std::numeric_limits<float>::quiet_NaN()
                                          : log_probability(before, block.tokens[0]));
  }
  const int64_t n = block.n();
  const bool every = options_.score || options_.keep_logits;
  std::vector<float> rows;
  for (int64_t first = every ? 0 : n - 1; first < n; first += kLogitRows) {
    const int64_t count = std::min(kLogitRows, n - first);
    if (row.empty()) {
      rows.resize(static_cast<size_t>(count) * vocab);
      QUIRE_TRY(llama.logits(first, count, &cancel, rows.data()));
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

// The block was computed: the session takes it.
Status GenerationStream::commit(Block& block, Clock::time_point begin) {
  Session& s = *session_;
  const int64_t n = block.n();
  const auto kept = s.strategy_->retained(block.first + n);
  make_room(s.kept_logits_, block.logits.size());
  make_room(s.kept_scores_, block.scores.size());
  if (block.selected.size() > s.selected_.size()) s.selected_.resize(block.selected.size());

  // From here on nothing fails: the block is read as a whole or not at all.
  std::unique_lock lock(s.mutex_);
  s.kept_logits_.insert(s.kept_logits_.end(), block.logits.begin(), block.logits.end());
  s.kept_scores_.insert(s.kept_scores_.end(), block.scores.begin(), block.scores.end());
  const auto read_end = s.pending_.begin() + block.from_pending;
  s.tokens_.insert(s.tokens_.end(), s.pending_.begin(), read_end);
  s.pending_.erase(s.pending_.begin(), read_end);
  s.n_computed_ += n;
  s.last_logits_ = std::move(block.last);
  for (size_t c = 0; c < block.selected.size(); ++c) s.selected_[c] += block.selected[c];
  lock.unlock();
  int64_t end = 0;
  for (const KeyRange& range : kept) {
    s.kv_->evict(end, range.begin);
    end = range.end;
  }
  lock.lock();
  const int64_t reread = std::clamp<int64_t>(s.reread_end_ - block.first, 0, n - block.from_pending);
  const int64_t prompt = block.from_pending + reread;
  (prompt > 0 ? s.stats_.prefill_ns : s.stats_.decode_ns) += nanoseconds(Clock::now() - begin);
  s.stats_.n_prefilled += prompt;
  s.stats_.scratch_bytes = s.model_->llama->scratch_bytes();
  s.update_stats();
  prompt_done_ += prompt;
  if (prompt == 0 || cancel_.cancelled()) return {};
  StreamEvent event;
  event.type = StreamEvent::Type::kPrefill;
  event.n_tokens = s.n_settled();
  event.total = prompt_total_;
  event.done = prompt_done_;
  const double seconds = static_cast<double>(nanoseconds(Clock::now() - started_)) * 1e-9;
  event.n_per_second = seconds > 0 ? static_cast<double>(prompt_done_) / seconds : 0;
  progress_ = std::move(event);
  update_wait_event();
  changed_.notify_all();
  return {};
}

}  // namespace quire
