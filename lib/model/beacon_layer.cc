// Beacon tokens in the forward pass (Activation Beacon, arXiv:2401.03462, Eq. 1-2): where a block completes a window,
// S / ratio rows of theirs follow the text, and leave their keys and values as condensed entries.
#include <algorithm>

#include "lib/model/llama_model.h"

namespace quire {

std::vector<LlamaModel::BeaconRows> LlamaModel::plan_beacons(std::span<const Sequence> sequences,
                                                             int64_t first_row) const {
  std::vector<BeaconRows> all;
  for (const Sequence& s : sequences) {
    const int64_t end = s.first_position + static_cast<int64_t>(s.tokens.size());
    const int64_t n = s.strategy->condensed_entries(end) - s.strategy->condensed_entries(s.first_position);
    if (n == 0) continue;
    all.push_back({&s, first_row, n, {}});
    s.strategy->plan_condensed(end, all.back().plan);
    first_row += n;
  }
  return all;
}

// Queries, keys and values of the beacon rows [first_row, first_row + n).
Status LlamaModel::project_beacons(Exec exec, int layer, int64_t first_row, int64_t n) {
  if (n == 0) return {};
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const BeaconLayerWeights& own = weights_.beacon->layers[static_cast<size_t>(layer)];
  const Rows x = normed_.at(first_row);
  QUIRE_TRY(backend_.rms_norm(exec, hidden_.at(first_row), *w.attention_norm, config_.rms_norm_eps, n,
                              config_.hidden_size, x));
  return backend_.matmul(exec, x, n, own.qkv ? *own.qkv : *w.qkv, (own.qkv ? own.qkv_bias : w.qkv_bias).get(), false,
                         wide_.at(first_row));
}

Status LlamaModel::attend_beacons(Exec exec, const BeaconRows& beacons, int layer) {
  const Sequence& sequence = *beacons.sequence;
  ChunkStore& kv = *sequence.kv;
  const int64_t d = config_.head_dim, chunk = kv.geometry().chunk;
  const int64_t first = sequence.strategy->condensed_entries(sequence.first_position);
  const auto touched = consecutive(first / chunk, ceil_div(first + beacons.n, chunk));
  QUIRE_TRY(kv.acquire(layer, touched, true, KvKind::kCondensed));
  StoreKvArgs store;
  store.keys = wide_.at(beacons.row).column(config_.n_query_heads * d);
  store.values = wide_.at(beacons.row).column((config_.n_query_heads + config_.n_kv_heads) * d);
  store.first_key = first;
  store.n = beacons.n;
  store.rope = sequence.rope;
  store.geometry = kv.geometry();
  store.records = kv.layer(layer, KvKind::kCondensed);
  QUIRE_TRY(backend_.store_kv(exec, store));
  return attend_rows(exec, sequence, beacons.plan, nullptr, beacons.row, beacons.n, layer);
}

// Output projection and MLP.
Status LlamaModel::finish_beacons(Exec exec, int layer, int64_t first_row, int64_t n) {
  if (n == 0) return {};
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const BeaconLayerWeights& own = weights_.beacon->layers[static_cast<size_t>(layer)];
  const Rows x = normed_.at(first_row), hidden = hidden_.at(first_row), wide = wide_.at(first_row);
  QUIRE_TRY(backend_.matmul(exec, x, n, own.o ? *own.o : *w.o, (own.o ? own.o_bias : w.o_bias).get(), true, hidden));
  QUIRE_TRY(backend_.rms_norm(exec, hidden, *w.mlp_norm, config_.rms_norm_eps, n, config_.hidden_size, x));
  QUIRE_TRY(backend_.matmul(exec, x, n, own.gate_up ? *own.gate_up : *w.gate_up,
                            (own.gate_up ? own.gate_up_bias : w.gate_up_bias).get(), false, wide));
  QUIRE_TRY(backend_.swiglu(exec, wide, n, config_.intermediate_size, wide));
  return backend_.matmul(exec, wide, n, own.down ? *own.down : *w.down, (own.down ? own.down_bias : w.down_bias).get(),
                         true, hidden);
}

}  // namespace quire
