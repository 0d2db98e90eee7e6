// A Llama-family decoder over a backend: immutable weights and the forward pass.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/backend/backend.h"
#include "lib/format/model_config.h"
#include "lib/kv/chunk_store.h"
#include "lib/model/adapter.h"
#include "lib/model/adapter_merge.h"
#include "lib/plan/text_positions.h"
#include "lib/strategy/strategy.h"
#include "lib/tokenizer/tokenizer.h"

namespace quire {

struct LayerWeights {
  std::unique_ptr<Buffer> attention_norm;  // f32 [hidden]
  std::unique_ptr<Matrix> qkv;             // [(H + 2 Hkv) * d, hidden]
  std::unique_ptr<Buffer> qkv_bias;        // f32, or null
  std::unique_ptr<Matrix> o;               // [hidden, H * d]
  std::unique_ptr<Buffer> o_bias;
  std::unique_ptr<Buffer> mlp_norm;
  std::unique_ptr<Matrix> gate_up;  // [2 * intermediate, hidden]
  std::unique_ptr<Buffer> gate_up_bias;
  std::unique_ptr<Matrix> down;  // [hidden, intermediate]
  std::unique_ptr<Buffer> down_bias;
};

// What beacon tokens (Activation Beacon) have of their own; null where they share the layer's.
struct BeaconLayerWeights {
  std::unique_ptr<Matrix> qkv, o, gate_up, down;
  std::unique_ptr<Buffer> qkv_bias, o_bias, gate_up_bias, down_bias;
};

struct BeaconWeights {
  std::unique_ptr<Table> embedding;  // one row
  std::vector<BeaconLayerWeights> layers;
};

struct LlamaWeights {
  std::unique_ptr<Table> embedding;
  std::vector<LayerWeights> layers;
  std::unique_ptr<Buffer> final_norm;
  std::unique_ptr<Matrix> lm_head;
  ElementType type = ElementType::kF32;   // of the layers' matrices
  std::vector<ElementType> matrix_types;  // of each, in the order of loading, and of lm_head
  int64_t n_parameters = 0;
  int64_t bytes = 0;
  std::map<std::string, std::string> tensor_hashes;  // of the checkpoint's tensors that were read (TensorFiles)
  std::vector<MergedAdapter> merged;
  std::unique_ptr<BeaconWeights> beacon;  // null: none
};

// The tokens of one session in a forward pass, and what they work on.
struct Sequence {
  std::span<const int32_t> tokens;  // at positions first_position, ...
  int64_t first_position = 0;
  bool generated = false;  // the model's own tokens, not given ones
  const Strategy* strategy = nullptr;
  const TextPositions* positions = nullptr;  // of the whole text, where the strategy takes them
  const Rope* rope = nullptr;
  ChunkStore* kv = nullptr;               // holds all earlier tokens, and room for these
  const AdapterList* adapters = nullptr;  // null: none; must live until the last logits() of this pass
  // If not null: counts, by chunk, how often a (query, layer, head) selected it, beyond the chunks that it must see; of
  // queries from count_from on.
  std::vector<int64_t>* selected = nullptr;
  int64_t count_from = 0;
};

// begin, begin + 1, ... end - 1: of chunks.
std::vector<int64_t> consecutive(int64_t begin, int64_t end);

// What of a session its strategy may depend on.
struct SessionNeeds {
  int64_t expected_tokens = 0;  // 0: unknown
  ElementType kv_type = ElementType::kF16;
  int64_t kv_budget_bytes = 0;  // 0: no limit
  int64_t prefill_block = 256;
  bool spills = false;
};

StrategyContext strategy_context(const ModelConfig& config, const SessionNeeds& needs);

// Weights are shared by all sessions. forward() and logits() use the model's scratch memory: one thread at a time, the
// scheduler's; everything else is any-thread.
class LlamaModel {
 public:
  LlamaModel(Backend& backend, ModelConfig config, std::unique_ptr<const Tokenizer> tokenizer, LlamaWeights weights)
      : backend_(backend), config_(std::move(config)), tokenizer_(std::move(tokenizer)), weights_(std::move(weights)) {}

  Backend& backend() const { return backend_; }
  const ModelConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const LlamaWeights& weights() const { return weights_; }
  bool is_eos(int32_t token) const;
  // 128 bits over configuration and weights, merged adapters included, as 32 hexadecimal digits.
  std::string identity() const;
  KvGeometry kv_geometry(const Strategy& strategy, ElementType type) const;
  int64_t scratch_bytes() const;
  // f32 elements of activations that a forward pass over n rows (tokens and beacons) holds.
  static int64_t activation_floats(const ModelConfig& config, int64_t n);

  // Runs the layers over the tokens of all sequences, each of another session: stores their keys and values, and
  // leaves the last hidden states in scratch, rows in the order of the sequences. No result depends on the company.
  // After a failure (kCancelled, kOutOfMemory, kIo) the stores' earlier tokens are as they were.
  Status forward(std::span<const Sequence> sequences, const CancelToken* cancel);
  // Logits of rows [first_row, first_row + n_rows) of the last forward(), f32 [n_rows][vocab_size] in host memory.
  Status logits(int64_t first_row, int64_t n_rows, const CancelToken* cancel, float* out);

