// Reads a Hugging Face Llama directory into backend weights, a layer per step.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "lib/format/safetensors.h"
#include "lib/model/llama_model.h"
#include "lib/model/weight_layout.h"

namespace quire {
namespace {

// Rows are read and packed in pieces of about this size, so that reading holds little memory beside the weights.
constexpr int64_t kReadBytes = int64_t{16} << 20;

}  // namespace

class ModelLoader::Impl {
 public:
  Impl(Backend& backend, std::string directory, Options options)
      : backend_(backend), directory_(std::move(directory)), options_(std::move(options)) {}

  Result<bool> step();
  std::unique_ptr<LlamaModel> take();

 private:
  Status open();
  Status load_embedding();
  Status load_layer(int layer);
  Status load_head();
  Status open_beacon();
  Status load_beacon_embedding();
  Status load_beacon_layer(int layer);
  Result<std::unique_ptr<Matrix>> load_matrix(const WeightParts& layout, bool head = false);
  Status load_part(Matrix& matrix, const WeightPart& part, const std::string& weight, int64_t first_row, int64_t k);
  Result<std::unique_ptr<Buffer>> load_vector(const WeightParts& layout);
  // Where a weight is read from: the checkpoint, or an adapter that replaces it.
  struct Source {
    std::shared_ptr<const TensorFiles> files;
    std::string name;
  };
  Result<Source> source(const std::string& weight, const std::string& name);
  int64_t stored_bytes(const std::string& name) const;
  void count_tensor(const std::string& weight, const std::string& name, int64_t elements);
  Result<std::vector<float>> read_rows(const Source& from, ElementType type, int64_t first, int64_t elements) const;
  void count(int64_t bytes, int64_t elements);

  Backend& backend_;
  std::string directory_;
  Options options_;
  ModelConfig config_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  CheckpointFiles files_;
  AdapterMerge merge_;
  std::unique_ptr<Stream> stream_;
  LlamaWeights weights_;
  int stage_ = 0;  // 0: open, 1: embedding, 2 ...: layers, then head
  int64_t total_ = 0;
  int64_t done_ = 0;
  std::set<std::string> counted_;
};

void ModelLoader::Impl::count(int64_t bytes, int64_t elements) {
  done_ += bytes;
  weights_.n_parameters += elements;
  if (options_.progress) options_.progress(done_, total_);
}

// Once: projections that beacons share with a layer are packed again with their own.
void ModelLoader::Impl::count_tensor(const std::string& weight, const std::string& name, int64_t elements) {
  if (counted_.insert(weight).second) count(stored_bytes(name), elements);
}

Status ModelLoader::Impl::open() {
  if (!path_is_directory(directory_)) {
    return Status(path_exists(directory_) ? Code::kUnsupported : Code::kNotFound,
                  path_exists(directory_)
                      ? directory_ + " is not a directory: a Hugging Face model directory is expected"
                      : "no such model directory: " + directory_);
  }
  QUIRE_ASSIGN(config_, load_model_config(directory_));
  QUIRE_ASSIGN(tokenizer_, load_tokenizer(directory_, config_.vocab_size));
  QUIRE_ASSIGN(auto files,
               TensorFiles::open(directory_, options_.map ? TensorFiles::Access::kMap : TensorFiles::Access::kRead));
  files_.own = std::move(files);
  QUIRE_TRY(merge_.open(options_.merge, config_, files_.own->access()));
  weights_.merged = merge_.merged();
  QUIRE_ASSIGN(stream_, backend_.create_stream());
  QUIRE_TRY(open_beacon());
  for (const auto& name : files_.own->names()) {
    const TensorInfo* info = files_.own->find(name);
    // Tied: as embedding and as head.
    const bool twice = config_.tie_word_embeddings && name == weight_layout(config_).embedding.parts[0].name;
    total_ += (twice ? 2 : 1) * (info->end - info->begin);
  }
  weights_.layers.resize(static_cast<size_t>(config_.n_layers));
  return {};
}

Status ModelLoader::Impl::open_beacon() {
  files_.beacon = files_.own;
  if (!options_.beacon_directory.empty()) {
    QUIRE_ASSIGN(config_.beacon, load_beacon_settings(options_.beacon_directory));
    QUIRE_ASSIGN(files_.beacon, TensorFiles::open(options_.beacon_directory, files_.own->access()));
    for (const auto& name : files_.beacon->names()) {
      const TensorInfo* info = files_.beacon->find(name);
      if (is_beacon_tensor(name)) total_ += info->end - info->begin;
    }
  }
  if (config_.beacon.window == 0) return {};
  QUIRE_TRY(check_beacon_window(config_));
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
    QUIRE_ASSIGN(*matrix, load_matrix(*parts));
  }
  const std::pair<const WeightParts*, std::unique_ptr<Buffer>*> vectors[] = {{&layout.qkv_bias, &w.qkv_bias},
                                                                             {&layout.o_bias, &w.o_bias},
                                                                             {&layout.gate_up_bias, &w.gate_up_bias},
                                                                             {&layout.down_bias, &w.down_bias}};
  for (const auto& [parts, vector] : vectors) {
    if (parts->parts.empty()) continue;
    QUIRE_ASSIGN(*vector, load_vector(*parts));
  }
  return {};
}

