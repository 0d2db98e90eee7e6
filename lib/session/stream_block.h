// What one step does, for one stream and for all that share it. Nothing of it is seen outside before the step's end
// (GenerationStream::settle).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/session/stream.h"

namespace quire {

inline bool all_finite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
}

struct GenerationStream::Block {
  std::optional<Session::Work> work;  // none: the stream takes no part in the step
  bool postponed = false;             // it takes part in a later one
  bool alone = false;                 // no other stream takes part in the step
  std::span<const int32_t> tokens;    // on their way through the model: of the session's text, or `with_draft`
  std::vector<int32_t> with_draft;    // the text's last token, and those drafted behind it; empty: no draft
  int64_t n_reused = 0;               // tokens before them whose chunks were taken over from other sessions
  int64_t first = 0;                  // position of the first one
  bool generated = false;             // the model's own tokens
  BlockResults results;
  // Of the logits after the last token, and with a draft after all, so many of the most probable tokens are asked for:
  // the rows stay on the device. 0: they are needed on the host.
  int64_t n_ranked = 0;
  std::vector<RankedLogits> ranked;  // of a draft's rows on the device
  std::vector<float> last_rows;      // f32 [rows][vocab_size]: logits after the last tokens; with a draft after all
  int64_t n_cells = 0;               // of text keys, of a token, in results.peaks
  int64_t n_entries = 0;             // likewise of condensed ones
  std::vector<int32_t> sticky;       // of given tokens: the sticky chunks of the last one
  std::shared_ptr<const AllowedTokens> allowed;  // for the next token; null: not said yet

  int64_t n_confirmed = kNoLimit;  // tokens before this are part of the session for good; kNoLimit: all are
  Session::StepCost cost;
  std::optional<StreamEvent> progress, end;      // for the reader
  std::list<UndeliveredToken> generated_tokens;  // likewise
  bool needs_constraint = false;                 // the next token waits for `allowed`

  int64_t n() const { return static_cast<int64_t>(tokens.size()); }
  int64_t n_drafted() const { return with_draft.empty() ? 0 : n() - 1; }
  // Some of its tokens may be forgotten one by one.
  bool ahead() const { return first + n() > n_confirmed; }
  // Logits after the i-th token, which is among those of last_rows.
  std::span<const float> logits_after(int64_t i, size_t vocab) const {
    const size_t behind = static_cast<size_t>(n() - i) * vocab;
    return std::span(last_rows).subspan(last_rows.size() - behind, vocab);
  }
  SessionContents& contents() const { return work->contents(); }
};

// A step of one or several streams of a model, which the first of them leads.
struct GenerationStream::Step {
  size_t n = 0;
  std::array<GenerationStream*, kMostTogether> streams{};
  std::array<Block, kMostTogether> blocks;
  std::array<Status, kMostTogether> failures;  // of a stream's own part
  Status failure;                              // of all of it
  Clock::time_point begin;

  // What the device works with.
  std::vector<Sequence> sequences;  // of the blocks that have tokens
  std::vector<const CancelToken*> cancels;
  std::optional<CancelToken> cancel;   // any of those
  std::optional<HiddenStates> states;  // none: nothing was submitted
};

}  // namespace quire
