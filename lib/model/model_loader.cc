// Reads a checkpoint into backend weights.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "lib/format/safetensors.h"
#include "lib/model/checkpoint.h"
#include "lib/model/model_loader.h"
#include "lib/model/packed_weights.h"
#include "lib/model/weight_layout.h"

namespace quire {

class ModelLoader::Impl {
 public:
  Impl(Backend& backend, std::string path, Options options)
      : backend_(backend), path_(std::move(path)), options_(std::move(options)), pieces_(backend, options_.control) {}

  Result<std::unique_ptr<LlamaModel>> load();
  const std::shared_ptr<const ModelTokenizer>& tokenizer() const { return tokenizer_; }
  const Result<std::string>& packed_file() const { return packed_file_; }

 private:
  Status open();
  Status load_embedding();
  Status load_layer(int layer);
  Status load_head();
  Status open_beacon();
  void open_packed();
  Status load_all();
  Status map_packed();
  Status load_beacon_embedding();
  Status load_beacon_layer(int layer);
  enum class Role { kProjection, kHead };
  Status load_matrix(const WeightParts& layout, std::unique_ptr<Matrix>& matrix, Role role = Role::kProjection);
  Status load_part(Matrix& matrix, const WeightPart& part, const std::string& weight, int64_t first_row);
  Status load_vector(const WeightParts& layout, std::unique_ptr<Buffer>& vector);
  PieceLoader::Source source(const std::string& weight, const std::string& name);
  int64_t stored_bytes(const std::string& name) const;
  void count_tensor(const std::string& weight, const std::string& name, int64_t elements);
  void count(int64_t bytes, int64_t elements);

  Backend& backend_;
  std::string path_;
  Options options_;
  ModelConfig config_;
  std::shared_ptr<const ModelTokenizer> tokenizer_;
  CheckpointFiles files_;
  AdapterMerge merge_;
  LlamaWeights weights_;
  int64_t total_ = 0;
  int64_t done_ = 0;
  std::set<std::string> counted_;
  std::map<ElementType, int64_t> projection_elements_;
  std::unique_ptr<PackedWeights> packed_;  // null: none are wanted
  std::vector<LoadedMatrix> matrices_;     // in the order of loading; their places are in weights_
  size_t n_packed_ = 0;                    // how many matrices were not mapped
  Result<std::string> packed_file_ = Status(Code::kNotFound, "no packed weights are kept");
  PieceLoader pieces_;  // last: the engine is done with what stands above when that goes
};

void ModelLoader::Impl::count(int64_t bytes, int64_t elements) {
  done_ += bytes;
  weights_.n_parameters += elements;
  if (options_.control.progress) options_.control.progress(done_, total_);
}

// Once: projections that beacons share with a layer are packed again with their own.
void ModelLoader::Impl::count_tensor(const std::string& weight, const std::string& name, int64_t elements) {
  if (counted_.insert(weight).second) count(stored_bytes(name), elements);
}

Status ModelLoader::Impl::open() {
  QUIRE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(path_, options_.control.cancel));
  config_ = checkpoint.config();
  QUIRE_TRY(pieces_.poll());
  QUIRE_ASSIGN(tokenizer_, checkpoint.load_tokenizer());
  QUIRE_TRY(pieces_.poll());
  const auto access = options_.map ? TensorFiles::Access::kMap : TensorFiles::Access::kRead;
  QUIRE_ASSIGN(files_.own, checkpoint.open_tensors(access, options_.control.cancel));
  QUIRE_TRY(merge_.open(options_.merge, config_, *files_.own, access, options_.control.cancel));
  weights_.merged = merge_.merged();
  QUIRE_TRY(open_beacon());
  const std::string embedding = weight_layout(config_).embedding.parts[0].name;
  for (const auto& [name, info] : files_.own->tensors()) {
    const bool twice = config_.tie_word_embeddings && name == embedding;  // as embedding and as head
    total_ += (twice ? 2 : 1) * (info.end - info.begin);
  }
  weights_.layers.resize(static_cast<size_t>(config_.n_layers));
  return {};
}