// `weight`: what adapters call the tensor `name`; a tied head is a weight of its own to them.
Result<ModelLoader::Impl::Source> ModelLoader::Impl::source(const std::string& weight, const std::string& name) {
  if (const AdapterMerge::Replacement* r = merge_.replacement(weight)) return Source{r->files, r->tensor};
  if (!weights_.tensor_hashes.contains(name)) {
    QUIRE_ASSIGN(weights_.tensor_hashes[name], files_.of(name)->content_hash(name));
  }
  return Source{files_.of(name), name};
}

// Bytes of the checkpoint's own tensor, which progress is counted in.
int64_t ModelLoader::Impl::stored_bytes(const std::string& name) const {
  const TensorInfo* info = files_.of(name)->find(name);
  return info ? info->end - info->begin : 0;
}

// Elements [first, first + elements) of a tensor, widened.
Result<std::vector<float>> ModelLoader::Impl::read_rows(const Source& from, ElementType type, int64_t first,
                                                        int64_t elements) const {
  const auto size = static_cast<int64_t>(element_bytes(type));
  std::vector<std::byte> raw(static_cast<size_t>(elements * size));
  QUIRE_TRY(from.files->read(from.name, first * size, raw));
  std::vector<float> values(static_cast<size_t>(elements));
  for (int64_t i = 0; i < elements; ++i) values[static_cast<size_t>(i)] = widen(type, raw.data(), i);
  return values;
}

Status ModelLoader::Impl::load_part(Matrix& matrix, const WeightPart& part, const std::string& weight,
                                    int64_t first_row, int64_t k) {
  const int64_t rows = part.rows;
  QUIRE_ASSIGN(const Source from, source(weight, part.name));
  QUIRE_ASSIGN(const auto view, from.files->view(from.name, std::array{rows, k}));
  QUIRE_ASSIGN(const auto deltas, merge_.deltas(weight));
  if (view.mapped && deltas.empty()) {
    QUIRE_TRY(backend_.load_rows(matrix, view.type, view.mapped, first_row, rows));
  } else {
    const int64_t row_bytes = k * static_cast<int64_t>(element_bytes(view.type));
    const int64_t step = std::clamp<int64_t>(kReadBytes / row_bytes, 1, rows);
    std::vector<std::byte> staging(static_cast<size_t>(deltas.empty() ? step * row_bytes : 0));
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t n = std::min(step, rows - row);
      if (deltas.empty()) {
        const std::span piece(staging.data(), static_cast<size_t>(n * row_bytes));
        QUIRE_TRY(from.files->read(from.name, row * row_bytes, piece));
        QUIRE_TRY(backend_.load_rows(matrix, view.type, staging.data(), first_row + row, n));
      } else {
        QUIRE_ASSIGN(std::vector<float> values, read_rows(from, view.type, row * k, n * k));
        AdapterMerge::add(deltas, row, n, values.data());
        QUIRE_TRY(backend_.load_rows(matrix, ElementType::kF32, values.data(), first_row + row, n));
      }
    }
  }
  from.files->drop(from.name);
  count_tensor(weight, part.name, rows * k);
  return {};
}

