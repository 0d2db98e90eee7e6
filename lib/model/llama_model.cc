#include "lib/model/llama_model.h"

#include <algorithm>
#include <cmath>

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

StrategyContext LlamaModel::strategy_context(int64_t expected_tokens) const {
  StrategyContext context;
  context.train_len = config_.max_position_embeddings;
  context.head_dim = config_.head_dim;
  context.n_query_heads = config_.n_query_heads;
  context.n_kv_heads = config_.n_kv_heads;
  context.rope_theta = config_.rope_theta;
  context.checkpoint_scaling = config_.rope_scaling;
  const LongRopeSettings& longrope = config_.longrope;
  if (!longrope.long_factors.empty()) {
    context.longrope = {longrope.short_factors, longrope.long_factors, longrope.original, longrope.attention_factor};
  }
  context.dual_chunk = {config_.dual_chunk.chunk_size, config_.dual_chunk.local_size, config_.dual_chunk.original};
  context.sliding_window = config_.sliding_window;
  context.expected_tokens = expected_tokens;
  return context;
}

KvGeometry LlamaModel::kv_geometry(const Strategy& strategy, ElementType type) const {
  return {config_.n_kv_heads, config_.head_dim, strategy.kv_chunk(), type};
}

int64_t LlamaModel::scratch_bytes() const {
  const auto size = [](const std::unique_ptr<Buffer>& b) { return b ? static_cast<int64_t>(b->size()) : 0; };
  return size(scratch_) + size(logits_scratch_) + backend_.workspace_bytes();
}

Status LlamaModel::prepare_scratch(int64_t n) {
  if (!stream_) {
    QUIRE_ASSIGN(stream_, backend_.create_stream());
  }
  if (n <= scratch_rows_) return {};
  const int64_t d = config_.head_dim;
  const int64_t hidden = config_.hidden_size;
  const int64_t heads = config_.n_query_heads * d;
  const int64_t narrow = std::max(hidden, heads);
  const int64_t wide = std::max<int64_t>(heads + 2 * config_.n_kv_heads * d, 2 * int64_t{config_.intermediate_size});
  const int64_t floats = n * (hidden + narrow + wide);
  QUIRE_ASSIGN(auto buffer, backend_.allocate(static_cast<size_t>(floats) * sizeof(float), MemoryKind::kDevice));
  scratch_ = std::move(buffer);
  scratch_rows_ = n;
  hidden_ = {scratch_.get(), 0, hidden};
  normed_ = {scratch_.get(), n * hidden, narrow};
  wide_ = {scratch_.get(), n * (hidden + narrow), wide};
  return {};
}

Status LlamaModel::forward(const ForwardArgs& args) {
  const auto n = static_cast<int64_t>(args.tokens.size());
  QUIRE_TRY(prepare_scratch(n));
  Plan plan;
  args.strategy->plan(args.first_position, n, plan);
  const Exec exec{*stream_, args.cancel};
  QUIRE_TRY(backend_.embed(exec, *weights_.embedding, args.tokens, hidden_));
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    QUIRE_TRY(attention_layer(exec, args, plan, layer));
    QUIRE_TRY(mlp_layer(exec, weights_.layers[static_cast<size_t>(layer)], n));
  }
  return backend_.synchronize(*stream_);
}

Status LlamaModel::attention_layer(Exec exec, const ForwardArgs& args, const Plan& plan, int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto n = static_cast<int64_t>(args.tokens.size());
  const int64_t d = config_.head_dim;
  QUIRE_TRY(backend_.rms_norm(exec, hidden_, *w.attention_norm, config_.rms_norm_eps, n, config_.hidden_size, normed_));
  QUIRE_TRY(backend_.matmul(exec, normed_, n, *w.qkv, w.qkv_bias.get(), false, wide_));

  StoreKvArgs store;
  store.keys = wide_.column(config_.n_query_heads * d);
  store.values = wide_.column((config_.n_query_heads + config_.n_kv_heads) * d);
  store.first_key = args.first_position;
  store.n = n;
  store.rope = args.strategy->stores_raw_keys() ? nullptr : args.rope;
  store.geometry = args.kv->geometry();
  store.records = args.kv->layer(layer);
  QUIRE_TRY(backend_.store_kv(exec, store));

  AttentionArgs attention;
  attention.queries = wide_;
  attention.out = normed_;
  attention.plan = &plan;
  attention.first_query = args.first_position;
  attention.n_queries = n;
  attention.n_query_heads = config_.n_query_heads;
  const double factor = args.strategy->rope().attention_factor;
  attention.scale = static_cast<float>(factor * factor / std::sqrt(static_cast<double>(d)));
  attention.rope = args.rope;
  attention.geometry = store.geometry;
  attention.records[static_cast<int>(KvStream::kText)] = store.records;
  QUIRE_TRY(backend_.attention(exec, attention));
  return backend_.matmul(exec, normed_, n, *w.o, w.o_bias.get(), true, hidden_);
}

Status LlamaModel::mlp_layer(Exec exec, const LayerWeights& w, int64_t n) {
  QUIRE_TRY(backend_.rms_norm(exec, hidden_, *w.mlp_norm, config_.rms_norm_eps, n, config_.hidden_size, normed_));
  QUIRE_TRY(backend_.matmul(exec, normed_, n, *w.gate_up, w.gate_up_bias.get(), false, wide_));
  QUIRE_TRY(backend_.swiglu(exec, wide_, n, config_.intermediate_size, wide_));
  return backend_.matmul(exec, wide_, n, *w.down, w.down_bias.get(), true, hidden_);
}

Status LlamaModel::logits(int64_t first_row, int64_t n_rows, const CancelToken* cancel, float* out) {
  const int64_t vocab = config_.vocab_size;
  const int64_t tile = std::min(kLogitRows, n_rows);
  const size_t bytes = static_cast<size_t>(tile * vocab) * sizeof(float);
  if (!logits_scratch_ || logits_scratch_->size() < bytes) {
    QUIRE_ASSIGN(logits_scratch_, backend_.allocate(bytes, MemoryKind::kDevice));
  }
  const Exec exec{*stream_, cancel};
  for (int64_t row = 0; row < n_rows; row += tile) {
    const int64_t n = std::min(tile, n_rows - row);
    const Rows target{logits_scratch_.get(), 0, vocab};
    QUIRE_TRY(backend_.rms_norm(exec, hidden_.at(first_row + row), *weights_.final_norm, config_.rms_norm_eps, n,
                                config_.hidden_size, normed_));
    QUIRE_TRY(backend_.matmul(exec, normed_, n, *weights_.lm_head, nullptr, false, target));
    QUIRE_TRY(backend_.download(*stream_, *logits_scratch_, 0, out + row * vocab,
                                static_cast<size_t>(n * vocab) * sizeof(float)));
    QUIRE_TRY(backend_.synchronize(*stream_));
  }
  return {};
}

}  // namespace quire