Status ModelLoader::Impl::open_beacon() {
  files_.beacon = files_.own;
  if (!options_.beacon_directory.empty()) {
    QUIRE_ASSIGN(config_.beacon, load_beacon_settings(options_.beacon_directory));
    QUIRE_ASSIGN(files_.beacon,
                 open_safetensors(options_.beacon_directory, files_.own->access(), options_.control.cancel));
    for (const auto& [name, info] : files_.beacon->tensors()) {
      if (is_beacon_tensor(name)) total_ += info.end - info.begin;
    }
  }
  if (config_.beacon.window == 0) return {};
  QUIRE_TRY(check_beacons(config_));
  weights_.beacon = std::make_unique<BeaconWeights>();
  weights_.beacon->layers.resize(static_cast<size_t>(config_.n_layers));
  return {};
}

Status ModelLoader::Impl::load_beacon_layer(int layer) {
  if (!weights_.beacon) return {};
  const LayerLayout layout = beacon_layer_layout(config_, layer);
  BeaconLayerWeights& w = weights_.beacon->layers[static_cast<size_t>(layer)];
  const std::pair<const WeightParts*, std::unique_ptr<Matrix>*> matrices[] = {
      {&layout.qkv, &w.qkv}, {&layout.o, &w.o}, {&layout.gate_up, &w.gate_up}, {&layout.down, &w.down}};
  for (const auto& [parts, matrix] : matrices) {
    if (parts->parts.empty()) continue;
    QUIRE_TRY(load_matrix(*parts, *matrix));
  }
  const std::pair<const WeightParts*, std::unique_ptr<Buffer>*> vectors[] = {{&layout.qkv_bias, &w.qkv_bias},
                                                                             {&layout.o_bias, &w.o_bias},
                                                                             {&layout.gate_up_bias, &w.gate_up_bias},
                                                                             {&layout.down_bias, &w.down_bias}};
  for (const auto& [parts, vector] : vectors) {
    if (parts->parts.empty()) continue;
    QUIRE_TRY(load_vector(*parts, *vector));
  }
  return {};
}

// Where a weight is read from: the checkpoint, or an adapter that replaces it. `weight`: what adapters call the tensor
// `name`; a tied head is a weight of its own to them. A tensor of the checkpoint is hashed the first time it is read.
PieceLoader::Source ModelLoader::Impl::source(const std::string& weight, const std::string& name) {
  if (const AdapterMerge::Replacement* r = merge_.replacement(weight)) return {r->files, r->tensor};
  const auto [hash, is_new] = weights_.tensor_hashes.try_emplace(name);
  return {files_.of(name), name, is_new ? &hash->second : nullptr};
}

// Bytes of the checkpoint's own tensor, which progress is counted in.
int64_t ModelLoader::Impl::stored_bytes(const std::string& name) const {
  const TensorInfo* info = files_.of(name)->find(name);
  return info ? info->end - info->begin : 0;
}

Status ModelLoader::Impl::load_part(Matrix& matrix, const WeightPart& part, const std::string& weight,
                                    int64_t first_row) {
  QUIRE_ASSIGN(const auto deltas, merge_.deltas(weight, options_.control.cancel));
  QUIRE_TRY(pieces_.load_rows(source(weight, part.name), part.rows, AdapterMerge::adding(deltas), part.order, matrix,
                              first_row));
  count_tensor(weight, part.name, part.rows * matrix.k);
  return {};
}

// What is wrong with the file that is there is no error: matrices are packed as without it, and it is written anew.
void ModelLoader::Impl::open_packed() {
  if (options_.packed_directory.empty()) return;
  if (backend_.matrix_layout().empty()) {
    packed_file_ = Status(Code::kUnsupported, "packed weights are kept for the CPU only, not for " + backend_.name());
    return;
  }
  if (!options_.merge.empty()) {
    packed_file_ = Status(Code::kUnsupported, "packed weights are not kept of a model that adapters are merged into");
    return;
  }
  packed_ =
      std::make_unique<PackedWeights>(backend_, options_.packed_directory,
                                      PackedWeights::Origin{path_, options_.beacon_directory, options_.weight_type,
                                                            config_.head_dim, config_.rotary_dim},
                                      files_);
  if (packed_->open().ok()) weights_.tensor_hashes = packed_->tensor_hashes();
}