Result<std::unique_ptr<Matrix>> ModelLoader::Impl::load_matrix(const WeightParts& layout, bool head) {
  QUIRE_ASSIGN(const ElementType type, matrix_type(files_, layout, options_.weight_type));
  QUIRE_ASSIGN(auto matrix, backend_.create_matrix(layout.rows(), layout.k, type));
  int64_t row = 0;
  for (const WeightPart& part : layout.parts) {
    QUIRE_TRY(load_part(*matrix, part, head ? kHeadWeight : part.name, row, layout.k));
    row += part.rows;
  }
  weights_.bytes += static_cast<int64_t>(matrix->bytes);
  if (!head) weights_.type = type;
  weights_.matrix_types.push_back(type);
  return matrix;
}

Result<std::unique_ptr<Buffer>> ModelLoader::Impl::load_vector(const WeightParts& layout) {
  std::vector<float> values;
  for (const WeightPart& part : layout.parts) {
    QUIRE_ASSIGN(const Source from, source(part.name, part.name));
    QUIRE_ASSIGN(const auto view, from.files->view(from.name, std::array{part.rows}));
    QUIRE_ASSIGN(const std::vector<float> read, read_rows(from, view.type, 0, part.rows));
    values.insert(values.end(), read.begin(), read.end());
    count_tensor(part.name, part.name, part.rows);
  }
  const size_t bytes = values.size() * sizeof(float);
  QUIRE_ASSIGN(auto buffer, backend_.allocate(bytes, MemoryKind::kDevice));
  QUIRE_TRY(backend_.upload(*stream_, values.data(), *buffer, 0, bytes));
  QUIRE_TRY(backend_.synchronize(*stream_));
  weights_.bytes += static_cast<int64_t>(bytes);
  return buffer;
}

Status ModelLoader::Impl::load_embedding() {
  const WeightParts layout = weight_layout(config_).embedding;
  const std::string& name = layout.parts[0].name;
  const int64_t rows = layout.parts[0].rows, columns = layout.k;
  QUIRE_ASSIGN(const Source from, source(name, name));
  QUIRE_ASSIGN(const auto view, from.files->view(from.name, std::array{rows, columns}));
  from.files->drop(from.name);  // hashed: read again row by row, as tokens ask for them
  if (merge_.changes(name)) {   // no longer what a file holds
    QUIRE_ASSIGN(std::vector<float> values, read_rows(from, view.type, 0, rows * columns));
    QUIRE_ASSIGN(const auto deltas, merge_.deltas(name));
    AdapterMerge::add(deltas, 0, rows, values.data());
    QUIRE_ASSIGN(weights_.embedding, backend_.create_table(rows, columns, ElementType::kF32, values.data(), nullptr));
  } else if (view.mapped) {
    QUIRE_ASSIGN(weights_.embedding, backend_.create_table(rows, columns, view.type, view.mapped, from.files));
  } else {
    std::vector<std::byte> raw(static_cast<size_t>(view.bytes));
    QUIRE_TRY(from.files->read(from.name, 0, raw));
    QUIRE_ASSIGN(weights_.embedding, backend_.create_table(rows, columns, view.type, raw.data(), nullptr));
  }
  weights_.bytes += static_cast<int64_t>(weights_.embedding->bytes);
  count(stored_bytes(name), rows * columns);
  return {};
}

