// Where adapters enter the forward pass. Rows of sequences without any go through the same calls as ever.
#include <algorithm>

#include "lib/model/llama_model.h"

namespace quire {

// Room for x A^T, and which rows have which adapters.
Status LlamaModel::prepare_adapters(std::span<const Sequence> sequences, int64_t n) {
  row_adapters_.clear();
  int64_t row = 0;
  low_rank_stride_ = 0;
  for (const Sequence& s : sequences) {
    row += static_cast<int64_t>(s.tokens.size());
    if (!row_adapters_.empty() && row_adapters_.back().second == s.adapters) {
      row_adapters_.back().first = row;
    } else {
      row_adapters_.emplace_back(row, s.adapters);
    }
    if (s.adapters) low_rank_stride_ = std::max(low_rank_stride_, s.adapters->max_rank());
  }
  if (low_rank_stride_ == 0) return {};
  return require(backend_, low_rank_, static_cast<size_t>(n * low_rank_stride_) * sizeof(float));
}

std::pair<int64_t, const AdapterList*> LlamaModel::adapters_from(int64_t row) const {
  return *std::find_if(row_adapters_.begin(), row_adapters_.end(), [&](const auto& run) { return row < run.first; });
}

Status LlamaModel::add_low_rank(Exec exec, const LowRank& change, double scale, Rows x, int64_t n, Rows y) {
  if (!change.b) return {};
  LowRankArgs args;
  args.x = x;
  args.n = n;
  args.a = change.a.get();
  args.b = change.b.get();
  args.scale = static_cast<float>(change.scale * scale);
  args.work = {low_rank_.get(), 0, low_rank_stride_};
  args.y = y;
  return backend_.add_low_rank(exec, args);
}

Status LlamaModel::embed(Exec exec, const Sequence& sequence, Rows out) {
  const AdapterList* adapters = sequence.adapters;
  QUIRE_TRY(backend_.embed(exec, adapters ? adapters->embedding(weights_) : *weights_.embedding, sequence.tokens, out));
  if (!adapters) return {};
  const auto n = static_cast<int64_t>(sequence.tokens.size());
  for (const auto& [adapter, scale] : adapters->entries()) {
    if (!adapter->embedding_a) continue;
    QUIRE_TRY(backend_.embed(exec, *adapter->embedding_a, sequence.tokens, {low_rank_.get(), 0, low_rank_stride_}));
    QUIRE_TRY(add_low_rank(exec, adapter->embedding_change, scale, {}, n, out));
  }
  return {};
}

Status LlamaModel::normalise(Exec exec, std::span<const Sequence> sequences, int layer, Norm norm, int64_t n) {
  const auto run = [&](const Buffer& weight, int64_t row, int64_t count) {
    return backend_.rms_norm(exec, hidden_.at(row), weight, config_.rms_norm_eps, count, config_.hidden_size,
                             normed_.at(row));
  };
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const Buffer& own = norm == Norm::kAttention ? *w.attention_norm : *w.mlp_norm;
  const auto replaces = [](const Sequence& s) { return s.adapters && s.adapters->replaces_norms(); };
  if (std::none_of(sequences.begin(), sequences.end(), replaces)) return run(own, 0, n);
  int64_t row = 0;
  for (const Sequence& s : sequences) {
    const auto count = static_cast<int64_t>(s.tokens.size());
    const Buffer& weight = !s.adapters                ? own
                           : norm == Norm::kAttention ? s.adapters->attention_norm(weights_, layer)
                                                      : s.adapters->mlp_norm(weights_, layer);
    QUIRE_TRY(run(weight, row, count));
    row += count;
  }
  return {};
}

Status LlamaModel::adapt(Exec exec, std::span<const Sequence> sequences, int layer, Projection projection, Rows x,
                         Rows y) {
  int64_t row = 0;
  for (const Sequence& s : sequences) {
    const auto n = static_cast<int64_t>(s.tokens.size());
    if (s.adapters) {
      for (const auto& [adapter, scale] : s.adapters->entries()) {
        const auto& changes = adapter->layers[static_cast<size_t>(layer)].projections;
        QUIRE_TRY(add_low_rank(exec, changes[static_cast<size_t>(projection)], scale, x.at(row), n, y.at(row)));
      }
    }
    row += n;
  }
  return {};
}

// Logits of rows that have the same adapters.
Status LlamaModel::head(Exec exec, const AdapterList* adapters, int64_t first_row, int64_t n, Rows out) {
  const Buffer& norm = adapters ? adapters->final_norm(weights_) : *weights_.final_norm;
  const Matrix& matrix = adapters ? adapters->lm_head(weights_) : *weights_.lm_head;
  QUIRE_TRY(
      backend_.rms_norm(exec, hidden_.at(first_row), norm, config_.rms_norm_eps, n, config_.hidden_size, normed_));
  QUIRE_TRY(backend_.matmul(exec, normed_, n, matrix, nullptr, false, out));
  if (!adapters) return {};
  for (const auto& [adapter, scale] : adapters->entries()) {
    QUIRE_TRY(add_low_rank(exec, adapter->head_change, scale, normed_, n, out));
  }
  return {};
}

}  // namespace quire
