#include "lib/model/adapter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lib/model/llama_model.h"
#include "lib/model/weight_layout.h"

namespace quire {
Result<AdapterList> AdapterList::make(std::vector<Entry> entries) {
  std::map<std::string, size_t> replaced;
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const std::string& weight : entries[i].adapter->replaced) {
      const auto [first, is_new] = replaced.emplace(weight, i);
      if (is_new) continue;
      return Status(Code::kInvalidArgument, "adapters[" + std::to_string(first->second) + "] and adapters[" +
                                                std::to_string(i) + "] both replace " + weight +
                                                "; at most one of a session's adapters may");
    }
  }
  AdapterList list;
  list.entries_ = std::move(entries);
  return list;
}

int64_t AdapterList::max_rank() const {
  int64_t most = 0;
  for (const Entry& e : entries_) most = std::max(most, e.adapter->max_rank);
  return most;
}

const Table& AdapterList::embedding(const LlamaWeights& weights) const {
  for (const Entry& e : entries_) {
    if (e.adapter->embedding) return *e.adapter->embedding;
  }
  return *weights.embedding;
}

const Matrix& AdapterList::lm_head(const LlamaWeights& weights) const {
  for (const Entry& e : entries_) {
    if (e.adapter->lm_head) return *e.adapter->lm_head;
  }
  return *weights.lm_head;
}

const Buffer& AdapterList::final_norm(const LlamaWeights& weights) const {
  for (const Entry& e : entries_) {
    if (e.adapter->final_norm) return *e.adapter->final_norm;
  }
  return *weights.final_norm;
}

const Buffer& AdapterList::norm(int layer, LayerNorm which, const Buffer& own) const {
  for (const Entry& e : entries_) {
    const auto& norm = e.adapter->layers[static_cast<size_t>(layer)].norms[static_cast<size_t>(which)];
    if (norm) return *norm;
  }
  return own;
}

AdapterLoader::AdapterLoader(Backend& backend, std::string directory, const ModelConfig& config,
                             const LlamaWeights& weights, LoadControl control)
    : backend_(backend),
      directory_(std::move(directory)),
      config_(config),
      weights_(weights),
      control_(std::move(control)),
      pieces_(backend, control_) {}

void AdapterLoader::count(size_t bytes, int64_t n_parameters) {
  adapter_->bytes += static_cast<int64_t>(bytes);
  adapter_->n_parameters += n_parameters;
  ++adapter_->n_tensors;
}

void AdapterLoader::advance(int64_t bytes) {
  done_ += bytes;
  if (control_.progress) control_.progress(done_, total_);
}

void AdapterLoader::advance(const std::string& tensor) {
  const TensorInfo& info = *files_->tensors().find(tensor);
  advance(info.end - info.begin);
}

Status AdapterLoader::open() {
  QUIRE_ASSIGN(files_, AdapterFiles::open(directory_, config_, TensorFiles::Access::kRead));
  adapter_ = std::make_unique<Adapter>();
  adapter_->layers.resize(static_cast<size_t>(config_.n_layers));
  adapter_->base_model = files_->config().base_model;
  adapter_->changes_queries_or_keys = files_->changes().changes_queries_or_keys();
  total_ = files_->tensor_file_bytes();
  for (const auto& [name, info] : files_->tensors().tensors()) total_ += info.end - info.begin;
  QUIRE_ASSIGN(adapter_->identity, files_->identity(control_.cancel, [this](int64_t bytes) { advance(bytes); }));
  return {};
}

Result<const std::string*> AdapterLoader::replacement(const std::string& weight) const {
  const std::string* tensor = files_->changes().replacement(weight);
  if (!tensor || !files_->changes().is_base_copy(weight)) return tensor;
  const bool tied = weight == kHeadWeight && config_.tie_word_embeddings;
  const auto own = weights_.tensor_hashes.find(tied ? kEmbeddingWeight : weight);
  QUIRE_ASSIGN(const std::string copy, files_->tensors().content_hash(*tensor, control_.cancel));
  return own != weights_.tensor_hashes.end() && own->second == copy ? nullptr : tensor;
}

Status AdapterLoader::load_matrix(const std::string& tensor, int64_t rows, int64_t columns,
                                  std::unique_ptr<Matrix>& matrix, const RowOrder& order) {
  QUIRE_ASSIGN(const auto view, files_->tensors().view(tensor, std::array{rows, columns}));
  const std::array parts{MatrixPart{rows, view.type}};
  QUIRE_ASSIGN(matrix, pieces_.with_room(backend_.matrix_bytes(parts, columns),
                                         [&] { return backend_.create_matrix(parts, columns); }));
  QUIRE_TRY(pieces_.load_rows(source(tensor), rows, {}, order, *matrix, 0));
  count(matrix->bytes, rows * columns);
  advance(tensor);
  return {};
}

