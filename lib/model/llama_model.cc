#include "lib/model/llama_model.h"

#include <algorithm>
#include <array>

#include "lib/support/content_hash.h"

namespace quire {
namespace {

// Rows of logits formed at a time: bounds the memory of scoring a long block.
constexpr int64_t kLogitRows = 32;

}  // namespace

bool LlamaModel::is_eos(int32_t token) const {
  const auto& ids = config_.eos_token_ids;
  if (std::find(ids.begin(), ids.end(), token) != ids.end()) return true;
  const auto own = tokenizer_->eos();
  return ids.empty() && std::find(own.begin(), own.end(), token) != own.end();
}

std::string LlamaModel::identity() const {
  ContentHash hash;
  hash.add_text(config_.json);
  for (const ElementType type : weights_.matrix_types) hash.add_text(element_name(type));
  for (const auto& [name, content] : weights_.tensor_hashes) hash.add_text(name).add_text(content);
  for (const MergedAdapter& m : weights_.merged) hash.add_text(m.identity).add_real(m.scale);
  return hash.hex();
}

StrategyContext strategy_context(const ModelConfig& config, const SessionNeeds& needs) {
  StrategyContext context;
  context.train_len = config.max_position_embeddings;
  context.original_len = config.rope_original;
  context.head_dim = config.head_dim;
  context.n_query_heads = config.n_query_heads;
  context.n_kv_heads = config.n_kv_heads;
  context.rope_theta = config.rope_theta;
  context.checkpoint_scaling = config.rope_scaling;
  const LongRopeSettings& longrope = config.longrope;
  if (!longrope.long_factors.empty()) {
    context.longrope = {longrope.short_factors, longrope.long_factors, longrope.original, longrope.attention_factor};
  }
  context.dual_chunk = {config.dual_chunk.chunk_size, config.dual_chunk.local_size, config.dual_chunk.original};
  if (const BeaconSettings& beacon = config.beacon; beacon.window > 0) {
    context.beacon = {beacon.window,
                      beacon.stride,
                      static_cast<BeaconAttention>(beacon.attention),
                      beacon.ratios,
                      static_cast<BeaconConfig::Mix>(beacon.mix),
                      beacon.reserve};
  }
  context.sliding_window = config.sliding_window;
  context.expected_tokens = needs.expected_tokens;
  const int64_t elements = int64_t{2} * config.n_layers * config.n_kv_heads * config.head_dim;
  context.kv_budget = {needs.kv_budget_bytes, elements * static_cast<int64_t>(element_bytes(needs.kv_type)),
                       needs.prefill_block, needs.spills};
  return context;
}

KvGeometry LlamaModel::kv_geometry(const Strategy& strategy, ElementType type) const {
  return {config_.n_kv_heads, config_.head_dim, strategy.kv_chunk(), type};
}

int64_t LlamaModel::scratch_bytes() const {
  const auto size = [](const std::unique_ptr<Buffer>& b) { return b ? static_cast<int64_t>(b->size()) : 0; };
  int64_t chosen = 0;
  for (const ChosenChunks& c : chosen_) chosen += size(c.buffer);
  return size(scratch_) + size(logits_scratch_) + chosen + size(state_) + size(low_rank_) + backend_.workspace_bytes();
}

// Row widths of hidden_, normed_ and wide_.
std::array<int64_t, 3> LlamaModel::widths(const ModelConfig& config) {
  const int64_t heads = int64_t{config.n_query_heads} * config.head_dim;
  const int64_t kv = int64_t{config.n_kv_heads} * config.head_dim;
  return {config.hidden_size, std::max<int64_t>(config.hidden_size, heads),
          std::max<int64_t>(heads + 2 * kv, 2 * int64_t{config.intermediate_size})};
}

int64_t LlamaModel::activation_floats(const ModelConfig& config, int64_t n) {
  const auto [hidden, narrow, wide] = widths(config);
  return n * (hidden + narrow + wide);
}

Status LlamaModel::prepare_scratch(int64_t n) {
  if (!queue_) {
    QUIRE_ASSIGN(queue_, backend_.create_queue());
  }
  if (n <= scratch_rows_) return {};
  const auto [hidden, narrow, wide] = widths(config_);
  QUIRE_TRY(require(backend_, scratch_, static_cast<size_t>(activation_floats(config_, n)) * sizeof(float)));
  scratch_rows_ = n;
  hidden_ = {scratch_.get(), 0, hidden};
  normed_ = {scratch_.get(), n * hidden, narrow};
  wide_ = {scratch_.get(), n * (hidden + narrow), wide};
  return {};
}

Status LlamaModel::forward(std::span<const Sequence> sequences, const CancelToken* cancel) {
  int64_t n = 0;
  for (const Sequence& s : sequences) n += static_cast<int64_t>(s.tokens.size());
  const std::vector<BeaconRows> beacons = plan_beacons(sequences, n);
  const int64_t n_beacons = beacons.empty() ? 0 : beacons.back().row + beacons.back().n - n;
  QUIRE_TRY(prepare_scratch(n + n_beacons));
  const Exec exec{*queue_, cancel};
  QUIRE_TRY(prepare_adapters(sequences, n));
  std::vector<Plan> plans(sequences.size());
  if (chosen_.size() < sequences.size()) chosen_.resize(sequences.size());
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    const auto count = static_cast<int64_t>(s.tokens.size());
    if (s.generated) {
      s.strategy->plan_generated(s.first_position, count, plans[i]);
    } else {
      s.strategy->plan(s.first_position, count, plans[i]);
    }
    if (s.positions && !s.positions->consecutive()) s.positions->apply(plans[i]);
    QUIRE_TRY(embed(exec, s, hidden_.at(row)));
    row += count;
  }
  if (n_beacons > 0) {
    const std::vector<int32_t> only_row(static_cast<size_t>(n_beacons), 0);
    QUIRE_TRY(backend_.embed(exec, *weights_.beacon->embedding, only_row, hidden_.at(n)));
  }
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    QUIRE_TRY(normalise(exec, sequences, layer, Norm::kAttention, n));
    QUIRE_TRY(backend_.matmul(exec, normed_, n, *w.qkv, w.qkv_bias.get(), false, wide_));
    const int64_t d = config_.head_dim;
    QUIRE_TRY(adapt(exec, sequences, layer, Projection::kQ, normed_, wide_));
    QUIRE_TRY(adapt(exec, sequences, layer, Projection::kK, normed_, wide_.column(config_.n_query_heads * d)));
    QUIRE_TRY(adapt(exec, sequences, layer, Projection::kV, normed_,
                    wide_.column((config_.n_query_heads + config_.n_kv_heads) * d)));
    QUIRE_TRY(project_beacons(exec, layer, n, n_beacons));
    row = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      QUIRE_TRY(attend(exec, sequences[i], plans[i], chosen_[i], row, layer));
      row += static_cast<int64_t>(sequences[i].tokens.size());
    }
    for (const BeaconRows& rows : beacons) QUIRE_TRY(attend_beacons(exec, rows, layer));
    QUIRE_TRY(backend_.matmul(exec, normed_, n, *w.o, w.o_bias.get(), true, hidden_));
    QUIRE_TRY(adapt(exec, sequences, layer, Projection::kO, normed_, hidden_));
    QUIRE_TRY(mlp_layer(exec, sequences, layer, n));
    QUIRE_TRY(finish_beacons(exec, layer, n, n_beacons));
  }
  return backend_.synchronize(*queue_);
}