Status ModelLoader::Impl::load_beacon_embedding() {
  if (!weights_.beacon) return {};
  const WeightParts layout = beacon_embedding_layout(config_);
  const std::string& name = layout.parts[0].name;
  QUIRE_ASSIGN(const Source from, source(name, name));
  QUIRE_ASSIGN(const auto view, from.files->view(from.name, std::array{int64_t{1}, layout.k}));
  QUIRE_ASSIGN(const std::vector<float> row, read_rows(from, view.type, 0, layout.k));
  QUIRE_ASSIGN(weights_.beacon->embedding, backend_.create_table(1, layout.k, ElementType::kF32, row.data(), nullptr));
  weights_.bytes += static_cast<int64_t>(weights_.beacon->embedding->bytes);
  count(stored_bytes(name), layout.k);
  return {};
}

Status ModelLoader::Impl::load_layer(int layer) {
  const LayerLayout layout = layer_layout(config_, layer);
  LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  QUIRE_ASSIGN(w.attention_norm, load_vector(layout.attention_norm));
  QUIRE_ASSIGN(w.qkv, load_matrix(layout.qkv));
  QUIRE_ASSIGN(w.o, load_matrix(layout.o));
  if (config_.attention_bias) {
    QUIRE_ASSIGN(w.qkv_bias, load_vector(layout.qkv_bias));
    QUIRE_ASSIGN(w.o_bias, load_vector(layout.o_bias));
  }
  QUIRE_ASSIGN(w.mlp_norm, load_vector(layout.mlp_norm));
  QUIRE_ASSIGN(w.gate_up, load_matrix(layout.gate_up));
  QUIRE_ASSIGN(w.down, load_matrix(layout.down));
  if (config_.mlp_bias) {
    QUIRE_ASSIGN(w.gate_up_bias, load_vector(layout.gate_up_bias));
    QUIRE_ASSIGN(w.down_bias, load_vector(layout.down_bias));
  }
  return {};
}

Status ModelLoader::Impl::load_head() {
  const WeightLayout layout = weight_layout(config_);
  QUIRE_ASSIGN(weights_.final_norm, load_vector(layout.final_norm));
  const int64_t parameters = weights_.n_parameters;
  QUIRE_ASSIGN(weights_.lm_head, load_matrix(layout.lm_head, true));
  if (config_.tie_word_embeddings) weights_.n_parameters = parameters;  // counted with the embedding
  count(total_ - done_, 0);                                             // tensors that are not used
  return {};
}

Result<bool> ModelLoader::Impl::step() {
  if (options_.cancel && options_.cancel->cancelled()) return Status(Code::kCancelled, "loading was cancelled");
  const int stage = stage_++;
  Status status;
  if (stage == 0) {
    status = open();
  } else if (stage == 1) {
    status = load_embedding();
    if (status.ok()) status = load_beacon_embedding();
  } else if (stage - 2 < config_.n_layers) {
    status = load_layer(stage - 2);
    if (status.ok()) status = load_beacon_layer(stage - 2);
  } else {
    status = load_head();
  }
  if (!status.ok()) return status;
  return stage > 1 && stage - 2 == config_.n_layers;
}

std::unique_ptr<LlamaModel> ModelLoader::Impl::take() {
  return std::make_unique<LlamaModel>(backend_, std::move(config_), std::move(tokenizer_), std::move(weights_));
}

ModelLoader::ModelLoader(Backend& backend, std::string directory, Options options)
    : impl_(std::make_unique<Impl>(backend, std::move(directory), std::move(options))) {}
ModelLoader::~ModelLoader() = default;
Result<bool> ModelLoader::step() { return impl_->step(); }
std::unique_ptr<LlamaModel> ModelLoader::take() { return impl_->take(); }

}  // namespace quire
