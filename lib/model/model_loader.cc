// Reads a Hugging Face Llama directory into backend weights, a layer per step.
#include <algorithm>
#include <array>
#include <cstring>
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
  Result<std::unique_ptr<Matrix>> load_matrix(const WeightParts& layout);
  Status load_part(Matrix& matrix, const std::string& name, int64_t first_row, int64_t rows, int64_t k);
  Result<std::unique_ptr<Buffer>> load_vector(const WeightParts& layout);
  void count(int64_t bytes, int64_t elements);

  Backend& backend_;
  std::string directory_;
  Options options_;
  ModelConfig config_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<TensorFiles> files_;
  std::unique_ptr<Stream> stream_;
  LlamaWeights weights_;
  int stage_ = 0;  // 0: open, 1: embedding, 2 ...: layers, then head
  int64_t total_ = 0;
  int64_t done_ = 0;
};

void ModelLoader::Impl::count(int64_t bytes, int64_t elements) {
  done_ += bytes;
  weights_.n_parameters += elements;
  if (options_.progress) options_.progress(done_, total_);
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
  files_ = std::move(files);
  QUIRE_ASSIGN(stream_, backend_.create_stream());
  for (const auto& name : files_->names()) {
    const TensorInfo* info = files_->find(name);
    // Tied: as embedding and as head.
    const bool twice = config_.tie_word_embeddings && name == weight_layout(config_).embedding.parts[0].name;
    total_ += (twice ? 2 : 1) * (info->end - info->begin);
  }
  weights_.layers.resize(static_cast<size_t>(config_.n_layers));
  return {};
}

Status ModelLoader::Impl::load_part(Matrix& matrix, const std::string& name, int64_t first_row, int64_t rows,
                                    int64_t k) {
  const std::array<int64_t, 2> shape{rows, k};
  QUIRE_ASSIGN(const auto view, files_->view(name, shape));
  if (view.mapped) {
    QUIRE_TRY(backend_.load_rows(matrix, view.type, view.mapped, first_row, rows));
    files_->drop(name);
  } else {
    const int64_t row_bytes = k * static_cast<int64_t>(element_bytes(view.type));
    const int64_t step = std::clamp<int64_t>(kReadBytes / row_bytes, 1, rows);
    std::vector<std::byte> staging(static_cast<size_t>(step * row_bytes));
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t n = std::min(step, rows - row);
      QUIRE_TRY(files_->read(name, row * row_bytes, std::span(staging.data(), static_cast<size_t>(n * row_bytes))));
      QUIRE_TRY(backend_.load_rows(matrix, view.type, staging.data(), first_row + row, n));
    }
  }
  count(view.bytes, rows * k);
  return {};
}

Result<std::unique_ptr<Matrix>> ModelLoader::Impl::load_matrix(const WeightParts& layout) {
  QUIRE_ASSIGN(const ElementType type, matrix_type(*files_, layout, options_.weight_type));
  QUIRE_ASSIGN(auto matrix, backend_.create_matrix(layout.rows(), layout.k, type));
  int64_t row = 0;
  for (const WeightPart& part : layout.parts) {
    QUIRE_TRY(load_part(*matrix, part.name, row, part.rows, layout.k));
    row += part.rows;
  }
  weights_.bytes += static_cast<int64_t>(matrix->bytes);
  weights_.type = type;
  return matrix;
}

Result<std::unique_ptr<Buffer>> ModelLoader::Impl::load_vector(const WeightParts& layout) {
  std::vector<float> values;
  for (const WeightPart& part : layout.parts) {
    const std::array<int64_t, 1> shape{part.rows};
    QUIRE_ASSIGN(const auto view, files_->view(part.name, shape));
    std::vector<std::byte> raw(static_cast<size_t>(view.bytes));
    QUIRE_TRY(files_->read(part.name, 0, raw));
    for (int64_t i = 0; i < part.rows; ++i) values.push_back(widen(view.type, raw.data(), i));
    count(view.bytes, part.rows);
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
  const std::array<int64_t, 2> shape{layout.parts[0].rows, layout.k};
  QUIRE_ASSIGN(const auto view, files_->view(name, shape));
  std::vector<std::byte> raw;
  if (!view.mapped) {
    raw.resize(static_cast<size_t>(view.bytes));
    QUIRE_TRY(files_->read(name, 0, raw));
  }
  QUIRE_ASSIGN(weights_.embedding,
               backend_.create_table(shape[0], shape[1], view.type, view.mapped ? view.mapped : raw.data(),
                                     view.mapped ? std::shared_ptr<const void>(files_) : nullptr));
  weights_.bytes += static_cast<int64_t>(weights_.embedding->bytes);
  count(view.bytes, shape[0] * shape[1]);
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
  QUIRE_ASSIGN(weights_.lm_head, load_matrix(layout.lm_head));
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
  } else if (stage - 2 < config_.n_layers) {
    status = load_layer(stage - 2);
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