// Keeps what was packed in a file, and takes the matrices from there as later loads will: their own memory is released,
// and other processes share the file's.
Status ModelLoader::Impl::map_packed() {
  if (!packed_) return {};
  if (n_packed_ > 0) {
    Status status = packed_->write(matrices_, weights_.tensor_hashes, options_.control.cancel);
    if (status.ok()) status = packed_->open();
    QUIRE_TRY(pieces_.poll());
    if (!status.ok()) {
      packed_file_ = std::move(status);
      return {};
    }
    for (const LoadedMatrix& loaded : matrices_) {
      auto mapped = packed_->next(loaded.parts, (*loaded.matrix)->k);
      if (mapped) *loaded.matrix = std::move(mapped);
    }
  }
  packed_file_ = packed_->path();
  return {};
}

Status ModelLoader::Impl::load_matrix(const WeightParts& layout, std::unique_ptr<Matrix>& matrix, Role role) {
  QUIRE_ASSIGN(const auto parts, matrix_parts(files_, layout, options_.weight_type, options_.activation_type));
  const auto weight_name = [&](const WeightPart& part) { return role == Role::kHead ? kHeadWeight : part.name; };
  QUIRE_TRY(pieces_.poll());
  matrix = packed_ ? packed_->next(parts, layout.k) : nullptr;
  if (matrix) {
    for (const WeightPart& part : layout.parts) count_tensor(weight_name(part), part.name, part.rows * layout.k);
  } else {
    ++n_packed_;
    QUIRE_ASSIGN(matrix, pieces_.with_room(backend_.matrix_bytes(parts, layout.k),
                                           [&] { return backend_.create_matrix(parts, layout.k); }));
    int64_t row = 0;
    for (const WeightPart& part : layout.parts) {
      QUIRE_TRY(load_part(*matrix, part, weight_name(part), row));
      row += part.rows;
    }
  }
  if (packed_) matrices_.push_back({parts, &matrix});
  weights_.bytes += static_cast<int64_t>(matrix->bytes);
  for (const MatrixPart& part : parts) {
    weights_.matrix_parts.push_back(part);
    if (role == Role::kProjection) projection_elements_[part.type] += part.rows * layout.k;
  }
  return {};
}

Status ModelLoader::Impl::load_vector(const WeightParts& layout, std::unique_ptr<Buffer>& vector) {
  std::vector<float> values;
  for (const WeightPart& part : layout.parts) {
    QUIRE_TRY(pieces_.read_values(source(part.name, part.name), std::array{part.rows}, values));
    count_tensor(part.name, part.name, part.rows);
  }
  // An adapter's tensors are as in a directory, whatever the model's file is.
  const bool is_own = !merge_.replacement(layout.parts[0].name);
  layout.finish(values, is_own && config_.norm_offset_is_stored);
  QUIRE_ASSIGN(vector, pieces_.load_buffer(std::move(values)));
  weights_.bytes += static_cast<int64_t>(vector->size());
  return {};
}

Status ModelLoader::Impl::load_embedding() {
  const WeightParts layout = weight_layout(config_).embedding;
  const std::string& name = layout.parts[0].name;
  const int64_t rows = layout.rows();
  QUIRE_ASSIGN(const auto deltas, merge_.deltas(name, options_.control.cancel));
  QUIRE_ASSIGN(weights_.embedding,
               pieces_.load_table(source(name, name), rows, layout.k, AdapterMerge::adding(deltas)));
  weights_.bytes += static_cast<int64_t>(weights_.embedding->bytes);
  count(stored_bytes(name), rows * layout.k);
  return {};
}

