// The forward pass of a Llama-family decoder over a backend: working memory and a queue of its own, so that several
// passes can run on one model.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/kv/chunk_store.h"
#include "lib/model/adapter.h"
#include "lib/model/hidden_states.h"
#include "lib/model/llama_model.h"
#include "lib/plan/text_positions.h"
#include "lib/strategy/strategy.h"

namespace quire {

// What is asked of where tokens look: of each token from `from` on and each cell of keys, the greatest share of its
// attention that a head of a layer has there (AttentionShares).
struct PeaksWanted {
  int64_t from = 0;
  // Text keys [first_key, end_key) count.
  int64_t first_key = 0;
  int64_t end_key = 0;
  // f32 [tokens][text cells, then those of condensed entries]; set by the pass, complete when it is done.
  std::vector<float>* peaks = nullptr;
  int64_t* n_entries = nullptr;  // likewise: condensed cells of a token
};

// The tokens of one session in a forward pass, and what they work on.
struct Sequence {
  std::span<const int32_t> tokens;  // at positions first_position, ...
  int64_t first_position = 0;
  bool generated = false;  // the model's own tokens, not given ones
  const Strategy* strategy = nullptr;
  const TextPositions* positions = nullptr;  // of the whole text, where the strategy takes them
  const Ropes* ropes = nullptr;
  ChunkStore* kv = nullptr;               // holds all earlier tokens, and room for these
  const AdapterList* adapters = nullptr;  // null: none; must live as long as the pass's HiddenStates
  // Counts, by chunk, how often a (query, layer, head) selected it, beyond the chunks that it must see; of queries from
  // count_from on. One for all tokens, or one for each; none: not asked for.
  std::span<std::vector<int64_t>> selected{};
  int64_t count_from = 0;
  std::vector<int32_t> sticky{};  // Plan::sticky
  PeaksWanted look{};             // peaks null: not asked for

  int64_t n() const { return static_cast<int64_t>(tokens.size()); }
};

// One thread at a time. The model must outlive the pass.
class ForwardPass {
 public:
  explicit ForwardPass(const LlamaModel& model)
      : model_(model), backend_(model.backend()), config_(model.config()), weights_(model.weights()) {}

  // Queues the layers over the tokens of all sequences, each of another session: they store their keys and values. No
  // result depends on the company. `cancel` and what the sequences point to must live as long as the result. Where the
  // keys are not all in memory, or many choices are counted, parts of the pass are waited for on the way.
  Result<HiddenStates> forward(std::span<const Sequence> sequences, const CancelToken* cancel);
  // Logits of rows [first_row, first_row + n_rows) of what the last forward() left, f32 [n_rows][vocab_size] in host
  // memory. Waits for them.
  Status logits(const HiddenStates& states, int64_t first_row, int64_t n_rows, const CancelToken* cancel, float* out);
  // Waits for all that was queued: HiddenStates::wait(). After a failure the pass goes on as if it were new.
  Status finish(HiddenStates& states);
  // Queues the same of consecutive rows, of a few tokens, each to where it is wanted: complete when the pass is
  // finished. Once for a pass. n_ranked: of their most probable tokens, at most what Backend::most_ranked
  // says; 0: nothing is said of them.
  Status queue_logits(HiddenStates& states, int64_t first_row, std::span<const LogitsWanted> rows, int64_t n_ranked,
                      const CancelToken* cancel);
  // One of these rows, again: nothing else was read since. Waits for it.
  Status copy_logits(int64_t row, const LogitsWanted& wanted);
  // The same rows after the final norm, f32 [n_rows][hidden_size]: what the logits are made of.
  Status normalised(const HiddenStates& states, int64_t first_row, int64_t n_rows, const CancelToken* cancel,
                    float* out);
  int64_t scratch_bytes() const;
  // Of the activations that a pass over n rows (tokens and beacons) holds.
  static size_t activation_bytes(const Backend& backend, const ModelConfig& config, int64_t n);

 private:
  // What select_chunks left for a sequence: of the last layer that chose, or of all.
  struct ChosenChunks {
    std::unique_ptr<Buffer> buffer;
    std::unique_ptr<Buffer> on_host;  // the same, where that is asked for: staging memory
    int64_t n_picks = 0;              // int32s of a layer
    bool keeps = false;               // those of all layers, one behind the other, which come to the host together

