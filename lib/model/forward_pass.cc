#include "lib/model/forward_pass.h"

#include <algorithm>
#include <tuple>

namespace quire {
namespace {

// Rows of logits or hidden states read at a time: bounds the memory of scoring a long block.
constexpr int64_t kReadRows = 32;

// Whatever fails, an exception included: destroys the queue, so that nothing works on what the caller may free now.
class DropQueue {
 public:
  explicit DropQueue(std::unique_ptr<Queue>& queue) : queue_(&queue) {}
  ~DropQueue() {
    if (queue_) queue_->reset();
  }
  DropQueue(const DropQueue&) = delete;
  DropQueue& operator=(const DropQueue&) = delete;
  void keep() { queue_ = nullptr; }

 private:
  std::unique_ptr<Queue>* queue_;
};

Status nothing_to_read() { return Status(Code::kInternal, "the forward pass failed; there is nothing to read"); }

}  // namespace

std::vector<int64_t> consecutive(int64_t begin, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t c = begin; c < end; ++c) all.push_back(c);
  return all;
}

// ---- memory

// Row widths of hidden_, normed_ and wide_.
std::array<int64_t, 3> ForwardPass::widths(const ModelConfig& config) {
  const int64_t heads = int64_t{config.n_query_heads} * config.head_dim;
  const int64_t kv = int64_t{config.n_kv_heads} * config.head_dim;
  const int64_t block = config.sandwich_norms ? config.hidden_size : 0;  // what attention gives, before its norm
  return {config.hidden_size, std::max<int64_t>(config.hidden_size, heads),
          std::max({heads + 2 * kv, 2 * int64_t{config.intermediate_size}, block})};
}

size_t ForwardPass::activation_bytes(const Backend& backend, const ModelConfig& config, int64_t n) {
  const auto [hidden, narrow, wide] = widths(config);
  return row_bytes(backend.residual_type(), n * hidden) + row_bytes(backend.row_type(), n * (narrow + wide));
}

int64_t ForwardPass::scratch_bytes() const {
  const auto size = [](const std::unique_ptr<Buffer>& b) { return b ? static_cast<int64_t>(b->size()) : 0; };
  int64_t by_sequence = 0;
  for (const ChosenChunks& c : chosen_) by_sequence += size(c.buffer);
  for (const Peaks& p : peaks_) by_sequence += size(p.shares) + size(p.peaks);
  return size(scratch_) + size(ids_) + size(read_scratch_) + size(ranked_) + by_sequence + size(state_) +
         size(low_rank_) + backend_.workspace_bytes();
}

Status ForwardPass::require(std::unique_ptr<Buffer>& buffer, size_t bytes, MemoryKind kind) {
  if (buffer && buffer->size() >= bytes) return {};
  if (buffer) {
    QUIRE_TRY(finish_queue(backend_, *queue_));
    buffer.reset();
  }
  QUIRE_ASSIGN(buffer, backend_.allocate(bytes, kind));
  return {};
}

Status ForwardPass::prepare_scratch(int64_t n) {
  if (n <= scratch_rows_) return {};
  const auto [hidden, narrow, wide] = widths(config_);
  const ElementType type = backend_.row_type(), residual = backend_.residual_type();
  const auto before = static_cast<int64_t>(row_bytes(residual, n * hidden) / element_bytes(type));  // of hidden_
  scratch_rows_ = 0;
  QUIRE_TRY(require(scratch_, activation_bytes(backend_, config_, n)));
  QUIRE_TRY(require(ids_, static_cast<size_t>(n) * sizeof(int32_t)));
  scratch_rows_ = n;
  hidden_ = {scratch_.get(), 0, hidden, residual};
  normed_ = {scratch_.get(), before, narrow, type};
  wide_ = {scratch_.get(), before + n * narrow, wide, type};
  return {};
}

// ---- the pass

