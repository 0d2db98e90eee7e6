#include "lib/model/adapter.h"

#include <algorithm>
#include <utility>

#include "lib/model/llama_model.h"
#include "lib/model/weight_layout.h"

namespace quire {
namespace {

constexpr int64_t kHashedInAStep = int64_t{8} << 20;  // bytes: a few milliseconds between the steps of sessions

// Calls use(weight) for each tensor of the model that the adapter replaces.
template <typename Use>
void for_replaced(const Adapter& adapter, const Use& use) {
  if (adapter.embedding) use(kEmbeddingWeight);
  if (adapter.lm_head) use(kHeadWeight);
  if (adapter.final_norm) use(std::string("model.norm.weight"));
  for (size_t i = 0; i < adapter.layers.size(); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    if (adapter.layers[i].attention_norm) use(prefix + "input_layernorm.weight");
    if (adapter.layers[i].mlp_norm) use(prefix + "post_attention_layernorm.weight");
  }
}

}  // namespace

Result<AdapterList> AdapterList::make(std::vector<Entry> entries) {
  std::map<std::string, size_t> replaced;
  Status status;
  for (size_t i = 0; i < entries.size(); ++i) {
    for_replaced(*entries[i].adapter, [&](const std::string& weight) {
      const auto [first, is_new] = replaced.emplace(weight, i);
      if (is_new || !status.ok()) return;
      status = Status(Code::kInvalidArgument, "adapters[" + std::to_string(first->second) + "] and adapters[" +
                                                  std::to_string(i) + "] both replace " + weight +
                                                  "; at most one of a session's adapters may");
    });
  }
  if (!status.ok()) return status;
  AdapterList list;
  list.entries_ = std::move(entries);
  return list;
}

int64_t AdapterList::max_rank() const {
  int64_t most = 0;
  for (const Entry& e : entries_) most = std::max(most, e.adapter->max_rank);
  return most;
}

bool AdapterList::replaces_norms() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.adapter->replaces_norms; });
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

const Buffer& AdapterList::attention_norm(const LlamaWeights& weights, int layer) const {
  const auto index = static_cast<size_t>(layer);
  for (const Entry& e : entries_) {
    if (const auto& norm = e.adapter->layers[index].attention_norm) return *norm;
  }
  return *weights.layers[index].attention_norm;
}

const Buffer& AdapterList::mlp_norm(const LlamaWeights& weights, int layer) const {
  const auto index = static_cast<size_t>(layer);
  for (const Entry& e : entries_) {
    if (const auto& norm = e.adapter->layers[index].mlp_norm) return *norm;
  }
  return *weights.layers[index].mlp_norm;
}

AdapterLoader::AdapterLoader(Backend& backend, std::string directory, const ModelConfig& config,
                             const LlamaWeights& weights, Options options)
    : backend_(backend),
      directory_(std::move(directory)),
      config_(config),
      weights_(weights),
      options_(std::move(options)) {}

void AdapterLoader::count(size_t bytes, int64_t n_parameters) {
  adapter_->bytes += static_cast<int64_t>(bytes);
  adapter_->n_parameters += n_parameters;
  ++adapter_->n_tensors;
}

void AdapterLoader::advance(int64_t bytes) {
  done_ += bytes;
  if (options_.progress) options_.progress(done_, total_);
}

void AdapterLoader::advance(const std::string& tensor) {
  const TensorInfo& info = *files_->tensors().find(tensor);
  advance(info.end - info.begin);
}

Status AdapterLoader::open() {
  QUIRE_ASSIGN(files_, AdapterFiles::open(directory_, config_, TensorFiles::Access::kRead));
  QUIRE_ASSIGN(stream_, backend_.create_stream());
  adapter_ = std::make_unique<Adapter>();
  adapter_->layers.resize(static_cast<size_t>(config_.n_layers));
  adapter_->base_model = files_->config().base_model;
  adapter_->changes_queries_or_keys = files_->changes_queries_or_keys();
  QUIRE_ASSIGN(identity_, files_->start_identity());
  total_ = identity_->bytes();
  for (const std::string& name : files_->tensors().names()) {
    const TensorInfo& info = *files_->tensors().find(name);
    total_ += info.end - info.begin;
  }
  return {};
}

Status AdapterLoader::hash() {
  QUIRE_ASSIGN(const int64_t n, identity_->read(kHashedInAStep));
  if (identity_->complete()) {
    adapter_->identity = identity_->hex();
    identity_.reset();
  }
  advance(n);
  return {};
}

const std::string* AdapterLoader::replacement(const std::string& weight) const {
  const std::string* tensor = files_->replacement(weight);
  if (!tensor || !files_->is_base_copy(weight)) return tensor;
  const bool tied = weight == kHeadWeight && config_.tie_word_embeddings;
  const auto own = weights_.tensor_hashes.find(tied ? kEmbeddingWeight : weight);
  const auto copy = files_->tensors().content_hash(*tensor);
  return copy.ok() && own != weights_.tensor_hashes.end() && own->second == copy.value() ? nullptr : tensor;
}

Result<std::unique_ptr<Matrix>> AdapterLoader::load_matrix(const std::string& tensor, int64_t rows, int64_t columns) {
  QUIRE_ASSIGN(const auto view, files_->tensors().view(tensor, std::array{rows, columns}));
  std::vector<std::byte> raw(static_cast<size_t>(view.bytes));
  QUIRE_TRY(files_->tensors().read(tensor, 0, raw));
  QUIRE_ASSIGN(auto matrix, backend_.create_matrix(rows, columns, view.type));
  QUIRE_TRY(backend_.load_rows(*matrix, view.type, raw.data(), 0, rows));
  count(matrix->bytes, rows * columns);
  advance(tensor);
  return matrix;
}