    const int32_t* picks() const { return static_cast<const int32_t*>(on_host->host()); }
  };
  // Where the tokens of a sequence look: in one layer, and the most of it in the layers so far.
  struct Peaks {
    std::unique_ptr<Buffer> shares, peaks;
  };
  // Rows of one sequence: its tokens, or (condensed) the beacon tokens of a window that they complete, which stand
  // behind the tokens of all sequences.
  struct SequenceRows {
    const Sequence* sequence = nullptr;
    int index = 0;  // in the prepared step
    std::shared_ptr<Plan> plan;
    std::shared_ptr<Plan> window_plan;  // of layers with the model's window; null: they have the same
    KvKind kind = KvKind::kText;
    int64_t row = 0;
    int64_t n = 0;
    int64_t first_key = 0;

    ChunkStore& kv() const { return *sequence->kv; }
  };

  // What layers differ in beside their weights.
  struct LayerKind {
    bool rotates = true;    // queries and keys
    bool windowed = false;  // the model's sliding window is of some layers, and this is one

    size_t index() const { return (rotates ? 1 : 0) + (windowed ? 2 : 0); }
  };

  static std::array<int64_t, 3> widths(const ModelConfig& config);
  Status run(std::span<const Sequence> sequences, Exec exec);
  Status make_queue();
  void plan_rows(std::span<const Sequence> sequences);
  Status prepare_scratch(int64_t n_rows);
  Status prepare_steps(Exec exec);
  Result<std::unique_ptr<PreparedStep>> prepare_step(Exec exec, LayerKind kind);
  LayerKind kind_of(int layer) const { return {!config_.is_nope_layer(layer), config_.is_window_layer(layer)}; }
  const PreparedStep& step(int layer) const { return *steps_[kind_of(layer).index()]; }
  static const std::shared_ptr<Plan>& plan_of(const SequenceRows& rows, LayerKind kind) {
    return kind.windowed && rows.window_plan ? rows.window_plan : rows.plan;
  }
  const Plan& plan_in(const SequenceRows& rows, int layer) const { return *plan_of(rows, kind_of(layer)); }
  // Whether the strategy's own plan is the layer's, and how many such layers stand before it.
  bool has_method(const SequenceRows& rows, int layer) const { return &plan_in(rows, layer) == rows.plan.get(); }
  int methods_before(const SequenceRows& rows, int layer) const;
  std::pair<HeadNormArgs, HeadNormArgs> head_norm_args(Rows projected) const;
  UnrotatedScaleArgs query_scale_args(std::span<const Sequence> sequences, int layer);
  Status embed(Exec exec, std::span<const Sequence> sequences);
  void write_block(LinearArgs& block, Rows between) const;
  Status run_layer(Exec exec, std::span<const Sequence> sequences, int layer);
  // A buffer of at least so many bytes, contents undefined. What may still work on a smaller one is waited for.
  Status require(std::unique_ptr<Buffer>& buffer, size_t bytes, MemoryKind kind = MemoryKind::kDevice);
  Rows queries(const SequenceRows& rows) const { return wide_.at(rows.row); }
  StoreKvArgs store_args(const SequenceRows& rows, int layer) const;
  std::vector<int64_t> own_chunks(const SequenceRows& rows) const;
  Status narrow_chunks(Exec exec, const SequenceRows& rows, int layer);

  // Attention; in attention_layer.cc.
  Status attend(Exec exec, std::span<const SequenceRows> all, int layer);
  AttentionArgs attention_args(const SequenceRows& rows, int layer) const;
  Access reading(const SequenceRows& rows, int layer) const;
  static OldText old_text(const SequenceRows& rows, bool windowed);
  ChunkStore::Versions versions(const SequenceRows& rows, int layer) const;
  void prefetch_layer(const SequenceRows& rows, std::span<const int64_t> first, int layer) const;
  Status acquire_window(Exec exec, const SequenceRows& rows, int layer, std::span<const int64_t> chunks,
                        bool last) const;
  Status attend_by_windows(Exec exec, const SequenceRows& rows, int layer, std::span<const int64_t> needed);
  std::vector<int64_t> seen_chunks(const SequenceRows& rows, int layer) const;

  // Selection of chunks; in selection_layer.cc.
  Status represent_complete_chunks(Exec exec, const SequenceRows& rows, int layer);
  Status select(Exec exec, const SequenceRows& rows, int layer);
  Status choose(Exec exec, const SequenceRows& rows, int layer);
  Status prepare_choices();
  Status download_choices();
  static bool chooses_once(const SequenceRows& rows);
  bool chooses_in(const SequenceRows& rows, int layer) const;
  int64_t choices_offset(const SequenceRows& rows, int layer) const;
  ChoiceCounts counts_of(const SequenceRows& rows) const;
  const ChosenChunks* chosen(const SequenceRows& rows) const;