// The rows of all sequences, and behind them those of the beacon tokens where a sequence completes a window.
void ForwardPass::plan_rows(std::span<const Sequence> sequences) {
  texts_.clear();
  beacons_.clear();
  host_ids_.clear();
  int64_t row = 0;
  int index = 0;
  for (const Sequence& s : sequences) {
    SequenceRows rows{&s, index++, std::make_shared<Plan>(), nullptr, KvKind::kText, row, s.n(), s.first_position};
    if (s.generated) {
      s.strategy->plan_generated(s.first_position, rows.n, *rows.plan);
    } else {
      s.strategy->plan(s.first_position, rows.n, *rows.plan);
    }
    rows.plan->sticky = s.sticky;
    if (const Strategy* windowed = s.strategy->window_layers()) {
      rows.window_plan = std::make_shared<Plan>();
      windowed->plan(s.first_position, rows.n, *rows.window_plan);
    }
    if (s.positions && !s.positions->consecutive()) {
      s.positions->apply(*rows.plan);
      if (rows.window_plan) s.positions->apply(*rows.window_plan);
    }
    host_ids_.insert(host_ids_.end(), s.tokens.begin(), s.tokens.end());
    row += rows.n;
    texts_.push_back(std::move(rows));
  }
  n_tokens_ = row;
  for (const Sequence& s : sequences) {
    const int64_t end = s.first_position + s.n();
    const int64_t first = s.strategy->condensed_entries(s.first_position);
    const int64_t n = s.strategy->condensed_entries(end) - first;
    if (n == 0) continue;
    beacons_.push_back({&s, index++, std::make_shared<Plan>(), nullptr, KvKind::kCondensed, row, n, first});
    s.strategy->plan_condensed(end, *beacons_.back().plan);
    row += n;
  }
  n_beacons_ = row - n_tokens_;
  host_ids_.resize(static_cast<size_t>(row), 0);  // beacons: the only row of their table
}

int ForwardPass::methods_before(const SequenceRows& rows, int layer) const {
  int n = 0;
  for (int before = 0; before < layer; ++before) n += has_method(rows, before) ? 1 : 0;
  return n;
}

// Of each kind of layer that the model has. The last pass is done: what it held of the device serves this one, at the
// same addresses.
Status ForwardPass::prepare_steps(Exec exec) {
  for (auto& step : steps_) step.reset();
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    const LayerKind kind = kind_of(layer);
    if (steps_[kind.index()]) continue;
    QUIRE_ASSIGN(steps_[kind.index()], prepare_step(exec, kind));
  }
  return {};
}

// In layers without RoPE plans say who sees whom and scale queries by their index, but queries and keys are not turned,
// so that YaRN's factor, which comes with turning, is missing too (as in transformers).
Result<std::unique_ptr<PreparedStep>> ForwardPass::prepare_step(Exec exec, LayerKind kind) {
  std::vector<StepSequence> sequences;
  for (const auto* all : {&texts_, &beacons_}) {
    for (const SequenceRows& rows : *all) {
      const Strategy& strategy = *rows.sequence->strategy;
      const bool windowed = kind.windowed && strategy.window_layers();
      const RopeTable& rotation = windowed ? strategy.window_layers()->rope() : strategy.rope();
      sequences.push_back({.plan = plan_of(rows, kind),
                           .n = rows.n,
                           .first_key = rows.first_key,
                           .rope = rows.sequence->ropes->of(kind.rotates, kind.windowed),
                           .stored_div = strategy.stored_div(),
                           .old = old_text(rows, kind.windowed),
                           .geometry = rows.kv().geometry(),
                           .scale = model_.logit_scale(kind.rotates ? rotation.attention_factor : 1)});
    }
  }
  return backend_.prepare_step(exec, config_.n_query_heads, sequences);
}

// Of queries and of keys in rows of projections, still without the runs of their weights.
std::pair<HeadNormArgs, HeadNormArgs> ForwardPass::head_norm_args(Rows projected) const {
  const int64_t d = config_.head_dim;
  return {HeadNormArgs{projected, {}, config_.rms_norm_eps, config_.n_query_heads, d},
          HeadNormArgs{projected.column(config_.n_query_heads * d), {}, config_.rms_norm_eps, config_.n_kv_heads, d}};
}

// YaRN's factor on logits comes with turning: what is not turned of a head goes without it (as in transformers). The
// scale of all logits has the factor (prepare_step); here that part of the queries loses it again.
UnrotatedScaleArgs ForwardPass::query_scale_args(std::span<const Sequence> sequences, int layer) {
  query_scales_.clear();
  if (config_.rotary_dim == config_.head_dim || config_.is_nope_layer(layer)) return {};
  for (const Sequence& s : sequences) {
    const double factor = s.strategy->rope().attention_factor;
    query_scales_.push_back({s.n(), static_cast<float>(1 / (factor * factor))});
  }
  return {.x = wide_, .runs = query_scales_, .shape = {config_.n_query_heads, config_.head_dim, config_.rotary_dim}};
}