Status AdapterLoader::load_norm(const WeightParts& layout, std::unique_ptr<Buffer>& norm) {
  if (layout.parts.empty()) return {};
  const std::string* tensor = files_->changes().replacement(layout.parts[0].name);
  if (!tensor) return {};
  std::vector<float> values;
  QUIRE_TRY(pieces_.read_values(source(*tensor), std::array{layout.rows()}, values));
  layout.finish(values, false);
  QUIRE_ASSIGN(norm, pieces_.load_buffer(std::move(values)));
  adapter_->replaced.push_back(layout.parts[0].name);
  adapter_->replaces_norms = true;
  count(norm->size(), layout.rows());
  advance(*tensor);
  return {};
}

Status AdapterLoader::load_low_rank(const std::string& weight, LowRank& change, const RowOrder& order) {
  const LowRankTensors* tensors = files_->changes().low_rank(weight);
  if (!tensors) return {};
  QUIRE_TRY(load_matrix(tensors->a, tensors->rank, tensors->in, change.a));
  QUIRE_TRY(load_matrix(tensors->b, tensors->out, tensors->rank, change.b, order));
  change.scale = tensors->scale;
  adapter_->max_rank = std::max(adapter_->max_rank, tensors->rank);
  return {};
}

// A is looked up by token: its columns become rows.
Status AdapterLoader::load_embedding_change(const std::string& weight) {
  const LowRankTensors* tensors = files_->changes().low_rank(weight);
  if (!tensors) return {};
  const int64_t rank = tensors->rank, vocab = tensors->in;
  QUIRE_ASSIGN(const std::vector<float> a, files_->read(tensors->a, std::array{rank, vocab}, control_.cancel));
  QUIRE_ASSIGN(std::shared_ptr<Buffer> rows, backend_.allocate(a.size() * sizeof(float), MemoryKind::kStaging));
  auto* values = static_cast<float*>(rows->host());
  for (int64_t r = 0; r < rank; ++r) {
    for (int64_t v = 0; v < vocab; ++v) values[v * rank + r] = a[static_cast<size_t>(r * vocab + v)];
  }
  QUIRE_ASSIGN(adapter_->embedding_a, backend_.create_table(vocab, rank, ElementType::kF32, values, rows));
  count(adapter_->embedding_a->bytes, rank * vocab);
  advance(tensors->a);
  QUIRE_TRY(load_matrix(tensors->b, tensors->out, rank, adapter_->embedding_change.b));
  adapter_->embedding_change.scale = tensors->scale;
  adapter_->max_rank = std::max(adapter_->max_rank, rank);
  return {};
}

Status AdapterLoader::load_embedding() {
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  QUIRE_ASSIGN(const std::string* const tensor, replacement(kEmbeddingWeight));
  if (tensor) {
    QUIRE_ASSIGN(adapter_->embedding, pieces_.load_table(source(*tensor), vocab, hidden, {}));
    adapter_->replaced.emplace_back(kEmbeddingWeight);
    count(adapter_->embedding->bytes, vocab * hidden);
    advance(*tensor);
  }
  return load_embedding_change(kEmbeddingWeight);
}

Status AdapterLoader::load_head() {
  QUIRE_ASSIGN(const std::string* const tensor, replacement(kHeadWeight));
  if (tensor) {
    QUIRE_TRY(load_matrix(*tensor, config_.vocab_size, config_.hidden_size, adapter_->lm_head));
    adapter_->replaced.emplace_back(kHeadWeight);
  }
  QUIRE_TRY(load_low_rank(kHeadWeight, adapter_->head_change));
  return load_norm(weight_layout(config_).final_norm, adapter_->final_norm);
}

Status AdapterLoader::load_layer(int layer) {
  const LayerLayout layout = layer_layout(config_, layer);
  AdapterLayer& target = adapter_->layers[static_cast<size_t>(layer)];
  // The parts of a matrix come in the order of Projection. A change of a fused one is kept as that of its first part,
  // whose column is the matrix's own.
  const std::pair<const WeightParts*, Projection> matrices[] = {{&layout.qkv, Projection::kQ},
                                                                {&layout.o, Projection::kO},
                                                                {&layout.gate_up, Projection::kGate},
                                                                {&layout.down, Projection::kDown}};
  for (const auto& [matrix, first] : matrices) {
    auto projection = static_cast<size_t>(first);
    for (const WeightPart& part : matrix->parts) {
      QUIRE_TRY(load_low_rank(part.name, target.projections[projection++], part.order));
    }
  }
  const auto norms = layout.norms();
  for (size_t norm = 0; norm < norms.size(); ++norm) QUIRE_TRY(load_norm(*norms[norm], target.norms[norm]));
  return {};
}

Result<std::unique_ptr<Adapter>> AdapterLoader::load() {
  QUIRE_TRY(pieces_.poll());
  QUIRE_TRY(open());
  QUIRE_TRY(load_embedding());
  QUIRE_TRY(load_head());
  for (int layer = 0; layer < config_.n_layers; ++layer) QUIRE_TRY(load_layer(layer));
  QUIRE_TRY(pieces_.finish());
  advance(total_ - done_);  // copies of the model's own tensors
  return std::move(adapter_);
}

}  // namespace quire
