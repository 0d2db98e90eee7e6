// A long-context strategy: pure logic that turns query indexes into attention plans.
//
// Strategies know no model, no backend and no memory. Immutable after creation: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/plan/plan.h"
#include "lib/plan/rope_table.h"
#include "lib/support/status.h"

namespace quire {

// The factors that LongRoPE's search found for a checkpoint.
struct LongRopeFactors {
  std::vector<double> short_factors;  // one for each pair of dimensions, for texts of up to `original` tokens
  std::vector<double> long_factors;   // for longer ones
  int64_t original = 0;
  double attention_factor = 1;
};

// A checkpoint's request to be run with Dual Chunk Attention, in the words of its config.json.
struct DualChunkConfig {
  int64_t chunk_size = 0;  // the cap C; 0: no request
  int64_t local_size = 0;  // C - s
  int64_t original = 0;    // trained length, from which on logits are scaled; 0: not given
};

// What a beacon token sees of its window (Zhang et al. 2024, Figure 3): all up to its place, the part before it, all.
enum class BeaconAttention { kStepExpansion, kSegmentation, kFullCoverage };

// How a checkpoint's beacon weights were trained and are meant to be used, in the words of its config.json.
struct BeaconConfig {
  enum class Mix { kAdapt, kSequence };  // choose a ratio by length; one for each window
  int64_t window = 1024;
  int64_t stride = 1024;
  BeaconAttention attention = BeaconAttention::kStepExpansion;
  std::vector<int64_t> ratios = {0, 2, 4, 8, 16, 32, 64, 128};  // a single one is taken as it is
  Mix mix = Mix::kAdapt;
  int64_t reserve = 1024;  // tokens beyond the expected ones that kAdapt makes room for
};

// What `auto` may spend on keys and values.
struct KvBudget {
  int64_t bytes = 0;  // 0: no limit
  int64_t bytes_per_token = 0;
  int64_t block = 256;      // tokens stored at a time, before older ones are dropped
  int64_t lower_bytes = 0;  // what slower tiers hold at least beside it; kNoLimit: all
  // Text in chunks that end so many tokens before a query's own is read in a narrower type; kNoLimit: none is.
  int64_t old_after = kNoLimit;
  int64_t old_bytes_per_token = 0;  // of that
  int64_t spare_chunks = 0;         // of old text, kept in both types
  // Where layers with a window drop what lies behind it: of a token in these, the others having bytes_per_token.
  int64_t windowed_bytes_per_token = 0;
};

// What a strategy must know of the model and session it serves.
struct StrategyContext {
  int64_t train_len = 0;     // positions the weights were trained for
  int64_t original_len = 0;  // and before the checkpoint's own extension; 0: as many
  int head_dim = 64;
  int rotary_dim = 0;  // of these, those that turn (the first pairs); 0: all
  int n_query_heads = 1;
  int n_kv_heads = 1;
  double rope_theta = 10000;
  // The checkpoint's own rope_scaling as a scaling term, such as "pi(factor=4)"; empty: none. It is used unless the
  // expression names a scaling (or `none`).
  std::string checkpoint_scaling;
  std::optional<LongRopeFactors> longrope;  // what the scaling `longrope` takes its frequencies from
  std::vector<double> freq_factors;         // and the scaling `freq_factors`: a divisor for each pair; empty: none
  DualChunkConfig dual_chunk;
  std::optional<BeaconConfig> beacon;  // the model has beacon weights
  // `beacon` is for expressions that name the method, and `auto` does not choose it: there is no model at hand, or the
  // session has adapters, for which those weights are not made.
  bool beacon_only_by_name = false;
  int64_t sliding_window = 0;      // the model's own: query i sees key j only if i - j is less; 0: none
  bool some_layers_slide = false;  // it is of some layers only (Strategy::window_layers)
  double window_rope_theta = 0;    // these have a base of their own, and no scaling; 0: the frequencies of the others
  int64_t expected_tokens = 0;     // 0: unknown
  KvBudget kv_budget;