Status LlamaModel::mlp_layer(Exec exec, std::span<const Sequence> sequences, int layer, int64_t n) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  QUIRE_TRY(normalise(exec, sequences, layer, Norm::kMlp, n));
  QUIRE_TRY(backend_.matmul(exec, normed_, n, *w.gate_up, w.gate_up_bias.get(), false, wide_));
  QUIRE_TRY(adapt(exec, sequences, layer, Projection::kGate, normed_, wide_));
  QUIRE_TRY(adapt(exec, sequences, layer, Projection::kUp, normed_, wide_.column(config_.intermediate_size)));
  QUIRE_TRY(backend_.swiglu(exec, wide_, n, config_.intermediate_size, wide_));
  QUIRE_TRY(backend_.matmul(exec, wide_, n, *w.down, w.down_bias.get(), true, hidden_));
  return adapt(exec, sequences, layer, Projection::kDown, wide_, hidden_);
}

Status LlamaModel::logits(int64_t first_row, int64_t n_rows, const CancelToken* cancel, float* out) {
  const int64_t vocab = config_.vocab_size;
  const int64_t tile = std::min(kLogitRows, n_rows);
  const size_t bytes = static_cast<size_t>(tile * vocab) * sizeof(float);
  if (!logits_scratch_ || logits_scratch_->size() < bytes) {
    QUIRE_ASSIGN(logits_scratch_, backend_.allocate(bytes, MemoryKind::kDevice));
  }
  const Exec exec{*queue_, cancel};
  int64_t n = 0;
  for (int64_t row = 0; row < n_rows; row += n) {
    const auto [end, adapters] = adapters_from(first_row + row);
    n = std::min({tile, n_rows - row, end - first_row - row});
    QUIRE_TRY(head(exec, adapters, first_row + row, n, {logits_scratch_.get(), 0, vocab}));
    QUIRE_TRY(backend_.download(*queue_, *logits_scratch_, 0, out + row * vocab,
                                static_cast<size_t>(n * vocab) * sizeof(float)));
    QUIRE_TRY(backend_.synchronize(*queue_));
  }
  return {};
}

}  // namespace quire