 private:
  static std::array<int64_t, 3> widths(const ModelConfig& config);
  Status prepare_scratch(int64_t n);
  // Attention of one sequence whose rows begin at `row`; in attention_layer.cc.
  // What select_chunks left for a sequence.
  struct ChosenChunks {
    std::unique_ptr<Buffer> buffer;
    std::vector<int32_t> on_host;  // the same, where that is asked for
  };
  Status attend(Exec exec, const Sequence& sequence, const Plan& plan, ChosenChunks& chosen, int64_t row, int layer);
  Status attend_rows(Exec exec, const Sequence& sequence, const Plan& plan, const ChosenChunks* chosen, int64_t row,
                     int64_t n, int layer);
  Status represent_chunks(Exec exec, const Sequence& sequence, int64_t row, int layer);
  Status select(Exec exec, const Sequence& sequence, const Plan& plan, ChosenChunks& chosen, int64_t row, int layer);
  Status choose(Exec exec, const Sequence& sequence, const Plan& plan, ChosenChunks& chosen, int64_t row, int layer);
  std::vector<int64_t> seen_chunks(const Sequence& sequence, const Plan& plan, const ChosenChunks* chosen) const;
  Status attend_by_windows(Exec exec, const Sequence& sequence, const ChosenChunks* chosen, AttentionArgs args,
                           int layer);
  float logit_scale(const Strategy& strategy) const;
  static Status require(Backend& backend, std::unique_ptr<Buffer>& buffer, size_t bytes);
  Status mlp_layer(Exec exec, std::span<const Sequence> sequences, int layer, int64_t n);

  // Beacon tokens, whose rows stand behind those of all text; in beacon_layer.cc.
  struct BeaconRows {
    const Sequence* sequence;
    int64_t row;
    int64_t n;
    Plan plan;
  };
  std::vector<BeaconRows> plan_beacons(std::span<const Sequence> sequences, int64_t first_row) const;
  Status project_beacons(Exec exec, int layer, int64_t first_row, int64_t n);
  Status attend_beacons(Exec exec, const BeaconRows& beacons, int layer);
  Status finish_beacons(Exec exec, int layer, int64_t first_row, int64_t n);

  // Adapters; in adapter_layer.cc. Rows are those of all sequences.
  Status embed(Exec exec, const Sequence& sequence, Rows out);
  enum class Norm { kAttention, kMlp };
  Status normalise(Exec exec, std::span<const Sequence> sequences, int layer, Norm norm, int64_t n);
  // y += what the sequences' adapters add to the projection of x.
  Status adapt(Exec exec, std::span<const Sequence> sequences, int layer, Projection projection, Rows x, Rows y);
  Status add_low_rank(Exec exec, const LowRank& change, double scale, Rows x, int64_t n, Rows y);
  Status prepare_adapters(std::span<const Sequence> sequences, int64_t n);
  Status head(Exec exec, const AdapterList* adapters, int64_t first_row, int64_t n, Rows out);
  // The end of the run of rows that begins at `row` and has the same adapters, and those.
  std::pair<int64_t, const AdapterList*> adapters_from(int64_t row) const;

  Backend& backend_;
  ModelConfig config_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  LlamaWeights weights_;

  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Buffer> scratch_;
  std::unique_ptr<Buffer> logits_scratch_;
  std::vector<ChosenChunks> chosen_;  // of each sequence, in one layer
  std::unique_ptr<Buffer> state_;     // running attention results between windows of chunks
  std::unique_ptr<Buffer> low_rank_;  // rows of x A^T
  int64_t low_rank_stride_ = 0;
  std::vector<std::pair<int64_t, const AdapterList*>> row_adapters_;  // of the last pass: ends of rows, ascending
  int64_t scratch_rows_ = 0;
  Rows hidden_, normed_, wide_;  // [n][hidden], [n][max(hidden, H d)], [n][max((H + 2 Hkv) d, 2 intermediate)]
};

// Loads a Hugging Face directory. Not to be used again after load().
class ModelLoader {
 public:
  struct Options {
    bool map = false;  // map the weight files, which must not shrink while the model lives, rather than read them
    int32_t weight_type = 0;  // ElementType to convert projections to; 0: as stored
    std::vector<AdapterSource> merge;
    std::string beacon_directory;  // of a beacon plug-in; empty: the checkpoint's own beacons, if it has any
    LoadControl control;
  };

  ModelLoader(Backend& backend, std::string directory, Options options);
  ~ModelLoader();
  // Reads files on this thread and hands what it read to the engine (LoadControl) piece by piece. Errors: kNotFound,
  // kIo, kBadModel, kUnsupported, kOutOfMemory, kCancelled, kClosed.
  Result<std::unique_ptr<LlamaModel>> load();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
