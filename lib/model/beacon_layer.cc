// Beacon tokens in the forward pass (Activation Beacon, arXiv:2401.03462, Eq. 1-2): where a block completes a window,
// S / ratio rows of theirs follow the text, and leave their keys and values as condensed entries.
#include "lib/model/forward_pass.h"

namespace quire {
namespace {

// What beacon tokens have of their own, or else the layer's.
struct Weights {
  const Matrix* matrix;
  const Buffer* bias;
};

Weights own_or(const std::unique_ptr<Matrix>& own, const std::unique_ptr<Buffer>& own_bias,
               const std::unique_ptr<Matrix>& shared, const std::unique_ptr<Buffer>& shared_bias) {
  return own ? Weights{own.get(), own_bias.get()} : Weights{shared.get(), shared_bias.get()};
}

}  // namespace

// Queries, keys and values of the beacon rows; the keys and values are stored.
Status ForwardPass::project_beacons(Exec exec, int layer) {
  if (n_beacons_ == 0) return {};
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const BeaconLayerWeights& b = weights_.beacon->layers[static_cast<size_t>(layer)];
  const auto [matrix, bias] = own_or(b.qkv, b.qkv_bias, w.qkv, w.qkv_bias);
  const NormArgs::Run run{n_beacons_, w.attention_norm.get()};
  const Rows x = normed_.at(n_tokens_);
  std::vector<StoreKvArgs> stores;
  for (const SequenceRows& rows : beacons_) {
    QUIRE_TRY(rows.kv().acquire(exec.queue, layer, own_chunks(rows), Access::kWrite, KvKind::kCondensed));
    stores.push_back(store_args(rows, layer));
  }
  auto [query_norm, key_norm] = head_norm_args(wide_.at(n_tokens_));
  const NormArgs::Run query_run{n_beacons_, w.q_norm.get()}, key_run{n_beacons_, w.k_norm.get()};
  if (config_.qk_norm) {
    query_norm.runs = {&query_run, 1};
    key_norm.runs = {&key_run, 1};
  }
  return backend_.project_qkv(
      exec, step(layer),
      {.norm = {hidden_.at(n_tokens_), {&run, 1}, config_.hidden_norm_eps(), config_.hidden_size, x},
       .qkv = {.x = x, .n = n_beacons_, .matrix = matrix, .bias = bias, .y = wide_.at(n_tokens_)},
       .query_norm = query_norm,
       .key_norm = key_norm,
       .stores = stores});
}

Status ForwardPass::attend_beacons(Exec exec, int layer) { return attend(exec, beacons_, layer); }

// Output projection and MLP.
Status ForwardPass::finish_beacons(Exec exec, int layer) {
  if (n_beacons_ == 0) return {};
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const BeaconLayerWeights& b = weights_.beacon->layers[static_cast<size_t>(layer)];
  const Rows x = normed_.at(n_tokens_), hidden = hidden_.at(n_tokens_), wide = wide_.at(n_tokens_);
  const auto [o, o_bias] = own_or(b.o, b.o_bias, w.o, w.o_bias);
  QUIRE_TRY(
      backend_.linear(exec, {.x = x, .n = n_beacons_, .matrix = o, .bias = o_bias, .write = Write::kAdd, .y = hidden}));
  const auto [gate_up, gate_up_bias] = own_or(b.gate_up, b.gate_up_bias, w.gate_up, w.gate_up_bias);
  const auto [down, down_bias] = own_or(b.down, b.down_bias, w.down, w.down_bias);
  const NormArgs::Run run{n_beacons_, w.mlp_norm.get()};
  return backend_.mlp(
      exec,
      {.norm = {hidden, {&run, 1}, config_.hidden_norm_eps(), config_.hidden_size, x},
       .gate_up = {.x = x, .n = n_beacons_, .matrix = gate_up, .bias = gate_up_bias, .y = wide},
       .width = config_.intermediate_size,
       .down = {.x = wide, .n = n_beacons_, .matrix = down, .bias = down_bias, .write = Write::kAdd, .y = hidden}});
}

}  // namespace quire