Status ForwardPass::embed(Exec exec, std::span<const Sequence> sequences) {
  QUIRE_TRY(backend_.upload(*queue_, host_ids_.data(), *ids_, 0, host_ids_.size() * sizeof(int32_t)));
  const float scale = config_.hidden_embedding_scale();
  int64_t row = 0;
  for (const Sequence& s : sequences) {
    const Table& table = s.adapters ? s.adapters->embedding(weights_) : *weights_.embedding;
    QUIRE_TRY(backend_.embed(exec, table, *ids_, row, s.n(), scale, hidden_.at(row)));
    QUIRE_TRY(embed_changes(exec, s, row));
    row += s.n();
  }
  if (n_beacons_ == 0) return {};
  return backend_.embed(exec, *weights_.beacon->embedding, *ids_, n_tokens_, n_beacons_, scale, hidden_.at(n_tokens_));
}

Result<HiddenStates> ForwardPass::forward(std::span<const Sequence> sequences, const CancelToken* cancel) {
  if (!queue_) {
    QUIRE_ASSIGN(queue_, backend_.create_queue());
  }
  DropQueue drop(queue_);
  // Behind the layers.
  std::shared_ptr<const Fence> fence;
  struct Release {  // however it ends, nothing is queued on their records any more
    std::span<const Sequence> sequences;
    Queue& queue;
    const std::shared_ptr<const Fence>& fence;
    ~Release() {
      for (const Sequence& s : sequences) {
        if (fence) {
          s.kv->release(fence);
        } else {
          s.kv->release(queue);
        }
      }
    }
  };
  {
    const Release release{sequences, *queue_, fence};
    QUIRE_TRY(run(sequences, {*queue_, cancel}));
    QUIRE_ASSIGN(fence, backend_.record(*queue_));
  }
  std::vector<HiddenStates::AdapterRun> adapters;
  int64_t row = 0;
  for (const Sequence& s : sequences) {
    row += s.n();
    if (!adapters.empty() && adapters.back().second == s.adapters) {
      adapters.back().first = row;
    } else {
      adapters.emplace_back(row, s.adapters);
    }
  }
  HiddenStates states(hidden_, std::move(adapters));
  for (const SequenceRows& rows : texts_) {
    const ChosenChunks& own = chosen_[static_cast<size_t>(rows.index)];
    if (!own.keeps) continue;
    states.count_later(counts_of(rows), own.picks(), chooses_once(rows) ? 0 : own.n_picks,
                       methods_before(rows, config_.n_layers));
  }
  states.end_with(std::move(fence));
  drop.keep();
  return states;
}

Status ForwardPass::run(std::span<const Sequence> sequences, Exec exec) {
  plan_rows(sequences);
  for (const Sequence& s : sequences) s.kv->pin_all();
  QUIRE_TRY(prepare_scratch(n_tokens_ + n_beacons_));
  QUIRE_TRY(prepare_adapters(sequences));
  QUIRE_TRY(prepare_steps(exec));
  QUIRE_TRY(embed(exec, sequences));
  QUIRE_TRY(prepare_choices());
  QUIRE_TRY(prepare_peaks());
  for (int layer = 0; layer < config_.n_layers; ++layer) QUIRE_TRY(run_layer(exec, sequences, layer));
  QUIRE_TRY(download_choices());
  return download_peaks();
}

std::vector<int64_t> ForwardPass::own_chunks(const SequenceRows& rows) const {
  const int64_t chunk = rows.kv().geometry().chunk;
  return consecutive(rows.first_key / chunk, ceil_div(rows.first_key + rows.n, chunk));
}

StoreKvArgs ForwardPass::store_args(const SequenceRows& rows, int layer) const {
  const int64_t d = config_.head_dim;
  return {.sequence = rows.index,
          .keys = wide_.at(rows.row).column(config_.n_query_heads * d),
          .values = wide_.at(rows.row).column((config_.n_query_heads + config_.n_kv_heads) * d),
          .records = rows.kv().layer(layer, rows.kind)};
}

// What a block gives is added to the hidden states, or stands in `between` until its norm has been added instead.
void ForwardPass::write_block(LinearArgs& block, Rows between) const {
  block.write = config_.sandwich_norms ? Write::kSet : Write::kAdd;
  block.y = config_.sandwich_norms ? between : hidden_;
}