  // The window that all layers have.
  int64_t common_window() const { return some_layers_slide ? 0 : sliding_window; }
  int turning_dim() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  // Appends to `plan` the blocks of queries [first_query, first_query + n_queries). What a query sees depends on its
  // index alone, never on how queries are grouped into calls.
  virtual void plan(int64_t first_query, int64_t n_queries, Plan& plan) const = 0;
  // The same for tokens that the model generated rather than was given.
  virtual void plan_generated(int64_t first_query, int64_t n_queries, Plan& plan) const {
    this->plan(first_query, n_queries, plan);
  }
  // Whether that makes a difference.
  virtual bool plans_generated_apart() const { return false; }
  // Chunks that each head of a given token selects (Plan::selection); 0: it sees what it sees by position.
  virtual int64_t chunks_selected(int64_t) const { return 0; }

  // Text keys that some query with index >= next_query may still see, as ascending disjoint ranges. The last range ends
  // at kNoLimit. Everything else may be dropped for good. Those of window_layers() are not among them.
  virtual std::vector<KeyRange> retained(int64_t next_query) const = 0;
  // Whether these ever are less than all.
  bool drops_text() const;

  // ---- text that is condensed into entries (Activation Beacon)
  bool condenses() const { return condenses_; }
  // Where the window that the next token after n_tokens belongs to is complete: no block of queries reaches across.
  virtual int64_t window_end(int64_t) const { return kNoLimit; }
  // Condensed entries when n_tokens tokens have been read.
  virtual int64_t condensed_entries(int64_t) const { return 0; }
  // The tokens that an entry stands for.
  virtual KeyRange tokens_of_entry(int64_t) const { return {}; }
  // Most entries that one window makes.
  int64_t most_new_entries() const { return most_new_entries_; }
  // Appends the plan of the entries that are made when n_tokens tokens have been read and complete a window; its
  // queries are condensed_entries(n_tokens - 1), ...
  virtual void plan_condensed(int64_t, Plan&) const {}

  // Tokens the strategy can serve without positions outside the trained range; kNoLimit if it has no end.
  int64_t reach() const { return reach_; }
  // The same for a text whose positions have gaps: the position from which on they are not.
  int64_t reach_with_gaps() const { return std::min(reach_, reach_with_gaps_); }
  // Tokens per stored chunk.
  int64_t kv_chunk() const { return kv_chunk_; }
  const RopeTable& rope() const { return rope_; }
  // Whether plans select chunks: the store then keeps representations.
  bool selects_chunks() const { return selection_.count > 0; }
  const ChunkSelection& selection() const { return selection_; }
  // Where only some of a model's layers have its sliding window: what these show, all keys inside the window, whatever
  // method the others have. Its stored keys are this one's, and so are its frequencies unless the model has others for
  // these layers. Null: all layers have this one.
  const Strategy* window_layers() const { return window_layers_.get(); }
  // Where text keys are stored (stored_position), so that few of those that plans show have to be turned.
  int64_t stored_div() const { return stored_div_; }
  // Whether distances are those of positions, so that the caller may set these (TextPositions): one list of unit
  // strides for all heads, stored keys.
  bool takes_positions() const { return takes_positions_; }
  // Canonical expression with all defaults written out.
  const std::string& canonical() const { return canonical_; }
  // For a person: what `auto` chose, and why; empty where the expression named its method.
  const std::string& notice() const { return notice_; }
  // Whether the expression has a base(theta=...) term or a scaling.
  bool names_frequencies() const { return names_frequencies_; }

 protected:
  int64_t reach_ = kNoLimit;
  int64_t reach_with_gaps_ = kNoLimit;
  int64_t kv_chunk_ = 0;
  RopeTable rope_;
  int64_t stored_div_ = 1;
  ChunkSelection selection_;  // count 0: every head sees keys by their positions alone
  bool condenses_ = false;
  bool takes_positions_ = false;
  int64_t most_new_entries_ = 0;
  std::string canonical_;
  std::string notice_;
  bool names_frequencies_ = false;
  std::unique_ptr<const Strategy> window_layers_;

  friend class StrategyBuilder;
};

// Parses and checks an expression (grammar: quire.h, "Strategies"). Errors: kBadStrategy with the byte column as
// offset and a message that names what was expected; kUnsupported for products that make no sense together and for
// methods this version does not have; kBadFile for a checkpoint scaling that is wrong; kInvalidArgument for a context
// that describes no model, and for a checkpoint scaling that needs expected_tokens; kBudget if `auto` finds no method
// that fits kv_budget.
Result<std::unique_ptr<const Strategy>> make_strategy(std::string_view expression, const StrategyContext& context);

}  // namespace quire
