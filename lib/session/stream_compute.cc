// The computing of a step: blocks of tokens through the model, alone or with the blocks of other streams.
#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <utility>

#include "lib/session/contain.h"
#include "lib/session/provenance.h"
#include "lib/session/stream_block.h"

namespace quire {
namespace {

// Rows of logits read at a time.
constexpr int64_t kLogitRows = 1 + kMostDrafted;

Status not_finite(int64_t position) {
  return Status(Code::kNumeric,
                "the model's logits are not finite in the block from position " + std::to_string(position), position);
}

}  // namespace

// The next block of each stream into one forward pass. A Status for all of them, or one failure each.
Status GenerationStream::submit_blocks(Step& step) {
  step.begin = Clock::now();
  for (size_t i = 0; i < step.n; ++i) {
    Block& block = step.blocks[i];
    if (!block.work) continue;
    GenerationStream& stream = *step.streams[i];
    if (step.failures[i].ok()) step.failures[i] = stream.next_block(block);
    if (step.failures[i].ok()) step.failures[i] = stream.prepare_row(block);
    if (!step.failures[i].ok() || block.n() == 0) continue;
    step.sequences.push_back(stream.sequence(block));
    step.cancels.push_back(&stream.cancel_);
  }
  step.cancel.emplace(step.cancels);
  if (step.sequences.empty()) return {};
  QUIRE_ASSIGN(HiddenStates states, step.streams[0]->session_->model().pass->forward(step.sequences, &*step.cancel));
  step.states.emplace(std::move(states));
  return queue_last_rows(step);
}

// What the pass came to, for each stream, and a sampled token where nothing is left to process. A Status for all of
// them, which means that no stream read anything, or one failure each.
Status GenerationStream::collect_blocks(Step& step) {
  if (step.states) QUIRE_TRY(step.streams[0]->session_->model().pass->finish(*step.states));
  // In company each reads a row, which takes a moment: a cancel of another stream must not be this one's failure.
  const CancelToken never;
  int64_t row = 0;
  for (size_t i = 0; i < step.n; ++i) {
    Block& block = step.blocks[i];
    if (!block.work || !step.failures[i].ok()) continue;
    GenerationStream& stream = *step.streams[i];
    step.failures[i] = contain([&] {
      if (block.n() > 0) {
        QUIRE_TRY(stream.read_results(block, *step.states, row++, step.n > 1 ? never : stream.cancel_));
        if (block.n_drafted() > 0) return stream.verify(block, step.begin);
        stream.commit(block, block.n(), step.begin);
      }
      SessionContents& contents = block.contents();
      if (contents.text.n_uncomputed() > 0) return Status();
      KeptResults& kept = contents.kept;
      return stream.generate(block, {&kept.last().ranked, [&kept] { return kept.last_logits(); }});
    });
  }
  return {};
}

// Where the logits after the block's last token stay on the device, makes room for them there.
Status GenerationStream::prepare_row(Block& block) const {
  if (block.n() == 0 || options_.score || options_.keep_logits) return {};
  if (block.n_drafted() > 0 && options_.keep_hidden) return {};  // hidden states are read to where a draft's rows are
  const LlamaModel& llama = *session_->model().llama;
  const int64_t vocab = llama.config().vocab_size;
  block.n_ranked = generator_.n_ranked(llama.backend().most_ranked(vocab));
  if (block.n_ranked == 0) return {};
  std::shared_ptr<LogitsRow>& row = block.results.last.on_device;
  row = block.contents().kept.take_spare_row();
  if (row) return {};
  QUIRE_ASSIGN(row, LogitsRow::make(llama.backend(), vocab));
  return {};
}

// The last row of logits of each block, to where it belongs, and what the device says of a draft's. A block alone whose
// rows are needed on the host may have several: it reads them itself.
Status GenerationStream::queue_last_rows(Step& step) {
  const Model& model = step.streams[0]->session_->model();
  const auto vocab = static_cast<size_t>(model.llama->config().vocab_size);
  std::vector<LogitsWanted> rows;
  int64_t first_row = 0, n_ranked = 0;
  for (size_t i = 0; i < step.n; ++i) {
    Block& block = step.blocks[i];
    if (!block.work || !step.failures[i].ok() || block.n() == 0) continue;
    LastLogits& last = block.results.last;
    if (block.n_ranked > 0 && block.n_drafted() > 0) {
      block.ranked.resize(static_cast<size_t>(block.n()));
      for (RankedLogits& ranked : block.ranked) rows.push_back({.ranked = &ranked});
    } else if (block.n_ranked > 0) {
      rows.push_back({.copy = &last.on_device->buffer(), .ranked = &last.ranked});
    } else if (step.sequences.size() > 1) {
      block.last_rows.resize(vocab);
      rows.push_back({.on_host = block.last_rows.data()});
    }
    n_ranked = std::max(n_ranked, block.n_ranked);
    if (step.sequences.size() == 1) first_row = block.n() - std::max<int64_t>(1, std::ssize(block.ranked));
  }
  if (rows.empty()) return {};
  return model.pass->queue_logits(*step.states, first_row, rows, n_ranked, &*step.cancel);
}

// The least index of a query to come: of the next token, or of the last confirmed one, which is read again if the
// unconfirmed ones are forgotten.
int64_t GenerationStream::next_query(const Block& block, int64_t n_computed) {
  return n_computed <= block.n_confirmed ? n_computed : std::max<int64_t>(0, block.n_confirmed - 1);
}

// Fills an empty block with what comes next, if there is anything, and makes room for it.
Status GenerationStream::next_block(Block& block) {
  SessionContents& contents = block.contents();
  const TextState& text = contents.text;
  if (options_.max_undelivered > 1 || options_.draft_tokens > 0) {  // what was kept for tokens that are delivered now
    contents.kept.confirm(block.n_confirmed);
    const int64_t next = next_query(block, text.n_computed());
    contents.kv().drop_unseen(contents.kept_keys(next));
  }
  if (text.n_uncomputed() == 0 || ending_ || cancel_.cancelled()) return {};
  if (expired() || text.n_computed() >= limit_) {
    block.end = generator_.end(expired() ? FinishReason::kDeadline : FinishReason::kReach);
    return {};
  }
  int64_t stop = kNoLimit;
  QUIRE_TRY(reuse_chunks(block, &stop));
  QUIRE_ASSIGN(const bool moved, make_moves(block, &stop));
  if (moved) return {};
  const Status status = fill_block(block, stop);
  if (status.code() != Code::kBudget || (block.n_reused == 0 && contents.kv().n_moves() == 0)) return status;
  // Blocks before this one may fit all the same, and what is kept for later chunks may be in the way.
  contents.undo_block();
  contents.kv().drop_moves(kNoLimit);
  block.n_reused = 0;
  reuse_miss_ = ReuseMiss::kMemory;
  return fill_block(block, kNoLimit);
}

// stop: where the block ends at the latest.
Status GenerationStream::fill_block(Block& block, int64_t stop) {
  SessionContents& contents = block.contents();
  const TextState& text = contents.text;
  const Strategy& strategy = contents.strategy();
  const int64_t first = text.n_computed() + block.n_reused;
  block.first = first;
  int64_t n = std::min({text.n_uncomputed() - block.n_reused, limit_ - first, session_->options().prefill_block});
  n = std::min({n, strategy.window_end(first) - first, stop - first});
  if (strategy.plans_generated_apart()) {
    block.generated = text.is_generated(first);
    for (int64_t same = 1; same < n; ++same) {
      if (text.is_generated(first + same) != block.generated) n = same;
    }
  }
  block.tokens = text.tokens().subspan(static_cast<size_t>(first), static_cast<size_t>(n));
  add_draft(block,
            std::min({limit_, strategy.window_end(first) - 1, first + session_->options().prefill_block}) - first - 1);
  const Status status = reserve(contents, first, block.n());
  if (status.ok() || block.n_drafted() == 0) return status;
  contents.undo_block();
  block.with_draft.clear();
  block.tokens = text.tokens().subspan(static_cast<size_t>(first), static_cast<size_t>(n));
  return reserve(contents, first, n);
}

Status GenerationStream::reserve(SessionContents& contents, int64_t first, int64_t n) const {
  const Strategy& strategy = contents.strategy();
  QUIRE_TRY(contents.kv().reserve(first, n));
  const int64_t entries = strategy.condensed_entries(first);
  const int64_t added = strategy.condensed_entries(first + n) - entries;
  return added > 0 ? contents.kv().reserve_condensed(entries, added) : Status();
}

// Peaks of the last one of given tokens are asked for too, and of all keys that may be sticky: where rows are cited,
// behind their range as well.
void GenerationStream::look_for_sticky(Block& block, PeaksWanted& look) {
  const int64_t last = block.first + block.n() - 1;
  const KeyRange keys = sticky_keys(block.contents().strategy().selection(), last);
  if (keys.begin == keys.end) return;
  if (!look.peaks || last < look.from) look = {last, keys.begin, keys.end, &block.results.peaks, &block.n_entries};
  look.end_key = std::max(look.end_key, keys.end);
}

// What the peaks say of the block's last token; of them what is cited is left.
void GenerationStream::read_sticky(Block& block) {
  const SessionContents& contents = block.contents();
  const ChunkSelection& selection = contents.strategy().selection();
  if (selection.n_sticky == 0 || block.generated) return;
  const int64_t last = block.first + block.n() - 1;
  std::vector<float>& peaks = block.results.peaks;
  const auto n = std::min(peaks.size(), static_cast<size_t>(block.n_cells));
  block.sticky = sticky_chunks(selection, last, std::span(peaks).last(n));
  const CitedRows& cited = contents.kept.cited();
  if (cited.range().end == 0 || last < cited.next()) {
    peaks.clear();
  } else {
    cut_cells(cited.range(), block.n_cells, peaks);
  }
}

Sequence GenerationStream::sequence(Block& block) const {
  SessionContents& contents = block.contents();
  Sequence sequence;
  sequence.tokens = block.tokens;
  sequence.first_position = block.first;
  sequence.generated = block.generated;
  sequence.strategy = &contents.strategy();
  sequence.positions = &contents.text.positions();
  sequence.ropes = &contents.ropes();
  sequence.kv = &contents.kv();
  sequence.adapters = session_->adapters().empty() ? nullptr : &session_->adapters();
  const int64_t from = contents.kept.choices_from();
  if (contents.strategy().selects_chunks() && block.first + block.n() > from) {
    block.results.choices.resize(block.ahead() ? static_cast<size_t>(block.n()) : 1);
    sequence.selected = block.results.choices;
    sequence.count_from = from;
  }
  const CitedRows& cited = contents.kept.cited();
  if (cited.range().end > 0) {
    sequence.look = {cited.next(), cited.range().first, cited.range().end, &block.results.peaks, &block.n_entries};
  }
  if (contents.strategy().selection().n_sticky > 0) {
    if (block.generated) {
      sequence.sticky = contents.sticky.before(block.first);
    } else {
      look_for_sticky(block, sequence.look);
    }
  }
  block.n_cells = ceil_div(sequence.look.end_key, CiteRange::kCell);
  return sequence;
}

// Logits on the host: after the block's last token and, as wanted, after all of them.
Status GenerationStream::read_rows(Block& block, const HiddenStates& states, int64_t first_row,
                                   const CancelToken& cancel) const {
  BlockResults& results = block.results;
  const Model& model = session_->model();
  const auto vocab = static_cast<size_t>(model.llama->config().vocab_size);
  if (options_.score) {
    QUIRE_ASSIGN(const auto before, block.contents().kept.last_logits());
    results.scores.push_back(before.empty() ? std::numeric_limits<float>::quiet_NaN()
                                            : log_probability(before, block.tokens[0]));
  }
  const int64_t n = block.n();
  const bool is_read = !block.last_rows.empty();  // the block's only row
  const bool every = options_.score || options_.keep_logits || block.n_drafted() > 0;
  std::vector<float>& rows = block.last_rows;
  for (int64_t first = every ? 0 : n - 1; first < n; first += kLogitRows) {
    const int64_t count = std::min(kLogitRows, n - first);
    if (!is_read) {
      rows.resize(static_cast<size_t>(count) * vocab);
      QUIRE_TRY(model.pass->logits(states, first_row + first, count, &cancel, rows.data()));
    }
    // Of a draft, the rows behind the first one are looked at if they come to be used.
    if (!all_finite(block.n_drafted() == 0 ? std::span(rows) : std::span(rows).first(vocab))) {
      return not_finite(block.first);
    }
    if (options_.keep_logits) results.logits.insert(results.logits.end(), rows.begin(), rows.end());
    for (int64_t r = 0; options_.score && r < count && first + r + 1 < n; ++r) {
      results.scores.push_back(log_probability({&rows[static_cast<size_t>(r) * vocab], vocab},
                                               block.tokens[static_cast<size_t>(first + r + 1)]));
    }
  }
  return {};
}

// Fills the results with the logits after the block's last token and, as wanted, of all tokens the logits, the hidden
// states and the scores. first_row: of the states.
Status GenerationStream::read_results(Block& block, const HiddenStates& states, int64_t first_row,
                                      const CancelToken& cancel) const {
  BlockResults& results = block.results;
  const Model& model = session_->model();
  const int64_t n = block.n();
  if (block.n_ranked == 0) {
    QUIRE_TRY(read_rows(block, states, first_row, cancel));
  } else if (!(block.n_drafted() > 0 ? block.ranked[0] : results.last.ranked).finite) {
    return not_finite(block.first);
  }
  if (options_.keep_hidden) {
    results.hidden.resize(static_cast<size_t>(n * model.llama->config().hidden_size));
    QUIRE_TRY(model.pass->normalised(states, first_row, n, &cancel, results.hidden.data()));
  }
  const Strategy& strategy = block.contents().strategy();
  read_sticky(block);
  spread_entries(strategy, block.contents().kept.cited().range().n_cells(), block.n_entries, results.peaks);
  return {};
}

// The block was computed: the session takes its first n tokens. What can fail comes first.
void GenerationStream::commit(Block& block, int64_t n, Clock::time_point begin) {
  SessionContents& contents = block.contents();
  const int64_t n_computed = block.first + n;
  const int64_t next = next_query(block, n_computed);
  const ChunkStore::KeptKeys kept_keys = contents.kept_keys(next);
  if (block.n_ranked == 0) {
    const auto last = block.logits_after(n - 1, static_cast<size_t>(session_->model().llama->config().vocab_size));
    block.results.last.on_host.assign(last.begin(), last.end());
  }
  contents.sticky.reserve(block.sticky.size());
  if (n < block.n()) block.results.cut(n, block.n(), contents.kept.cited().range().n_cells());
  contents.kept.add(std::move(block.results), block.first, n, block.ahead());
  const bool looked = contents.strategy().selection().n_sticky > 0 && !block.generated;
  if (looked) contents.add_sticky(n_computed - 1, block.sticky);
  block.cost.n_reused = contents.text.computed(block.n_reused);
  block.cost.n_prompt = contents.text.computed(n);
  contents.kv().narrowed();
  if (n < block.n()) {
    assert(contents.kv().exact_boundary(n_computed) == n_computed);  // see add_draft
    contents.undo_block();
  }
  contents.kv().drop_unseen(kept_keys);
  contents.kv().computed(n_computed, contents.strategy().condensed_entries(n_computed));
  contents.offer_chunks(std::min(n_computed, block.n_confirmed), false);
  block.cost.n_drafted = block.n_drafted();
  block.cost.n_accepted = block.n_drafted() > 0 ? n - 1 : 0;
  (block.cost.n_prompt > 0 ? block.cost.prefill : block.cost.decode) = Clock::now() - begin;
  if (block.cost.n_prompt == 0) return;
  prompt_done_ += block.cost.n_prompt;
  prompt_reused_ += block.cost.n_reused;
  show_progress(block, contents);
}

void GenerationStream::show_progress(Block& block, const SessionContents& contents) const {
  StreamEvent event;
  event.type = StreamEvent::Type::kPrefill;
  event.n_tokens = contents.text.n_settled();
  event.total = prompt_total_;
  event.done = prompt_done_;
  event.reused = prompt_reused_;
  event.moved = prompt_moved_;
  event.reuse_miss = reuse_miss_;
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  event.n_per_second = seconds > 0 ? static_cast<double>(prompt_done_) / seconds : 0;
  block.progress = std::move(event);
}

}  // namespace quire