Status ForwardPass::run_layer(Exec exec, std::span<const Sequence> sequences, int layer) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const int64_t d = config_.head_dim;

  std::vector<StoreKvArgs> stores;
  for (const SequenceRows& rows : texts_) {
    QUIRE_TRY(rows.kv().acquire(exec.queue, layer, own_chunks(rows), Access::kWrite));
    stores.push_back(store_args(rows, layer));
  }
  const ProjectionColumn qkv[] = {{Projection::kQ, 0},
                                  {Projection::kK, config_.n_query_heads * d},
                                  {Projection::kV, (config_.n_query_heads + config_.n_kv_heads) * d}};
  ProjectQkvArgs project;
  project.norm = norm_args(sequences, layer, LayerNorm::kAttention, *w.attention_norm);
  project.qkv = linear_args(sequences, layer, qkv, terms_);
  project.qkv.x = normed_;
  project.qkv.matrix = w.qkv.get();
  project.qkv.bias = w.qkv_bias.get();
  project.qkv.y = wide_;
  if (config_.qk_norm) {
    std::tie(project.query_norm, project.key_norm) = head_norm_args(wide_);
    project.query_norm.runs = norm_runs(sequences, layer, LayerNorm::kQuery, *w.q_norm);
    project.key_norm.runs = norm_runs(sequences, layer, LayerNorm::kKey, *w.k_norm);
  }
  project.query_scale = query_scale_args(sequences, layer);
  project.stores = stores;
  QUIRE_TRY(backend_.project_qkv(exec, step(layer), project));
  QUIRE_TRY(project_beacons(exec, layer));

  for (const SequenceRows& rows : texts_) {
    if (!rows.sequence->strategy->selects_chunks()) continue;
    if (has_method(rows, layer)) QUIRE_TRY(represent_complete_chunks(exec, rows, layer));
    QUIRE_TRY(select(exec, rows, layer));
  }
  for (const SequenceRows& rows : texts_) QUIRE_TRY(narrow_chunks(exec, rows, layer));
  QUIRE_TRY(attend(exec, texts_, layer));
  QUIRE_TRY(keep_peaks(exec, layer));
  QUIRE_TRY(attend_beacons(exec, layer));

  const ProjectionColumn o[] = {{Projection::kO}};
  LinearArgs output = linear_args(sequences, layer, o, terms_);
  output.x = normed_;
  output.matrix = w.o.get();
  output.bias = w.o_bias.get();
  write_block(output, wide_);
  QUIRE_TRY(backend_.linear(exec, output));
  QUIRE_TRY(backend_.norm(
      exec, block_norm_args(sequences, layer, LayerNorm::kAttentionOutput, w.attention_output_norm, wide_)));

  const ProjectionColumn gate_up[] = {{Projection::kGate, 0}, {Projection::kUp, config_.intermediate_size}};
  const ProjectionColumn down[] = {{Projection::kDown}};
  MlpArgs mlp{norm_args(sequences, layer, LayerNorm::kMlp, *w.mlp_norm),
              linear_args(sequences, layer, gate_up, terms_),
              config_.intermediate_size,
              linear_args(sequences, layer, down, down_terms_),
              block_norm_args(sequences, layer, LayerNorm::kMlpOutput, w.mlp_output_norm, normed_),
              config_.activation};
  mlp.gate_up.x = normed_;
  mlp.gate_up.matrix = w.gate_up.get();
  mlp.gate_up.bias = w.gate_up_bias.get();
  mlp.gate_up.y = wide_;
  mlp.down.x = wide_;
  mlp.down.matrix = w.down.get();
  mlp.down.bias = w.down_bias.get();
  write_block(mlp.down, normed_);
  QUIRE_TRY(backend_.mlp(exec, mlp));
  return finish_beacons(exec, layer);
}

// ---- logits

template <typename Make>
Status ForwardPass::read_rows(const HiddenStates& states, int64_t first_row, int64_t n_rows, int64_t width,
                              const CancelToken* cancel, float* out, const Make& make) {
  if (!queue_) return nothing_to_read();
  DropQueue drop(queue_);
  const int64_t tile = std::min(kReadRows, n_rows);
  QUIRE_TRY(require(read_scratch_, static_cast<size_t>(tile * width) * sizeof(float)));
  const Exec exec{*queue_, cancel};
  int64_t n = 0;
  for (int64_t row = 0; row < n_rows; row += n) {
    const auto [end, adapters] = states.adapters_from(first_row + row);
    n = std::min({tile, n_rows - row, end - first_row - row});
    QUIRE_TRY(make(exec, adapters, states.rows().at(first_row + row), n, Rows{read_scratch_.get(), 0, width}));
    QUIRE_TRY(backend_.download(*queue_, *read_scratch_, 0, out + row * width,
                                static_cast<size_t>(n * width) * sizeof(float)));
  }
  QUIRE_TRY(finish_queue(backend_, *queue_));
  drop.keep();
  return {};
}

Status ForwardPass::logits(const HiddenStates& states, int64_t first_row, int64_t n_rows, const CancelToken* cancel,
                           float* out) {
  return read_rows(states, first_row, n_rows, config_.vocab_size, cancel, out,
                   [&](Exec exec, const AdapterList* adapters, Rows hidden, int64_t n, Rows to) {
                     return head(exec, adapters, hidden, n, to);
                   });
}

