// Where adapters enter the forward pass. Rows of sequences without any go through the same calls as ever.
#include <algorithm>

#include "lib/model/forward_pass.h"

namespace quire {

// Room for x A^T of all rows.
Status ForwardPass::prepare_adapters(std::span<const Sequence> sequences) {
  low_rank_stride_ = 0;
  for (const Sequence& s : sequences) {
    if (s.adapters) low_rank_stride_ = std::max(low_rank_stride_, s.adapters->max_rank());
  }
  if (low_rank_stride_ == 0) return {};
  return require(low_rank_, row_bytes(hidden_.type, n_tokens_ * low_rank_stride_));
}

void ForwardPass::add_term(const LowRank& change, double scale, int64_t first_row, int64_t n, int64_t column,
                           std::vector<LinearArgs::LowRankTerm>& terms) {
  if (!change.b) return;
  terms.push_back({.first_row = first_row,
                   .n = n,
                   .a = change.a.get(),
                   .b = change.b.get(),
                   .scale = static_cast<float>(change.scale * scale),
                   .column = column});
}

// What the sequence's adapters add to the embedding of its tokens, whose rows begin at `row`.
Status ForwardPass::embed_changes(Exec exec, const Sequence& sequence, int64_t row) {
  if (!sequence.adapters) return {};
  const double hidden_scale = config_.hidden_embedding_scale();
  for (const auto& [adapter, scale] : sequence.adapters->entries()) {
    const LowRank& change = adapter->embedding_change;
    if (!adapter->embedding_a) continue;
    QUIRE_TRY(backend_.embed(exec, *adapter->embedding_a, *ids_, row, sequence.n(), 1, low_rank_rows()));
    QUIRE_TRY(backend_.add_low_rank(exec, {.n = sequence.n(),
                                           .b = change.b.get(),
                                           .scale = static_cast<float>(change.scale * scale * hidden_scale),
                                           .work = low_rank_rows(),
                                           .y = hidden_.at(row)}));
  }
  return {};
}

// The runs of the tokens' rows that have the same weight of a norm, kept in norm_runs_.
std::span<const NormArgs::Run> ForwardPass::norm_runs(std::span<const Sequence> sequences, int layer, LayerNorm norm,
                                                      const Buffer& own) {
  std::vector<NormArgs::Run>& runs = norm_runs_[static_cast<size_t>(norm)];
  runs.clear();
  for (const Sequence& s : sequences) {
    const Buffer& weight = s.adapters ? s.adapters->norm(layer, norm, own) : own;
    if (!runs.empty() && runs.back().weight == &weight) {
      runs.back().n += s.n();
    } else {
      runs.push_back({s.n(), &weight});
    }
  }
  return runs;
}

// Normalises the tokens' rows of hidden_ into normed_.
NormArgs ForwardPass::norm_args(std::span<const Sequence> sequences, int layer, LayerNorm norm, const Buffer& own) {
  return {hidden_, norm_runs(sequences, layer, norm, own), config_.hidden_norm_eps(), config_.hidden_size, normed_};
}

// Adds the norm of what a block gave to hidden_; nothing where the model has no such norms.
NormArgs ForwardPass::block_norm_args(std::span<const Sequence> sequences, int layer, LayerNorm norm,
                                      const std::unique_ptr<Buffer>& own, Rows block) {
  if (!own) return {};
  return {block,      norm_runs(sequences, layer, norm, *own), config_.hidden_norm_eps(), config_.hidden_size, hidden_,
          Write::kAdd};
}

// A product over the tokens' rows, to be given its operands, with what the sequences' adapters add to it. The terms are
// kept in `terms`.
LinearArgs ForwardPass::linear_args(std::span<const Sequence> sequences, int layer,
                                    std::span<const ProjectionColumn> columns,
                                    std::vector<LinearArgs::LowRankTerm>& terms) {
  terms.clear();
  for (const auto& [projection, column] : columns) {
    int64_t row = 0;
    for (const Sequence& s : sequences) {
      if (s.adapters) {
        for (const auto& [adapter, scale] : s.adapters->entries()) {
          const auto& changes = adapter->layers[static_cast<size_t>(layer)].projections;
          add_term(changes[static_cast<size_t>(projection)], scale, row, s.n(), column, terms);
        }
      }
      row += s.n();
    }
  }
  LinearArgs args;
  args.n = n_tokens_;
  args.low_rank = terms;
  args.work = low_rank_rows();
  return args;
}

const Buffer& ForwardPass::final_norm(const AdapterList* adapters) const {
  return adapters ? adapters->final_norm(weights_) : *weights_.final_norm;
}

// Logits of rows that have the same adapters.
Status ForwardPass::head(Exec exec, const AdapterList* adapters, Rows hidden, int64_t n, Rows out) {
  const NormArgs::Run run{n, &final_norm(adapters)};
  terms_.clear();
  if (adapters) {
    for (const auto& [adapter, scale] : adapters->entries()) add_term(adapter->head_change, scale, 0, n, 0, terms_);
  }
  return backend_.head(exec, {.norm = {hidden, {&run, 1}, config_.hidden_norm_eps(), config_.hidden_size, normed_},
                              .head = {.x = normed_,
                                       .n = n,
                                       .matrix = adapters ? &adapters->lm_head(weights_) : weights_.lm_head.get(),
                                       .low_rank = terms_,
                                       .work = low_rank_rows(),
                                       .y = out}});
}

}  // namespace quire