Status ModelLoader::Impl::load_beacon_embedding() {
  if (!weights_.beacon) return {};
  const WeightParts layout = beacon_embedding_layout(config_);
  const std::string& name = layout.parts[0].name;
  std::vector<float> row;
  QUIRE_TRY(pieces_.read_values(source(name, name), std::array{int64_t{1}, layout.k}, row));
  QUIRE_ASSIGN(weights_.beacon->embedding, backend_.create_table(1, layout.k, ElementType::kF32, row.data(), nullptr));
  weights_.bytes += static_cast<int64_t>(weights_.beacon->embedding->bytes);
  count(stored_bytes(name), layout.k);
  return {};
}

Status ModelLoader::Impl::load_layer(int layer) {
  const LayerLayout layout = layer_layout(config_, layer);
  LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  QUIRE_TRY(load_vector(layout.attention_norm, w.attention_norm));
  QUIRE_TRY(load_matrix(layout.qkv, w.qkv));
  if (config_.qk_norm) {
    QUIRE_TRY(load_vector(layout.q_norm, w.q_norm));
    QUIRE_TRY(load_vector(layout.k_norm, w.k_norm));
  }
  QUIRE_TRY(load_matrix(layout.o, w.o));
  if (config_.qkv_bias) QUIRE_TRY(load_vector(layout.qkv_bias, w.qkv_bias));
  if (config_.o_bias) QUIRE_TRY(load_vector(layout.o_bias, w.o_bias));
  if (config_.sandwich_norms) {
    QUIRE_TRY(load_vector(layout.attention_output_norm, w.attention_output_norm));
    QUIRE_TRY(load_vector(layout.mlp_output_norm, w.mlp_output_norm));
  }
  QUIRE_TRY(load_vector(layout.mlp_norm, w.mlp_norm));
  QUIRE_TRY(load_matrix(layout.gate_up, w.gate_up));
  QUIRE_TRY(load_matrix(layout.down, w.down));
  if (config_.mlp_bias) {
    QUIRE_TRY(load_vector(layout.gate_up_bias, w.gate_up_bias));
    QUIRE_TRY(load_vector(layout.down_bias, w.down_bias));
  }
  return {};
}

Status ModelLoader::Impl::load_head() {
  const WeightLayout layout = weight_layout(config_);
  QUIRE_TRY(load_vector(layout.final_norm, weights_.final_norm));
  const int64_t parameters = weights_.n_parameters;
  QUIRE_TRY(load_matrix(layout.lm_head, weights_.lm_head, Role::kHead));
  if (config_.tie_word_embeddings) weights_.n_parameters = parameters;  // counted with the embedding
  return {};
}

Status ModelLoader::Impl::load_all() {
  QUIRE_TRY(load_embedding());
  QUIRE_TRY(load_beacon_embedding());
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    QUIRE_TRY(load_layer(layer));
    QUIRE_TRY(load_beacon_layer(layer));
  }
  QUIRE_TRY(load_head());
  return pieces_.finish();
}

Result<std::unique_ptr<LlamaModel>> ModelLoader::Impl::load() {
  QUIRE_TRY(pieces_.poll());
  QUIRE_TRY(open());
  open_packed();
  QUIRE_TRY(load_all());
  QUIRE_TRY(map_packed());
  count(total_ - done_, 0);  // tensors that are not used
  const auto most = std::max_element(projection_elements_.begin(), projection_elements_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  weights_.type = most->first;
  return std::make_unique<LlamaModel>(backend_, std::move(config_), std::move(weights_));
}

ModelLoader::ModelLoader(Backend& backend, std::string path, Options options)
    : impl_(std::make_unique<Impl>(backend, std::move(path), std::move(options))) {}
ModelLoader::~ModelLoader() = default;
const Result<std::string>& ModelLoader::packed_file() const { return impl_->packed_file(); }
std::shared_ptr<const ModelTokenizer> ModelLoader::tokenizer() const { return impl_->tokenizer(); }

Result<std::unique_ptr<LlamaModel>> ModelLoader::load() { return impl_->load(); }

}  // namespace quire