  // Where tokens look; in peaks_layer.cc.
  AttentionShares shares_of(const SequenceRows& rows) const;
  Status prepare_peaks();
  Status keep_peaks(Exec exec, int layer);
  Status download_peaks();

  // Beacon tokens; in beacon_layer.cc.
  Status project_beacons(Exec exec, int layer);
  Status attend_beacons(Exec exec, int layer);
  Status finish_beacons(Exec exec, int layer);

  // Adapters; in adapter_layer.cc.
  struct ProjectionColumn {
    Projection projection;
    int64_t column = 0;  // where its output begins
  };
  Status prepare_adapters(std::span<const Sequence> sequences);
  Status embed_changes(Exec exec, const Sequence& sequence, int64_t row);
  std::span<const NormArgs::Run> norm_runs(std::span<const Sequence> sequences, int layer, LayerNorm norm,
                                           const Buffer& own);
  NormArgs norm_args(std::span<const Sequence> sequences, int layer, LayerNorm norm, const Buffer& own);
  NormArgs block_norm_args(std::span<const Sequence> sequences, int layer, LayerNorm norm,
                           const std::unique_ptr<Buffer>& own, Rows block);
  LinearArgs linear_args(std::span<const Sequence> sequences, int layer, std::span<const ProjectionColumn> columns,
                         std::vector<LinearArgs::LowRankTerm>& terms);
  static void add_term(const LowRank& change, double scale, int64_t first_row, int64_t n, int64_t column,
                       std::vector<LinearArgs::LowRankTerm>& terms);
  Rows low_rank_rows() const { return {low_rank_.get(), 0, low_rank_stride_, hidden_.type}; }
  Status head(Exec exec, const AdapterList* adapters, Rows hidden, int64_t n, Rows out);
  Status copy_logits(Exec exec, int64_t row, const LogitsWanted& wanted);
  const Buffer& final_norm(const AdapterList* adapters) const;
  // Calls make(exec, adapters, hidden, n), which leaves n rows of `width` floats in read_scratch_, for tiles of the
  // states' rows, and downloads them.
  template <typename Make>
  Status read_rows(const HiddenStates& states, int64_t first_row, int64_t n_rows, int64_t width,
                   const CancelToken* cancel, float* out, const Make& make);

  const LlamaModel& model_;
  Backend& backend_;
  const ModelConfig& config_;
  const LlamaWeights& weights_;

  // Memory that grows to what a pass needed.
  std::unique_ptr<Buffer> scratch_;                          // hidden_, normed_ and wide_
  std::unique_ptr<Buffer> ids_;                              // int32: of all rows
  std::unique_ptr<Buffer> read_scratch_;                     // rows of logits or hidden states on their way to the host
  std::unique_ptr<Buffer> ranked_;                           // what is said of them (RankedRows)
  std::unique_ptr<Buffer> ranked_on_host_, logits_on_host_;  // the same, and rows of logits, in staging memory
  std::vector<ChosenChunks> chosen_;                         // of each sequence
  std::vector<Peaks> peaks_;                                 // of each sequence
  std::unique_ptr<Buffer> state_;                            // running attention results between windows of chunks
  std::unique_ptr<Buffer> low_rank_;                         // rows of x A^T
  int64_t scratch_rows_ = 0;
  Rows hidden_, normed_, wide_;  // [n][hidden], [n][max(hidden, H d)], [n][max((H + 2 Hkv) d, 2 intermediate, hidden)]

  // Of the pass that runs.
  std::vector<SequenceRows> texts_, beacons_;
  int64_t n_tokens_ = 0, n_beacons_ = 0;
  std::vector<int32_t> host_ids_;
  std::array<std::unique_ptr<PreparedStep>, 4> steps_;  // by LayerKind::index(); null: of kinds that no layer has
  int64_t low_rank_stride_ = 0;
  std::array<std::vector<NormArgs::Run>, kLayerNorms> norm_runs_;
  std::vector<UnrotatedScaleArgs::Run> query_scales_;
  std::vector<LinearArgs::LowRankTerm> terms_, down_terms_;

  std::unique_ptr<Queue> queue_;  // last: waits for what still works on the above. Null: none yet, or the last failed
};

// begin, begin + 1, ... end - 1: of chunks.
std::vector<int64_t> consecutive(int64_t begin, int64_t end);

}  // namespace quire