Status AdapterLoader::load_norm(const std::string& weight, std::unique_ptr<Buffer>& norm) {
  const std::string* tensor = files_->replacement(weight);
  if (!tensor) return {};
  const int64_t width = config_.hidden_size;
  QUIRE_ASSIGN(const std::vector<float> values, files_->read(*tensor, std::array{width}));
  const size_t bytes = values.size() * sizeof(float);
  QUIRE_ASSIGN(norm, backend_.allocate(bytes, MemoryKind::kDevice));
  QUIRE_TRY(backend_.upload(*stream_, values.data(), *norm, 0, bytes));
  QUIRE_TRY(backend_.synchronize(*stream_));
  adapter_->replaces_norms = true;
  count(bytes, width);
  advance(*tensor);
  return {};
}

Status AdapterLoader::load_low_rank(const std::string& weight, LowRank& change) {
  const LowRankTensors* tensors = files_->low_rank(weight);
  if (!tensors) return {};
  QUIRE_ASSIGN(change.a, load_matrix(tensors->a, tensors->rank, tensors->in));
  QUIRE_ASSIGN(change.b, load_matrix(tensors->b, tensors->out, tensors->rank));
  change.scale = tensors->scale;
  adapter_->max_rank = std::max(adapter_->max_rank, tensors->rank);
  return {};
}

Status AdapterLoader::load_embedding_change(const std::string& weight) {
  const LowRankTensors* tensors = files_->low_rank(weight);
  if (!tensors) return {};
  const int64_t rank = tensors->rank, vocab = tensors->in;
  QUIRE_ASSIGN(const std::vector<float> a, files_->read(tensors->a, std::array{rank, vocab}));
  std::vector<float> rows(a.size());
  for (int64_t r = 0; r < rank; ++r) {
    for (int64_t v = 0; v < vocab; ++v) rows[static_cast<size_t>(v * rank + r)] = a[static_cast<size_t>(r * vocab + v)];
  }
  QUIRE_ASSIGN(adapter_->embedding_a, backend_.create_table(vocab, rank, ElementType::kF32, rows.data(), nullptr));
  count(adapter_->embedding_a->bytes, rank * vocab);
  advance(tensors->a);
  QUIRE_ASSIGN(adapter_->embedding_change.b, load_matrix(tensors->b, tensors->out, rank));
  adapter_->embedding_change.scale = tensors->scale;
  adapter_->max_rank = std::max(adapter_->max_rank, rank);
  return {};
}

Status AdapterLoader::load_embedding() {
  const int64_t vocab = config_.vocab_size, hidden = config_.hidden_size;
  if (const std::string* tensor = replacement(kEmbeddingWeight)) {
    QUIRE_ASSIGN(const auto view, files_->tensors().view(*tensor, std::array{vocab, hidden}));
    std::vector<std::byte> raw(static_cast<size_t>(view.bytes));
    QUIRE_TRY(files_->tensors().read(*tensor, 0, raw));
    QUIRE_ASSIGN(adapter_->embedding, backend_.create_table(vocab, hidden, view.type, raw.data(), nullptr));
    count(adapter_->embedding->bytes, vocab * hidden);
    advance(*tensor);
  }
  return load_embedding_change(kEmbeddingWeight);
}

Status AdapterLoader::load_head() {
  if (const std::string* tensor = replacement(kHeadWeight)) {
    QUIRE_ASSIGN(adapter_->lm_head, load_matrix(*tensor, config_.vocab_size, config_.hidden_size));
  }
  QUIRE_TRY(load_low_rank(kHeadWeight, adapter_->head_change));
  return load_norm(weight_layout(config_).final_norm.parts[0].name, adapter_->final_norm);
}

Status AdapterLoader::load_layer(int layer) {
  const LayerLayout layout = layer_layout(config_, layer);
  AdapterLayer& target = adapter_->layers[static_cast<size_t>(layer)];
  size_t projection = 0;  // the parts come in the order of Projection
  for (const WeightParts* matrix : {&layout.qkv, &layout.o, &layout.gate_up, &layout.down}) {
    for (const WeightPart& part : matrix->parts) {
      QUIRE_TRY(load_low_rank(part.name, target.projections[projection++]));
    }
  }
  QUIRE_TRY(load_norm(layout.attention_norm.parts[0].name, target.attention_norm));
  return load_norm(layout.mlp_norm.parts[0].name, target.mlp_norm);
}

Result<bool> AdapterLoader::step() {
  if (options_.cancel && options_.cancel->cancelled()) return Status(Code::kCancelled, "loading was cancelled");
  switch (stage_) {
    case Stage::kOpen:
      QUIRE_TRY(open());
      stage_ = Stage::kHash;
      return false;
    case Stage::kHash:
      QUIRE_TRY(hash());
      if (!identity_) stage_ = Stage::kEmbedding;
      return false;
    case Stage::kEmbedding:
      QUIRE_TRY(load_embedding());
      stage_ = Stage::kHead;
      return false;
    case Stage::kHead:
      QUIRE_TRY(load_head());
      stage_ = Stage::kLayers;
      return false;
    case Stage::kLayers:
      QUIRE_TRY(load_layer(next_layer_++));
      break;
  }
  if (next_layer_ < config_.n_layers) return false;
  advance(total_ - done_);  // copies of the model's own tensors
  return true;
}

}  // namespace quire