Status ForwardPass::finish(HiddenStates& states) {
  if (!queue_) return nothing_to_read();
  DropQueue drop(queue_);
  QUIRE_TRY(states.wait());
  drop.keep();
  return {};
}

Status ForwardPass::queue_logits(HiddenStates& states, int64_t first_row, std::span<const LogitsWanted> rows,
                                 int64_t n_ranked, const CancelToken* cancel) {
  if (!queue_) return nothing_to_read();
  const int64_t vocab = config_.vocab_size, n = std::ssize(rows);
  const RankedRows layout{n, n_ranked};
  DropQueue drop(queue_);
  const Exec exec{*queue_, cancel};
  QUIRE_TRY(require(read_scratch_, static_cast<size_t>(n * vocab) * sizeof(float)));
  const Rows all{read_scratch_.get(), 0, vocab};
  for (int64_t row = 0, end = 0; row < n; row = end) {
    const auto [run_end, adapters] = states.adapters_from(first_row + row);
    end = std::min(n, run_end - first_row);
    QUIRE_TRY(head(exec, adapters, states.rows().at(first_row + row), end - row, all.at(row)));
  }
  if (n_ranked > 0) {
    QUIRE_TRY(require(ranked_, layout.bytes()));
    QUIRE_TRY(require(ranked_on_host_, layout.bytes(), MemoryKind::kStaging));
    QUIRE_TRY(backend_.rank_logits(exec, all, n, vocab, n_ranked, *ranked_));
    QUIRE_TRY(backend_.download(*queue_, *ranked_, 0, ranked_on_host_->host(), layout.bytes()));
  }
  const auto n_on_host = std::ranges::count_if(rows, [](const LogitsWanted& row) { return row.on_host != nullptr; });
  if (n_on_host > 0) {
    QUIRE_TRY(require(logits_on_host_, static_cast<size_t>(n_on_host * vocab) * sizeof(float), MemoryKind::kStaging));
  }
  float* to = n_on_host > 0 ? static_cast<float*>(logits_on_host_->host()) : nullptr;
  states.deliver_later(rows, vocab, to, layout,
                       n_ranked > 0 ? static_cast<const std::byte*>(ranked_on_host_->host()) : nullptr);
  for (int64_t row = 0; row < n; ++row) {
    LogitsWanted copied = rows[static_cast<size_t>(row)];
    if (copied.on_host) copied.on_host = std::exchange(to, to + vocab);
    QUIRE_TRY(copy_logits(exec, row, copied));
  }
  QUIRE_ASSIGN(auto fence, backend_.record(*queue_));
  states.end_with(std::move(fence));
  drop.keep();
  return {};
}

Status ForwardPass::copy_logits(int64_t row, const LogitsWanted& wanted) {
  if (!queue_) return nothing_to_read();
  DropQueue drop(queue_);
  QUIRE_TRY(copy_logits({*queue_}, row, wanted));
  QUIRE_TRY(finish_queue(backend_, *queue_));
  drop.keep();
  return {};
}

Status ForwardPass::copy_logits(Exec exec, int64_t row, const LogitsWanted& wanted) {
  const int64_t vocab = config_.vocab_size;
  if (wanted.copy) {
    const Rows from{read_scratch_.get(), row * vocab, vocab};
    QUIRE_TRY(backend_.copy_rows(exec, from, 1, vocab, {wanted.copy, 0, vocab}));
  }
  if (!wanted.on_host) return {};
  const size_t bytes = static_cast<size_t>(vocab) * sizeof(float);
  return backend_.download(exec.queue, *read_scratch_, static_cast<size_t>(row) * bytes, wanted.on_host, bytes);
}

Status ForwardPass::normalised(const HiddenStates& states, int64_t first_row, int64_t n_rows, const CancelToken* cancel,
                               float* out) {
  QUIRE_TRY(read_rows(states, first_row, n_rows, config_.hidden_size, cancel, out,
                      [&](Exec exec, const AdapterList* adapters, Rows hidden, int64_t n, Rows to) {
                        return backend_.rms_norm(exec, hidden, final_norm(adapters), config_.hidden_norm_eps(), n,
                                                 config_.hidden_size, Write::kSet, to);
                      }));
  // The norm's weights were divided by the scaling of the logits when they were loaded (weight_layout).
  if (config_.logits_scaling == 1) return {};
  const auto scaling = static_cast<float>(config_.logits_scaling);
  for (float& value : std::span(out, static_cast<size_t>(n_rows * config_.hidden_size))) value *= scaling;
  return {};
}

}  // namespace quire
