// Keys, values and queries of one attention call, and what attention must give for them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/unit/backend/backend_fixture.h"

namespace quire::test {

struct Shape {
  int group = 1;  // query heads per KV head
  int n_kv_heads = 1;
  int head_dim = 64;
  int64_t chunk = 64;
  ElementType type = ElementType::kF32;
  int64_t old_after = kNoLimit;  // of the text: OldText::after
  ElementType old_type = ElementType::kInt8;

  OldText old() const { return {.type = old_type, .after = old_after}; }
  int n_query_heads() const { return group * n_kv_heads; }
  KvGeometry geometry() const { return {n_kv_heads, head_dim, chunk, type}; }
  std::string name() const;
};

// cos and sin of p * theta for the head's pairs.
struct Rotation {
  std::vector<double> cos, sin;
};
class Rotations;

// What a run is asked about where its queries look, and the answer.
struct SharesAsked {
  int64_t first_row = 0;
  int64_t first_key = 0, end_key = 0;  // text keys that count
  std::vector<float> values = {};      // [n - first_row][n_query_heads][cells]
};

// How AttentionScene::run makes its calls.
struct RunOptions {
  const CancelToken* cancel = nullptr;
  Status* status = nullptr;  // where to leave a failure; null: throws
  SharesAsked* shares = nullptr;
  std::vector<int64_t> cuts = {};  // chunks where windows end, ascending; empty: one window
};

struct SeenKey {
  KvKind kind;
  int64_t key;
  const Rotation* rotation;  // by its distance
};

// Stored records and queries: text keys [0, kTextKeys), memory keys [0, kMemoryKeys), queries [kFirstQuery, kTextKeys).
class AttentionScene {
 public:
  static constexpr int64_t kTextKeys = 331;
  static constexpr int64_t kMemoryKeys = 101;
  static constexpr int64_t kFirstQuery = 248;
  static constexpr int64_t kQueries = kTextKeys - kFirstQuery;

  // stored_div: of text keys (of memory keys it is 1).
  AttentionScene(Machine& machine, Random& random, const Shape& shape, int64_t stored_div);

  const Shape& shape() const { return shape_; }
  // Makes every query and head select up to `count` chunks of `chunk` keys at random, its own among them: for blocks
  // with a selection.
  void select(Random& random, int64_t chunk, int64_t count);
  // Makes one number of a text key in its record this one, of the first KV head. expected() knows nothing of it.
  void spoil_key(int64_t key, float number);
  // Runs queries [first, first + n) of the plan on any machine. [n][n_query_heads * head_dim].
  std::vector<float> run(Machine& machine, const Plan& plan, int64_t first, int64_t n,
                         const RunOptions& options = {}) const;
  // The same in float64 from the formulas of plan.h, with keys and values as they were rounded: query `first` and each
  // step-th after it, counted from kFirstQuery; NaN for the others.
  std::vector<double> expected(const Plan& plan, int64_t first = 0, int64_t step = 1) const;
  // The shares that AttentionShares speaks of, of the same queries: [kQueries][n_query_heads][cells].
  std::vector<double> expected_shares(const Plan& plan, const SharesAsked& asked, int64_t first, int64_t step) const;

 private:
  struct KeysAndValues {
    std::vector<float> keys, values;  // [n][n_kv_heads * head_dim], as given
    Records records;
    std::vector<double> rounded_keys, rounded_values;  // [n][n_kv_heads][head_dim], keys unrotated
  };
  void store(Machine& machine, Random& random, int64_t n, int64_t stored_div, KeysAndValues& kind);
  void narrow(Machine& machine, Random& random);
  // What query i reads of a key.
  const KeysAndValues& read_by(int64_t i, const SeenKey& seen) const;
  Status attention(Machine& machine, const PreparedStep& step, int64_t n, AttentionArgs args,
                   const RunOptions& options) const;
  std::vector<SeenKey> seen_keys(const Plan& plan, const QueryBlock& block, int64_t i, int64_t head,
                                 Rotations& rotations) const;
  std::vector<double> softmax(int64_t i, int64_t head, double scale, const std::vector<SeenKey>& seen) const;
  // use(i, head, seen, softmax) for query `first` and each step-th after it, and all heads.
  template <typename Use>
  void for_queries(const Plan& plan, int64_t first, int64_t step, const Use& use) const;
  void read_back(int64_t n, int64_t stored_div, KeysAndValues& kind) const;
  // `stored`: the position that the key is stored at.
  void append_unrotated(const std::vector<float>& key, int64_t stored, Rotations& rotations, KeysAndValues& kind) const;

  Shape shape_;
  int64_t stored_div_;  // of text keys
  RopeTable table_;
  std::shared_ptr<const Rope> rope_;
  KeysAndValues kinds_[kKvKinds];
  std::vector<float> queries_;  // [kQueries][n_query_heads * head_dim]
  std::vector<int32_t> picks_;  // [kQueries][n_query_heads][n_picks_], as select_chunks leaves them
  int64_t n_picks_ = 0;
  float scale_;
};

// Scenes of one shape, one for each way to store text keys, made when first asked for. With n_picks heads select so
// many chunks of `pick_chunk` keys (AttentionScene::select).
class AttentionScenes {
 public:
  AttentionScenes(Machine& machine, Random& random, const Shape& shape, int64_t pick_chunk = 0, int64_t n_picks = 0)
      : machine_(machine), random_(random), shape_(shape), pick_chunk_(pick_chunk), n_picks_(n_picks) {}

  const AttentionScene& stored_by(int64_t stored_div) {
    const auto [at, is_new] = scenes_.try_emplace(stored_div, machine_, random_, shape_, stored_div);
    if (is_new && n_picks_ > 0) at->second.select(random_, pick_chunk_, n_picks_);
    return at->second;
  }

 private:
  Machine& machine_;
  Random& random_;
  Shape shape_;
  int64_t pick_chunk_, n_picks_;
  std::map<int64_t, AttentionScene> scenes_;
};

// The norm of the differences in relation to that of what is expected, of all that is asked for.
double relative_error(const std::vector<float>& actual, const std::vector<double>& expected);
// The largest error in each (query, head) that was asked for is at most `tolerance` of its largest component.
void expect_close(const std::vector<float>& actual, const std::vector<double>& expected, int64_t d, double tolerance);
// What the CPU backend makes of a scene of this shape is as near to the reference as it has to be.
void expect_reference(const std::vector<float>& actual, const std::vector<double>& expected, const Shape& shape);

}  // namespace quire::test
